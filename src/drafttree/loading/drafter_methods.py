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

DRAFTER_PARTS = (*Drafter.__annotations__, "start")


def head_formats() -> dict[str, HeadFormat]:
    """The formats of trained heads by kind: drafttree's and those of entry points.

    Every folder is checked against them, so entry points that cannot be used are skipped without a word; `kind_of` logs
    them.
    """
    entries, _ = DRAFTER_CLASSES.sort_points(_check_kind)
    return FORMATS | {
        head_format.kind: head_format for head_format in entries.values() if isinstance(head_format, HeadFormat)
    }


def kind_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of drafter in a folder, which `recognise` finds by the formats of `head_formats`.

    If no format fits, the entry points that cannot be used are logged: one of them may have been meant.

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
