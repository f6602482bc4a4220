"""Finds devices and dtypes by name."""

from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError, unknown
from drafttree.models.fused.fused_linear import multiplies_bfloat16_fast
from drafttree.models.module.module_checks import input_device

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def is_auto(value: object) -> bool:
    """Whether an option is "auto"; safe for arrays, which compare element by element."""
    return isinstance(value, str) and value == "auto"


class Placement(NamedTuple):
    """Where a model runs, and the dtype of its weights."""

    device: torch.device
    dtype: torch.dtype


def find_placement(dtype: str | torch.dtype, device: str, quantize: str | None = None) -> Placement:
    """The device and dtype to load a model with, by their names.

    If weights are to be quantised, dtype "auto" is bfloat16, in which weights are read before they are rounded.

    Raises:
        ConfigError: no such device or dtype is available.
    """
    model_device = find_device(device)
    if is_auto(dtype) and quantize:
        return Placement(model_device, torch.bfloat16)
    return Placement(model_device, find_dtype(dtype, model_device))


def placement_of(target: PreTrainedModel, dtype: str | torch.dtype, device: str) -> Placement:
    """The device and dtype of a loaded target.

    Raises:
        ConfigError: another device or dtype is asked for.
    """
    target_device = input_device(target)
    if not is_auto(device) and find_device(device).type != target_device.type:
        raise ConfigError(f"the target is on {target_device}, not on {device!r}; move it there, or leave out device")
    if not is_auto(dtype) and find_dtype(dtype, target_device) != target.dtype:
        raise ConfigError(f"the target is in {target.dtype}, not in {dtype!r}; convert it, or leave out dtype")
    return Placement(target_device, target.dtype)


def find_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: this machine has no such device.
    """
    if is_auto(name):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        available_devices = ", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        raise ConfigError(f"device {name!r} is not available; this machine has: {available_devices}") from None
    return device


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a name; "auto" is bfloat16 if the device multiplies it fast, else float32.

    Raises:
        ConfigError: the name is not a dtype of `DTYPES`, or the device cannot compute in it.
    """
    if is_auto(name):
        return torch.bfloat16 if multiplies_bfloat16_fast(device) else torch.float32
    name = next((dtype_name for dtype_name, dtype in DTYPES.items() if dtype is name), name)
    if not isinstance(name, str) or name not in DTYPES:
        raise unknown("dtype", name, [*DTYPES, "auto"])
    if device.type == "cuda" and name == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16; use float16")
    return DTYPES[name]
