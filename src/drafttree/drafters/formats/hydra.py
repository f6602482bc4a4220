"""Hydra and Hydra++ heads on disk: `hydra_lm_head.pt`."""

import math
import re
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import FLAG, entry
from drafttree.drafters.formats.head_checkpoint import (
    SHARED_LM_HEAD,
    Checkpoint,
    HeadFormat,
    counts,
    describe_heads,
    fill,
    flaws,
    nearest,
    target_sizes,
    usual_rows,
)
from drafttree.drafters.heads import embedding
from drafttree.drafters.hydra import HydraDrafter, HydraHeads, layer_config, prefix_config
from drafttree.models.tensor_parallel import whole

KIND = "Hydra"
MLP, PREFIX_MLP = "mlp", "prefix-mlp"
PREFIX = "prefix_embeding_layer."
LAYER = f"{PREFIX}layers.0."
EMBEDDING = "input_embed_fn.weight"
BLOCK, END = r"hydra_mlp\.\d+\.(\d+)\.linear\..*", r"hydra_lm_head\..*"


def _told_config(tensors: Mapping[str, Tensor], hidden: int) -> LlamaConfig:
    """The configuration of Hydra++'s layer from the sizes of its tensors, without a target."""
    patterns = (r"self_attn\.q_proj\.weight", r"self_attn\.[kv]_proj\.weight", r"mlp\.(gate|up)_proj\.weight")
    queries, keys, mlp = (usual_rows(re.escape(LAYER) + pattern, tensors) or hidden for pattern in patterns)
    width = math.gcd(queries, keys)
    fields = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": queries // width,
        "num_key_value_heads": keys // width,
        "head_dim": width,
        "attention_bias": f"{LAYER}self_attn.q_proj.bias" in tensors,
        "mlp_bias": f"{LAYER}mlp.up_proj.bias" in tensors,
    }
    try:
        return layer_config(fields)
    except Exception as error:
        raise ModelError(
            f"{LAYER}self_attn has {queries} rows of queries and {keys} of keys and values; no attention layer "
            f"{hidden} wide has those"
        ) from error


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> HydraDrafter:
    """The drafter of a checkpoint's tensors.

    An embedding that is absent, or equal to the target's, is the target's.

    Args:
        tensors: tensors of the checkpoint, by name.
        config: its `config.json`.
        target: the model the heads were trained on.

    Raises:
        ModelError: `parse` raised it; or tensors are missing, unexpected, misshapen or not finite, or the heads
            were made for another target.
    """
    found = parse(tensors, config, prefix_config(target.config))
    found.check(target)
    heads = found.heads
    fill(heads, found.tensors, target)
    if prefix := heads.prefix_embeding_layer:
        prefix.rotary_emb = LlamaRotaryEmbedding(prefix.config).to(target.device)
    if heads.input_embed_fn and torch.equal(heads.input_embed_fn.weight, whole(embedding(target).weight)):
        heads.input_embed_fn = None
    return HydraDrafter(heads, target)


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], layer: LlamaConfig | None = None
) -> Checkpoint[HydraHeads]:
    """Understand a checkpoint and list what is wrong with it, with or without a target.

    Heads and their blocks are counted from the names. Projections are the target's where the config says
    `shared_lm_head`.

    Args:
        tensors: tensors of `hydra_lm_head.pt`.
        config: its `config.json`: `hydra_head_arch` ("mlp", or "prefix-mlp" for Hydra++), `hidden_state_offset`,
            `shared_lm_head`, the target's sizes.
        layer: what `prefix_config` says of the target, None where there is none.

    Raises:
        ModelError: there is no head, it is of an architecture other than these two, or the config gives a field as
            what it cannot be.
    """
    tensors = {name: tensor for name, tensor in tensors.items() if not _unused(name)}
    if not any(re.match(BLOCK, name) for name in tensors):
        raise ModelError("there is no Hydra head among the tensors: none has a name like hydra_mlp.0.0.linear.weight")
    shared = bool(entry(config, SHARED_LM_HEAD, FLAG))
    vocab = (not shared and usual_rows(END, tensors)) or usual_rows(EMBEDDING, tensors)
    made_for = target_sizes(config, {"hidden size": usual_rows(BLOCK, tensors), "vocabulary": vocab})
    hidden, vocab = (made_for.get(name, 1) for name in ("hidden size", "vocabulary"))
    prefixed = _architecture(tensors, config) == PREFIX_MLP
    blocks = {max(1, slots // 2) if prefixed else slots for slots in counts(BLOCK, tensors)}
    make = partial(
        HydraHeads,
        hidden=hidden,
        vocab=vocab,
        prefix=(layer or _told_config(tensors, hidden)) if prefixed else None,
        shared=shared,
        grounded=any(".res_connection." in name for name in tensors),
        embeds=EMBEDDING in tensors,
    )
    variants = product(counts(r"hydra_mlp\.(\d+)\.", tensors), sorted(blocks, reverse=True))
    with torch.device("meta"):
        heads = nearest(tensors, (make(*sizes) for sizes in variants))
    return Checkpoint(KIND, heads, tensors, made_for, tuple(flaws(heads, tensors)))


def _unused(name: str) -> bool:
    """Tensors of published checkpoints that follow from others or are never read."""
    return name.startswith(PREFIX) and name.endswith(("embed_tokens.weight", "rotary_emb.inv_freq"))


def _architecture(tensors: Mapping[str, Tensor], config: Mapping[str, object]) -> str:
    """The architecture a config names, else the one the tensors' names tell."""
    found = PREFIX_MLP if any(name.startswith(PREFIX) for name in tensors) else MLP
    architecture, offset = config.get("hydra_head_arch", found), config.get("hidden_state_offset", 0)
    if architecture not in (MLP, PREFIX_MLP):
        raise ModelError(f"hydra_head_arch is {architecture!r}; drafttree reads Hydra heads of type mlp and prefix-mlp")
    if offset:
        raise ModelError(f"hidden_state_offset is {offset!r}; drafttree reads Hydra heads made for 0")
    return str(architecture)


NAMES = re.compile(r"(hydra_(mlp|lm_head|head)|prefix_embeding_layer)\.")
FORMAT = HeadFormat("hydra", KIND, NAMES, parse, load, describe_heads)
