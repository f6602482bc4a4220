"""Finds a model's files: the folder of an embedded name, a path or a hub name, or a GGUF file."""

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
from drafttree.core.requirements import check_requirements
from drafttree.drafters import LOOKUPS
from drafttree.drafters.formats import SUFFIXES, download, download_file, hub_answers, silence
from drafttree.loading import zoo
from drafttree.loading.gguf.reader import SUFFIX

logger = logging.getLogger("drafttree")
DRAFTERS = [*zoo.NAMES, *LOOKUPS, "mtp", "none", "auto"]
HUB_NAME = r"[\w.-]{1,96}(/[\w.-]{1,96})?"
HUB_FILE = re.compile(rf"({HUB_NAME}):(.+{re.escape(SUFFIX)})")
"""A GGUF file in a repository of the hub."""
PROJECTORS = "mmproj"
"""Start of the names of GGUF files that only encode images for another model."""


def find_folder(source: str | Path) -> Path:
    """The folder of an embedded name, a path or a hub name, which is downloaded.

    Raises:
        ModelError: the source names no folder, or it cannot be downloaded.
    """
    path = Path(_name_or_folder(source, DRAFTERS, "drafter"))
    return path if path.is_dir() else download(str(source))


def find_gguf(source: str | Path) -> Path | None:
    """The GGUF file that a path, a folder without other weights, or REPO:FILE.gguf names; None for other sources.

    Raises:
        ConfigError: the packages that read GGUF files are missing.
        ModelError: the file does not exist, the folder holds several, or the hub does not have it.
    """
    name = str(source)
    if os.path.isdir(name):
        path = _gguf_in(Path(name))
    elif name.endswith(SUFFIX):
        hub_file = HUB_FILE.fullmatch(name)
        if os.path.isfile(name):
            path = Path(name)
        elif hub_file:
            path = download_file(hub_file[1], hub_file[3])
        else:
            raise ModelError(f"GGUF file {name!r} does not exist; give a file, or one of the hub as REPO:FILE.gguf")
    else:
        path = None
    if path:
        check_requirements("reading a GGUF file", "gguf")
    return path


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder; None if it has none, or has other weights, which take precedence."""
    files = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith(PROJECTORS)]
    if not files:
        return None
    names = ", ".join(path.name for path in files)
    if weights := next((path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")), None):
        _tell(f"{folder} holds {weights.name} and {names}; the first is used; to use a GGUF file, give its name")
        return None
    if len(files) > 1:
        raise ModelError(f"{folder} holds several GGUF files: {names}; name one of them")
    return files[0]


def local_folder(name: str) -> Path | None:
    """The folder of an embedded name, a path or a hub name; None if it is not on this machine."""
    if name in zoo.NAMES:
        return zoo.folder(name)
    if not name or os.path.isdir(name):  # Path.is_dir raises if the name is too long
        return Path(name) if name else None
    try:
        config_path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(config_path).parent if isinstance(config_path, str) else None


def resolve(source: str | Path) -> str:
    """Where transformers finds a model: the folder of an embedded name or a path, or a hub name as it is.

    If the hub does not answer, it is the folder that was downloaded before.

    Raises:
        ModelError: the source is not a model's name, its folder does not exist, or the hub does not answer and the
            model was never downloaded.
    """
    location = _name_or_folder(source, zoo.NAMES, "model")
    return location if os.path.isdir(location) or hub_answers() else _cached(location)


def _name_or_folder(source: str | Path, known_names: Iterable[str], noun: str) -> str:
    name = str(source)
    if not name or source == Path():
        raise ModelError("the name of a model is empty; give an embedded name, a folder or a hub name")
    if name in zoo.NAMES:
        return str(zoo.folder(name))
    if os.path.isdir(name):
        return name
    if name.partition(":")[0] in {*DRAFTERS, "mixed"}:
        advice = "" if known_names is DRAFTERS else f", and {name!r} as drafter"
        raise ModelError(f"{name!r} is not a model; give an embedded name, a folder or a hub name{advice}")
    if os.path.isfile(name):
        raise ModelError(f"{name!r} is a file; give its folder, with its config.json, or a GGUF file")
    if not re.fullmatch(HUB_NAME, name) or name.startswith("."):
        raise ModelError(f"model folder {name!r} does not exist")
    if difflib.get_close_matches(name, known_names, n=1, cutoff=0.7):
        raise ModelError(f"{unknown(noun, name, known_names)} (or give a folder or a hub name)")
    return name


def _cached(name: str) -> str:
    """The downloaded folder of a hub name, to be used if the hub does not answer.

    Raises:
        ModelError: the model was never downloaded.
    """
    folder = local_folder(name)
    if folder is None:
        raise ModelError(f"{name!r} is not on this machine, and {silence()}; check the connection or give a folder")
    _tell(f"{silence()}; the copy of {name} on this machine is used")
    return str(folder)


@functools.cache
def _tell(message: str) -> None:
    logger.warning("%s", message)
