"""The classes of errors: the public names of `drafttree.core.errors`."""

from drafttree.core.errors import (
    ConfigError,
    ContextError,
    DraftTreeError,
    EngineClosedError,
    InputError,
    ModelError,
    TokenizerMismatch,
    UnfinishedTextError,
)

__all__ = [
    "ConfigError",
    "ContextError",
    "DraftTreeError",
    "EngineClosedError",
    "InputError",
    "ModelError",
    "TokenizerMismatch",
    "UnfinishedTextError",
]
