"""Whether passes of a module run on the kernels in Triton. Of this folder, only this file does not import Triton.

`DRAFTTREE_TRITON=1` asks for them. They run on CUDA and, with `TRITON_INTERPRET=1`, in Triton's interpreter on a CPU,
which is far too slow for anything but tests.
"""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drafttree.models.families import describe
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_backend import why_not_fused
from drafttree.models.quantization.block_linear import BlockLinear

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_failures = WeakKeyDictionary[Any, str]()
"""Modules with a kernel that did not compile, each with the reason."""


class KernelError(Exception):
    """A kernel did not compile for the sizes of a pass. From then on `why_not_triton` refuses the module.

    Kernels are compiled when a pass first needs them, so this may happen long after the trial of a backend. Rows that
    the pass has counted as drafted are to be dropped (`undo_pass`), and the pass is run on another backend.
    """


def fail(module: Any, error: Exception) -> KernelError:
    """Refuse a module from now on, and make the error to raise."""
    reason = _failures[module] = why_it_does_not_run(error)
    return KernelError(reason)


def prefers_triton() -> bool:
    """Whether the user asks for the kernels in Triton."""
    return os.environ.get("DRAFTTREE_TRITON") == "1"


def _is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_backend_of(module: Any) -> DecoderBackend:
    """The `TritonBackend` of a module or draft head."""
    from drafttree.models.triton.triton_backend import TritonBackend

    return TritonBackend(module)


def triton_heads_of(blocks: Sequence[Sequence[Any]], projections: Sequence[Any]) -> Callable[[Tensor], Tensor]:
    """The `TritonHeads` of linear layers."""
    from drafttree.models.triton.triton_heads import TritonHeads

    return TritonHeads(blocks, projections)


def why_it_does_not_run(error: Exception) -> str:
    """The reason to give if making a `TritonBackend`, or a pass of it, ended in an error.

    Raises:
        OutOfMemoryError: that was the error.
    """
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    if isinstance(error, KernelError):
        return str(error)
    message = getattr(error, "error_message", None) or str(error)  # the whole begins with the kernel's source
    first_line = str(message).strip().partition("\n")[0]
    if isinstance(error, AttributeError):
        return f"a layer is not as those of its family ({first_line})"
    return f"a kernel does not run ({type(error).__name__}: {first_line})"


def why_not_triton(module: Any) -> str | None:
    """Why passes of a module cannot run on the kernels in Triton, None if they can.

    Args:
        module: a model of transformers.
    """
    if reason := _failures.get(module) or why_not_kernels(module.dtype, module.device):
        return reason
    if reason := why_not_fused(module):
        return reason
    if any(isinstance(submodule, BlockLinear) for submodule in module.modules()):
        return "weights in blocks are multiplied by drafttree-native alone"
    try:
        architecture = describe(module)
    except AttributeError as error:
        return f"a layer is not as those of its family ({error})"
    if any(block.experts for block in architecture.blocks):
        return "it has experts, for which there are no kernels"
    return None


def why_not_kernels(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not run for a dtype on a device, None if they do."""
    if device.type != "cuda" and not _is_interpreted():
        return f"its kernels do not run on {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed (pip install drafttree[cuda])"
    if dtype not in DTYPES:
        return f"its kernels do not know {str(dtype).removeprefix('torch.')}"
    return None
