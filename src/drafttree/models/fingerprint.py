"""A fingerprint of a module, which tells whether a backend made from it still computes what the module does.

Fused layers bypass the module's own `forward`, and on a CPU they compute with copies of its weights. So a backend is
compared with its module whenever a text begins (`drafttree.models.selected_backend`). The fingerprint differs after

- a hook was added or removed, on any submodule or globally, and after an instance got a `forward` of its own;
- a submodule was replaced, got another class (adapters, parametrizations) or changed between training and evaluation;
- a parameter or buffer was replaced, moved or assigned by `.data =`, which changes its address;
- one was edited in place (`load_state_dict`, an optimiser, any operation under `torch.no_grad`), which raises its
  version; inference tensors have none;
- an edit that raises no version (`weight.data.mul_(2)`, any edit of an inference tensor) changed one of the `SAMPLES`
  entries that are compared of every weight on a CPU. On other devices no weight is copied, so none has to be compared.

It does not notice an edit through `.data` that misses the sampled entries, such as one of a single row; a method that
is replaced on a class; and any change while a text is being generated.
"""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

SAMPLES = 16


class Fingerprint:
    """The state of a module when the fingerprint was taken.

    Args:
        module: to compare with later. Its tensors' memory is kept, so that no other tensor gets their address.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state = _state(module)
        self._samples = [sample(weight) for weight in module.parameters() if _is_sampled(weight)]
        self._entries = self._read_samples()

    def matches(self) -> bool:
        """Whether the module is as it was."""
        return _state(self._module) == self._state and torch.equal(self._read_samples(), self._entries)

    def _read_samples(self) -> Tensor:
        """The bytes of all samples, so that NaN equals itself."""
        return torch.cat(self._samples).view(torch.uint8) if self._samples else torch.zeros(0)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is torch's own, neither quantised nor distributed."""
    return type(tensor) in (nn.Parameter, Tensor)


def version(tensor: Tensor) -> int:
    """How often a tensor was edited in place, 0 where torch does not count that."""
    return 0 if tensor.is_inference() else tensor._version


def sample(weight: Tensor) -> Tensor:
    """A view of a few entries spread over a weight's memory.

    The step is odd, so that the entries of a matrix with an even number of columns lie in different columns.
    """
    start = weight.storage_offset()
    room = weight.untyped_storage().nbytes() // weight.element_size() - int(start)
    count = min(weight.numel(), room)
    step = max(1, (count // SAMPLES - 1) | 1)
    return weight.data.as_strided((min(SAMPLES, count),), (step,), start)


def _state(module: nn.Module) -> list[object]:
    """Everything but entries that `Fingerprint` compares, of all submodules."""
    hooks = global_hooks._global_forward_hooks, global_hooks._global_forward_pre_hooks
    state: list[object] = [tuple(chain.from_iterable(each.values() for each in hooks))]
    waiting = [module]
    while waiting:
        part = waiting.pop()
        state.append((part, type(part), part.training, "forward" in part.__dict__, *own_hooks(part)))
        state += [_address(each) for each in (*part._parameters.values(), *part._buffers.values()) if each is not None]
        waiting += [child for child in part._modules.values() if child is not None]
    return state


def own_hooks(part: nn.Module) -> tuple[object, ...]:
    """The forward hooks of a module itself."""
    return (*part._forward_pre_hooks.values(), *part._forward_hooks.values())


def _address(tensor: Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), version(tensor)) if is_plain(tensor) else (id(tensor), 0)


def _is_sampled(weight: Tensor) -> bool:
    return is_plain(weight) and weight.device.type == "cpu" and weight.is_floating_point() and weight.numel() > 0
