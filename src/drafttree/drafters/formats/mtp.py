"""MTP layers on disk: among a target's own weights, or in a folder of their own.

Families name the parts differently, and transformers leaves them out when it loads the target. Here they become the
same four parts and a decoder layer of the target's class, which transformers itself builds and fills.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
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
from drafttree.drafters.heads import embedding, last_layer, projection
from drafttree.drafters.mtp import mtp_drafter
from drafttree.models import lay_out_for_cpu
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.tensor_parallel import tensor_parallel_size

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
"""What ERNIE 4.5 (the first three, and `mtp_block`), and MiMo-7B and speculators call tensors, and what we do."""
STATES_FIRST = re.compile(r".*\bmtp_layers\.\d+\.input_proj\.")
"""Projections that read states before embeddings where no config says so: MiMo-7B's, not those of speculators."""
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
RENAMED = {"mimo_v2_flash": {"pre_mlp_layernorm.": "post_attention_layernorm."}}
"""What MTP layers of a model type call otherwise than its decoder layers."""
DEEPSEEKS = ("bailing_hybrid", "deepseek_v3", "glm4_moe", "mimo_v2_flash", "nemotron_h")
QWENS = ("exaone_moe", "llama", "mellum", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
TRIED = frozenset((*DEEPSEEKS, *QWENS, "ernie4_5_moe", "mimo", "qwen2"))
"""Model types whose MTP layers were compared with transformers' own layers; others are run where they are asked for."""
ATTENTION = {"mimo_v2_flash": "sliding_attention"}
"""The attention of the MTP layers of model types whose config does not tell; others attend to everything."""


class MtpFields(TargetSizes):
    """The fields about MTP layers; those of Nemotron-H name the several decoder layers of one."""

    mtp_layers_block_type: Texts
    mtp_hybrid_override_pattern: Text = ""
    speculators_model_type: Text = ""


class MtpLayers(NamedTuple):
    """MTP layers as they were found.

    Attributes:
        layers: by layer, the tensors of its parts ("enorm.weight") and of its decoder layer ("self_attn...").
        states_first: whether their names tell that states stand before embeddings in what they read.
    """

    layers: tuple[dict[str, Tensor], ...]
    states_first: bool


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[MtpLayers]:
    """The MTP layers among tensors; others are left out."""
    if target and tensor_parallel_size(target) > 1:
        raise ModelError("MTP layers do not draft for a sharded target; use another head, or lookup")
    fields = MtpFields.read(text_fields(config))
    layer_types = block_types(target.config.get_text_config()) if target else fields.mtp_layers_block_type
    blocks = len(layer_types or fields.mtp_hybrid_override_pattern or [0])
    shared_tensors = dict[str, Tensor]()
    layers = dict[int, dict[str, Tensor]]()
    found_at = places(tensors)
    for name, (number, local_name) in found_at.items():
        if number is None:
            shared_tensors[local_name] = tensors[name]
        else:
            index, block = divmod(number, blocks)
            layer_key = local_name if local_name.partition(".")[0] in PARTS.values() else f"{block}.{local_name}"
            layers.setdefault(index, {})[layer_key] = tensors[name]
    if not layers:
        raise ModelError("there is no MTP layer among the tensors")
    mtp_layers = tuple(shared_tensors | layers[number] for number in sorted(layers))
    required_parts = READ if any(map(NORM_OF_TARGET.match, found_at)) else {*PARTS.values()}
    required_names = sorted(f"{part_name}.weight" for part_name in required_parts)
    gaps = [
        f"{required_name} of layer {index}"
        for index, layer_tensors in enumerate(mtp_layers)
        for required_name in required_names
        if required_name not in layer_tensors
    ]
    if len(mtp_layers) <= max(layers):
        gaps.append(f"layers before {max(layers)}")
    field, promised_count = promised_layers(config) or ("", 0)
    if promised_count > len(mtp_layers):
        gaps.append(
            f"{promised_count - len(mtp_layers)} of the {promised_count} layers that {field} in config.json promises"
        )
    eh_proj = mtp_layers[0].get("eh_proj.weight")
    made_for = fields.made_for({"hidden size": len(eh_proj) if eh_proj is not None and eh_proj.ndim else None})
    mtp_tensors = {name: tensors[name] for name in sorted(found_at)}
    width = made_for.get("hidden size", 0)
    shapes = {f"{part_name}.weight": [width] for part_name in PARTS.values()} | {"eh_proj.weight": [width, 2 * width]}
    problems = [
        *listed("missing", gaps),
        *(
            flaw
            for name, tensor in mtp_tensors.items()
            if width and (shape := shapes.get(found_at[name][1]))
            for flaw in misshapen(name, tensor.shape, shape)
        ),
        *_expert_flaws(mtp_tensors),
        *(flaw for name in mtp_tensors for flaw in unusable(name, mtp_tensors[name])),
    ]
    states_first = not fields.speculators_model_type and any(map(STATES_FIRST.match, found_at))
    details: dict[str, object] = {"layers": len(mtp_layers), "embedding and output layer": "the target's"}
    return Checkpoint(MtpLayers(mtp_layers, states_first), dict(tensors), made_for, tuple(problems), details)


def _expert_flaws(tensors: Mapping[str, Tensor]) -> list[str]:
    """In what experts differ from others of their layer; transformers, which stacks them, does not say which do."""
    stacks = dict[tuple[str, str], dict[str, Tensor]]()
    for stem, number, weight_name in (match.groups() for match in map(EXPERT.fullmatch, tensors) if match):
        stacks.setdefault((stem, weight_name), {})[number] = tensors[f"{stem}.{number}.{weight_name}"]
    missing_names = list[str]()
    misfits = list[str]()
    for (stem, weight_name), experts in stacks.items():
        numbers = {number for (other_stem, _), stack in stacks.items() if other_stem == stem for number in stack}
        missing_names += [f"{stem}.{number}.{weight_name}" for number in numbers - experts.keys()]
        usual_shape = mode(tuple(expert.shape) for expert in experts.values())
        misfits += [
            flaw
            for number in experts
            for flaw in misshapen(f"{stem}.{number}.{weight_name}", experts[number].shape, usual_shape)
        ]
    return [*listed("missing", missing_names), *misfits]


def places(names: Iterable[str], first: int | None = None) -> dict[str, tuple[int | None, str]]:
    """Where each tensor of MTP layers belongs, by its name: the layer's number, None for all layers, and the part.

    Args:
        names: of all tensors.
        first: the number of the first MTP layer where they count on behind the target's; by default the least.
    """
    mtp_places = dict[str, tuple[int | None, str]]()
    layer_places = dict[str, tuple[int, str]]()
    for name in names:
        spelled = _respelled(name)
        if match := INSIDE.fullmatch(spelled):
            mtp_places[name] = (int(match[1]) if match[1] else None), match[2]
        elif match := BEHIND.fullmatch(spelled):
            layer_places[name] = int(match[1]), match[2]
        elif first is None and (match := ALONE.match(spelled)):
            mtp_places[name] = None, spelled[match.start(1) :]
    first = min((number for number, _ in layer_places.values()), default=0) if first is None else first
    mtp_places |= {
        name: (number - first, local_name) for name, (number, local_name) in layer_places.items() if number >= first
    }
    for name, (number, local_name) in [*mtp_places.items()]:
        stem, _, suffix = local_name.rpartition(".")
        if SHARED.match(local_name):
            del mtp_places[name]
        elif stem in PARTS and (number is None or stem != "norm"):  # a numbered layer's norm is its decoder layer's
            mtp_places[name] = number, f"{PARTS[stem]}.{suffix}"
    return mtp_places


def _respelled(name: str) -> str:
    for pattern, replacement in RESPELLED.items():
        name = re.sub(pattern, replacement, name)
    return name


def has_layers_only(names: Collection[str]) -> bool:
    """Whether a folder holds MTP layers alone, not a model that has some; one of the parts that tell may be lost."""
    spellings = [_respelled(name) for name in names if not SHARED.search(name)]
    if any(map(INSIDE.fullmatch, spellings)):
        return all(map(INSIDE.fullmatch, spellings))
    mtp_places = places(spellings)
    reading_parts = [
        (number, local_name.partition(".")[0])
        for number, local_name in mtp_places.values()
        if local_name.partition(".")[0] in READ
    ]
    layers = {number for number, _ in reading_parts}
    part_names = {part_name for _, part_name in reading_parts}
    numbers = {number for number, _ in mtp_places.values() if number is not None}
    return len(part_names) > 1 and len(mtp_places) == len(spellings) and (None in layers or layers == numbers)


def promised_layers(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field of config.json that promises MTP layers, and how many; None where there is none."""
    text = text_fields(config)
    promises = ((name, text.get(name)) for name in PROMISES)
    return next(((name, count) for name, count in promises if isinstance(count, int) and count > 0), None)


def own_names(folder: Path, config: PreTrainedConfig) -> list[str]:
    """The names of the MTP layers' tensors in the folder of a target, none where it has none."""
    return names_among(tensor_names(folder), config.get_text_config().num_hidden_layers)


def names_among(names: Iterable[str], layers: int) -> list[str]:
    """The names of the MTP layers' tensors among those of a target that has so many layers of its own."""
    mtp_places = places(names, layers)
    reading_parts = {local_name.partition(".")[0] for _, local_name in mtp_places.values()} & READ
    return [*mtp_places] if reading_parts else []


def is_tried(config: PreTrainedConfig) -> bool:
    """Whether MTP layers of a target's model type are known to be right, so that "auto" may take them."""
    return config.get_text_config().model_type in TRIED


def load_own(folder: Path, target: PreTrainedModel) -> Drafter:
    """The drafter of the MTP layers in the folder of a target; no other tensor is read.

    Raises:
        ModelError: there are none, they are incomplete, or transformers knows no decoder layer that they fit.
    """
    all_names = tensor_names(folder)
    config = read_config(folder)
    if names := {*names_among(all_names, depth := last_layer(target))}:
        first_layer = min((number for number, _ in places(names, depth).values() if number is not None), default=0)
        if first_layer:
            raise ModelError(f"the tensors make no MTP head: missing layers before {first_layer}")
        return FORMAT.load(read_weights(folder, target.dtype, names, config), config, target)
    if unknown_names := [name for name in all_names if "mtp" in name.lower()]:
        raise ModelError(
            f"{folder} holds {few(sorted(unknown_names))}, which drafttree knows as no MTP layers; {INSTEAD}"
        )
    if promise := promised_layers(config):
        field, count = promise
        raise ModelError(
            f"config.json gives {field} as {count}, but {folder} holds no MTP layers; take the original checkpoint: "
            "transformers leaves them out when it saves a model"
        )
    raise ModelError(f"{folder} holds no MTP layers; {INSTEAD}")


def _built(found: Checkpoint[MtpLayers], target: PreTrainedModel) -> Drafter:
    family = target.config.get_text_config()
    states_first = found.heads.states_first or bool(getattr(family, "mtp_hidden_states_first", False))
    modules = [
        _module(layer_tensors, index, target, states_first) for index, layer_tensors in enumerate(found.heads.layers)
    ]
    return mtp_drafter(modules, target)


def _module(own: dict[str, Tensor], index: int, target: PreTrainedModel, states_first: bool) -> PreTrainedModel:
    """A layer as a language model of the target's class, with what it shares with the target."""
    part_tensors = {name: own[name] for name in own if name.partition(".")[0] in PARTS.values()}
    block = {name: own[name] for name in own.keys() - part_tensors}
    norm_weight = part_tensors.pop("post_norm.weight", None)
    if norm_weight is None:
        norm_weight = target.get_parameter(names_in(target)[1]).detach()
    module, norm = decoder_layer(block, norm_weight, index, target)
    width = projection(target).in_features
    with torch.device("meta"):
        eh_proj = nn.Linear(2 * width, width, bias=False)
    modules = nn.ModuleDict({"enorm": deepcopy(norm), "hnorm": deepcopy(norm), "eh_proj": eh_proj})
    if problems := flaws(modules, part_tensors):
        raise ModelError(f"the tensors make no MTP layer: {'; '.join(problems)}")
    fill(modules, part_tensors, target)
    module.set_input_embeddings(
        MtpEmbedding(embedding(target), modules["enorm"], modules["hnorm"], eh_proj, states_first)
    )
    module.set_output_embeddings(projection(target))
    return module.eval().requires_grad_(False)


def decoder_layer(
    tensors: Mapping[str, Tensor], norm: Tensor, index: int, target: PreTrainedModel
) -> tuple[PreTrainedModel, nn.Module]:
    """A language model of the target's class with one layer, which transformers builds and fills, and its final norm.

    So what is particular about a family, such as its attention or how it stores experts, is left to its own class.

    Args:
        tensors: of the decoder layer, by the names that they have in a list of layers, such as "0.self_attn...";
            families whose layers only attend or only mix experts (Nemotron-H) have several.
        norm: the weight of the norm after it.
        index: number of the MTP layer.
        target: the model it belongs to.

    Raises:
        ModelError: transformers has no such layer, or the tensors do not fit it.
    """
    family = target.config.get_text_config()
    title = f"an MTP layer of {family.model_type}"
    state = dict(tensors)
    for mtp_name, layer_name in RENAMED.get(family.model_type, {}).items():
        state = {name.replace(mtp_name, layer_name): tensor for name, tensor in state.items()}
    try:
        config = layer_config(family, tensors.keys(), index)
        config._attn_implementation = family._attn_implementation
        mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
        make: Any = mapping[type(config)] if type(config) in mapping else type(target)
        with torch.device("meta"):
            layers, norm_name = names_in(make(config))
        state = {layers + name: tensor for name, tensor in state.items()} | {norm_name: norm}
        module, loading_info = make.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=target.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"transformers cannot build {title}: {reason}") from error
    borrowed = [module.get_input_embeddings().weight, module.get_output_embeddings().weight]
    borrowed_names = {
        name
        for name, weight in module.named_parameters()
        if any(weight is borrowed_weight for borrowed_weight in borrowed)
    }
    missing_names = {*loading_info["missing_keys"]} - borrowed_names
    problems = [*listed("missing", missing_names), *listed("unexpected", loading_info["unexpected_keys"])]
    problems += [flaw for sizes in sorted(loading_info["mismatched_keys"]) for flaw in misshapen(*sizes)]
    if problems:
        reasons = "; ".join(problems).replace(f"{layers}0.", "")
        raise ModelError(f"the tensors make no {title.partition(' ')[2]}: in MTP layer {index} {reasons}")
    module = module.to(target.device).eval()
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(module)
    return module, module.get_submodule(norm_name.rpartition(".")[0])


def layer_config(family: PreTrainedConfig, names: Collection[str], index: int) -> PreTrainedConfig:
    """The config of a language model whose layers have tensors of these names."""
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
    vars(config).pop("quantization_config", None)  # the layer's own tensors are as they were saved
    return config


def block_types(family: PreTrainedConfig) -> list[str] | None:
    """The kinds of the several layers that make one MTP layer (Nemotron-H), None for families where one does."""
    return getattr(family, "mtp_layers_block_type", None)


def names_in(module: PreTrainedModel) -> tuple[str, str]:
    """What a model calls its layers, and the weight of its final norm."""
    decoder: Any = module.get_decoder()
    path = next(name for name, submodule in module.named_modules() if submodule is decoder)
    children = [*decoder.named_children()]
    count = decoder.config.num_hidden_layers
    layers = [name for name, child in children if isinstance(child, nn.ModuleList) and len(child) == count]
    norms = [name for name, child in children if "norm" in name and getattr(child, "weight", None) is not None]
    if not layers or not norms:
        raise LookupError(f"{type(decoder).__name__} has no list of {count} layers with a norm behind it")
    return f"{path}.{layers[0]}.", f"{path}.{norms[-1]}.weight"


FORMAT = HeadFormat("mtp", "MTP", has_layers_only, parse, _built)
