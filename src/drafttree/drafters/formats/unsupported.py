"""Drafters of kinds that drafttree does not run, told by their tensors' names or their config.json."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from drafttree.drafters.formats.checkpoints import TEXT, TEXTS, entry

ADVICE = "use another head made for the target, a smaller language model, or lookup"


class Unsupported(NamedTuple):
    """One kind of drafter.

    Attributes:
        title: name for messages, such as "a DFlash head".
        why: the reason why it is not run.
        tensors: whether the names of a checkpoint's tensors, without `model.` before them, tell it.
        label: matches the lower-case architecture, `speculators_model_type` or `model_type` of its config.json.
    """

    title: str
    why: str
    tensors: Callable[[Collection[str]], bool]
    label: str


def _any(pattern: str) -> Callable[[Collection[str]], bool]:
    return lambda names: any(re.match(pattern, name) for name in names)


KIN = "drafttree runs DFlash, DFlash2, JetSpec and DSpark of the drafters that draft a block in one pass"
KINDS = (
    Unsupported("a Domino drafter", KIN, _any(r"prefix_gru\."), r"\w*domino"),
    Unsupported("a DFlare drafter", KIN, _any(r"dflare"), r"\w*dflare"),
    Unsupported("a P-EAGLE head", "it drafts from states of its own", _any(r"mask_hidden$"), r"peagle"),
    Unsupported(
        "a head with layers of Gemma 4",
        "drafttree runs those with layers of Llama and Qwen 3",
        _any(r"layers\.0\.layer_scalar$"),
        r"gemma\w*(eagle3|dspark|dflash)",
    ),
    Unsupported(
        "an assistant of an unknown kind",
        "drafttree runs those of Gemma 4 and Muse Glimmer",
        _any(r"(pre|post)_projection\."),
        r"(?!muse_)\w+_assistant$",
    ),
)
"""The first that is told is the one."""


def unsupported_kind(names: Collection[str], config: Mapping[str, Any]) -> str | None:
    """The kind of drafter that a folder holds and why it is not run, None for others.

    Args:
        names: names of all its tensors.
        config: its `config.json`.
    """
    names = {name.removeprefix("model.") for name in names}
    labels = [*(entry(config, "architectures", TEXTS) or [])]
    labels += [entry(config, name, TEXT) or "" for name in ("speculators_model_type", "model_type")]
    for kind in KINDS:
        if kind.tensors(names) or any(re.match(kind.label, label.lower()) for label in labels):
            return f"{kind.title}, which is not supported: {kind.why}; {ADVICE}"
    return None
