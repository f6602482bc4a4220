"""The formats of trained heads, kinds of drafters that are not supported, and which of them a folder holds.

Published heads often claim to be plain Llamas in their `config.json`. So the names of the tensors decide.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import CONFIG_MAPPING

from drafttree.core.errors import ModelError
from drafttree.drafters.assistant import ASSISTANTS
from drafttree.drafters.formats import block, eagle3, mtp
from drafttree.drafters.formats.checkpoints import INDICES, NAMES, head_files, read_config, tensor_names
from drafttree.drafters.formats.config import Labels
from drafttree.drafters.formats.format import ADVICE, HeadFormat, any_name
from drafttree.drafters.formats.heads import EAGLE, HYDRA, MEDUSA

PUBLISHED = {
    "deepseek-ai/deepseek-r1-distill-llama-8b": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
    "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
    "meta-llama/llama-3.1-8b-instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "meta-llama/llama-3.3-70b-instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    "qwen/qwen3-1.7b": "AngelSlim/Qwen3-1.7B_eagle3",
    "qwen/qwen3-4b": "AngelSlim/Qwen3-4B_eagle3",
    "qwen/qwen3-8b": "AngelSlim/Qwen3-8B_eagle3",
    "qwen/qwen3-32b": "AngelSlim/Qwen3-32B_eagle3",
}


FORMATS: dict[str, HeadFormat] = {
    head_format.kind: head_format for head_format in (block.FORMAT, eagle3.FORMAT, MEDUSA, HYDRA, mtp.FORMAT, EAGLE)
}
"""The formats of heads, by kind.

EAGLE-1 heads have no tensor name that only they have, so their format is the last.
"""
LANGUAGE_MODEL, ASSISTANT = "language-model", "assistant"


class Unsupported(NamedTuple):
    """A kind of drafter that is not supported.

    Attributes:
        title: the kind, for messages.
        why: the reason, for messages.
        tensors: whether tensors of these names, without `model.` before them, are of the kind.
        label: matches the architecture, `speculators_model_type` or `model_type` of its config.json, in lower case.
    """

    title: str
    why: str
    tensors: Callable[[Collection[str]], bool]
    label: str


SUPPORTED_BLOCKS = (
    "drafttree runs DFlash, DFlash2, JetFlow (once JetSpec) and DSpark of the drafters that draft a block in one pass"
)
UNSUPPORTED = (
    Unsupported("a Domino drafter", SUPPORTED_BLOCKS, any_name(r"prefix_gru\."), r"\w*domino"),
    Unsupported("a DFlare drafter", SUPPORTED_BLOCKS, any_name(r"dflare"), r"\w*dflare"),
    Unsupported("a P-EAGLE head", "it drafts from states of its own", any_name(r"mask_hidden$"), r"peagle"),
    Unsupported(
        "a head with layers of Gemma 4",
        "drafttree runs those with layers of Llama and Qwen 3",
        any_name(r"layers\.0\.layer_scalar$"),
        r"gemma\w*(eagle3|dspark|dflash)",
    ),
    Unsupported(
        "an assistant of an unknown kind",
        "drafttree runs those of Gemma 4 and Muse Glimmer",
        any_name(r"(pre|post)_projection\."),
        r"(?!muse_)\w+_assistant$",
    ),
)
"""Unsupported kinds of drafters; the first that matches is reported."""


class UnsupportedDrafter(ModelError):
    """A folder holds a drafter of a kind that is not supported."""


def recognise(
    folder: Path, formats: Mapping[str, HeadFormat] = FORMATS, config: Mapping[str, Any] | None = None
) -> str:
    """The kind of drafter that a folder holds: "language-model", "assistant" or a format's kind, such as "eagle3".

    Args:
        folder: the folder.
        formats: the formats of heads that it may hold, by kind.
        config: the contents of its config.json; None reads the file.

    Raises:
        ModelError: If it holds no drafter or several, or if its files cannot be read.
    """
    folder = Path(folder)
    _check_alone(folder)
    names = tensor_names(folder)
    config = read_config(folder) if config is None else config
    head_kind = next((head_kind for head_kind, head in formats.items() if head.holds(names)), None)
    if head_kind is None and config.get("model_type") in ASSISTANTS:
        return ASSISTANT
    if head_kind in {None, *FORMATS} and (unsupported := unsupported_kind(names, config)):
        raise UnsupportedDrafter(f"{folder} holds {unsupported}")
    if head_kind:
        return head_kind
    if config.get("model_type") in CONFIG_MAPPING:
        return LANGUAGE_MODEL
    samples = ", ".join(sorted(names)[:3])
    *titles, last_title = [head.title for head in formats.values()]
    raise ModelError(
        f"{folder} is not a drafter that drafttree knows: config.json names no transformers model, and tensors such as "
        f"{samples} belong to no {', '.join(titles)} or {last_title} head"
    )


def _check_alone(folder: Path) -> None:
    """Refuse a folder that holds heads beside a model or other heads, since it does not say which one to use."""
    models = [name for name in (*INDICES, *NAMES) if (folder / name).is_file()]
    heads = {path.stem: path.name for path in reversed(head_files(folder))}
    files = models[:1] + sorted(heads.values())
    if len(files) > 1:
        raise ModelError(f"{folder} holds {' and '.join(files)}; give a folder with the head alone")


def unsupported_kind(names: Collection[str], config: Mapping[str, Any]) -> str | None:
    """The unsupported kind of a drafter and why it is not supported, as text; None for other drafters."""
    names = {name.removeprefix("model.") for name in names}
    fields = Labels.read(config)
    labels = [*fields.architectures, fields.speculators_model_type, fields.model_type]
    for unsupported in UNSUPPORTED:
        if unsupported.tensors(names) or any(re.match(unsupported.label, label.lower()) for label in labels):
            return f"{unsupported.title}, which is not supported: {unsupported.why}; {ADVICE}"
    return None
