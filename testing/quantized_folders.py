"""Writes small models as folders of quantised weights, number by number as each method's own package reads them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.loading import load_tokenizer

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs lies in each place of a word, from the lowest bits on."""


class Numbers(NamedTuple):
    """A random weight: numbers, and scales and zeros or minima by group, each `[out, groups]`."""

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    minima: np.ndarray

    def weight(self, groups: np.ndarray, *, has_minima: bool = False) -> Tensor:
        """What they stand for, in float32, given the group of each input."""
        scales = self.scales[:, groups]
        if has_minima:
            return torch.from_numpy((scales * self.numbers + self.minima[:, groups]).astype(np.float32))
        return torch.from_numpy((scales * (self.numbers - self.zeros[:, groups])).astype(np.float32))


def random_numbers(outputs: int, inputs: int, bits: int, group_size: int, seed: int, *, symmetric: bool) -> Numbers:
    """Numbers of a weight whose values are as large as those of a small model."""
    random, groups = np.random.default_rng(seed), -(-inputs // group_size)
    zeros = np.full((outputs, groups), 1 << bits - 1)
    if not symmetric:
        zeros = random.integers(0, 1 << bits, (outputs, groups))
    scales = random.uniform(0.5, 1.5, (outputs, groups)) * 0.2 / (1 << bits)
    scales = torch.from_numpy(scales).bfloat16().float().numpy()  # which are float16 too
    minima = torch.from_numpy(-scales * zeros).bfloat16().float().numpy()
    return Numbers(random.integers(0, 1 << bits, (outputs, inputs)), scales, zeros, minima)


def write(
    model: PreTrainedModel,
    folder: Path,
    method: str,
    *,
    bits: int = 4,
    group_size: int = 32,
    symmetric: bool = False,
    act_order: bool = False,
    **settings: Any,
) -> dict[str, Tensor]:
    """Write a model with random weights in its linear layers, and give what they are by name in float32.

    Args:
        model: the model.
        folder: where it is written.
        method: one of `METHODS`.
        bits: of a number.
        group_size: inputs of a group.
        symmetric: numbers count from half of their range.
        act_order: inputs are of groups in a random order.
        settings: what else the quantization_config says.
    """
    pack, describe = METHODS[method]
    tensors: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    head = model.get_output_embeddings()
    linear = {
        name: each.weight.shape
        for name, each in model.named_modules()
        if type(each) is torch.nn.Linear and each is not head
    }
    linear |= _shapes_of_experts(model)
    for seed, (name, (outputs, inputs)) in enumerate(linear.items()):
        numbers = random_numbers(outputs, inputs, bits, group_size, seed, symmetric=symmetric)
        groups = np.arange(inputs) // group_size
        if act_order:
            groups = np.random.default_rng(seed).permutation(groups)
        for part, value in pack(numbers, bits, groups, symmetric).items():
            tensors[f"{name}.{part}"] = value
        expected[f"{name}.weight"] = numbers.weight(groups, has_minima=method == "mlx")
    rest = {
        name: value for name, value in model.state_dict().items() if name not in expected and ".experts." not in name
    }
    if model.config.tie_word_embeddings:
        rest.pop("lm_head.weight")
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in (rest | tensors).items()}, folder / "model.safetensors")
    load_tokenizer("embedded").save_pretrained(folder)  # pyright: ignore[reportOptionalMemberAccess]
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    config |= describe(
        {"bits": bits, "group_size": group_size, "symmetric": symmetric, "act_order": act_order}, settings
    )
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def _shapes_of_experts(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """The shapes of the experts' weights, each under a name of its own as checkpoints have them."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, value in model.state_dict().items():
        before, found, part = name.partition(".experts.")
        if not found:
            continue
        count, outputs, inputs = value.shape
        for expert in range(count):
            parts = (
                {"down_proj": outputs} if part == "down_proj" else {"gate_proj": outputs // 2, "up_proj": outputs // 2}
            )
            shapes |= {f"{before}.experts.{expert}.{own}": (size, inputs) for own, size in parts.items()}
    return shapes


def _words(numbers: np.ndarray, bits: int) -> Tensor:
    """Words int32 `[rows, words]` of numbers `[rows, count]`: a string of bits, the lowest first."""
    rows, count = numbers.shape
    width = -(-count * bits // 32)
    as_bits = np.zeros((rows, width * 32), np.uint8)
    for bit in range(bits):
        as_bits[:, bit : count * bits : bits] = numbers >> bit & 1
    return torch.from_numpy(np.packbits(as_bits, axis=1, bitorder="little").view("<i4").copy())


def _gptq(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool, one: int = 1) -> dict[str, Tensor]:
    # the package takes the ones off whole words, so that a zero of 0 borrows from the next
    zeros = _words(numbers.zeros.T, bits)
    ones = sum(1 << place for place in range(0, 32, bits)) * one
    zeros = ((zeros.long() & 0xFFFFFFFF) - ones) % (1 << 32)
    return {
        "qweight": _words(numbers.numbers, bits).t().contiguous(),
        "qzeros": torch.where(zeros >= 1 << 31, zeros - (1 << 32), zeros).int(),
        "scales": torch.from_numpy(numbers.scales.T.copy()).half(),
        "g_idx": torch.from_numpy(groups).int(),
    }


def _gptq_v2(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool) -> dict[str, Tensor]:
    return _gptq(numbers, bits, groups, symmetric, one=0)


def _awq(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool) -> dict[str, Tensor]:
    def interleaved(values: np.ndarray) -> Tensor:  # [rows, outputs]
        eights = values.reshape(len(values), -1, 8)[..., AWQ_ORDER]
        return _words(eights.reshape(len(values), -1), bits)

    scales = torch.from_numpy(numbers.scales.T.copy()).half()
    return {"qweight": interleaved(numbers.numbers.T), "qzeros": interleaved(numbers.zeros.T), "scales": scales}


def _compressed_tensors(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool) -> dict[str, Tensor]:
    found = {
        "weight_packed": _words(numbers.numbers, bits),
        "weight_scale": torch.from_numpy(numbers.scales).bfloat16(),
        "weight_shape": torch.tensor(numbers.numbers.shape),
    }
    if not symmetric:
        found["weight_zero_point"] = _words(numbers.zeros.T, bits).t().contiguous()
    if (np.diff(groups) < 0).any():
        found["weight_g_idx"] = torch.from_numpy(groups).int()
    return found


def _compressed_tensors_of_2024(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool) -> dict[str, Tensor]:
    found = _compressed_tensors(numbers, bits, groups, symmetric)
    return found | {"weight_zero_point": torch.from_numpy(numbers.zeros - (1 << bits - 1)).to(torch.int8)}


def _mlx(numbers: Numbers, bits: int, groups: np.ndarray, symmetric: bool) -> dict[str, Tensor]:
    scales, minima = (torch.from_numpy(each).bfloat16() for each in (numbers.scales, numbers.minima))
    return {"weight": _words(numbers.numbers, bits).view(torch.uint32), "scales": scales, "biases": minima}


def _describe_gptq(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    quantization = {"quant_method": "gptq", "bits": own["bits"], "group_size": own["group_size"]}
    quantization |= {"sym": own["symmetric"], "desc_act": own["act_order"], **settings}
    return {"quantization_config": quantization}


def _describe_gptq_v2(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return _describe_gptq(own, {"checkpoint_format": "gptq_v2", **settings})


def _describe_awq(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    quantization = {"quant_method": "awq", "bits": own["bits"], "group_size": own["group_size"], "zero_point": True}
    return {"quantization_config": quantization | {"version": "gemm", **settings}}


def _describe_compressed_tensors(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    weights = {"num_bits": own["bits"], "type": "int", "symmetric": own["symmetric"], "strategy": "group"}
    weights |= {"group_size": own["group_size"], "actorder": "group" if own["act_order"] else None}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    quantization = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    return {"quantization_config": quantization | {"config_groups": {"group_0": group}, **settings}}


def _describe_mlx(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    quantization = {"group_size": own["group_size"], "bits": own["bits"], **settings}
    return {"quantization": quantization, "quantization_config": quantization}


Pack = Callable[[Numbers, int, np.ndarray, bool], dict[str, Tensor]]
Describe = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
METHODS: dict[str, tuple[Pack, Describe]] = {
    "gptq": (_gptq, _describe_gptq),
    "gptq_v2": (_gptq_v2, _describe_gptq_v2),
    "awq": (_awq, _describe_awq),
    "compressed-tensors": (_compressed_tensors, _describe_compressed_tensors),
    "compressed-tensors of 2024": (_compressed_tensors_of_2024, _describe_compressed_tensors),
    "mlx": (_mlx, _describe_mlx),
}
"""What packs a weight by each method, and what its config.json says."""
