"""MTP layers on disk: among a target's own weights, or in a folder of their own.

Families have different names for the parts of MTP layers, and transformers ignores MTP layers when it loads a target.
Here each MTP layer becomes four parts with common names, and a decoder layer of the target's class. transformers builds
and fills that decoder layer.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from statistics import mode
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.formats.checkpoints import few, read_config, read_weights, tensor_names
from drafttree.drafters.formats.config import TargetSizes, Text, Texts, text_fields
from drafttree.drafters.formats.format import Checkpoint, HeadFormat, fill, flaws, listed, misshapen, unusable
from drafttree.drafters.mtp import mtp_drafter
from drafttree.drafters.target_parts import embedding, last_layer, projection
from drafttree.models.module.module_backend import lay_out_for_cpu
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.tensor_parallel import tensor_parallel_size

PARTS = {
    **dict.fromkeys(("enorm", "pre_fc_norm_embedding"), "enorm"),
    **dict.fromkeys(("hnorm", "pre_fc_norm_hidden"), "hnorm"),
    **dict.fromkeys(("eh_proj", "fc"), "eh_proj"),
    **dict.fromkeys(("shared_head.norm", "final_layernorm", "post_norm", "norm"), "post_norm"),
}
"""Our names of the parts beside the decoder layer, by the families' names.

In Qwen, Exaone and Mellum, all MTP layers share these parts.
"""
INPUT_PARTS = {"enorm", "hnorm", "eh_proj"}
"""The parts before the decoder layer. Only MTP layers have them."""
OWN_PARTS = {name for name, part in PARTS.items() if part in INPUT_PARTS}
SHARED = re.compile(r"embed_tokens\.|shared_head\.head\.|lm_head\.|rotary_emb\.")
"""Copies of the target's weights; they are not read."""
RESPELLED = {
    r"\bmtp_emb_norm\.(\d+)\.": r"mtp.layers.\1.enorm.",
    r"\bmtp_hidden_norm\.(\d+)\.": r"mtp.layers.\1.hnorm.",
    r"\bmtp_linear_proj\.(\d+)\.": r"mtp.layers.\1.eh_proj.",
    r"\bmtp_layers\.(\d+)\.token_layernorm\.": r"mtp.layers.\1.enorm.",
    r"\bmtp_layers\.(\d+)\.hidden_layernorm\.": r"mtp.layers.\1.hnorm.",
    r"\bmtp_layers\.(\d+)\.input_proj\.": r"mtp.layers.\1.eh_proj.",
    r"\bmtp_(?:block|layers)\.(\d+)\.": r"mtp.layers.\1.",
}
"""Our spelling of names, by patterns of the spelling in files.

The first three and `mtp_block` are of ERNIE 4.5, the others of MiMo-7B and speculators.
"""
STATES_FIRST = re.compile(r".*\bmtp_layers\.\d+\.input_proj\.")
"""Projections that read states before embeddings without a field that says so: MiMo-7B's, but not speculators'."""
NORM_OF_TARGET = re.compile(r".*\bmtp_(block|linear_proj)\.")
"""Parts of layers that have no final norm of their own and use the target's."""
WRAPPERS = r"(?:model\.|language_model\.|backbone\.)*"
INSIDE = re.compile(WRAPPERS + r"mtp\.(?:layers\.(\d+)\.)?(.+)")
NUMBERED = re.compile(WRAPPERS + r"layers\.(\d+)\.(.+)")
ALONE = re.compile(rf"{WRAPPERS}({'|'.join(map(re.escape, PARTS))})\.")
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
PROMISES = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Fields of config.json that say how many MTP layers there are."""
INSTEAD = "draft with a head, a smaller language model, or lookup"
RENAMED = {"mimo_v2_flash": {"pre_mlp_layernorm.": "post_attention_layernorm."}}
"""By model type, names in MTP layers and the names in decoder layers that replace them."""
DEEPSEEKS = ("bailing_hybrid", "deepseek_v3", "glm4_moe", "mimo_v2_flash", "nemotron_h")
QWENS = ("exaone_moe", "llama", "mellum", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
TRIED = frozenset((*DEEPSEEKS, *QWENS, "ernie4_5_moe", "mimo", "qwen2"))
"""Model types whose MTP layers were tested against transformers' own layers. Others are used only if requested."""
ATTENTION = {"mimo_v2_flash": "sliding_attention"}
"""By model type, the attention of MTP layers if the config does not name it; full attention for other types."""


class MtpFields(TargetSizes):
    """The fields about MTP layers. In Nemotron-H, several decoder layers form one MTP layer, and a field lists them."""

    mtp_layers_block_type: Texts
    mtp_hybrid_override_pattern: Text = ""
    speculators_model_type: Text = ""


class MtpLayers(NamedTuple):
    """MTP layers as a file has them.

    Attributes:
        layers: for each layer, the tensors of its parts ("enorm.weight") and of its decoder layers ("0.self_attn...").
        states_first: whether the names say that the projections read states before embeddings.
    """

    layers: tuple[dict[str, Tensor], ...]
    states_first: bool


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[MtpLayers]:
    """Find the MTP layers among tensors; ignore all other tensors."""
    if target and tensor_parallel_size(target) > 1:
        raise ModelError("MTP layers do not draft for a sharded target; use another head, or lookup")
    fields = MtpFields.read(text_fields(config))
    mtp_places = find_mtp_tensors(tensors)
    layers = _layers_by_number(tensors, mtp_places, _blocks_per_layer(fields, target))
    if not layers:
        raise ModelError("there is no MTP layer among the tensors")
    uses_target_norm = any(map(NORM_OF_TARGET.match, mtp_places))
    gaps = _gaps(layers, INPUT_PARTS if uses_target_norm else {*PARTS.values()}, config)
    first_layer = next(iter(layers.values()))
    eh_proj = first_layer.get("eh_proj.weight")
    made_for = fields.made_for({"hidden size": len(eh_proj) if eh_proj is not None and eh_proj.ndim else None})
    mtp_tensors = {name: tensors[name] for name in sorted(mtp_places)}
    problems = [
        *listed("missing", gaps),
        *_part_flaws(mtp_tensors, mtp_places, made_for.get("hidden size")),
        *_expert_flaws(mtp_tensors),
    ]
    for name, tensor in mtp_tensors.items():
        problems += unusable(name, tensor)
    states_first = not fields.speculators_model_type and any(map(STATES_FIRST.match, mtp_places))
    details: dict[str, object] = {"layers": len(layers), "embedding and output layer": "the target's"}
    mtp_layers = MtpLayers(tuple(layers.values()), states_first)
    return Checkpoint(mtp_layers, dict(tensors), made_for, tuple(problems), details)


def _blocks_per_layer(fields: MtpFields, target: PreTrainedModel | None) -> int:
    """The number of decoder layers that form one MTP layer: 1, except for Nemotron-H."""
    layer_types = block_types(target.config.get_text_config()) if target else fields.mtp_layers_block_type
    return len(layer_types or fields.mtp_hybrid_override_pattern or [0])


def _layers_by_number(
    tensors: Mapping[str, Tensor], mtp_places: Mapping[str, tuple[int | None, str]], blocks: int
) -> dict[int, dict[str, Tensor]]:
    """The tensors of each MTP layer, by layer number in ascending order and by their names in `MtpLayers`.

    Args:
        tensors: tensors by their names in the file.
        mtp_places: the result of `find_mtp_tensors`.
        blocks: decoder layers per MTP layer. The file numbers decoder layers, not MTP layers.
    """
    shared_tensors = dict[str, Tensor]()
    layers = dict[int, dict[str, Tensor]]()
    for name, (number, local_name) in mtp_places.items():
        if number is None:
            shared_tensors[local_name] = tensors[name]
            continue
        index, block = divmod(number, blocks)
        is_part = local_name.partition(".")[0] in PARTS.values()
        layers.setdefault(index, {})[local_name if is_part else f"{block}.{local_name}"] = tensors[name]
    return {index: shared_tensors | layers[index] for index in sorted(layers)}


def _gaps(
    layers: Mapping[int, Mapping[str, Tensor]], required_parts: Collection[str], config: Mapping[str, Any]
) -> list[str]:
    """One phrase for each gap: missing parts of layers, lower layers, and layers that config.json promises."""
    required_names = sorted(f"{part_name}.weight" for part_name in required_parts)
    gaps = list[str]()
    for index, layer_tensors in enumerate(layers.values()):
        gaps += [f"{name} of layer {index}" for name in required_names if name not in layer_tensors]
    highest_number = max(layers)
    if len(layers) <= highest_number:
        gaps.append(f"layers before {highest_number}")
    field, promised_count = promised_layers(config) or ("", 0)
    missing_count = promised_count - len(layers)
    if missing_count > 0:
        gaps.append(f"{missing_count} of the {promised_count} layers that {field} in config.json promises")
    return gaps


def _part_flaws(
    tensors: Mapping[str, Tensor], mtp_places: Mapping[str, tuple[int | None, str]], width: int | None
) -> list[str]:
    """One phrase for each misshapen part beside the decoder layers; none if the hidden size is unknown."""
    if not width:
        return []
    shapes = {f"{part_name}.weight": [width] for part_name in PARTS.values()} | {"eh_proj.weight": [width, 2 * width]}
    part_flaws = list[str]()
    for name, tensor in tensors.items():
        _, local_name = mtp_places[name]
        if local_name in shapes:
            part_flaws += misshapen(name, tensor.shape, shapes[local_name])
    return part_flaws


def _expert_flaws(tensors: Mapping[str, Tensor]) -> list[str]:
    """One phrase for all missing experts, and one for each expert with another shape than most of its layer.

    transformers stacks experts and does not say which of them do not fit.
    """
    stacks = dict[str, dict[str, dict[str, Tensor]]]()
    for name, tensor in tensors.items():
        if match := EXPERT.fullmatch(name):
            stem, number, weight_name = match.groups()
            stacks.setdefault(stem, {}).setdefault(weight_name, {})[number] = tensor
    missing_names = list[str]()
    misfits = list[str]()
    for stem, experts_by_weight in stacks.items():
        numbers = {*chain.from_iterable(experts_by_weight.values())}
        for weight_name, experts in experts_by_weight.items():
            missing_names += [f"{stem}.{number}.{weight_name}" for number in numbers - experts.keys()]
            usual_shape = mode(tuple(expert.shape) for expert in experts.values())
            for number, expert in experts.items():
                misfits += misshapen(f"{stem}.{number}.{weight_name}", expert.shape, usual_shape)
    return [*listed("missing", missing_names), *misfits]


def find_mtp_tensors(names: Iterable[str], first_mtp_number: int | None = None) -> dict[str, tuple[int | None, str]]:
    """Find the tensors of MTP layers among names.

    Args:
        names: names of tensors.
        first_mtp_number: number of the first MTP layer, if MTP layers are numbered after the target's layers. None
            takes the lowest number.

    Returns:
        For each name of an MTP tensor, the number of its layer (None if all layers share it), and its name within the
        layer.
    """
    mtp_places = dict[str, tuple[int | None, str]]()
    layer_places = dict[str, tuple[int, str]]()
    for name in names:
        spelled = _respelled(name)
        if match := INSIDE.fullmatch(spelled):
            mtp_places[name] = (int(match[1]) if match[1] else None), match[2]
        elif match := NUMBERED.fullmatch(spelled):
            layer_places[name] = int(match[1]), match[2]
        elif first_mtp_number is None and (match := ALONE.match(spelled)):
            mtp_places[name] = None, spelled[match.start(1) :]
    lowest_number = min((number for number, _ in layer_places.values()), default=0)
    first_number = lowest_number if first_mtp_number is None else first_mtp_number
    for name, (number, local_name) in layer_places.items():
        if number >= first_number:
            mtp_places[name] = number - first_number, local_name
    for name, (number, local_name) in [*mtp_places.items()]:
        stem, _, suffix = local_name.rpartition(".")
        if SHARED.match(local_name):
            del mtp_places[name]
        elif stem in PARTS and (number is None or stem != "norm"):  # a numbered layer's `norm` is its decoder layer's
            mtp_places[name] = number, f"{PARTS[stem]}.{suffix}"
    return mtp_places


def _respelled(name: str) -> str:
    for pattern, replacement in RESPELLED.items():
        name = re.sub(pattern, replacement, name)
    return name


def has_layers_only(names: Collection[str]) -> bool:
    """Whether all names are of MTP layers, not of a whole model; one of `INPUT_PARTS` may be missing."""
    spellings = [_respelled(name) for name in names if not SHARED.search(name)]
    if any(map(INSIDE.fullmatch, spellings)):
        return all(map(INSIDE.fullmatch, spellings))
    mtp_places = find_mtp_tensors(spellings)
    layers = set[int | None]()
    part_names = set[str]()
    for number, local_name in mtp_places.values():
        part_name = local_name.partition(".")[0]
        if part_name in INPUT_PARTS:
            layers.add(number)
            part_names.add(part_name)
    numbers = {number for number, _ in mtp_places.values() if number is not None}
    return len(part_names) > 1 and len(mtp_places) == len(spellings) and (None in layers or layers == numbers)


def promised_layers(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field of config.json that promises MTP layers, and how many; None if none does."""
    text = text_fields(config)
    promises = ((name, text.get(name)) for name in PROMISES)
    return next(((name, count) for name, count in promises if isinstance(count, int) and count > 0), None)


def own_names(folder: Path, config: PreTrainedConfig) -> list[str]:
    """The names of the MTP layers' tensors in the folder of a target, empty if it has none."""
    return names_among(tensor_names(folder), config.get_text_config().num_hidden_layers)


def names_among(names: Iterable[str], layers: int) -> list[str]:
    """The names of MTP tensors among those of a target with `layers` decoder layers."""
    mtp_places = find_mtp_tensors(names, layers)
    reading_parts = {local_name.partition(".")[0] for _, local_name in mtp_places.values()} & INPUT_PARTS
    return [*mtp_places] if reading_parts else []


def is_tried(config: PreTrainedConfig) -> bool:
    """Whether MTP layers of a target's model type were tested, so that "auto" may take them."""
    return config.get_text_config().model_type in TRIED


def load_own(folder: Path, target: PreTrainedModel) -> Drafter:
    """The drafter of the MTP layers in the folder of a target; no other tensor is read.

    Raises:
        ModelError: If there are none, they are incomplete, or transformers knows no decoder layer that they fit.
    """
    all_names = tensor_names(folder)
    config = read_config(folder)
    if names := {*names_among(all_names, depth := last_layer(target))}:
        first_layer = min(
            (number for number, _ in find_mtp_tensors(names, depth).values() if number is not None), default=0
        )
        if first_layer:
            raise ModelError(f"the tensors of the MTP head are wrong: layers before {first_layer} are missing")
        return FORMAT.load(read_weights(folder, target.dtype, names, config), config, target)
    if unknown_names := [name for name in all_names if "mtp" in name.lower()]:
        raise ModelError(
            f"{folder} holds {few(sorted(unknown_names))}, which are not MTP layers that drafttree knows; {INSTEAD}"
        )
    if promise := promised_layers(config):
        field, count = promise
        raise ModelError(
            f"config.json gives {field} as {count}, but {folder} holds no MTP layers; take the original checkpoint: "
            "transformers leaves them out when it saves a model"
        )
    raise ModelError(f"{folder} holds no MTP layers; {INSTEAD}")


def _build(checkpoint: Checkpoint[MtpLayers], target: PreTrainedModel) -> Drafter:
    family = target.config.get_text_config()
    states_first = checkpoint.heads.states_first or bool(getattr(family, "mtp_hidden_states_first", False))
    modules = [
        _module(layer_tensors, index, target, states_first)
        for index, layer_tensors in enumerate(checkpoint.heads.layers)
    ]
    return mtp_drafter(modules, target)


def _module(
    layer_tensors: dict[str, Tensor], index: int, target: PreTrainedModel, states_first: bool
) -> PreTrainedModel:
    """Build an MTP layer as a language model of the target's class, with the target's embedding and output layer."""
    part_tensors = {name: layer_tensors[name] for name in layer_tensors if name.partition(".")[0] in PARTS.values()}
    block = {name: layer_tensors[name] for name in layer_tensors.keys() - part_tensors}
    norm_weight = part_tensors.pop("post_norm.weight", None)
    if norm_weight is None:
        norm_weight = target.get_parameter(names_in(target)[1]).detach()
    module, norm = decoder_layer(block, norm_weight, index, target)
    width = projection(target).in_features
    with torch.device("meta"):
        eh_proj = nn.Linear(2 * width, width, bias=False)
    modules = nn.ModuleDict({"enorm": deepcopy(norm), "hnorm": deepcopy(norm), "eh_proj": eh_proj})
    if problems := flaws(modules, part_tensors):
        raise ModelError(f"the tensors of the MTP layer are wrong: {'; '.join(problems)}")
    fill(modules, part_tensors, target)
    module.set_input_embeddings(
        MtpEmbedding(embedding(target), modules["enorm"], modules["hnorm"], eh_proj, states_first)
    )
    module.set_output_embeddings(projection(target))
    return module.eval().requires_grad_(False)


def decoder_layer(
    tensors: Mapping[str, Tensor], norm: Tensor, index: int, target: PreTrainedModel
) -> tuple[PreTrainedModel, nn.Module]:
    """Build a language model of the target's class with one decoder layer, and return it with its final norm.

    transformers fills it. So the target's own class handles attention, the storage of experts and other things that
    differ between families.

    Args:
        tensors: tensors of the decoder layer, with names such as "0.self_attn...". Nemotron-H has several decoder
            layers, numbered from 0.
        norm: the weight of the final norm.
        index: index of the MTP layer.
        target: the target.

    Raises:
        ModelError: If transformers has no such layer, or the tensors do not fit it.
    """
    family = target.config.get_text_config()
    title = f"an MTP layer of {family.model_type}"
    layer_tensors = dict(tensors)
    for mtp_name, layer_name in RENAMED.get(family.model_type, {}).items():
        layer_tensors = {name.replace(mtp_name, layer_name): tensor for name, tensor in layer_tensors.items()}
    try:
        config = layer_config(family, tensors.keys(), index)
        config._attn_implementation = family._attn_implementation
        filled = _filled_by_transformers(config, layer_tensors, norm, target)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"transformers cannot build {title}: {reason}") from error
    if problems := filled.problems():
        reasons = "; ".join(problems).replace(f"{filled.layers}0.", "")
        raise ModelError(f"the tensors of the {title.partition(' ')[2]} are wrong: in MTP layer {index} {reasons}")
    module = filled.module.to(target.device).eval()
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(module)
    return module, module.get_submodule(filled.norm_name.rpartition(".")[0])


class _FilledModel(NamedTuple):
    """A language model that transformers has filled with the tensors of an MTP layer.

    Attributes:
        module: the language model.
        layers: the prefix of names of its decoder layers' tensors, such as "model.layers.".
        norm_name: the name of the final norm's weight.
        loading_info: the missing, unexpected and mismatched keys that `from_pretrained` reports.
    """

    module: Any
    layers: str
    norm_name: str
    loading_info: dict[str, Any]

    def problems(self) -> list[str]:
        """How the tensors differ from those that the model needs, besides the target's embedding and output layer."""
        borrowed = [self.module.get_input_embeddings().weight, self.module.get_output_embeddings().weight]
        borrowed_names = set[str]()
        for name, weight in self.module.named_parameters():
            if any(weight is borrowed_weight for borrowed_weight in borrowed):
                borrowed_names.add(name)
        missing_names = {*self.loading_info["missing_keys"]} - borrowed_names
        problems = [*listed("missing", missing_names), *listed("unexpected", self.loading_info["unexpected_keys"])]
        for sizes in sorted(self.loading_info["mismatched_keys"]):
            problems += misshapen(*sizes)
        return problems


def _filled_by_transformers(
    config: PreTrainedConfig, tensors: Mapping[str, Tensor], norm: Tensor, target: PreTrainedModel
) -> _FilledModel:
    """Let transformers build a language model in the target's dtype from a config and these tensors."""
    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    make: Any = mapping[type(config)] if type(config) in mapping else type(target)
    with torch.device("meta"):
        layers, norm_name = names_in(make(config))
    module, loading_info = make.from_pretrained(
        None,
        config=config,
        state_dict={layers + name: tensor for name, tensor in tensors.items()} | {norm_name: norm},
        dtype=target.dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    return _FilledModel(module, layers, norm_name, loading_info)


def layer_config(family: PreTrainedConfig, names: Collection[str], index: int) -> PreTrainedConfig:
    """The config of a language model for MTP layer `index`, whose decoder layers have tensors of these names."""
    config: Any = deepcopy(family)
    sparse = any(".experts." in name for name in names)
    blocks = block_types(family)
    attention = [*(getattr(family, "mtp_layer_types", None) or ()), *[None] * (index + 1)][index]
    changes = {
        "num_hidden_layers": len(blocks or [0]),
        "layer_types": blocks or [attention or ATTENTION.get(family.model_type, "full_attention")],
        "mlp_layer_types": ["sparse" if sparse else "dense"],
        "first_k_dense_replace": 0 if sparse else 1,
        "mlp_only_layers": [] if sparse else [0],
        "num_nextn_predict_layers": 0,
        "vocab_size": 1,
        "tie_word_embeddings": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    vars(config).pop("quantization_config", None)  # the layer's tensors are not quantised
    return config


def block_types(family: PreTrainedConfig) -> list[str] | None:
    """The types of the decoder layers that form one MTP layer (Nemotron-H); None for families with one of them."""
    return getattr(family, "mtp_layers_block_type", None)


def names_in(module: PreTrainedModel) -> tuple[str, str]:
    """The prefix of names of a model's layers, such as "model.layers.", and the name of its final norm's weight."""
    decoder: Any = module.get_decoder()
    path = next(name for name, submodule in module.named_modules() if submodule is decoder)
    children = [*decoder.named_children()]
    count = decoder.config.num_hidden_layers
    layers = [name for name, child in children if isinstance(child, nn.ModuleList) and len(child) == count]
    norms = [name for name, child in children if "norm" in name and getattr(child, "weight", None) is not None]
    if not layers or not norms:
        raise LookupError(f"{type(decoder).__name__} has no list of {count} layers with a norm behind it")
    return f"{path}.{layers[0]}.", f"{path}.{norms[-1]}.weight"


FORMAT = HeadFormat("mtp", "MTP", has_layers_only, parse, _build)
