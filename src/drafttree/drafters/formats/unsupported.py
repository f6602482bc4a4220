"""Drafters of kinds that drafttree does not run, told by their tensors' names or their config.json."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from drafttree.drafters.formats.checkpoints import TEXT, TEXTS, entry

ADVICE = "use an EAGLE-3, Medusa or Hydra head made for the target, a smaller language model, or lookup"
OWN_EMBEDDING = {"embed_tokens.weight", "lm_head.weight"}


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


def _only_mtp(names: Collection[str]) -> bool:
    """A whole model may have these layers beside its own, and is a language model."""
    own = set(names) - OWN_EMBEDDING
    return bool(own) and all(re.match(r"mtp(_layers)?\.", name) for name in own)


BLOCK = "it drafts a block of tokens in one pass, not a tree level by level"
KINDS = (
    Unsupported("a DSpark head", BLOCK, _any(r"(markov|confidence)_head\."), r"\w*dspark"),
    Unsupported("a DFlash head", BLOCK, _any(r"hidden_norm\."), r"\w*dflash"),
    Unsupported("a P-EAGLE head", BLOCK, _any(r"mask_hidden$"), r"peagle"),
    Unsupported(
        "an EAGLE-3 head with layers of Gemma 4",
        "drafttree runs those with layers of Llama and Qwen 3",
        _any(r"layers\.0\.layer_scalar$"),
        r"gemma\w*eagle3",
    ),
    Unsupported(
        "an assistant of a kind other than Gemma 4's",
        "drafttree does not know what it reads of its target",
        _any(r"(pre|post)_projection\."),
        r"\w+_assistant$",
    ),
    Unsupported("multi-token-prediction layers (mtp.*)", "they are a part of their model", _only_mtp, r"mtp\w*$"),
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
