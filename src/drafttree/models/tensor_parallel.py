"""Targets whose weights are sharded over the processes of torchrun (tensor parallelism of transformers).

Every process runs the whole loop, and its share of every layer. The sums over the shares are bit for bit the same in
all processes. So all see the same logits and decide the same, and only layers communicate. Where processes would decide
differently, as on a seed that the user did not give, the first process decides for all.
"""

import hashlib
from collections.abc import Sequence
from itertools import chain

import torch
import torch.distributed as dist
from numpy import ndarray as Array
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.segment import Output, Segment
from drafttree.models.wrapped_backends import WrappedBackend


def tensor_parallel_size(module: PreTrainedModel) -> int:
    """The number of processes that a module's weights are sharded over, 1 for a module that is whole.

    Raises:
        ModelError: the module is sharded in another way.
    """
    size: int = getattr(module, "tp_size", None) or 1
    if dist.is_available() and dist.is_initialized() and _is_sharded(module) and dist.get_world_size() != size:
        raise ModelError(
            f"{type(module).__name__} is sharded, but not by tensor parallelism over all {dist.get_world_size()} "
            "processes; load it by drafttree.load with tensor_parallel_size"
        )
    return size


def whole(weight: Tensor) -> Tensor:
    """A weight as one tensor, gathered from the processes if it is sharded."""
    return getattr(weight, "full_tensor", lambda: weight)()


def of_first_process(value: int) -> int:
    """The first process's value, in every process."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


class ShardedBackend(WrappedBackend):
    """Runs a sharded module, after checking that all processes run the same pass.

    Processes that drafted different trees would add up shares of different rows, or wait for each other forever.

    Args:
        inner_backend: runs the passes.
    """

    @property
    def shares_passes(self) -> bool:
        return False

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        outputs: list[Output] = []
        for segment in segments:
            check_same_pass([segment.tokens, segment.positions, segment.visible], self.device)
            outputs += self._inner_backend.forward([segment], hidden_layers=hidden_layers)
        return outputs


def check_same_pass(inputs: Sequence[Array], device: torch.device) -> None:
    """Check that all processes have the same inputs of a pass, by a digest of 64 bits.

    Raises:
        ModelError: the inputs differ; every process raises it.
    """
    digest = hashlib.blake2b(digest_size=8)
    for array in inputs:
        digest.update(repr(array.shape).encode() + array.tobytes())
    fingerprint = int.from_bytes(digest.digest(), signed=True)
    extremes = torch.tensor([fingerprint, ~fingerprint], device=device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX)
    maximum, inverse_minimum = extremes.tolist()
    if maximum != ~inverse_minimum:
        raise ModelError(
            "the processes of the sharded target drafted different trees; give all of them the same prompt, options "
            "and drafter, on devices of one kind"
        )


def _is_sharded(module: PreTrainedModel) -> bool:
    from torch.distributed.tensor import DTensor

    return any(isinstance(tensor, DTensor) for tensor in chain(module.parameters(), module.buffers()))
