"""Drafters by name, those of a user's own included; see `drafttree.loading.methods` for the names.

An entry point of `drafttree.drafters` may also be a `HeadFormat`: then folders of that format can be named as drafters.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttree.core.errors import ConfigError, ModelError
from drafttree.drafters import LOOKUPS, Drafter
from drafttree.drafters.formats import FORMATS, HeadFormat, UnsupportedDrafter, recognise
from drafttree.loading import zoo
from drafttree.loading.methods import Methods

DRAFTER_PARTS = (*Drafter.__annotations__, "start")


def head_formats() -> dict[str, HeadFormat]:
    """The formats of trained heads by kind: those of drafttree and those of entry points.

    Every folder is looked at with them, so nothing is said of entry points that cannot be used; `kind_of` does.
    """
    entries, _ = DRAFTER_CLASSES.sort_points(_check_kind)
    return FORMATS | {
        head_format.kind: head_format for head_format in entries.values() if isinstance(head_format, HeadFormat)
    }


def kind_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of drafter that a folder holds, as `recognise` tells it by the formats of `head_formats`.

    Where none knows it, the log names the entry points that cannot be used: one of them may have been meant.

    Args:
        folder: the folder.
        config: the contents of its config.json.

    Raises:
        ModelError: none of them, several of them, or its files cannot be read.
    """
    try:
        return recognise(folder, head_formats(), config)
    except UnsupportedDrafter:
        raise
    except ModelError:
        DRAFTER_CLASSES.installed(_check_kind)
        raise


def installed_drafters() -> dict[str, Any]:
    """The classes and formats of entry points, by name; those that cannot be used are logged once, and skipped."""
    return DRAFTER_CLASSES.installed(
        lambda found, name: (_check_kind if isinstance(found, HeadFormat) else DRAFTER_CLASSES.check)(found, name)
    )


def missing_parts(drafter: object) -> list[str]:
    """The parts of the `Drafter` protocol that an object lacks."""
    return [attribute for attribute in DRAFTER_PARTS if not hasattr(drafter, attribute)]


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


DRAFTER_CLASSES: Methods[Drafter] = Methods(
    "drafter", "drafttree.drafters", LOOKUPS, _drafter_lack, reserved=(*zoo.NAMES, "mixed", "mtp", "none", "auto")
)
