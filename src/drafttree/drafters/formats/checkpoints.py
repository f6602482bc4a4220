"""Reads the configuration and the tensors of drafter files, without running any code in them.

Heads are published as safetensors or pickles, in one file or in shards. FP8 weights are multiplied by their scales when
they are read. DeepSeek has a scale for each block of a weight (`weight_scale_inv`), compressed-tensors one for the
whole weight or for each row (`weight_scale`).
"""

import json
import pickle
import re
import struct
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.config import Fields, Object, Size, must_be

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
NAMES = ("model.safetensors", "pytorch_model.bin")
HEAD_NAMES = ("*_lm_head.safetensors", "*_lm_head.pt")
"""Patterns of file names of heads alone, such as medusa_lm_head.pt."""
SUFFIXES = (".safetensors", ".bin", ".pt")
MASK_FILE = "mask_embedding.pt"
"""MiMo's file with the mask token's embedding of a block drafter, beside the weights."""
STATE_OF_A_RUN = re.compile(r"training_args|optimizer|scheduler|rng_state|scaler")
FP8 = torch.float8_e4m3fn
SCALES = ("_scale_inv", "_scale")
"""Suffixes that turn the name of a weight into that of its scale."""
BlockSize = Annotated[list[Size], Field(min_length=2, max_length=2), must_be("two positive integers")]
PACKED = re.compile(r".*\.(qweight|qzeros|g_idx|weight_packed|weight\.absmax)$")
"""Names of tensors of weights that GPTQ, AWQ, compressed-tensors or bitsandbytes has packed."""


class MaskFields(Fields):
    """The fields that name a block drafter's mask token."""

    dflash_config: Object
    mask_token_id: Any = None


class Quantization(Fields):
    """How weights are quantised. Each block of size `weight_block_size` has a scale."""

    quant_method: Any = ""
    format: Any = ""
    weight_block_size: BlockSize | None = None


class QuantizationFields(Fields):
    """The field about quantisation."""

    quantization_config: Quantization = Quantization()


def read_config(folder: Path) -> dict:
    """The contents of `config.json`; empty if there is no such file.

    Raises:
        ModelError: If the file holds no JSON object.
    """
    path = Path(folder) / "config.json"
    return read_json(path) if path.is_file() else {}


def tensor_names(folder: Path) -> set[str]:
    """The names of all tensors in a folder. The tensors are read only if the format requires it."""
    if index := _index(Path(folder)):
        return set(_weight_map(index))
    (path,) = weight_files(folder)
    with _opened(path) as (names, _):
        return set(names)


def read_tensors(folder: Path, wanted_names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Read the tensors in a folder, on the CPU and in the dtype of the file.

    Pickles are read by torch's weights-only unpickler, which runs no code.

    Args:
        folder: the folder.
        wanted_names: names of the tensors to read; None for all. Files without any of them are not opened.

    Raises:
        ModelError: If there are no weights, or a file is missing, truncated, or holds anything but tensors.
    """
    index = _index(Path(folder))
    tensors = dict[str, Tensor]()
    weight_map = _weight_map(index) if index else {}
    files = {weight_map.get(name) for name in wanted_names or ()}
    for path in weight_files(folder):
        if wanted_names is None or not index or path.name in files:
            with _opened(path) as (names, get_tensor):
                tensors |= {name: get_tensor(name) for name in names if wanted_names is None or name in wanted_names}
    if wanted_names is None and (mask_file := Path(folder) / MASK_FILE).is_file():
        tensors["mask_embedding"] = _mask_embedding(mask_file, read_config(folder))
    if index and (lost_names := sorted(weight_map.keys() & {*(wanted_names or weight_map)} - tensors.keys())):
        raise ModelError(f"{index} lists {few(lost_names)}, which no file holds; download or copy the folder again")
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder: those in its index, else one with a known name, else its only one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"drafter folder {str(folder)!r} does not exist")
    if index := _index(folder):
        shards = [folder / name for name in sorted(set(_weight_map(index).values()))]
        if missing_names := [shard.name for shard in shards if not shard.is_file()]:
            raise ModelError(
                f"{folder} lacks {few(missing_names)}, which {index.name} names; download or copy it again"
            )
        return shards
    if known_files := [*(folder / name for name in NAMES if (folder / name).is_file()), *head_files(folder)]:
        return known_files[:1]
    for suffix in SUFFIXES:
        paths = [path for path in sorted(folder.glob(f"*{suffix}")) if not STATE_OF_A_RUN.search(path.name)]
        if len(paths) > 1:
            raise ModelError(f"{folder} holds {few([path.name for path in paths])} and no index; keep only one of them")
        if paths:
            return paths
    raise ModelError(f"{folder} holds no weights; expected one of {', '.join(NAMES + HEAD_NAMES)}")


def head_files(folder: Path) -> list[Path]:
    """The files in a folder whose names are those of heads alone."""
    return [path for pattern in HEAD_NAMES for path in sorted(folder.glob(pattern))]


def _index(folder: Path) -> Path | None:
    """The index of a sharded checkpoint, or None. A single safetensors file has precedence over an index of pickles."""
    for name in INDICES:
        if (folder / name).is_file():
            return folder / name
        if (folder / "model.safetensors").is_file():
            return None
    return None


def _weight_map(index: Path) -> dict[str, str]:
    """The file names in an index, by tensor name."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in weight_map.values()
    ):
        raise ModelError(f"{index} has no weight_map from tensors to files beside it; download or copy it again")
    return weight_map


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        ModelError: If the file cannot be read or holds no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); download or copy it again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object; download or copy it again")
    return content


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Collection[str], Callable[[str], Tensor]]]:
    """Context manager: the names of a file's tensors, and a function that reads one of them."""
    if path.suffix != ".safetensors":
        tensors = _read_pickle(path)
        yield tensors, tensors.__getitem__
        return
    try:
        handle = safe_open(path, "pt")
    except RuntimeError as error:
        raise ModelError(
            f"{path} cannot be mapped ({error}); it may be larger than the memory of this system"
        ) from error
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    with handle as file:
        yield file.keys(), file.get_tensor


def _mask_embedding(path: Path, config: Mapping[str, Any]) -> Tensor:
    """The mask token's embedding in a file, which may also hold the token's id."""
    content = _unpickled(path)
    saved_fields = content if isinstance(content, dict) else {"embedding": content}
    if saved_fields.get("per_position"):
        raise ModelError(
            f"{path} holds an embedding for every place of a block, which drafttree does not support; use another "
            "drafter"
        )
    if not isinstance(embedding := saved_fields.get("embedding"), Tensor):
        raise ModelError(f"{path} holds no embedding; download or copy it again")
    token = MaskFields.read({**config, **MaskFields.read(config).dflash_config}).mask_token_id
    if (file_token := saved_fields.get("mask_token_id", token)) != token:
        raise ModelError(
            f"{path} is for the mask token {file_token}; config.json gives {token}; take both from one drafter"
        )
    return embedding.flatten()


def _unpickled(path: Path) -> Any:
    """The contents of a pickle. In torch's present format, tensors are memory-mapped from the file."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK"
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise _foreign(path, "code or objects, which are not run") from error
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, struct.error) as error:
        raise _damaged(path, error) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickled dictionary."""
    content = _unpickled(path)
    if not isinstance(content, dict):
        raise _foreign(path, f"a {type(content).__name__}")
    foreign_keys = [key for key, value in content.items() if not isinstance(key, str) or not isinstance(value, Tensor)]
    if foreign_keys:
        raise _foreign(path, f"{foreign_keys[0]!r}, a {type(content[foreign_keys[0]]).__name__}")
    predicates = {
        "a nested tensor": lambda tensor: tensor.is_nested,
        "a sparse tensor": lambda tensor: tensor.layout is not torch.strided,
        "a quantised tensor": lambda tensor: tensor.is_quantized,
        "a tensor without values": lambda tensor: tensor.is_meta,
    }
    unreadable = list[str]()
    for name, tensor in content.items():
        if phrase := next((phrase for phrase, holds in predicates.items() if holds(tensor)), ""):
            unreadable.append(f"{name!r} as {phrase}")
    if unreadable:
        raise ModelError(f"{path} holds {few(unreadable)}; save its values as an ordinary dense tensor")
    return content


def _foreign(path: Path, content: str) -> ModelError:
    return ModelError(f"{path} holds more than tensors: {content}; save its tensors alone, best as safetensors")


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = (str(error).splitlines() or [""])[0][:100] or type(error).__name__
    return ModelError(f"{path} is truncated or damaged ({reason}); download or copy it again")


def few(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def read_weights(
    folder: Path,
    dtype: torch.dtype,
    wanted_names: Collection[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Read tensors as `read_tensors` does, and convert FP8 weights to `dtype`.

    Args:
        folder: the folder.
        dtype: dtype for FP8 weights.
        wanted_names: as for `read_tensors`.
        config: contents of the folder's `config.json`; None reads the file.

    Raises:
        ModelError: As by `read_tensors`; if scales are missing or misshapen, or weights are quantised in another way.
    """
    return dequantised(read_tensors(folder, wanted_names), read_config(folder) if config is None else config, dtype)


def dequantised(tensors: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Multiply FP8 weights by their scales, and leave out the scales.

    Args:
        tensors: tensors by name.
        config: contents of their `config.json`.
        dtype: dtype for FP8 weights; other tensors do not change.

    Raises:
        ModelError: As by `read_weights`.
    """
    settings = QuantizationFields.read(config).quantization_config
    integer_names = (name for name, tensor in tensors.items() if not tensor.is_floating_point())
    scaled_names = {name for name in integer_names if any(name + end in tensors for end in SCALES)}
    if packed_names := sorted({*filter(PACKED.match, tensors)} | scaled_names):
        method = " ".join(str(word) for word in (settings.quant_method, settings.format) if word)
        raise ModelError(
            f"{few(packed_names)} quantised by {method or 'a method that config.json does not name'}; take weights "
            "that are not quantised or in FP8 (float8_e4m3fn)"
        )
    plain_tensors = dict(tensors)
    block = settings.weight_block_size or [128, 128]
    for name, weight in tensors.items():
        if weight.dtype == FP8:
            scale = next((plain_tensors.pop(name + end) for end in SCALES if name + end in plain_tensors), None)
            if scale is None:
                raise ModelError(f"{name} is in FP8, and {name}_scale_inv or {name}_scale is missing")
            plain_tensors[name] = _multiplied(name, weight, scale, block).to(dtype)
            # the scale of quantised activations, which are not quantised here
            plain_tensors.pop(f"{name.rpartition('.')[0]}.input_scale", None)
    return plain_tensors


def _multiplied(name: str, weight: Tensor, scale: Tensor, block: list[int]) -> Tensor:
    """A weight times its scale, or the scales of its rows or blocks, in float32."""
    factors = scale.float()
    shape = list(scale.shape)
    grid = [-(-length // size) for length, size in zip(weight.shape, block, strict=False)]
    if weight.ndim == 2 and shape == grid:
        rows, columns = weight.shape
        factors = factors.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    elif shape not in ([], [1], [len(weight), 1]):
        raise ModelError(
            f"the scales of {name} in FP8 are {shape} and should be {grid} for blocks of {block[0]} x {block[1]}, "
            f"{[len(weight), 1]} for rows, or [1]"
        )
    return weight.float() * factors
