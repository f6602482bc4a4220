"""Where a model's files lie: the folder of an embedded name, a path, or a hub name."""

import difflib
import functools
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from drafttree.core.errors import ModelError, unknown
from drafttree.drafters import LOOKUPS
from drafttree.drafters.formats import download, hub_answers, silence
from drafttree.loading import zoo

logger = logging.getLogger("drafttree")
DRAFTERS = [*zoo.NAMES, *LOOKUPS, "mtp", "none", "auto"]


def find_folder(source: str | Path) -> Path:
    """The folder of an embedded name, a path or a hub name.

    Raises:
        ModelError: there is none.
    """
    path = Path(_name_or_folder(source, DRAFTERS, "drafter"))
    return path if path.is_dir() else download(str(source))


def local_folder(name: str) -> Path | None:
    """The folder of an embedded name, a path or a hub name as far as it is on this machine, else None."""
    if name in zoo.NAMES:
        return zoo.folder(name)
    if not name or os.path.isdir(name):  # a Path raises where a name is too long
        return Path(name) if name else None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def resolve(source: str | Path) -> str:
    """The folder of an embedded model or a local path; anything else is a hub name, unless it looks like a path.

    Where the hub does not answer, it is the folder of what was downloaded before.

    Raises:
        ModelError: it is none of these, or the hub does not answer and the model was never downloaded.
    """
    found = _name_or_folder(source, zoo.NAMES, "model")
    return found if os.path.isdir(found) or hub_answers() else _cached(found)


def _name_or_folder(source: str | Path, known: Iterable[str], kind: str) -> str:
    name = str(source)
    if not name or source == Path():
        raise ModelError("the name of a model is empty; give an embedded name, a folder or a hub name")
    if name in zoo.NAMES:
        return str(zoo.folder(name))
    if os.path.isdir(name):
        return name
    if name.partition(":")[0] in {*DRAFTERS, "mixed"}:
        drafts = "" if known is DRAFTERS else f", and {name!r} as drafter"
        raise ModelError(f"{name!r} is not a model; give an embedded name, a folder or a hub name{drafts}")
    if os.path.isfile(name):
        raise ModelError(f"{name!r} is a file; give its folder, with its config.json")
    if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name) or name.startswith("."):
        raise ModelError(f"model folder {name!r} does not exist")
    if difflib.get_close_matches(name, known, n=1, cutoff=0.7):
        raise ModelError(f"{unknown(kind, name, known)} (or give a folder or a hub name)")
    return name


def _cached(name: str) -> str:
    """The folder that has the files of a hub name, where the hub does not answer.

    Raises:
        ModelError: there is none.
    """
    folder = local_folder(name)
    if folder is None:
        raise ModelError(f"{name!r} is not on this machine, and {silence()}; check the connection or give a folder")
    _tell(f"{silence()}; {name} is taken as it is on this machine")
    return str(folder)


@functools.cache
def _tell(message: str) -> None:
    logger.warning("%s", message)
