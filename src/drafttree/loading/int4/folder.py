"""Folders of models rounded to four bits, in the "pack-quantized" format of compressed-tensors with zero points.

transformers 5.24 with compressed-tensors 0.20 cannot load zero points of this format: it expects them unpacked.

Each decoder layer has its own file, written as soon as the layer is rounded, so that a stopped rounding can resume. The
index and config.json are written last, so that an unfinished folder cannot be loaded as a model.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.drafters.formats import weight_files
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.quantized.grouped_weight import unpacked
from drafttree.models.quantization.gptq import RoundedWeight
from drafttree.models.quantization.quantized_linear import QuantizedLinear

BITS, GROUP = 4, 32
INDEX, CONFIG = "model.safetensors.index.json", "config.json"
TEXTS, REST = "texts.safetensors", "rest.safetensors"
MODEL = "model"
"""Metadata key for the digest of the model that is rounded."""
NO_METADATA: Mapping[str, str] = {}
logger = logging.getLogger("drafttree")
SAMPLES, SAMPLE_BYTES = 16, 1 << 16
"""Number and size in bytes of the parts of a weight file that go into its digest."""


class Int4Folder:
    """The folder that a model rounded to four bits is written to.

    Args:
        files: files of the original model, on this machine.
        path: path of the folder. Default: one in the user's cache.

    Attributes:
        path: path of the folder.

    Raises:
        ModelError: config.json or the weights of the original model cannot be read.
    """

    def __init__(self, files: ModelFiles, path: Path | None = None) -> None:
        self._digest = _digest(files)
        self.path = path or user_cache_path("drafttree") / "int4" / self._digest

    @property
    def is_whole(self) -> bool:
        """Whether the rounding is finished."""
        return (self.path / CONFIG).is_file() and self.is_own

    @property
    def is_own(self) -> bool:
        """Whether the folder is missing or empty, or holds a rounding of this very model, finished or not."""
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return True
        texts = self.path / TEXTS
        if not texts.is_file():  # an earlier rounding was stopped while writing them
            return {path.name for path in self.path.iterdir()} <= {f"{TEXTS}.part"}
        try:
            with safe_open(texts, "pt") as file:
                return (file.metadata() or {}).get(MODEL) == self._digest
        except SafetensorError:
            return False

    @property
    def nbytes(self) -> int:
        """Bytes of the files in the folder."""
        return sum(path.stat().st_size for path in self.path.iterdir()) if self.path.is_dir() else 0

    def read_texts(self) -> Tensor | None:
        """The texts that the model's layers read, int64 `[texts, tokens]`; None if none are stored yet."""
        path = self.path / TEXTS
        return load_file(path)["texts"] if path.is_file() else None

    def write_texts(self, texts: Tensor) -> None:
        """Store the texts that the model's layers read."""
        self._save(TEXTS, {"texts": texts}, {MODEL: self._digest})

    def read(self, index: int) -> dict[str, RoundedWeight] | None:
        """The rounded weights of a decoder layer by name; None if they are not stored or the file is damaged."""
        path = self.path / _file_of(index)
        if not path.is_file():
            return None
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            logger.warning("%s is damaged (%s); its layer is rounded again", path, error)
            return None
        names = [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]
        return {name: _unpacked(name, tensors) for name in names}

    def write(self, index: int, weights: Mapping[str, RoundedWeight]) -> None:
        """Store the rounded weights of a decoder layer."""
        tensors: dict[str, Tensor] = {}
        for name, weight in weights.items():
            tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in _packed(weight).items()}
        self._save(_file_of(index), tensors)

    def finish(self, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Write the weights that are not rounded, and the tokenizer, configs and index that make the folder a model.

        Args:
            module: the model, with its layers rounded.
            tokenizer: its tokenizer; None to write none.
        """
        rounded_layers = {name for name, submodule in module.named_modules() if isinstance(submodule, QuantizedLinear)}
        unrounded_tensors = dict[str, Tensor]()
        data_pointers = set[int]()
        for name, tensor in module.state_dict().items():
            layer, _, suffix = name.rpartition(".")
            if (layer in rounded_layers and suffix != "bias") or tensor.data_ptr() in data_pointers:
                continue
            data_pointers.add(tensor.data_ptr())  # tied weights are one tensor
            unrounded_tensors[name] = tensor.contiguous()
        self._save(REST, unrounded_tensors)
        if tokenizer:
            tokenizer.save_pretrained(self.path)
        module.generation_config.save_pretrained(self.path)  # pyright: ignore[reportOptionalMemberAccess]
        files = [path for path in sorted(self.path.glob("*.safetensors")) if path.name != TEXTS]
        weight_map = {name: path.name for path in files for name in _names_in(path)}
        size = sum(path.stat().st_size for path in files)
        self._write(INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})
        head = module.get_output_embeddings()
        linear_names = (
            name
            for name, submodule in module.named_modules()
            if isinstance(submodule, torch.nn.Linear) or submodule is head
        )
        self._write(CONFIG, {**module.config.to_dict(), "quantization_config": _quantization([*linear_names])})

    def _save(self, name: str, tensors: dict[str, Tensor], metadata: Mapping[str, str] = NO_METADATA) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial_path = self.path / f"{name}.part"
        save_file(tensors, partial_path, {"format": "pt", **metadata})
        partial_path.replace(self.path / name)

    def _write(self, name: str, contents: Mapping[str, Any]) -> None:
        partial_path = self.path / f"{name}.part"
        partial_path.write_text(json.dumps(contents, indent=2), encoding="utf-8")
        partial_path.replace(self.path / name)


def _file_of(index: int) -> str:
    return f"layer-{index:05}.safetensors"


def _names_in(path: Path) -> list[str]:
    with safe_open(path, "pt") as file:
        return list(file.keys())


def _packed(weight: RoundedWeight) -> dict[str, Tensor]:
    """The tensors of a weight, by the suffixes that compressed-tensors gives their names."""
    return {
        "weight_packed": pack_words(weight.numbers),
        "weight_scale": weight.scales.bfloat16(),
        "weight_zero_point": pack_words(weight.zeros.t()).t().contiguous(),
        "weight_shape": torch.tensor(weight.numbers.shape),
    }


def _unpacked(name: str, tensors: Mapping[str, Tensor]) -> RoundedWeight:
    """The inverse of `_packed`."""
    outputs, inputs = tensors[f"{name}.weight_shape"].tolist()
    zeros = unpacked(tensors[f"{name}.weight_zero_point"].t(), BITS, outputs).t()
    numbers = unpacked(tensors[f"{name}.weight_packed"], BITS, inputs)
    return RoundedWeight(numbers, tensors[f"{name}.weight_scale"].half(), zeros)


def pack_words(numbers: Tensor) -> Tensor:
    """Pack four-bit numbers `[rows, count]` into words int32 `[rows, words]`, the first number in the lowest bits."""
    padded_numbers = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % (32 // BITS))).long()
    shifts = torch.arange(0, 32, BITS)
    words = (padded_numbers.unflatten(1, (-1, 32 // BITS)) << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _quantization(unrounded_names: list[str]) -> dict[str, Any]:
    """The quantization_config of the folder, which names the linear layers that are not rounded."""
    weights = {"num_bits": BITS, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": unrounded_names,
        "kv_cache_scheme": None,
    }


def _digest(files: ModelFiles) -> str:
    """A digest of a model's config and of samples of its weight files."""
    digest = hashlib.sha256(json.dumps(files.settings, sort_keys=True).encode())
    for path in weight_files(Path(files.path)):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for sample in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1) if size > SAMPLE_BYTES else 0, os.SEEK_SET)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]
