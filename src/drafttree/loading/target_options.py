"""Options of `load` that decide how a target runs: its backend, its quantisation, and sharding over processes.

Sharding is transformers' tensor parallelism, under torchrun.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import ConfigError, ModelError, unknown
from drafttree.loading.int4.quantize import quantize_int4
from drafttree.models import LossyWindow
from drafttree.models.backend_choice import Wants
from drafttree.models.native import kernels
from drafttree.models.native.native_backend import why_not_native
from drafttree.models.quantization.quantize import quantize_head, quantize_int8
from drafttree.models.quantization.quantized_linear import quantization, quantization_method, quantized_scales

logger = logging.getLogger("drafttree")
SINKS = 4
"""Default number of first tokens that stay visible with a window (Xiao et al. 2023)."""
INT8, INT4 = "int8", "int4"
KINDS = (INT8, INT4)
"""Quantisations that a model can be loaded with."""
BY_DEFAULT, NONE = "auto", "none"
"""Further values of the options: the default quantisation, and no quantisation."""
AS_STORED = "as stored"
"""Value of the options: weights stay in the blocks of their files, if drafttree multiplies those."""
MANY_BYTES = 50_000_000
"""The fewest bytes of weights for which a drafter is quantised by default.

Smaller models fit into a processor's caches, and their passes cost mostly overhead.
"""
OPTION = "tensor_parallel_size"


def wanted_backend(exact_text: bool, lossy_window: int | None, sinks: int) -> Wants:
    """What the target's backend must support; arguments are those of `drafttree.load`.

    Raises:
        ConfigError: an option has a wrong value, a window is combined with `exact_text`, or sinks need a window.
    """
    if not isinstance(exact_text, bool):
        raise ConfigError(f"exact_text is {exact_text!r}; give True or False")
    if lossy_window is None and sinks != SINKS:
        raise ConfigError(f"sinks is {sinks!r}, but there is no lossy_window; give one, or leave sinks out")
    if lossy_window is None:
        return Wants(exact_text=exact_text)
    for name, value, minimum in (("lossy_window", lossy_window, 1), ("sinks", sinks, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(f"{name} is {value!r}; give a whole number of tokens, at least {minimum}")
    if exact_text:
        raise ConfigError("exact_text cannot hold with a lossy_window; leave out one of them")
    return Wants(lossy_window=LossyWindow(lossy_window, sinks))


def refuse_rounding(option: str, value: Any) -> None:
    """Refuse to quantise a model that is loaded already.

    Args:
        option: name of the option.
        value: its value.

    Raises:
        ConfigError: the value is one of `KINDS`.
    """
    if isinstance(value, str) and value in KINDS:
        raise ConfigError(f"{option}={value!r} is for a model that is loaded by name; give its folder or hub name")


def check_quantization(option: str, value: Any, device: torch.device, other_values: Sequence[str] = ()) -> None:
    """Refuse a quantisation that does not exist, or that the device cannot run.

    Args:
        option: name of the option.
        value: its value; None for no quantisation.
        device: device of the model.
        other_values: allowed values beside `KINDS`.

    Raises:
        ConfigError: the value cannot be used; the message names the option and the value.
    """
    if value is None or (isinstance(value, str) and value in other_values):
        return
    if not isinstance(value, str) or value not in KINDS:
        raise unknown(option, value, [*KINDS, *other_values])
    if value == INT4 and device.type != "cpu":
        raise ConfigError(f"{option}={value!r} is for CPUs, and the device is {device}; leave it out, or give int8")
    if device.type == "cpu" and kernels.native is None:
        install = 'pip install "drafttree[native]"'
        raise ConfigError(f"{option}={value!r} needs drafttree-native on a CPU; install it: {install}")


def check_unquantized(source: object, config: Mapping[str, Any]) -> None:
    """Refuse to quantise a model that was saved quantised.

    Args:
        source: name, folder or object of the model, for messages.
        config: the contents of its config.json.

    Raises:
        ModelError: the model was saved quantised.
    """
    if method := quantization_method(config.get("quantization_config")):
        raise ModelError(f"{str(source)!r} is quantised already ({method}); leave out quantize")


def choose_quantization(module: PreTrainedModel) -> str | None:
    """The default quantisation of a language model that drafts, whose rounding errors change no text.

    It is int8, which halves the bytes to read, if drafttree-native runs the model on a CPU and it has at least
    `MANY_BYTES` of weights; else None.
    """
    if module.device.type != "cpu" or quantization(module) or why_not_native(module):
        return None
    return INT8 if sum(parameter.nbytes for parameter in module.parameters()) >= MANY_BYTES else None


def apply_quantization(
    module: PreTrainedModel, quantize: str, source: object, tokenizer: PreTrainedTokenizerBase | None, *, head: bool
) -> None:
    """Quantise a model that was just loaded.

    Args:
        module: the model.
        quantize: one of `KINDS`.
        source: name, folder or object of the model, for the log.
        tokenizer: its tokenizer; None if it has none.
        head: whether int8 rounds the head too, which changes no text if the model drafts. int4 always rounds it.

    Raises:
        ModelError: the model cannot be quantised.
    """
    original_megabytes = _megabytes(module)
    if quantize == INT4:
        logger.info("%s: rounding to four bits for this run only; `drafttree quantize` would keep the result", source)
        quantize_int4(module, tokenizer)
        quantize_head(module)
    else:
        quantize_int8(module, head=head)
    logger.info(
        "%s: quantised to %s, %.1f MB instead of %.1f", source, quantize, _megabytes(module), original_megabytes
    )


def _megabytes(module: PreTrainedModel) -> float:
    return sum(tensor.nbytes for tensor in [*module.parameters(), *quantized_scales(module)]) / 1e6


def check_sharding(size: Any, unsupported_options: Mapping[str, object]) -> None:
    """Refuse a number of processes that do not run, and options that a sharded target does not support.

    Args:
        size: the number of processes.
        unsupported_options: options that a sharded target does not support, by name; None and False mean unused.

    Raises:
        ConfigError: the number or an option cannot be used; the message names it.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"{OPTION} is {size!r}; give a number of processes, at least 1")
    if size == 1:
        return
    process_count = int(os.environ.get("WORLD_SIZE", "1"))
    if process_count != size:
        start = f"torchrun --nproc-per-node {size} -m drafttree generate ..."
        raise ConfigError(
            f"{OPTION} is {size}, and {process_count} of torchrun's processes run; start as many, by {start}"
        )
    if option := next((name for name, value in unsupported_options.items() if value not in (None, False)), None):
        raise ConfigError(f"{option} is not available for a target that is sharded over {size} processes; leave it out")


def check_shares(source: object, config: PreTrainedConfig, size: int, device: torch.device) -> None:
    """Refuse a model that cannot be sharded equally, or a device that transformers does not shard over.

    Args:
        source: name, folder or object of the model, for messages.
        config: config of the model.
        size: the number of processes.
        device: device of the model; transformers shards over the machine's accelerator.

    Raises:
        ConfigError: the device is not the machine's accelerator.
        ModelError: transformers has no sharding plan for the model, or its key-value heads are not divisible by size.
    """
    accelerator = torch.accelerator.current_accelerator()
    device_type = accelerator.type if accelerator else "cpu"
    if device.type != device_type:
        raise ConfigError(
            f"the device is {device}, but transformers shards a model over {device_type}; leave device out"
        )
    text_config: Any = config.get_text_config()
    if not getattr(text_config, "base_model_tp_plan", None):
        reason = f"transformers has no plan by which {config.model_type} is sharded"
        raise ModelError(f"{str(source)!r} cannot be sharded: {reason}; leave out {OPTION}")
    heads = getattr(text_config, "num_key_value_heads", None) or text_config.num_attention_heads
    if heads % size:
        raise ModelError(f"{str(source)!r} has {heads} heads of keys and values, which {size} processes cannot share")


def sharding_options(size: int) -> dict[str, Any]:
    """Options of `from_pretrained` that shard a model over this number of processes; empty for one process."""
    if size == 1:
        return {}
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=size)}
