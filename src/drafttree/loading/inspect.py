"""Inspects a model or drafter on its own: its kind, fitting targets, size, and problems."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig

from drafttree.core.errors import DraftTreeError, ModelError
from drafttree.drafters import Drafter
from drafttree.drafters.formats import (
    ASSISTANT,
    LANGUAGE_MODEL,
    SIZES,
    Count,
    Fields,
    HeadFormat,
    dequantised,
    listed,
    misshapen,
    mtp,
    read_config,
    read_tensors,
    text_fields,
    weight_files,
)
from drafttree.loading.class_drafters import ClassDrafter
from drafttree.loading.drafter_methods import head_formats, kind_of
from drafttree.loading.drafters import parse_drafter
from drafttree.loading.gguf.architectures import weights_of
from drafttree.loading.gguf.reader import GGUFFile
from drafttree.loading.methods import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.loading.model_drafters import FilesDrafter, GivenModel
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.pretrained import check_layer_counts, class_of, quiet
from drafttree.loading.processors import load_processor
from drafttree.loading.quantized.layouts import Layout
from drafttree.loading.quantized.quantized_folder import holds_safetensors, weights_in
from drafttree.loading.stored_blocks import EXPERT, StoredWeight, kept_weights
from drafttree.loading.stored_shapes import stored_problems
from drafttree.loading.unused_tensors import changing
from drafttree.models.fused.fused_backend import why_not_known
from drafttree.models.module.fingerprint import Fingerprint
from drafttree.models.native.kernels import why_not_packed
from drafttree.models.native.native_backend import why_not_native
from drafttree.models.quantization.quantized_linear import quantization_method
from drafttree.models.triton.triton_support import prefers_triton, why_not_kernels, why_not_triton

UNKNOWN = "not said"
DEPENDENT = ("auto", "none", "mixed", "mtp")
"""Names that specify a drafter only together with a target or another drafter."""


class Depth(Fields):
    """The field of a config that gives a language model's depth."""

    num_hidden_layers: Count = 0


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        kind: the kind of drafter that `recognise` finds, or "class".
        fits: properties that a target must have, by name.
        details: further facts, by name; which ones depends on the kind.
        parameters: number of parameters; a tensor under two names counts once.
        megabytes: size of the parameters, in millions of bytes.
        dtypes: dtypes or block forms that they are stored in.
        problems: everything that keeps it from being loaded.
    """

    kind: str
    fits: dict[str, object]
    details: dict[str, object] = field(default_factory=dict)
    parameters: int = 0
    megabytes: float = 0.0
    dtypes: str = ""
    problems: tuple[str, ...] = ()


def inspect(source: str | nn.Module) -> Inspection:
    """Inspect a folder or hub name, the name of a drafter class, or a loaded model.

    Only a hub name needs the network.

    Raises:
        ConfigError: the class cannot be imported, or is not a drafter.
        ModelError: the source does not exist, its files are damaged or its config.json is wrong, or it is not a known
            kind of drafter.
    """
    match parse_drafter(source):
        case GivenModel(model=model):
            return _loaded_model(model)
        case ClassDrafter(made_by=drafter_class):
            return _drafter_class(drafter_class)
        case FilesDrafter() as spec if str(source).partition(":")[0] not in DEPENDENT:
            return _drafter_files(spec)
    raise ModelError(
        f"{source!r} is not a drafter by itself; inspect a folder, a hub name, or a drafter such as 'lookup'"
    )


def _drafter_files(drafter: FilesDrafter) -> Inspection:
    """Inspect a folder, a GGUF file or a hub name; errors are those of `inspect`."""
    source = drafter.source
    if source_kind := next(
        (registry.kind for registry in (POLICY_CLASSES, VERIFIER_CLASSES) if source in registry.names()), None
    ):
        raise ModelError(
            f"{source!r} is a {source_kind}; inspect takes drafters. See drafttree policies and drafttree verifiers"
        )
    files = drafter.files
    if files.gguf:
        return _gguf_model(files, files.gguf)
    folder = Path(files.path)
    config = read_config(folder)
    if files.layout and files.kind == LANGUAGE_MODEL and holds_safetensors(folder):
        return _quantised_model(files, files.layout)
    source_kind = kind_of(folder, config)
    tensors = read_tensors(folder)
    if source_kind == LANGUAGE_MODEL:
        fits, details = _language_model(config, tensors)
        if "vision_config" in config:
            details["reads images"] = _reads_images(folder, config)
        problems = _weight_problems(folder, tensors)
        details |= {} if problems else _passes(AutoConfig.from_pretrained(folder))
    elif source_kind == ASSISTANT:
        fits, details, problems = _assistant(folder, config, tensors)
    else:
        fits, details, problems = _head(head_formats()[source_kind], config, tensors)
    return Inspection(source_kind, fits, details, *_sizes(tensors), tuple(problems))


def _sizes(tensors: Mapping[str, Tensor]) -> tuple[int, float, str]:
    """`parameters`, `megabytes` and `dtypes` of an `Inspection`."""
    unique_tensors = list({tensor.data_ptr(): tensor for tensor in tensors.values()}.values())
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in unique_tensors})
    numbers = sum(tensor.numel() for tensor in unique_tensors if tensor.is_floating_point())
    return numbers, sum(tensor.nbytes for tensor in unique_tensors) / 1e6, ", ".join(dtypes)


def _loaded_model(model: Any) -> Inspection:
    tensors = dict(model.named_parameters())
    fits, details = _language_model(json.loads(model.config.to_json_string()), tensors)
    unseen = Fingerprint(model).unseen
    reuse = f"nothing by default: {unseen} may have a state that cannot be compared" if unseen else "yes"
    details |= {"reuses rows": reuse, "native passes": _yes_or_no(why_not_native(model))}
    details |= {"Triton passes": _yes_or_no(why_not_triton(model))} if prefers_triton() else {}
    return Inspection(LANGUAGE_MODEL, fits, details, *_sizes(tensors))


def _gguf_model(files: ModelFiles, gguf: GGUFFile) -> Inspection:
    """Inspect a GGUF file, without reading its weights."""
    fits, details = _language_model(files.settings, {})
    details |= {"file": "GGUF", "native passes": _native_passes(files.config)}
    stored_tensors = gguf.tensors.values()
    type_sizes = Counter[str]()
    for tensor in stored_tensors:
        type_sizes[tensor.kind] += math.prod(tensor.shape)
    parameters = type_sizes.total()
    megabytes = sum(tensor.nbytes for tensor in stored_tensors) / 1e6
    type_names = ", ".join(tensor_type for tensor_type, _ in type_sizes.most_common())
    try:
        problems = _stored_weight_problems(weights_of(gguf, files.settings, torch.bfloat16), files.config)
    except ModelError as error:
        problems = [str(error)]
    return Inspection(LANGUAGE_MODEL, fits, details, parameters, megabytes, type_names, tuple(problems))


def _quantised_model(files: ModelFiles, layout: Layout) -> Inspection:
    """Inspect a folder with quantised weights, without reading them."""
    fits, details = _language_model(files.settings, {})
    details["native passes"] = _native_passes(files.unquantized_config)
    if layout.is_of_mlx:  # transformers' config does not show it
        details["quantised"] = layout.method
    folder = Path(files.path)
    megabytes = sum(path.stat().st_size for path in weight_files(folder)) / 1e6
    weights: Mapping[str, StoredWeight] = {}
    try:
        weights = weights_in(folder, layout, torch.bfloat16)
        problems = _stored_weight_problems(weights, files.unquantized_config)
    except ModelError as error:
        problems = [str(error)]
    parameters = sum(math.prod(weight.shape) for weight in weights.values())
    return Inspection(LANGUAGE_MODEL, fits, details, parameters, megabytes, _form_counts(weights), tuple(problems))


def _stored_weight_problems(weights: Mapping[str, StoredWeight], config: PreTrainedConfig) -> list[str]:
    """The missing and misshapen weights of a model, found without reading their values.

    Args:
        weights: the weights in the files, by the names of transformers.
        config: the model's config, without quantisation.

    Raises:
        ModelError: the weights cannot be compared with a model of this config.
    """
    model_class = class_of(config)
    missing_names = _parameters(model_class, config).keys() - weights.keys()
    for match in map(EXPERT.fullmatch, weights):
        if match:  # weights that a module stacks lie apart in the files
            missing_names -= {f"{match[1]}.gate_up_proj", f"{match[1]}.down_proj"}
    return [*listed("missing", missing_names), *stored_problems(weights, model_class, config)]


def _form_counts(weights: Mapping[str, StoredWeight]) -> str:
    """How many weights have each form of blocks, such as "28 q4_0, 1 unpacked"; plain weights are left out."""
    block_weights = kept_weights(weights)
    forms = Counter[str]()
    for name, weight in weights.items():
        if weight.is_packed:
            forms[weight.form if name in block_weights else "unpacked"] += 1
    return ", ".join(f"{count} {form}" for form, count in forms.most_common())


def _drafter_class(drafter: type[Drafter]) -> Inspection:
    """Inspect a drafter class: its name and parameters, since it has no files."""
    factory: Any = getattr(drafter, "for_target", drafter)
    positional_count = 2  # `for_target` gets target and tokenizer, a class vocab_size and device
    parameters = [str(parameter) for parameter in signature(factory).parameters.values()][positional_count:]
    details: dict[str, object] = {
        "class": f"{drafter.__module__}.{drafter.__qualname__}",
        "parameters": ", ".join(parameters) or "none",
    }
    return Inspection("class", {}, details)


FilesReport = tuple[dict[str, object], dict[str, object], Iterable[str]]
"""`fits`, `details` and `problems` of an `Inspection`."""


def _language_model(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, object], dict[str, object]]:
    check_layer_counts(config)
    text = text_fields(config)
    fits = {
        "tokenizer": "its own, or one with a third of its tokens in common",
        "vocabulary": text.get("vocab_size", UNKNOWN),
    }
    own_mtp = mtp.names_among(tensors, Depth.read(text).num_hidden_layers)
    names = ("hidden_size", "num_hidden_layers", "max_position_embeddings")
    details = {
        "architecture": config["model_type"],
        **{name.replace("_", " "): text.get(name, UNKNOWN) for name in names},
        **({"MTP layers": 'as drafter "mtp"'} if own_mtp else {}),
        **({"quantised": method} if (method := quantization_method(config.get("quantization_config"))) else {}),
    }
    return fits, details


def _reads_images(folder: Path, config: Mapping[str, Any]) -> str:
    """Whether prompts may have images: "yes", or "no" with the reason why the model's processor cannot be loaded."""
    try:
        load_processor(str(folder), config.get("image_token_id", config.get("image_token_index")))
    except DraftTreeError as error:
        return f"no: {error}"
    return "yes"


def _passes(config: PreTrainedConfig) -> dict[str, object]:
    """Whether drafttree-native runs a model's passes and, where they are preferred, whether kernels in Triton do."""
    passes: dict[str, object] = {"native passes": _native_passes(config)}
    if prefers_triton():
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        passes["Triton passes"] = _yes_or_no(why_not_known(config) or why_not_kernels(_dtype_of(config), device))
    return passes


def _native_passes(config: PreTrainedConfig) -> str:
    """Whether drafttree-native runs a model's passes on a CPU, judged by its config: "yes", or "no" with the reason."""
    return _yes_or_no(why_not_known(config) or why_not_packed(_dtype_of(config), torch.device("cpu")))


def _dtype_of(config: PreTrainedConfig) -> torch.dtype:
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


def _yes_or_no(obstacle: str | None) -> str:
    return f"no: {obstacle}" if obstacle else "yes"


def _assistant(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FilesReport:
    """Inspect an assistant: a language model that reads its target's hidden states, keys and values."""
    fits, details = _language_model(config, tensors)
    fits["hidden size"] = config.get("backbone_hidden_size", UNKNOWN)
    return fits, details, _weight_problems(folder, tensors)


def _weight_problems(folder: Path, tensors: Mapping[str, Tensor]) -> list[str]:
    """The problems that transformers would have with a folder: missing, unread and misshapen tensors, or an error."""
    try:
        config = AutoConfig.from_pretrained(folder)
        model: Any = class_of(config)
        if model is None:
            return [f"{config.model_type} is not a decoder-only language model"]
        if not config.to_dict().get("quantization_config") and (problems := _mostly_missing(model, config, tensors)):
            return problems
        with quiet():
            _, loading_info = model.from_pretrained(
                None, config=config, state_dict=dict(tensors), output_loading_info=True, ignore_mismatched_sizes=True
            )
    except Exception as error:
        return [" ".join(str(error).split()) or type(error).__name__]
    shape_problems = (flaw for sizes in sorted(loading_info["mismatched_keys"]) for flaw in misshapen(*sizes))
    unread_problems = listed("unread", changing(loading_info["unexpected_keys"]))
    return [*listed("missing", loading_info["missing_keys"]), *unread_problems, *shape_problems]


def _mostly_missing(model: Any, config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> list[str]:
    """The missing tensors of a model, if they are more than half of it; else empty.

    This saves filling a model with random numbers only to report it as missing.
    """
    parameters = _parameters(model, config)
    stored_count = sum(tensor.numel() for tensor in tensors.values())
    if 2 * stored_count >= sum(parameter.numel() for parameter in parameters.values()):
        return []
    return [*listed("missing", [name for name in parameters if name not in tensors])]


def _parameters(model: Any, config: PreTrainedConfig) -> dict[str, nn.Parameter]:
    """The parameters of a model class by name, on the meta device; a weight under two names counts once."""
    with quiet(), torch.device("meta"):
        return dict(model(config).named_parameters())


def _head(head: HeadFormat, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FilesReport:
    checkpoint = head.parse(dequantised(tensors, config, torch.bfloat16), config, None)
    fits: dict[str, object] = {**dict.fromkeys(SIZES, UNKNOWN), **checkpoint.made_for}
    base = config.get("base_model_name_or_path")
    fits |= {"trained on": base} if base else {}
    return fits, checkpoint.details, checkpoint.problems
