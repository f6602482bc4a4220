"""Reads GGUF files: the metadata at once, and tensors one by one.

transformers and the package gguf read metadata too, but take half a minute for a vocabulary of 262,144 tokens. So it is
read here, and gguf only unpacks weights. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.models.quantization.blocks import has_finite_scales

SUFFIX = ".gguf"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Alignment of tensors in bytes, if a file gives none."""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Format characters of `struct` by GGUF's numbers of value types."""
STRING, ARRAY = 8, 9
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of the kinds of tensors that are not quantised."""
VALUES_AT_ONCE = 2**20
"""Values unpacked at a time: unpacking takes several times their memory."""
COPY = "download or copy it again"


class StoredTensor(NamedTuple):
    """A tensor in a file.

    Attributes:
        shape: in torch's order: `[outputs, inputs]` for a matrix.
        kind: llama.cpp's name for the way its values are packed: "F32", "Q4_K", ...
        start: offset of its first byte in the file.
        row_bytes: bytes of a row; a vector is one row.
    """

    shape: tuple[int, ...]
    kind: str
    start: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.rows * self.row_bytes


class GGUFFile:
    """A GGUF file, mapped into memory.

    Attributes:
        path: path of the file.
        metadata: values by key, such as "general.architecture".
        tensors: tensors by llama.cpp's names, such as "blk.0.attn_q.weight".

    Raises:
        ModelError: the file cannot be read, is not a GGUF file, is cut, is big-endian, or is one of several parts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch tensors need writable memory
        except ValueError:  # mmap refuses an empty file
            raise ModelError(f"{self.path} is empty; {COPY}") from None
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror or error}") from None
        cursor = _Cursor(self.path, self._bytes)
        tensor_count, value_count = _read_header(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.number("I"))
        self._check_whole()
        self.tensors = self._read_tensor_table(cursor, tensor_count)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor's values.

        Args:
            name: llama.cpp's name of the tensor.
            dtype: dtype to return the values in.

        Returns:
            The values in the tensor's shape, in memory of their own.
        """
        tensor = self.tensors[name]
        packed_bytes = np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.start)
        if tensor.kind in PLAIN:
            return torch.from_numpy(packed_bytes.copy()).view(PLAIN[tensor.kind]).view(tensor.shape).to(dtype)
        unpack = import_module("gguf.quants").dequantize
        ggml_type = _kinds()[tensor.kind]
        rows = packed_bytes.reshape(tensor.rows, tensor.row_bytes)
        values = torch.empty(tensor.rows, tensor.shape[-1], dtype=dtype)
        step = max(1, VALUES_AT_ONCE // tensor.shape[-1])
        for start in range(0, tensor.rows, step):
            values[start : start + step] = torch.from_numpy(unpack(rows[start : start + step], ggml_type))
        return values.view(tensor.shape)

    def read_blocks(self, name: str) -> Tensor:
        """A matrix in the blocks of the file, uint8 `[outputs, bytes]`; it shares the mapped file's memory.

        Raises:
            ModelError: the scale of a block is not finite.
        """
        tensor = self.tensors[name]
        packed_bytes = np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.start).reshape(tensor.rows, -1)
        blocks = torch.from_numpy(packed_bytes)
        if not has_finite_scales(blocks, tensor.kind.lower()):
            raise ModelError(f"{self.path} holds {name} with scales that are not finite numbers; {COPY}")
        return blocks

    def _check_whole(self) -> None:
        """Refuse a file that is one of several parts of a model."""
        split_count = self.metadata.get("split.count", 1)
        if isinstance(split_count, int) and split_count > 1:
            raise ModelError(
                f"{self.path} is one of {split_count} parts of a model; join them (llama-gguf-split --merge FIRST.gguf "
                "WHOLE.gguf) and give the whole"
            )

    def _read_tensor_table(self, cursor: "_Cursor", count: int) -> dict[str, StoredTensor]:
        entries: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(count):
            name = cursor.string()
            dimensions = cursor.number("I")
            shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
            entries.append((name, shape, cursor.number("I"), cursor.number("Q")))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path} gives general.alignment as {alignment!r}, which is not a size; {COPY}")
        tensors_start = -(-cursor.place // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, number, offset in entries:
            tensor_type = _kind_of(self.path, name, number)
            tensors[name] = StoredTensor(
                shape, tensor_type, tensors_start + offset, _row_bytes(self.path, name, shape, tensor_type)
            )
            end = tensors[name].start + tensors[name].nbytes
            if end > len(self._bytes):
                raise ModelError(
                    f"{self.path} is cut: it has {len(self._bytes):,} bytes, and {name} ends at {end:,}; {COPY}"
                )
        return tensors


class _Cursor:
    """Reads the values of a file one after the other.

    Attributes:
        place: offset of the next byte.
    """

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.place = 0
        self._bytes = content
        self._size = len(content)

    def skip(self, count: int) -> int:
        """Skip bytes, and return the offset of the first one.

        Raises:
            ModelError: the file has fewer bytes left.
        """
        start = self.place
        if count > self._size - start:
            raise ModelError(f"{self.path} is cut or damaged: it ends within its metadata, at byte {start:,}; {COPY}")
        self.place += count
        return start

    def number(self, code: str) -> Any:
        """The next number, in a format of `struct`."""
        form = f"<{code}"
        return struct.unpack_from(form, self._bytes, self.skip(struct.calcsize(form)))[0]

    def string(self) -> str:
        """The next string; invalid UTF-8 is replaced, since a token may hold half a character."""
        length = self.number("Q")
        start = self.skip(length)
        return self._bytes[start : start + length].decode(errors="replace")

    def value(self, value_type: int) -> Any:
        """The next value: a number, a string or a list of these, as the number of its type says."""
        if value_type in NUMBERS:
            return self.number(NUMBERS[value_type])
        if value_type == STRING:
            return self.string()
        if value_type == ARRAY:
            element = self.number("I")
            count = self.number("Q")
            return self._array(element, count)
        raise ModelError(f"{self.path} is damaged: it has a value of kind {value_type} at byte {self.place:,}; {COPY}")

    def _array(self, element: int, count: int) -> list[Any]:
        if element in NUMBERS:
            code = NUMBERS[element]
            start = self.skip(count * struct.calcsize(f"<{code}"))
            return list(struct.unpack_from(f"<{count}{code}", self._bytes, start))
        if element == STRING:
            return [self.string() for _ in range(count)]
        raise ModelError(f"{self.path} is damaged: it has a list of kind {element} at byte {self.place:,}; {COPY}")


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Check the start of a file, and return its numbers of tensors and of metadata values."""
    path = cursor.path
    magic = cursor._bytes[:4]
    cursor.skip(4)
    if magic in {b"lmgg", b"tjgg", b"fmgg", b"algg"}:
        raise ModelError(f"{path} is of llama.cpp's format before GGUF; download the model as a GGUF file")
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'; {COPY}")
    version = cursor.number("I")
    if version & 0xFFFF == 0:
        raise ModelError(f"{path} has the byte order of a big-endian machine; take a little-endian file")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} is a GGUF file of version {version}; drafttree reads versions {' and '.join(map(str, VERSIONS))}"
        )
    return cursor.number("Q"), cursor.number("Q")


def _kinds() -> Mapping[str, Any]:
    """The constants of the package gguf for kinds of tensors, by llama.cpp's names."""
    return import_module("gguf").GGMLQuantizationType.__members__


def _kind_of(path: Path, name: str, number: int) -> str:
    try:
        return import_module("gguf").GGMLQuantizationType(number).name
    except ValueError:
        raise ModelError(
            f"{path} holds {name} in a kind of weights that the package gguf does not know (number {number}); update "
            'it (pip install --upgrade "drafttree[gguf]"), or take a file of another kind, such as Q4_K_M'
        ) from None


def _row_bytes(path: Path, name: str, shape: tuple[int, ...], tensor_type: str) -> int:
    block, block_bytes = import_module("gguf").GGML_QUANT_SIZES[_kinds()[tensor_type]]
    if not shape or not all(shape) or shape[-1] % block:
        raise ModelError(f"{path} holds {name} of the shape {list(shape)}, which {tensor_type} cannot pack; {COPY}")
    return shape[-1] // block * block_bytes
