"""Medusa heads on disk: `medusa_lm_head.pt`, its safetensors twin, or a full model with heads."""

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

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
from drafttree.drafters.medusa import MedusaDrafter, MedusaHeads

KIND = "Medusa"
INSIDE = re.compile(r"medusa_heads?\.")
BLOCK = r"\d+\.(\d+)\.linear\..*"


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> MedusaDrafter:
    """The drafter of a checkpoint's tensors.

    Args:
        tensors: tensors of the checkpoint, by name.
        config: its `config.json`.
        target: the model the heads were trained on.

    Raises:
        ModelError: `parse` raised it; or tensors are missing, unexpected, misshapen or not finite, or the heads
            were made for another target.
    """
    found = parse(tensors, config)
    found.check(target)
    fill(found.heads, found.tensors, target)
    return MedusaDrafter(found.heads, target)


def parse(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Checkpoint[MedusaHeads]:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Heads and their blocks are counted from the names, since published configs miscount them. Heads without a
    projection of their own (an early public variant, and what the recipe writes) use the target's; a full model with
    heads under `medusa_head.` (Medusa-2) has the rest of its tensors ignored.

    Args:
        tensors: tensors of `medusa_lm_head.pt`, its safetensors twin, or a full model with heads.
        config: its `config.json`, of which `shared_lm_head` and the target's sizes are read.

    Raises:
        ModelError: there is no head, or the config gives a field as what it cannot be.
    """
    inside = {name[match.end() :]: tensor for name, tensor in tensors.items() if (match := INSIDE.match(name))}
    tensors = inside or dict(tensors)
    if not any(re.match(BLOCK, name) for name in tensors):
        raise ModelError("there is no Medusa head among the tensors: none has a name such as 0.0.linear.weight")
    said = entry(config, SHARED_LM_HEAD, FLAG)
    variants = product(counts(r"(\d+)\.", tensors), counts(BLOCK, tensors), (False, True) if said is None else (said,))
    with torch.device("meta"):
        like = nearest(tensors, (MedusaHeads(count, layers, 1, 1, shared=ends) for count, layers, ends in variants))
        vocab = None if like.shared else usual_rows(rf"\d+\.{like.layers}\.weight", tensors)
        made_for = target_sizes(config, {"hidden size": usual_rows(BLOCK, tensors), "vocabulary": vocab})
        hidden, vocab = (made_for.get(name, 1) for name in ("hidden size", "vocabulary"))
        heads = MedusaHeads(like.count, like.layers, hidden, vocab, shared=like.shared)
    return Checkpoint(KIND, heads, tensors, made_for, tuple(flaws(heads, tensors)))


NAMES = re.compile(r"medusa_heads?\.|\d+\.\d+\.(linear\.)?(weight|bias)$")
FORMAT = HeadFormat("medusa", KIND, NAMES, parse, load, describe_heads)
