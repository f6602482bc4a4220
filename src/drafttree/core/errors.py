"""The hierarchy of errors that drafttree raises on purpose.

DraftTreeError
├── ConfigError      a policy, verifier, parameter or option that does not exist or is out of range
├── InputError       a prompt or a file that cannot be used
├── ContextError     a prompt and a length that do not fit into the model's context
├── ModelError       a model that cannot be loaded, or cannot be verified in a tree
│   └── TokenizerMismatch   a target and a drafter whose vocabularies have too little in common
├── EngineClosedError   an engine that takes no more requests
└── UnfinishedTextError   the result of a stream that has not ended
"""

import difflib
from collections.abc import Iterable

LISTED = 30
"""Most known names that a message lists."""


class DraftTreeError(Exception):
    """Base class: catch this to catch everything drafttree raises on purpose."""


class ConfigError(DraftTreeError, ValueError):
    """An option that does not exist or whose value is out of range."""


class InputError(DraftTreeError, ValueError):
    """A prompt or prompt file that cannot be used."""


class ContextError(InputError):
    """The prompt and the requested tokens exceed the model's context."""


class ModelError(DraftTreeError):
    """A model that cannot be loaded or cannot be verified in a tree."""


class TokenizerMismatch(ModelError):
    """The vocabularies of target and drafter have too little in common."""


class EngineClosedError(DraftTreeError, RuntimeError):
    """An engine was closed before a request was submitted, or while it ran."""


class UnfinishedTextError(DraftTreeError, RuntimeError):
    """The result of a stream was asked for before its text had ended."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in `known`, with the nearest known name as a suggestion."""
    known_names = sorted(known)
    folded_names = {known_name.lower(): known_name for known_name in known_names}
    nearest = difflib.get_close_matches(str(name).lower(), folded_names, n=1)
    if nearest:
        hint = f"did you mean {folded_names[nearest[0]]!r}?"
    elif len(known_names) > LISTED:
        hint = f"none of the {len(known_names)} known ones is like it"
    else:
        hint = f"known: {', '.join(known_names) or 'none'}"
    return ConfigError(f"unknown {kind} {name!r}; {hint}")
