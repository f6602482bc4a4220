"""Heads of a layer or a few: Medusa (`medusa_lm_head.pt`), Hydra and Hydra++ (`hydra_lm_head.pt`), EAGLE-1 and 2."""

import math
import re
from collections.abc import Collection, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.eagle import EagleConfig, EagleHead, eagle_drafter
from drafttree.drafters.formats.config import DecoderLayers, Fields, Flag, Object, TargetSizes
from drafttree.drafters.formats.format import (
    DECODER_LAYER,
    EMBEDDING,
    HEAD,
    Checkpoint,
    HeadFormat,
    add_output_biases,
    any_name,
    counts,
    flaws,
    nearest,
    renamed,
    usual_rows,
    with_layers,
)
from drafttree.drafters.head_backend import choose_head_backend
from drafttree.drafters.heads import (
    HydraDrafter,
    HydraHeads,
    MedusaDrafter,
    MedusaHeads,
    layer_config,
    prefix_config,
)
from drafttree.drafters.target_parts import embedding_weight, last_layer, own_bytes
from drafttree.models.tensor_parallel import whole

INSIDE = re.compile(r"medusa_heads?\.")
"""The beginning of the names of Medusa heads within a full model."""
MEDUSA_BLOCK = r"\d+\.(\d+)\.linear\..*"
HYDRA_BLOCK = r"hydra_mlp\.\d+\.(\d+)\.linear\..*"
"""Names of tensors of residual blocks; the group is the block's number."""
MLP, PREFIX_MLP = "mlp", "prefix-mlp"
PREFIX = "prefix_embeding_layer."
OWN_EMBEDDING = "input_embed_fn.weight"
DERIVED = re.compile(rf"{PREFIX}.*(embed_tokens\.weight|rotary_emb\.inv_freq)")
"""Tensors of published Hydra heads that are not read."""
SPECULATORS = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
"""SafeAILab's prefixes of names in EAGLE heads, by those of vLLM speculators."""


class HeadFields(TargetSizes):
    """The fields of Medusa and Hydra heads. With `shared_lm_head` they have no output layers of their own."""

    shared_lm_head: Flag | None = None
    hydra_head_arch: Any = None
    hidden_state_offset: Any = 0

    def is_prefixed(self, names: Collection[str]) -> bool:
        """Whether an attention layer precedes Hydra's heads, by the field or else by the tensors' names.

        Raises:
            ModelError: If the heads are of another type.
        """
        architecture = self.hydra_head_arch
        if architecture is None:
            return any_name(PREFIX)(names)
        if architecture not in (MLP, PREFIX_MLP):
            raise ModelError(
                f"hydra_head_arch is {architecture!r}; drafttree reads Hydra heads of type mlp and prefix-mlp"
            )
        return architecture == PREFIX_MLP


class EagleFields(Fields):
    """The fields of an EAGLE head besides those of its decoder layers."""

    transformer_layer_config: Object
    bias: Flag = False
    fusion_bias: Flag = False
    layernorms: Flag = False


def parse_medusa(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[MedusaHeads]:
    """Read Medusa heads, alone or within a full model (Medusa-2), whose other tensors are left out.

    The names tell the numbers of heads and blocks, since published configs have wrong numbers. Heads without an output
    layer (an early public variant, and heads from the recipe) use the target's.
    """
    head_tensors = _inside_model(tensors) or dict(tensors)
    if not any(re.match(MEDUSA_BLOCK, name) for name in head_tensors):
        raise ModelError("there is no Medusa head among the tensors: none has a name such as 0.0.linear.weight")
    fields = HeadFields.read(config)
    variant = _nearest_medusa(head_tensors, fields.shared_lm_head)
    vocab = None if variant.shares_output else usual_rows(rf"\d+\.{variant.layers}\.weight", head_tensors)
    made_for = fields.made_for({"hidden size": usual_rows(MEDUSA_BLOCK, head_tensors), "vocabulary": vocab})
    hidden_size = made_for.get("hidden size", 1)
    vocab = made_for.get("vocabulary", 1)
    with torch.device("meta"):
        heads = MedusaHeads(variant.count, variant.layers, hidden_size, vocab, shares_output=variant.shares_output)
    return Checkpoint(heads, head_tensors, made_for, tuple(flaws(heads, head_tensors)), _described(heads))


def _inside_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of Medusa heads within a full model, by their names in a file of heads alone."""
    head_tensors = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if match := INSIDE.match(name):
            head_tensors[name[match.end() :]] = tensor
    return head_tensors


def _nearest_medusa(tensors: Mapping[str, Tensor], shares_output: bool | None) -> MedusaHeads:
    """Build heads of width 1 with the numbers of heads and blocks that fit the tensors' names best.

    If `shares_output` is None, heads with and without output layers are tried.
    """
    sharings = (False, True) if shares_output is None else (shares_output,)
    sizes = product(counts(r"(\d+)\.", tensors), counts(MEDUSA_BLOCK, tensors), sharings)
    return nearest(tensors, (MedusaHeads(heads, layers, 1, 1, shares_output=shares) for heads, layers, shares in sizes))


def parse_hydra(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[HydraHeads]:
    """Read Hydra heads. The names tell the numbers of heads and blocks.

    Hydra++ has an attention layer of the target's sizes; without a target, the tensors tell the sizes.
    """
    head_tensors = {name: tensor for name, tensor in tensors.items() if not DERIVED.fullmatch(name)}
    if not any(re.match(HYDRA_BLOCK, name) for name in head_tensors):
        raise ModelError("there is no Hydra head among the tensors: none has a name like hydra_mlp.0.0.linear.weight")
    fields = HeadFields.read(config)
    prefixed = fields.is_prefixed(head_tensors)
    if fields.hidden_state_offset:
        raise ModelError(
            f"hidden_state_offset is {fields.hidden_state_offset!r}; drafttree reads Hydra heads made for 0"
        )
    shares_output = bool(fields.shared_lm_head)
    vocab = (not shares_output and usual_rows(r"hydra_lm_head\..*", head_tensors)) or usual_rows(
        OWN_EMBEDDING, head_tensors
    )
    made_for = fields.made_for({"hidden size": usual_rows(HYDRA_BLOCK, head_tensors), "vocabulary": vocab})
    hidden_size = made_for.get("hidden size", 1)
    vocab = made_for.get("vocabulary", 1)
    make = partial(
        HydraHeads,
        hidden_size=hidden_size,
        vocab=vocab,
        prefix=(prefix_config(target.config) if target else _prefix(head_tensors, hidden_size)) if prefixed else None,
        shares_output=shares_output,
        grounded=any(".res_connection." in name for name in head_tensors),
        embeds=OWN_EMBEDDING in head_tensors,
    )
    blocks = {max(1, slots // 2) if prefixed else slots for slots in counts(HYDRA_BLOCK, head_tensors)}
    variants = product(counts(r"hydra_mlp\.(\d+)\.", head_tensors), sorted(blocks, reverse=True))
    heads = nearest(head_tensors, (make(*sizes) for sizes in variants))
    return Checkpoint(heads, head_tensors, made_for, tuple(flaws(heads, head_tensors)), _described(heads))


def parse_eagle(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[EagleHead]:
    """Read an EAGLE-1 or EAGLE-2 head of SafeAILab, or of vLLM speculators without norms of its own."""
    if not config:
        raise ModelError("config.json is missing or empty; an EAGLE head needs the one it was published with")
    fields = EagleFields.read(config)
    if fields.layernorms:
        raise ModelError(
            "config.json gives layernorms as true: drafttree does not run the additional norms of vLLM's "
            "speculators; use a head without them, or an EAGLE-3 head"
        )
    head_tensors, spelled = renamed(tensors, SPECULATORS, r".*\.inv_freq$")
    add_output_biases(head_tensors)
    biased = "fc.bias" in head_tensors or fields.bias or fields.fusion_bias
    layer_fields = DecoderLayers.read(fields.transformer_layer_config or config)
    sizes = counts(DECODER_LAYER, head_tensors)
    head = nearest(
        head_tensors, (EagleHead(EagleConfig(layer_fields.config(head_tensors, layers), biased)) for layers in sizes)
    )
    return with_layers(head, head_tensors, spelled, head.config.hidden, {EMBEDDING, HEAD})


def _prefix(tensors: Mapping[str, Tensor], hidden_size: int) -> LlamaConfig:
    """The configuration of Hydra++'s attention layer, by the sizes of its tensors."""
    layer = f"{PREFIX}layers.0."
    prefix = re.escape(layer)
    queries = usual_rows(prefix + r"self_attn\.q_proj\.weight", tensors) or hidden_size
    keys = usual_rows(prefix + r"self_attn\.[kv]_proj\.weight", tensors) or hidden_size
    mlp = usual_rows(prefix + r"mlp\.(gate|up)_proj\.weight", tensors) or hidden_size
    width = math.gcd(queries, keys)
    fields = {
        "hidden_size": hidden_size,
        "intermediate_size": mlp,
        "num_attention_heads": queries // width,
        "num_key_value_heads": keys // width,
        "head_dim": width,
        "attention_bias": f"{layer}self_attn.q_proj.bias" in tensors,
        "mlp_bias": f"{layer}mlp.up_proj.bias" in tensors,
    }
    try:
        return layer_config(fields)
    except Exception as error:
        raise ModelError(
            f"{layer}self_attn has {queries} rows of queries and {keys} of keys and values; no attention layer "
            f"{hidden_size} wide has those"
        ) from error


def _described(heads: MedusaHeads | HydraHeads) -> dict[str, object]:
    return {"heads": heads.count, "output layers": "the target's" if heads.shares_output else "own"}


def _hydra(checkpoint: Checkpoint[HydraHeads], target: PreTrainedModel) -> Drafter:
    """Make the drafter. If its embedding equals the target's, it uses the target's."""
    heads = checkpoint.filled(target)
    if heads.input_embed_fn and torch.equal(heads.input_embed_fn.weight, whole(embedding_weight(target))):
        heads.input_embed_fn = None
    return HydraDrafter(heads, target)


def _eagle(checkpoint: Checkpoint[EagleHead], target: PreTrainedModel) -> Drafter:
    head = checkpoint.filled(target)
    return eagle_drafter(head, (last_layer(target),), own_bytes(head, target), choose_head_backend)


MEDUSA = HeadFormat(
    "medusa",
    "Medusa",
    any_name(r"medusa_heads?\.|\d+\.\d+\.(linear\.)?(weight|bias)$"),
    parse_medusa,
    lambda checkpoint, target: MedusaDrafter(checkpoint.filled(target), target),
)
HYDRA = HeadFormat(
    "hydra", "Hydra", any_name(r"(hydra_(mlp|lm_head|head)|prefix_embeding_layer)\."), parse_hydra, _hydra
)
EAGLE = HeadFormat("eagle", "EAGLE", any_name(r"(model\.)?(fc|fusion_fc)\.(weight|bias)$"), parse_eagle, _eagle)
