"""Checks that the weights of a model fit into free memory before they are loaded."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from drafttree.core.errors import ModelError
from drafttree.drafters.formats import weight_files
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.stored_blocks import StoredWeight, kept_weights
from drafttree.models.quantization.blocks import FORMATS

MEMORY = Path("/proc/meminfo")
LENGTH = 8
"""Bytes at the start of a safetensors file that give the length of its header."""
METADATA = "__metadata__"
"""The entry of a safetensors header that describes no tensor."""
FREE = ("MemAvailable", "SwapFree")
LIMIT, USED, STATISTICS = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current", "memory.stat"))


def check_memory(
    files: ModelFiles,
    dtype: torch.dtype,
    device: torch.device,
    stored_weights: Mapping[str, StoredWeight] | None = None,
    *,
    keeps_blocks: bool = False,
) -> None:
    """Refuse a model whose weights alone need more memory than is free.

    The model passes if either size is unknown: on systems other than Linux, for pickles, and for models that are not
    downloaded yet.

    Args:
        files: the files of the model.
        dtype: dtype to load it in.
        device: device to load it on; only a CPU's memory is checked.
        stored_weights: the weights in the files by name, if they are read one by one.
        keeps_blocks: whether weights stay in their stored blocks, if they can.

    Raises:
        ModelError: the weights need more memory than is free.
    """
    if device.type != "cpu" or (available_bytes := free_bytes()) is None:
        return
    try:
        block_weights: Mapping[str, StoredWeight] = (
            kept_weights(stored_weights) if stored_weights is not None and keeps_blocks else {}
        )
        if stored_weights is not None:
            weight_bytes = dtype.itemsize * sum(
                math.prod(stored_weights[name].shape) for name in stored_weights.keys() - block_weights.keys()
            )
            weight_bytes += sum(_nbytes(weight) for weight in block_weights.values())
        else:
            weight_bytes = dtype.itemsize * sum(_numbers(files))
    except (ModelError, OSError, ValueError):  # loading reports the problem
        return
    if weight_bytes > available_bytes:
        raise ModelError(
            f"the weights of {str(files.source)!r} take {weight_bytes / 1e9:.1f} GB "
            f"{'as stored' if block_weights else 'in ' + str(dtype).removeprefix('torch.')}, "
            f"and {available_bytes / 1e9:.1f} GB of memory are free; free some, load in bfloat16, or take a "
            "smaller model"
        )


def _nbytes(weight: StoredWeight) -> int:
    """The bytes of a weight in its stored blocks."""
    form = FORMATS[weight.form]
    return math.prod(weight.shape) // form.inputs * form.nbytes


def free_bytes() -> int | None:
    """Bytes of memory and swap that this process can still allocate; None if the system does not say.

    A limit of the process's control group counts too.
    """
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
        available_bytes = 1024 * sum(int(lines[name].split()[0]) for name in FREE)
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int(LIMIT.read_text())
        usage = int(USED.read_text())
        statistics = dict(line.split() for line in STATISTICS.read_text().splitlines())
    except (OSError, ValueError):  # no control group limits memory
        return available_bytes
    return min(available_bytes, limit - usage + int(statistics.get("inactive_file", 0)))


def _numbers(files: ModelFiles) -> Iterator[int]:
    """The number of elements of each tensor, by the headers of safetensors files; other files are skipped."""
    for path in _paths(files):
        if path.suffix == ".safetensors":
            yield from (math.prod(shape) for shape in _shapes(path))


def _paths(files: ModelFiles) -> list[Path]:
    """The weight files of a model; none if it is not on this machine."""
    if files.gguf:
        return [Path(files.path)]
    return weight_files(Path(files.path)) if files.is_local else []


def _shapes(path: Path) -> Iterator[list[int]]:
    """The shapes of the tensors in a safetensors file.

    Only the header is read, since the system may refuse to map a large file.

    Raises:
        ValueError: the header is damaged.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH), "little")
        if length > path.stat().st_size:
            raise ValueError("a header that is longer than its file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("a header that is not an object")
    for name, entry in header.items():
        if name != METADATA and isinstance(entry, dict):
            yield entry.get("shape", [])
