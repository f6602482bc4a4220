"""The processes that a target is sharded over as it is loaded: tensor parallelism of transformers, under torchrun."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.core.errors import ConfigError, ModelError

OPTION = "tensor_parallel_size"


def check_sharding(size: Any, target: object, others: Mapping[str, object]) -> None:
    """Refuse a number of processes that there are not, and what cannot be had with more than one.

    Args:
        size: the number.
        target: to be loaded.
        others: options by name that no sharded target serves; those that are None or False are not given.

    Raises:
        ConfigError: the message names the option and its value.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"{OPTION} is {size!r}; give a number of processes, at least 1")
    if size == 1:
        return
    running = int(os.environ.get("WORLD_SIZE", "1"))
    if running != size:
        start = f"torchrun --nproc-per-node {size} -m drafttree generate ..."
        raise ConfigError(f"{OPTION} is {size}, and {running} of torchrun's processes run; start as many, by {start}")
    if isinstance(target, PreTrainedModel):
        raise ConfigError(f"{OPTION}={size} is for a target that is loaded by name; give its folder or hub name")
    if wrong := next((name for name, value in others.items() if value not in (None, False)), None):
        raise ConfigError(f"{wrong} cannot be had of a target that is sharded over {size} processes; leave it out")


def check_shares(source: object, config: PreTrainedConfig, size: int, device: torch.device) -> None:
    """Refuse a model that cannot be cut into so many equal shares, or a device where they would not lie.

    Args:
        source: of the model.
        config: its own.
        size: the number of processes.
        device: of the model; transformers shards over the machine's accelerator.

    Raises:
        ConfigError: it is another device.
        ModelError: transformers has no plan for the model, or its heads cannot be shared out.
    """
    found = torch.accelerator.current_accelerator()
    kind = found.type if found else "cpu"
    if device.type != kind:
        raise ConfigError(f"the device is {device}, but transformers shards a model over {kind}; leave device out")
    text: Any = config.get_text_config()
    if not getattr(text, "base_model_tp_plan", None):
        reason = f"transformers has no plan by which {config.model_type} is sharded"
        raise ModelError(f"{str(source)!r} cannot be sharded: {reason}; leave out {OPTION}")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % size:
        raise ModelError(f"{str(source)!r} has {heads} heads of keys and values, which {size} processes cannot share")


def sharding_options(size: int) -> dict[str, Any]:
    """Options of transformers' `from_pretrained` that shard a model."""
    if size == 1:
        return {}
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=size)}
