"""MTP layers on disk: among a target's own weights, or in a folder of their own.

Families name the parts differently, and transformers leaves them out when it loads the target. Here they become the
same four parts and a decoder layer of the target's class, which transformers itself builds and fills.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import (
    OBJECT,
    TEXT,
    TEXTS,
    entry,
    few,
    read_config,
    tensor_names,
)
from drafttree.drafters.formats.fp8 import read_weights
from drafttree.drafters.formats.head_checkpoint import (
    Checkpoint,
    HeadFormat,
    fill,
    flaws,
    listed,
    misshapen,
    target_sizes,
    unusable,
)
from drafttree.drafters.formats.mtp_layer import TRIED, block_types, decoder_layer, names_in
from drafttree.drafters.head import HeadDrafter
from drafttree.drafters.heads import embedding, last_layer, projection
from drafttree.drafters.mtp import MtpEmbedding, mtp_drafter
from drafttree.models.tensor_parallel import tensor_parallel_size

KIND = "MTP"
PARTS = {
    **dict.fromkeys(("enorm", "pre_fc_norm_embedding"), "enorm"),
    **dict.fromkeys(("hnorm", "pre_fc_norm_hidden"), "hnorm"),
    **dict.fromkeys(("eh_proj", "fc"), "eh_proj"),
    **dict.fromkeys(("shared_head.norm", "final_layernorm", "post_norm", "norm"), "post_norm"),
}
"""What families call the parts beside the decoder layer. Those of Qwen, Exaone and Mellum belong to all layers."""
READ = {"enorm", "hnorm", "eh_proj"}
"""The parts before the decoder layer, which no other layer has."""
OWN_PARTS = {name for name, part in PARTS.items() if part in READ}
SHARED = re.compile(r"embed_tokens\.|shared_head\.head\.|lm_head\.|rotary_emb\.")
"""Copies of what is the target's."""
RESPELLED = {
    r"\bmtp_emb_norm\.(\d+)\.": r"mtp.layers.\1.enorm.",
    r"\bmtp_hidden_norm\.(\d+)\.": r"mtp.layers.\1.hnorm.",
    r"\bmtp_linear_proj\.(\d+)\.": r"mtp.layers.\1.eh_proj.",
    r"\bmtp_layers\.(\d+)\.token_layernorm\.": r"mtp.layers.\1.enorm.",
    r"\bmtp_layers\.(\d+)\.hidden_layernorm\.": r"mtp.layers.\1.hnorm.",
    r"\bmtp_layers\.(\d+)\.input_proj\.": r"mtp.layers.\1.eh_proj.",
    r"\bmtp_(?:block|layers)\.(\d+)\.": r"mtp.layers.\1.",
}
"""What ERNIE 4.5 (the first three, and `mtp_block`) and MiMo-7B call tensors, and what they are called here."""
STATES_FIRST = re.compile(r".*\bmtp_layers\.\d+\.input_proj\.")
"""Projections that read states before embeddings where no config says so."""
NORM_OF_TARGET = re.compile(r".*\bmtp_(block|linear_proj)\.")
"""Parts of layers whose outputs go through the target's own final norm."""
WRAPPERS = r"(?:model\.|language_model\.|backbone\.)*"
INSIDE = re.compile(WRAPPERS + r"mtp\.(?:layers\.(\d+)\.)?(.+)")
BEHIND = re.compile(WRAPPERS + r"layers\.(\d+)\.(.+)")
ALONE = re.compile(rf"{WRAPPERS}({'|'.join(map(re.escape, PARTS))})\.")
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
PROMISES = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Fields of config.json that say how many MTP layers there are."""
INSTEAD = "draft with a head, a smaller language model, or lookup"
BLOCKS, BLOCK_PATTERN = "mtp_layers_block_type", "mtp_hybrid_override_pattern"
"""Fields that name the several decoder layers of one MTP layer (Nemotron-H)."""


@dataclass(frozen=True)
class MtpCheckpoint(Checkpoint[nn.Module]):
    """MTP layers as they were found.

    Attributes:
        layers: by layer, the tensors of its parts ("enorm.weight") and of its decoder layer ("self_attn...").
        states_first: whether their names tell that states stand before embeddings in what they read.
    """

    layers: tuple[dict[str, Tensor], ...]
    states_first: bool


def parse(tensors: Mapping[str, Tensor], config: Mapping[str, Any], first: int | None = None) -> MtpCheckpoint:
    """Understand the MTP layers among tensors and list what is wrong with them, without a target.

    Args:
        tensors: by name; others than those of MTP layers are left out.
        config: `config.json` beside them.
        first: the number of the first MTP layer where they count on behind the target's; by default the least.

    Raises:
        ModelError: there are none.
    """
    text = entry(config, "text_config", OBJECT) or config
    blocks = len(entry(text, BLOCKS, TEXTS) or entry(text, BLOCK_PATTERN, TEXT) or [0])
    shared, layers, found_at = dict[str, Tensor](), dict[int, dict[str, Tensor]](), places(tensors, first)
    for name, (number, part) in found_at.items():
        if number is None:
            shared[part] = tensors[name]
        else:
            index, block = divmod(number, blocks)
            own = part if part.partition(".")[0] in PARTS.values() else f"{block}.{part}"
            layers.setdefault(index, {})[own] = tensors[name]
    if not layers:
        raise ModelError("there is no MTP layer among the tensors")
    numbers = sorted(layers)
    found = tuple(shared | layers[number] for number in numbers)
    needed = READ if any(map(NORM_OF_TARGET.match, found_at)) else {*PARTS.values()}
    parts = sorted(f"{part}.weight" for part in needed)
    missing = [f"{part} of layer {index}" for index, own in enumerate(found) for part in parts if part not in own]
    if numbers != list(range(len(numbers))):
        missing.append(f"layers before {numbers[-1]}")
    projected = found[0].get("eh_proj.weight")
    hidden = len(projected) if projected is not None and projected.ndim else None
    made_for = target_sizes(text, {"hidden size": hidden})
    field, promised = promised_layers(config) or ("", 0)
    if promised > len(found):
        missing.append(f"{promised - len(found)} of the {promised} layers that {field} in config.json promises")
    own, width = {name: tensors[name] for name in sorted(found_at)}, made_for.get("hidden size")
    problems = [
        *listed("missing", missing),
        *(flaw for name in own for flaw in _part_flaws(name, found_at[name][1], own[name], width)),
        *_expert_flaws(own),
        *(flaw for name in own for flaw in unusable(name, own[name])),
    ]
    states_first = any(map(STATES_FIRST.match, found_at))
    return MtpCheckpoint(KIND, nn.Module(), dict(tensors), made_for, tuple(problems), found, states_first)


def _part_flaws(name: str, part: str, tensor: Tensor, width: int | None) -> list[str]:
    """What is wrong with the shape of a part beside the decoder layer, whose own shapes only its class knows."""
    stem, _, kind = part.rpartition(".")
    if not width or kind != "weight" or stem not in PARTS.values():
        return []
    return misshapen(name, tensor.shape, [width, 2 * width] if stem == "eh_proj" else [width])


def _expert_flaws(tensors: Mapping[str, Tensor]) -> list[str]:
    """In what experts differ from others of their layer; transformers, which stacks them, does not say which do."""
    kinds = dict[tuple[str, str], dict[str, Tensor]]()
    for stem, number, part in (match.groups() for match in map(EXPERT.fullmatch, tensors) if match):
        kinds.setdefault((stem, part), {})[number] = tensors[f"{stem}.{number}.{part}"]
    lost, misfits = list[str](), list[str]()
    for (stem, part), own in kinds.items():
        numbers = {number for (other, _), each in kinds.items() if other == stem for number in each}
        lost += [f"{stem}.{number}.{part}" for number in numbers - own.keys()]
        usual = mode(tuple(each.shape) for each in own.values())
        misfits += [flaw for number in own for flaw in misshapen(f"{stem}.{number}.{part}", own[number].shape, usual)]
    return [*listed("missing", lost), *misfits]


def places(names: Iterable[str], first: int | None = None) -> dict[str, tuple[int | None, str]]:
    """Where each tensor of MTP layers belongs, by its name: the layer's number, None for all layers, and the part.

    Args:
        names: of all tensors.
        first: as for `parse`.
    """
    found, behind = dict[str, tuple[int | None, str]](), dict[str, tuple[int, str]]()
    for name in names:
        spelled = _respelled(name)
        if match := INSIDE.fullmatch(spelled):
            found[name] = (int(match[1]) if match[1] else None), match[2]
        elif match := BEHIND.fullmatch(spelled):
            behind[name] = int(match[1]), match[2]
        elif first is None and (match := ALONE.match(spelled)):
            found[name] = None, spelled[match.start(1) :]
    if first is None:
        first = min((number for number, _ in behind.values()), default=0)
    found |= {name: (number - first, part) for name, (number, part) in behind.items() if number >= first}
    return {name: (number, _part(number, part)) for name, (number, part) in found.items() if not SHARED.match(part)}


def _respelled(name: str) -> str:
    for other, own in RESPELLED.items():
        name = re.sub(other, own, name)
    return name


def _part(number: int | None, part: str) -> str:
    """The name of a part as it is called here; the `norm` of a numbered layer is the decoder layer's own."""
    stem, _, kind = part.rpartition(".")
    return f"{PARTS[stem]}.{kind}" if stem in PARTS and (number is None or stem != "norm") else part


def has_layers_only(names: Collection[str]) -> bool:
    """Whether a folder holds MTP layers alone, not a model that has some; one of the parts that tell may be lost."""
    own = [_respelled(name) for name in names if not SHARED.search(name)]
    if any(map(INSIDE.fullmatch, own)):
        return all(map(INSIDE.fullmatch, own))
    found = places(own)
    reading = [(number, part.partition(".")[0]) for number, part in found.values() if part.partition(".")[0] in READ]
    layers, told = {number for number, _ in reading}, {part for _, part in reading}
    numbers = {number for number, _ in found.values() if number is not None}
    return len(told) > 1 and len(found) == len(own) and (None in layers or layers == numbers)


def promised_layers(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field of config.json that promises MTP layers, and how many; None where there is none."""
    text = config.get("text_config") or config
    given = ((name, text.get(name)) for name in PROMISES)
    return next(((name, count) for name, count in given if isinstance(count, int) and count > 0), None)


def own_names(folder: Path, config: PreTrainedConfig) -> list[str]:
    """The names of the MTP layers' tensors in the folder of a target, none where it has none.

    Raises:
        ModelError: the folder's files cannot be read.
    """
    return names_among(tensor_names(folder), config.get_text_config().num_hidden_layers)


def names_among(names: Iterable[str], layers: int) -> list[str]:
    """The names of the MTP layers' tensors among those of a target that has so many layers of its own."""
    found = places(names, layers)
    read = {part.partition(".")[0] for _, part in found.values()} & READ
    return [*found] if read else []


def is_tried(config: PreTrainedConfig) -> bool:
    """Whether MTP layers of a target's model type are known to be right, so that "auto" may take them."""
    return config.get_text_config().model_type in TRIED


def load_own(folder: Path, target: PreTrainedModel) -> HeadDrafter:
    """The drafter of the MTP layers in the folder of a target; no other tensor is read.

    Raises:
        ModelError: there are none, or `load` raised it.
    """
    everything, config = tensor_names(folder), read_config(folder)
    if names := {*names_among(everything, target.config.get_text_config().num_hidden_layers)}:
        return load(read_weights(folder, target.dtype, names), config, target, last_layer(target))
    if unknown := [name for name in everything if "mtp" in name.lower()]:
        raise ModelError(f"{folder} holds {few(sorted(unknown))}, which drafttree knows as no MTP layers; {INSTEAD}")
    if promise := promised_layers(config):
        field, count = promise
        raise ModelError(
            f"config.json gives {field} as {count}, but {folder} holds no MTP layers; take the original checkpoint: "
            "transformers leaves them out when it saves a model"
        )
    raise ModelError(f"{folder} holds no MTP layers; {INSTEAD}")


def load(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel, first: int | None = None
) -> HeadDrafter:
    """The drafter of MTP layers, in the target's dtype and on its device, with the target's embedding and head.

    Args:
        tensors: tensors of the layers, by name.
        config: `config.json` beside them.
        target: the model they belong to.
        first: as for `parse`.

    Raises:
        ModelError: parts are missing, unexpected or of another shape, they are another target's, or transformers knows
            no decoder layer that they fit.
    """
    if tensor_parallel_size(target) > 1:
        raise ModelError("MTP layers do not draft for a sharded target; use another head, or lookup")
    family = target.config.get_text_config()
    found = parse(tensors, {**config, BLOCKS: block_types(family)}, first)
    found.check(target)
    states_first = found.states_first or bool(getattr(family, "mtp_hidden_states_first", False))
    return mtp_drafter([_module(own, index, target, states_first) for index, own in enumerate(found.layers)], target)


def _module(own: dict[str, Tensor], index: int, target: PreTrainedModel, states_first: bool) -> PreTrainedModel:
    """A layer as a language model of the target's class, with what it shares with the target."""
    parts = {name: own[name] for name in own if name.partition(".")[0] in PARTS.values()}
    block = {name: own[name] for name in own.keys() - parts}
    last = parts.pop("post_norm.weight", None)
    if last is None:
        last = target.get_parameter(names_in(target)[1]).detach()
    module, norm = decoder_layer(block, last, index, target)
    width = projection(target).weight.shape[1]
    with torch.device("meta"):
        eh_proj = nn.Linear(2 * width, width, bias=False)
    read = nn.ModuleDict({"enorm": deepcopy(norm), "hnorm": deepcopy(norm), "eh_proj": eh_proj})
    if problems := flaws(read, parts):
        raise ModelError(f"the tensors make no MTP layer: {'; '.join(problems)}")
    fill(read, parts, target)
    module.set_input_embeddings(MtpEmbedding(embedding(target), read["enorm"], read["hnorm"], eh_proj, states_first))
    module.set_output_embeddings(projection(target))
    return module.eval().requires_grad_(False)


class MtpFormat(HeadFormat):
    """MTP layers in a folder of their own; a whole model may have some beside its own layers."""

    def holds(self, names: Collection[str]) -> bool:
        return has_layers_only(names)


def _described(found: MtpCheckpoint) -> dict[str, object]:
    return {"layers": len(found.layers), "embedding and output layer": "the target's"}


FORMAT = MtpFormat("mtp", KIND, ALONE, parse, load, _described)
