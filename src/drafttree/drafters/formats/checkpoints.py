"""Drafter files: their configuration and their tensors, read without running anything in them.

Heads are published as safetensors and as pickles, alone or in shards.
"""

import json
import math
import pickle
import re
import struct
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from drafttree.core.errors import ModelError

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
NAMES = ("model.safetensors", "pytorch_model.bin")
HEAD_NAMES = ("*_lm_head.safetensors", "*_lm_head.pt")
"""Files of heads alone, such as medusa_lm_head.pt, as patterns."""
SUFFIXES = (".safetensors", ".bin", ".pt")
STATE_OF_A_RUN = re.compile(r"training_args|optimizer|scheduler|rng_state|scaler")


class Wanted(NamedTuple):
    """A condition on a field of config.json, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


SIZE = Wanted("a positive integer of at most 8 digits", lambda value: type(value) is int and 0 < value < 10**8)
COUNT = Wanted("a number of layers", lambda value: type(value) is int and 0 <= value < 10**8)
NUMBER = Wanted("a positive number", lambda value: type(value) in (int, float) and 0 < value < math.inf)
FLAG = Wanted("true or false", lambda value: isinstance(value, bool))
TEXT = Wanted("a string", lambda value: isinstance(value, str))
TEXTS = Wanted("a list of strings", lambda value: isinstance(value, list) and all(map(TEXT.holds, value)))
OBJECT = Wanted("an object", lambda value: isinstance(value, dict))


def entry(config: Mapping[str, Any], name: str, wanted: Wanted) -> Any:
    """A field of config.json, None where it is absent or null.

    Raises:
        ModelError: the field is not what is wanted; the message has its name and value.
    """
    value = config.get(name)
    if value is not None and not wanted.holds(value):
        raise ModelError(f"config.json gives {name} as {value!r}; it must be {wanted.words}")
    return value


def read_config(folder: Path) -> dict:
    """The contents of `config.json`, empty where there is none.

    Raises:
        ModelError: the file holds no JSON object.
    """
    path = Path(folder) / "config.json"
    return read_json(path) if path.is_file() else {}


def tensor_names(folder: Path) -> set[str]:
    """The names of all tensors of a folder, the tensors themselves unread where the format allows it.

    Raises:
        ModelError: there are no weights, or a file is missing, truncated, or holds anything but tensors.
    """
    if index := _index(Path(folder)):
        return set(_weight_map(index))
    return {name for path in weight_files(folder) for name in _names(path)}


def read_tensors(folder: Path, wanted: Collection[str] | None = None) -> dict[str, Tensor]:
    """The tensors of a folder by name, on the CPU and in the dtype they were saved in.

    Pickles are read by torch's weights-only unpickler, which runs no code.

    Args:
        folder: the folder.
        wanted: the names of those to read, None for all; files without any are not opened.

    Raises:
        ModelError: there are no weights, a file is missing, truncated, or holds anything but tensors.
    """
    index, tensors = _index(Path(folder)), dict[str, Tensor]()
    listed = _weight_map(index) if index else {}
    wanted = wanted if wanted is None else {*wanted}
    files = {listed.get(name) for name in wanted or ()}
    for path in weight_files(folder):
        if wanted is None or not index or path.name in files:
            tensors |= _read(path, wanted)
    if index and (lost := sorted(listed.keys() & (wanted or listed.keys()) - tensors.keys())):
        raise ModelError(f"{index} lists {few(lost)}, which no file holds; download or copy the folder again")
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The files with a folder's weights: those of its index, else the one of a known name, else its only one.

    Raises:
        ModelError: there are none, it is not clear which, or one that the index names is missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"drafter folder {str(folder)!r} does not exist")
    if index := _index(folder):
        shards = [folder / name for name in sorted(set(_weight_map(index).values()))]
        if missing := [shard.name for shard in shards if not shard.is_file()]:
            raise ModelError(f"{folder} lacks {few(missing)}, which {index.name} names; download or copy it again")
        return shards
    if known := [*(folder / name for name in NAMES if (folder / name).is_file()), *head_files(folder)]:
        return known[:1]
    for suffix in SUFFIXES:
        found = [path for path in sorted(folder.glob(f"*{suffix}")) if not STATE_OF_A_RUN.search(path.name)]
        if len(found) > 1:
            raise ModelError(f"{folder} holds {few([path.name for path in found])} and no index; leave one of them")
        if found:
            return found
    raise ModelError(f"{folder} holds no weights; expected one of {', '.join(NAMES + HEAD_NAMES)}")


def head_files(folder: Path) -> list[Path]:
    """The files of a folder that are named as those of heads alone."""
    return [path for pattern in HEAD_NAMES for path in sorted(folder.glob(pattern))]


def _index(folder: Path) -> Path | None:
    """The index of a sharded checkpoint; a single safetensors file goes before a pickle's index."""
    for name in INDICES:
        if (folder / name).is_file():
            return folder / name
        if (folder / "model.safetensors").is_file():
            return None
    return None


def _weight_map(index: Path) -> dict[str, str]:
    """File by tensor name."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in found.values()
    ):
        raise ModelError(f"{index} has no weight_map from tensors to files beside it; download or copy it again")
    return found


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        ModelError: there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); download or copy it again") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object; download or copy it again")
    return found


def _names(path: Path) -> Iterable[str]:
    if path.suffix != ".safetensors":
        return _read_pickle(path)
    with _safetensors(path) as file:
        return file.keys()


def _read(path: Path, wanted: Collection[str] | None) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return {name: each for name, each in _read_pickle(path).items() if wanted is None or name in wanted}
    with _safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys() if wanted is None or name in wanted}  # noqa: SIM118


def _safetensors(path: Path):
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickled dictionary, mapped from the file where it is in torch's present format."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK"
        with warnings.catch_warnings(action="ignore"):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise _foreign(path, "code or objects, which are not run") from error
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, struct.error) as error:
        raise _damaged(path, error) from error
    if not isinstance(found, dict):
        raise _foreign(path, f"a {type(found).__name__}")
    strange = [key for key, value in found.items() if not isinstance(key, str) or not isinstance(value, Tensor)]
    if strange:
        raise _foreign(path, f"{strange[0]!r}, a {type(found[strange[0]]).__name__}")
    if unreadable := [f"{name!r} as {kind}" for name, value in found.items() if (kind := _storage(value))]:
        raise ModelError(f"{path} holds {few(unreadable)}; save its values as an ordinary dense tensor")
    return found


def _storage(tensor: Tensor) -> str:
    """The unusual storage of a tensor, in words; empty for an ordinary dense tensor."""
    kinds = {
        "a nested tensor": tensor.is_nested,
        "a sparse tensor": tensor.layout is not torch.strided,
        "a quantised tensor": tensor.is_quantized,
        "a tensor without values": tensor.is_meta,
    }
    return next((kind for kind, found in kinds.items() if found), "")


def _foreign(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} holds more than tensors: {what}; save its tensors alone, best as safetensors")


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = (str(error).splitlines() or [""])[0][:100] or type(error).__name__
    return ModelError(f"{path} is truncated or damaged ({reason}); download or copy it again")


def few(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
