"""Drafters by name, those of a user's own included; see `drafttree.loading.methods` for the names.

An entry point of `drafttree.drafters` may also be a `HeadFormat`: then folders of that format can be named as drafters.
"""

from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.drafters import LOOKUPS, Drafter
from drafttree.drafters.formats import FORMATS, HeadFormat
from drafttree.loading.methods import Methods

DRAFTER_PARTS = (*Drafter.__annotations__, "start")


def head_formats() -> dict[str, HeadFormat]:
    """The formats of trained heads by kind: those of drafttree and those of entry points."""
    installed = DRAFTER_CLASSES.installed(_check_kind).values()
    return FORMATS | {found.kind: found for found in installed if isinstance(found, HeadFormat)}


def missing_parts(drafter: object) -> list[str]:
    """The parts of the `Drafter` protocol that an object lacks."""
    return [part for part in DRAFTER_PARTS if not hasattr(drafter, part)]


def _check_kind(found: Any, name: str) -> Any:
    if isinstance(found, HeadFormat) and found.kind in FORMATS:
        raise ConfigError(f"head format {found.kind!r} is drafttree's own; give the format {name!r} another kind")
    return found


def _drafter_lack(found: object) -> str:
    if isinstance(found, HeadFormat):
        return "it is a format of files; give a folder that holds such a head"
    if not isinstance(found, type):
        return f"it is of type {type(found).__name__}, not a class"
    return "" if hasattr(found, "start") else "it lacks the method start of drafttree.drafters.Drafter"


DRAFTER_CLASSES: Methods[Drafter] = Methods("drafter", "drafttree.drafters", LOOKUPS, _drafter_lack)
