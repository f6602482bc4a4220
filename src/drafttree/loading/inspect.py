"""Inspection of a drafter's folder without its target: kind, fitting targets, size, and what is missing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from drafttree.drafters.formats import (
    ASSISTANT,
    LANGUAGE_MODEL,
    SIZES,
    HeadFormat,
    listed,
    misshapen,
    mtp,
    read_config,
    read_tensors,
    recognise,
)
from drafttree.drafters.formats.checkpoints import COUNT, OBJECT, entry
from drafttree.loading.drafter_methods import head_formats
from drafttree.loading.pretrained import check_layer_counts, class_of, find_folder
from drafttree.models.fused.int8_linear import quantization_method

UNKNOWN = "not said"


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        kind: what `recognise` calls it.
        fits: what a target must be like.
        details: further facts that are told of this kind.
        parameters: number of stored numbers; a tensor under two names counts once.
        megabytes: memory that they take, in units of a million bytes.
        dtypes: the dtypes they are stored in.
        problems: what keeps it from being loaded, all of it.
    """

    kind: str
    fits: dict[str, object]
    details: dict[str, object] = field(default_factory=dict)
    parameters: int = 0
    megabytes: float = 0.0
    dtypes: str = ""
    problems: tuple[str, ...] = ()


def inspect(source: str) -> Inspection:
    """Look at a folder or hub name.

    Raises:
        ModelError: there is none, its files are damaged, its config.json makes no sense, or it is no drafter known
            here.
    """
    folder, formats = find_folder(source), head_formats()
    kind, config, tensors = recognise(folder, formats), read_config(folder), read_tensors(folder)
    if kind == LANGUAGE_MODEL:
        fits, details, problems = _language_model(folder, config, tensors)
    elif kind == ASSISTANT:
        fits, details, problems = _assistant(folder, config, tensors)
    else:
        fits, details, problems = _head(formats[kind], config, tensors)
    stored = list({tensor.data_ptr(): tensor for tensor in tensors.values()}.values())
    return Inspection(
        kind=kind,
        fits=fits,
        details=details,
        parameters=sum(tensor.numel() for tensor in stored if tensor.is_floating_point()),
        megabytes=sum(tensor.nbytes for tensor in stored) / 1e6,
        dtypes=", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in stored})),
        problems=tuple(problems),
    )


Looked = tuple[dict[str, object], dict[str, object], Iterable[str]]


def _language_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    check_layer_counts(config)
    text = entry(config, "text_config", OBJECT) or config
    fits = {
        "tokenizer": "its own, or one with a third of its tokens in common",
        "vocabulary": text.get("vocab_size", UNKNOWN),
    }
    own_mtp = mtp.names_among(tensors, entry(text, "num_hidden_layers", COUNT) or 0)
    names = ("hidden_size", "num_hidden_layers", "max_position_embeddings")
    details = {
        "architecture": config["model_type"],
        **{name.replace("_", " "): text.get(name, UNKNOWN) for name in names},
        **({"MTP layers": 'as drafter "mtp"'} if own_mtp else {}),
        **({"quantised": method} if (method := quantization_method(config.get("quantization_config"))) else {}),
    }
    return fits, details, _weight_problems(folder, tensors)


def _assistant(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    """A language model by its class, which reads its target's hidden states, keys and values."""
    fits, details, problems = _language_model(folder, config, tensors)
    return {**fits, "hidden size": config.get("backbone_hidden_size", UNKNOWN)}, details, problems


def _weight_problems(folder: Path, tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors that transformers would initialise at random if it loaded the folder."""
    try:
        config = AutoConfig.from_pretrained(folder)
        model: Any = class_of(config)
        if model is None:
            return [f"{config.model_type} is not a decoder-only language model"]
        _, found = model.from_pretrained(
            None, config=config, state_dict=dict(tensors), output_loading_info=True, ignore_mismatched_sizes=True
        )
    except Exception as error:
        return [" ".join(str(error).split()) or type(error).__name__]
    wrong = (flaw for sizes in sorted(found["mismatched_keys"]) for flaw in misshapen(*sizes))
    return [*listed("missing", found["missing_keys"]), *wrong]


def _head(head: HeadFormat, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    found = head.parse(tensors, config)
    fits: dict[str, object] = {**dict.fromkeys(SIZES, UNKNOWN), **found.made_for}
    base = config.get("base_model_name_or_path")
    fits |= {"trained on": base} if base else {}
    return fits, head.describe(found), found.problems
