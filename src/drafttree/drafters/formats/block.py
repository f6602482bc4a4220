"""Block drafters on disk: the formats of z-lab (DFlash, DFlash2), JetSpec, DeepSpec, speculators and transformers.

They have the same layers and differ in where the configuration keeps its fields, in how the target's hidden states are
counted, and in which rows of a block predict.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel, Qwen3Config

from drafttree.core.errors import ModelError
from drafttree.drafters.block import BlockDrafter
from drafttree.drafters.block_layers import SELECTOR, BlockConfig, BlockLayers
from drafttree.drafters.formats.checkpoints import COUNT, FLAG, NUMBER, OBJECT, SIZE, TEXT, TEXTS, entry
from drafttree.drafters.formats.decoder_layers import LAYERS, SLIDING, layer_config, size_of
from drafttree.drafters.formats.draft_vocabulary import check_maps, target_ids
from drafttree.drafters.formats.head_checkpoint import (
    SHARED_LM_HEAD,
    Checkpoint,
    HeadFormat,
    counts,
    fill,
    flaws,
    usual_rows,
)
from drafttree.drafters.heads import embedding, logits_scaling, own_bytes, projection
from drafttree.drafters.transitions import TRANSITIONS
from drafttree.models.tensor_parallel import whole

KIND = "block"
DSPARK = "Qwen3DSparkModel"
EMBEDDING, HEAD, OWN_MASK = "embed_tokens.weight", "lm_head.weight", "mask_embedding"
RENAMED = {
    "logit_head.": "",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "candidate_selector.predecessor_codebook": "markov_head.predecessor_codebook.weight",
    "candidate_selector.successor_codebook": "markov_head.successor_codebook.weight",
    "candidate_selector.": "markov_head.",
    "mask_embedding.weight": OWN_MASK,
}
"""What SpecForge's DSpark, transformers' assistants and DFlash2 call otherwise."""
LEFT_OUT = re.compile(r"verifier_norm\.|confidence_head\.|rotary_emb\.")
"""What is only trained with, or, as the confidence head, not used."""
ASSISTANTS = ("muse_glimmer_assistant",)
"""Model types of transformers that are block drafters."""
CONFIDENCE = "confidence_head.proj.weight"
NON_CAUSAL = "sliding_window_non_causal"


@dataclass(frozen=True)
class BlockCheckpoint(Checkpoint[BlockLayers]):
    """A block drafter as it was found.

    Attributes:
        maps: `d2t` and `t2d`, where they are there.
        layers: the target's hidden states that are read, counted as in `Model.forward`.
        confidence: whether there is a confidence head, which is not used.
    """

    maps: dict[str, Tensor]
    layers: tuple[int, ...]
    confidence: bool

    def check(self, target: PreTrainedModel) -> None:
        """Compare with the target it is to draft for.

        Raises:
            ModelError: it was made for another target, has problems, or reads states that the target does not have.
        """
        super().check(target)
        depth, width = target.config.get_text_config().num_hidden_layers, projection(target).weight.shape[1]
        own_width = self.heads.config.layer.hidden_size
        if max(self.layers) == depth:
            raise ModelError(
                "this block drafter reads the output of the target's last layer before its norm, which is not served; "
                "use a drafter that reads earlier layers"
            )
        if max(self.layers) > depth:
            raise ModelError(
                f"this block drafter reads the hidden states {', '.join(map(str, self.layers))} of a target, which has "
                f"{depth} layers; use it with the model it was trained on"
            )
        borrowed = [name for name in (EMBEDDING, HEAD) if name not in self.tensors]
        if borrowed and own_width != width:
            raise ModelError(
                f"this block drafter is {own_width} wide and has no {borrowed[0]} of its own; the target's is {width} "
                "wide"
            )


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> BlockDrafter:
    """The drafter of a checkpoint, in the target's dtype and on its device.

    Raises:
        ModelError: the checkpoint is incomplete or asks for what is not served, or it was made for another target.
    """
    found = parse(tensors, config)
    found.check(target)
    block, ids = found.heads, target_ids(found.maps)
    given = dict(found.tensors)
    if EMBEDDING not in given:
        given[EMBEDDING] = whole(embedding(target).weight.detach())
        scale = float(getattr(embedding(target), "embed_scale", 1.0))
        block.config = replace(block.config, input_scale=block.config.input_scale * scale)
    if HEAD not in given:
        weight = whole(projection(target).weight.detach())
        given[HEAD] = weight if ids is None else weight[ids.to(weight.device)]
        if block.config.output_scale == 1 and block.config.softcap is None:
            scale, bound = logits_scaling(target)
            block.config = replace(block.config, output_scale=scale, softcap=bound)
    fill(block, given, target)
    block.rotary = type(block.rotary)(block.config.layer).to(target.device).eval()
    block.target_ids = None if ids is None else ids.to(target.device)
    return BlockDrafter(block, found.layers, own_bytes(block, target))


def parse(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> BlockCheckpoint:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Raises:
        ModelError: the configuration is missing, lacks a size, gives a field as what it cannot be, or asks for what is
            not served.
    """
    if not config:
        raise ModelError("config.json is missing or empty; a block drafter needs the one it was published with")
    named = {_renamed(name): tensor for name, tensor in tensors.items()}
    if OWN_MASK in named:
        named[OWN_MASK] = named[OWN_MASK].flatten()
    own = {name: tensor for name, tensor in named.items() if not LEFT_OUT.match(name)}
    maps = {name: own.pop(name) for name in ("d2t", "t2d") if name in own}
    options = _options(config)
    layers = _states_read(config, options)
    with torch.device("meta"):
        block = BlockLayers(_config(config, options, own, len(layers)))
    borrowed = {EMBEDDING} | (set() if "d2t" in maps else {HEAD})
    spelled = {_renamed(name): name for name in tensors}
    problems = flaws(block, own, borrowed, lambda name: spelled.get(name, name)) + check_maps(
        block.config.vocab, block.config.draft_vocab, maps
    )
    made_for = {"hidden size": block.config.target_hidden, "vocabulary": block.config.vocab}
    depth = entry(options, "num_target_layers", SIZE) or entry(options, "base_num_hidden_layers", SIZE)
    made_for |= {"number of layers": depth} if depth else {}
    return BlockCheckpoint(KIND, block, own, made_for, tuple(problems), maps, layers, CONFIDENCE in named)


def public_config(config: BlockConfig, layer_ids: Sequence[int]) -> dict[str, Any]:
    """The `config.json` of a drafter in DeepSpec's format, whose embedding and projection are the target's.

    Args:
        config: of the drafter.
        layer_ids: the layers of the target whose outputs are read.
    """
    layer: Any = config.layer
    fields = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    fields += ("head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings")
    return {
        "architectures": [DSPARK],
        "model_type": "qwen3",
        **{field: getattr(layer, field) for field in fields},
        "rope_theta": layer.rope_parameters["rope_theta"],
        "vocab_size": config.vocab,
        "block_size": config.block,
        "mask_token_id": config.mask_token,
        "target_layer_ids": [*layer_ids],
        "markov_rank": config.rank,
        "markov_head_type": config.transition,
        "enable_confidence_head": False,
        "tie_word_embeddings": False,
        SHARED_LM_HEAD: True,
    }


def _renamed(name: str) -> str:
    name = name.removeprefix("model.")
    return next((own + name.removeprefix(other) for other, own in RENAMED.items() if name.startswith(other)), name)


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a configuration: its own, those in `dflash_config`, and those of its decoder layers.

    Layers have a window where `layer_types` says so or, where it names none, all with `use_swa` (MiMo). transformers
    leaves out fields that have their defaults, and its window reaches one token farther back.
    """
    layer = entry(config, "transformer_layer_config", OBJECT) or {}
    options = {**layer, **config, **(entry(config, "dflash_config", OBJECT) or {})}
    if (kind := entry(config, "model_type", TEXT)) in ASSISTANTS:
        try:
            made = CONFIG_MAPPING[kind](**config)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(f"config.json makes no configuration of transformers' {kind} ({reason})") from error
        options = {"vocab_size": made.mask_token_id + 1, **made.to_dict(), "sliding_window": made.sliding_window + 1}
    if window := entry(options, "swa_window_size", SIZE):
        options["sliding_window"] = window
    if SLIDING in (entry(options, "layer_types", TEXTS) or ()):
        return {**options, "use_sliding_window": True}
    if entry(options, "use_swa", FLAG):
        layers = [SLIDING] * size_of(options, "num_hidden_layers")
        return {**options, "use_sliding_window": True, "layer_types": layers, NON_CAUSAL: True}
    return {**options, "sliding_window": None}


def _states_read(config: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    """The hidden states of the target that are read: numbers as such, or outputs of layers, one less.

    speculators (`aux_hidden_state_layer_ids`) counts as transformers' `hidden_states`; z-lab, DeepSpec and transformers
    (`target_layer_ids`) name layers whose outputs are read, -1 for the embeddings. z-lab's code spreads them over the
    target where it is told none.
    """
    if states := entry(config, "aux_hidden_state_layer_ids", LAYERS):
        return tuple(states)
    if layers := entry(options, "target_layer_ids", LAYERS):
        if min(layers) < -1:
            raise ModelError(f"config.json gives target_layer_ids as {layers}; they are counted from 0")
        return tuple(layer + 1 for layer in layers)
    layers, depth = entry(options, "num_hidden_layers", SIZE), entry(options, "num_target_layers", SIZE)
    if layers is None or depth is None or (layers > 1 and depth < 5):
        raise ModelError("config.json gives no target_layer_ids; it must name the target's layers that are read")
    if layers == 1:
        return (depth // 2 + 1,)
    return tuple(round(1 + index * (depth - 4) / (layers - 1)) + 1 for index in range(layers))


def _config(
    config: Mapping[str, Any], options: Mapping[str, Any], tensors: dict[str, Tensor], states: int
) -> BlockConfig:
    """The configuration of a block drafter.

    Raises:
        ModelError: it lacks a size, gives a field as what it cannot be, or asks for what is not served.
    """
    promised = entry(options, "num_hidden_layers", SIZE) or 0
    layer = layer_config(options, tensors, max(promised, counts(r"layers\.(\d+)\.", tensors)[0]))
    if not isinstance(layer, Qwen3Config):
        raise ModelError(
            "the decoder layers have no q and k norms; drafttree runs block drafters with layers of Qwen 3"
        )
    vocab, hidden = size_of(options, "vocab_size"), size_of(options, "hidden_size")
    block, mask = size_of(options, "block_size"), entry(options, "mask_token_id", COUNT)
    if mask is None or mask >= vocab:
        raise ModelError(
            f"config.json gives mask_token_id as {mask}; it must be one of {vocab} token ids, the one the drafter was "
            "trained with"
        )
    names = [*(entry(config, "architectures", TEXTS) or ())]
    names += [entry(options, name, TEXT) or "" for name in ("projector_type", "speculators_model_type")]
    is_dspark = any("dspark" in name.lower() for name in names)
    from_root = entry(options, "sample_from_anchor", FLAG)
    from_root = is_dspark if from_root is None else from_root
    shifted = bool(entry(options, "draft_shift", FLAG))
    if block < 2 and not from_root:
        raise ModelError(f"config.json gives block_size as {block}; the first row drafts nothing, so it is at least 2")
    kind, rank, candidates = _transition(options, tensors, vocab)
    convolution, group = entry(options, "conv_kernel_size", COUNT) or 0, entry(options, "conv_group_size", SIZE) or 1
    if hidden % group:
        raise ModelError(f"config.json gives conv_group_size as {group}, which does not divide a width of {hidden}")
    fused = tensors.get("fc.weight")
    wide = fused.shape[1] // states if fused is not None and fused.ndim == 2 else None
    return BlockConfig(
        layer=layer,
        vocab=vocab,
        draft_vocab=entry(options, "draft_vocab_size", SIZE) or usual_rows(r"lm_head\.weight", tensors) or vocab,
        target_hidden=entry(options, "target_hidden_size", SIZE) or wide or hidden,
        states=states,
        block=block,
        mask_token=mask,
        levels=block if from_root else block - 1,
        from_root=from_root or shifted,
        causal=_causal(config, options, layer),
        sinks=bool(entry(options, "attention_sink_bias", FLAG) or entry(options, "add_swa_attention_sink_bias", FLAG)),
        own_mask=OWN_MASK in tensors,
        transition=kind,
        rank=rank,
        candidates=candidates,
        convolution=convolution,
        group=group,
        input_scale=float(entry(options, "input_embedding_scale", NUMBER) or 1.0),
        output_scale=float(entry(options, "output_multiplier", NUMBER) or 1.0),
        softcap=entry(options, "final_logit_softcapping", NUMBER),
    )


def _transition(options: Mapping[str, Any], tensors: Mapping[str, Tensor], vocab: int) -> tuple[str | None, int, int]:
    """The kind of the transition, its rank, and the candidates of a level; None without.

    speculators leaves kind and rank out where they have their defaults; the tensors tell them.
    """
    if rank := entry(options, "selector_rank", COUNT):
        if (candidates := size_of(options, "selector_top_k")) > vocab:
            raise ModelError(f"config.json gives selector_top_k as {candidates}; the vocabulary has {vocab} tokens")
        return SELECTOR, rank, candidates
    table = tensors.get("markov_head.markov_w1.weight")
    found = table.shape[-1] if table is not None and table.ndim else 0
    parts = {"joint_proj": "rnn", "gate_proj": "gated"}
    usual = next((kind for part, kind in parts.items() if f"markov_head.{part}.weight" in tensors), "vanilla")
    rank, kind = entry(options, "markov_rank", COUNT) or found, entry(options, "markov_head_type", TEXT) or usual
    if rank and kind not in TRANSITIONS:
        raise ModelError(f"config.json gives markov_head_type as {kind!r}; drafttree knows {', '.join(TRANSITIONS)}")
    return (kind, rank, 0) if rank else (None, 0, 0)


def _causal(config: Mapping[str, Any], options: Mapping[str, Any], layer: Qwen3Config) -> tuple[bool, ...]:
    """Whether each layer is causal within a block.

    What a file says of all layers holds (`causal`, as JetFlow's do). Where nothing is said, layers without a window are
    not, and those with one depend on who has written the file, as the masks they were trained with do:

    - transformers' assistants and those of `use_swa` (MiMo): not causal;
    - speculators: causal but for `sliding_window_non_causal`, which DFlash2 has unless it says otherwise;
    - z-lab, SpecForge and DeepSpec, as vLLM reads them: causal.
    """
    sliding = tuple(kind == SLIDING for kind in layer.layer_types or ())
    said = [entry(options, name, FLAG) for name in ("causal", "causal_head", "is_causal")]
    if (told := next((each for each in said if each is not None), None)) is not None:
        return (told,) * len(sliding)
    whole = entry(options, NON_CAUSAL, FLAG)
    if whole is None:
        whole = config.get("speculators_model_type") == "dflash2" or config.get("model_type") in ASSISTANTS
    return (False,) * len(sliding) if whole else sliding


def _described(found: BlockCheckpoint) -> dict[str, object]:
    """The facts that `drafttree inspect` prints."""
    config, own = found.heads.config, found.tensors
    parts = ["own" if name in own else "the target's" for name in (EMBEDDING, HEAD)]
    return {
        "hidden states read": ", ".join(map(str, found.layers)),
        "drafted levels": config.levels,
        "attention in a block": ", ".join("causal" if each else "whole" for each in config.causal),
        "transition": config.transition or "none: drafts do not depend on their path",
        "confidence head": "there, but not used" if found.confidence else "none",
        "draft vocabulary": config.draft_vocab if "d2t" in found.maps else f"{config.draft_vocab} (all)",
        "decoder layers": config.layer.num_hidden_layers,
        "embedding": parts[0],
        "output layer": parts[1],
    }


NAMES = re.compile(r"(model\.)?(hidden_norm\.weight$|encoder\.output_norm_enc\.|markov_head\.|candidate_selector\.)")
FORMAT = HeadFormat("block", KIND, NAMES, parse, load, _described)
