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
    kinds = block_types(target.config.get_text_config()) if target else fields.mtp_layers_block_type
    blocks = len(kinds or fields.mtp_hybrid_override_pattern or [0])
    shared, layers, found_at = dict[str, Tensor](), dict[int, dict[str, Tensor]](), places(tensors)
    for name, (number, part) in found_at.items():
        if number is None:
            shared[part] = tensors[name]
        else:
            index, block = divmod(number, blocks)
            own = part if part.partition(".")[0] in PARTS.values() else f"{block}.{part}"
            layers.setdefault(index, {})[own] = tensors[name]
    if not layers:
        raise ModelError("there is no MTP layer among the tensors")
    found = tuple(shared | layers[number] for number in sorted(layers))
    needed = READ if any(map(NORM_OF_TARGET.match, found_at)) else {*PARTS.values()}
    parts = sorted(f"{part}.weight" for part in needed)
    missing = [f"{part} of layer {index}" for index, own in enumerate(found) for part in parts if part not in own]
    if len(found) <= max(layers):
        missing.append(f"layers before {max(layers)}")
    field, promised = promised_layers(config) or ("", 0)
    if promised > len(found):
        missing.append(f"{promised - len(found)} of the {promised} layers that {field} in config.json promises")
    projected = found[0].get("eh_proj.weight")
    made_for = fields.made_for({"hidden size": len(projected) if projected is not None and projected.ndim else None})
    own, width = {name: tensors[name] for name in sorted(found_at)}, made_for.get("hidden size", 0)
    shapes = {f"{part}.weight": [width] for part in PARTS.values()} | {"eh_proj.weight": [width, 2 * width]}
    problems = [
        *listed("missing", missing),
        *(
            flaw
            for name, tensor in own.items()
            if width and (shape := shapes.get(found_at[name][1]))
            for flaw in misshapen(name, tensor.shape, shape)
        ),
        *_expert_flaws(own),
        *(flaw for name in own for flaw in unusable(name, own[name])),
    ]
    states_first = not fields.speculators_model_type and any(map(STATES_FIRST.match, found_at))
    details: dict[str, object] = {"layers": len(found), "embedding and output layer": "the target's"}
    return Checkpoint(MtpLayers(found, states_first), dict(tensors), made_for, tuple(problems), details)


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
        first: the number of the first MTP layer where they count on behind the target's; by default the least.
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
    first = min((number for number, _ in behind.values()), default=0) if first is None else first
    found |= {name: (number - first, part) for name, (number, part) in behind.items() if number >= first}
    for name, (number, part) in [*found.items()]:
        stem, _, kind = part.rpartition(".")
        if SHARED.match(part):
            del found[name]
        elif stem in PARTS and (number is None or stem != "norm"):  # a numbered layer's norm is its decoder layer's
            found[name] = number, f"{PARTS[stem]}.{kind}"
    return found


def _respelled(name: str) -> str:
    for other, own in RESPELLED.items():
        name = re.sub(other, own, name)
    return name


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
    text = text_fields(config)
    given = ((name, text.get(name)) for name in PROMISES)
    return next(((name, count) for name, count in given if isinstance(count, int) and count > 0), None)


def own_names(folder: Path, config: PreTrainedConfig) -> list[str]:
    """The names of the MTP layers' tensors in the folder of a target, none where it has none."""
    return names_among(tensor_names(folder), config.get_text_config().num_hidden_layers)


def names_among(names: Iterable[str], layers: int) -> list[str]:
    """The names of the MTP layers' tensors among those of a target that has so many layers of its own."""
    found = places(names, layers)
    read = {part.partition(".")[0] for _, part in found.values()} & READ
    return [*found] if read else []


def is_tried(config: PreTrainedConfig) -> bool:
    """Whether MTP layers of a target's model type are known to be right, so that "auto" may take them."""
    return config.get_text_config().model_type in TRIED


def load_own(folder: Path, target: PreTrainedModel) -> Drafter:
    """The drafter of the MTP layers in the folder of a target; no other tensor is read.

    Raises:
        ModelError: there are none, they are incomplete, or transformers knows no decoder layer that they fit.
    """
    everything, config = tensor_names(folder), read_config(folder)
    if names := {*names_among(everything, depth := last_layer(target))}:
        least = min((number for number, _ in places(names, depth).values() if number is not None), default=0)
        if least:
            raise ModelError(f"the tensors make no MTP head: missing layers before {least}")
        return FORMAT.load(read_weights(folder, target.dtype, names, config), config, target)
    if unknown := [name for name in everything if "mtp" in name.lower()]:
        raise ModelError(f"{folder} holds {few(sorted(unknown))}, which drafttree knows as no MTP layers; {INSTEAD}")
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
    modules = [_module(own, index, target, states_first) for index, own in enumerate(found.heads.layers)]
    return mtp_drafter(modules, target)


def _module(own: dict[str, Tensor], index: int, target: PreTrainedModel, states_first: bool) -> PreTrainedModel:
    """A layer as a language model of the target's class, with what it shares with the target."""
    parts = {name: own[name] for name in own if name.partition(".")[0] in PARTS.values()}
    block = {name: own[name] for name in own.keys() - parts}
    last = parts.pop("post_norm.weight", None)
    if last is None:
        last = target.get_parameter(names_in(target)[1]).detach()
    module, norm = decoder_layer(block, last, index, target)
    width = projection(target).in_features
    with torch.device("meta"):
        eh_proj = nn.Linear(2 * width, width, bias=False)
    read = nn.ModuleDict({"enorm": deepcopy(norm), "hnorm": deepcopy(norm), "eh_proj": eh_proj})
    if problems := flaws(read, parts):
        raise ModelError(f"the tensors make no MTP layer: {'; '.join(problems)}")
    fill(read, parts, target)
    module.set_input_embeddings(MtpEmbedding(embedding(target), read["enorm"], read["hnorm"], eh_proj, states_first))
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
    for other, own in RENAMED.get(family.model_type, {}).items():
        state = {name.replace(other, own): tensor for name, tensor in state.items()}
    try:
        config = layer_config(family, tensors.keys(), index)
        config._attn_implementation = family._attn_implementation
        mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
        make: Any = mapping[type(config)] if type(config) in mapping else type(target)
        with torch.device("meta"):
            layers, last = names_in(make(config))
        state = {layers + name: tensor for name, tensor in state.items()} | {last: norm}
        module, found = make.from_pretrained(
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
    given = {name for name, weight in module.named_parameters() if any(weight is each for each in borrowed)}
    missing = {*found["missing_keys"]} - given
    problems = [*listed("missing", missing), *listed("unexpected", found["unexpected_keys"])]
    problems += [flaw for sizes in sorted(found["mismatched_keys"]) for flaw in misshapen(*sizes)]
    if problems:
        told = "; ".join(problems).replace(f"{layers}0.", "")
        raise ModelError(f"the tensors make no {title.partition(' ')[2]}: in MTP layer {index} {told}")
    module = module.to(target.device).eval()
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(module)
    return module, module.get_submodule(last.rpartition(".")[0])


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
    path = next(name for name, part in module.named_modules() if part is decoder)
    children, count = [*decoder.named_children()], decoder.config.num_hidden_layers
    layers = [name for name, part in children if isinstance(part, nn.ModuleList) and len(part) == count]
    norms = [name for name, part in children if "norm" in name and getattr(part, "weight", None) is not None]
    if not layers or not norms:
        raise LookupError(f"{type(decoder).__name__} has no list of {count} layers with a norm behind it")
    return f"{path}.{layers[0]}.", f"{path}.{norms[-1]}.weight"


FORMAT = HeadFormat("mtp", "MTP", has_layers_only, parse, _built)
