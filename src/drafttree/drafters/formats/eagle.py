"""EAGLE-1 and EAGLE-2 heads on disk: SafeAILab's files, and those of vLLM speculators without norms of their own."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.eagle import EagleConfig, EagleHead, eagle_drafter
from drafttree.drafters.formats.checkpoints import FLAG, OBJECT, entry
from drafttree.drafters.formats.decoder_layers import layer_config
from drafttree.drafters.formats.eagle3 import EMBEDDING, HEAD, MODEL, add_output_biases
from drafttree.drafters.formats.head_checkpoint import Checkpoint, HeadFormat, counts, fill, flaws, nearest
from drafttree.drafters.head import HeadDrafter
from drafttree.drafters.heads import embedding, last_layer, own_bytes, projection
from drafttree.models.tensor_parallel import whole

KIND = "EAGLE"
SPECULATORS = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
"""What vLLM speculators calls the parts of a head, and what SafeAILab does."""


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> HeadDrafter:
    """A drafter from an EAGLE-1 or EAGLE-2 checkpoint, in the target's dtype and on its device.

    The target's embedding and output layer are shared where the checkpoint has none of its own.

    Args:
        tensors: tensors of the checkpoint, by name.
        config: its `config.json`.
        target: the model it drafts for.

    Raises:
        ModelError: the checkpoint is incomplete, or the head was made for another target.
    """
    found = parse(tensors, config)
    found.check(target)
    borrowed = {EMBEDDING: embedding(target), HEAD: projection(target)}
    own = {name: whole(layer.weight.detach()) for name, layer in borrowed.items()} | found.tensors
    fill(found.heads, own, target)
    found.heads.rotary = type(found.heads.rotary)(found.heads.rotary.config).to(target.device).eval()
    return eagle_drafter(found.heads, (last_layer(target),), own_bytes(found.heads, target))


def parse(found: Mapping[str, Tensor], raw: Mapping[str, Any]) -> Checkpoint[EagleHead]:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Args:
        found: its tensors, by name.
        raw: its `config.json`.

    Raises:
        ModelError: the configuration is missing, lacks a size, gives a field as what it cannot be, or asks for what
            is not run.
    """
    if not raw:
        raise ModelError("config.json is missing or empty; an EAGLE head needs the one it was published with")
    if entry(raw, "layernorms", FLAG):
        raise ModelError(
            "config.json gives layernorms as true, vLLM speculators' norms of their own, which are not run; use a head "
            "without them or an EAGLE-3 head"
        )
    tensors = {_name(name): tensor for name, tensor in found.items() if not name.endswith(".inv_freq")}
    add_output_biases(tensors)
    biased = "fc.bias" in tensors or any(entry(raw, name, FLAG) for name in ("bias", "fusion_bias"))
    layer = entry(raw, "transformer_layer_config", OBJECT) or raw
    sizes = counts(r"layers\.(\d+)\.(?:self_attn|mlp)\.", tensors)
    with torch.device("meta"):
        made = (EagleHead(EagleConfig(layer_config(layer, tensors, layers), biased)) for layers in sizes)
        head = nearest(tensors, made)
    made_for = {"hidden size": head.config.hidden, "vocabulary": head.config.vocab}
    spelled = {_name(name): name for name in found}
    problems = flaws(head, tensors, {EMBEDDING, HEAD}, lambda name: spelled.get(name, name))
    return Checkpoint(KIND, head, tensors, made_for, tuple(problems))


def _name(found: str) -> str:
    """A tensor's name as SafeAILab's files have it."""
    name = found.removeprefix(MODEL)
    return next((own + name.removeprefix(part) for part, own in SPECULATORS.items() if name.startswith(part)), name)


def _described(found: Checkpoint[EagleHead]) -> dict[str, object]:
    """The facts of a head that `drafttree inspect` prints."""
    layer = found.heads.config.layer
    return {
        "hidden states read": "after the final norm",
        "decoder layers": layer.num_hidden_layers,
        "attention": f"{layer.num_attention_heads} heads of {layer.head_dim}",
        "embedding": "own" if EMBEDDING in found.tensors else "the target's",
        "output layer": "own" if HEAD in found.tensors else "the target's",
    }


NAMES = re.compile(r"(model\.)?(fc|fusion_fc)\.(weight|bias)$")
FORMAT = HeadFormat("eagle", KIND, NAMES, parse, load, _described)
