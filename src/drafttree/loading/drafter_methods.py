"""Drafters by name, including a user's own; `drafttree.loading.methods` describes the names.

An entry point of `drafttree.drafters` may also be a `HeadFormat`: then users can name folders of that format.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttree.core.errors import ConfigError, ModelError
from drafttree.drafters import LOOKUPS, Drafter
from drafttree.drafters.formats import FORMATS, HeadFormat, UnsupportedDrafter, recognise
from drafttree.loading import zoo
from drafttree.loading.methods import Methods

DRAFTER_MEMBERS = (*Drafter.__annotations__, "start")


def head_formats() -> dict[str, HeadFormat]:
    """The formats of trained heads by kind: drafttree's and those of entry points.

    Entry points that cannot be used are skipped without a message, since every folder is checked against the formats;
    `kind_of` logs them.
    """
    entries, _ = DRAFTER_CLASSES.sort_points(_check_kind)
    return FORMATS | {
        head_format.kind: head_format for head_format in entries.values() if isinstance(head_format, HeadFormat)
    }


def kind_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of drafter in a folder, which `recognise` finds by the formats of `head_formats`.

    If no format fits, entry points that cannot be used are logged, since the folder may be of their format.

    Args:
        folder: the folder.
        config: the contents of its config.json.

    Raises:
        ModelError: no format or several formats fit, or the files cannot be read.
    """
    try:
        return recognise(folder, head_formats(), config)
    except UnsupportedDrafter:
        raise
    except ModelError:
        DRAFTER_CLASSES.installed(_check_kind)
        raise


def installed_drafters() -> dict[str, Any]:
    """The drafter classes and head formats of entry points, by name; unusable ones are logged once and skipped."""

    def check(candidate: Any, name: str) -> Any:
        if isinstance(candidate, HeadFormat):
            return _check_kind(candidate, name)
        return DRAFTER_CLASSES.check(candidate, name)

    return DRAFTER_CLASSES.installed(check)


def missing_members(drafter: object) -> list[str]:
    """The members of the `Drafter` protocol that an object lacks."""
    return [attribute for attribute in DRAFTER_MEMBERS if not hasattr(drafter, attribute)]


def _check_kind(candidate: Any, name: str) -> Any:
    """Return the object of an entry point, unless it is a head format of a kind that drafttree has.

    Raises:
        ConfigError: drafttree has a head format of this kind.
    """
    if isinstance(candidate, HeadFormat) and candidate.kind in FORMATS:
        raise ConfigError(f"head format {candidate.kind!r} is drafttree's own; give the format {name!r} another kind")
    return candidate


def _drafter_lack(candidate: object) -> str:
    """What an object lacks to be a drafter class; empty if it is one."""
    if isinstance(candidate, HeadFormat):
        return "it is a format of files; give a folder that holds such a head"
    if not isinstance(candidate, type):
        return f"it is of type {type(candidate).__name__}, not a class"
    return "" if hasattr(candidate, "start") else "it lacks the method start of drafttree.drafters.Drafter"


DRAFTER_CLASSES: Methods[Drafter] = Methods(
    "drafter", "drafttree.drafters", LOOKUPS, _drafter_lack, reserved=(*zoo.NAMES, "mixed", "mtp", "none", "auto")
)
