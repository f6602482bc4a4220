"""Whether passes of a module run on the kernels in Triton. It imports no Triton.

`DRAFTTREE_TRITON=1` asks for them. They run on CUDA and, with `TRITON_INTERPRET=1`, in Triton's interpreter on a CPU,
which is far too slow for anything but tests.
"""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from drafttree.models.families import describe
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_backend import why_not_fused
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.triton.kernel_failures import failure_of

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


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


def triton_heads_of(
    module: Any, blocks: Sequence[Sequence[Any]], projections: Sequence[Any]
) -> Callable[[Tensor], Tensor]:
    """The `TritonHeads` of linear layers."""
    from drafttree.models.triton.triton_heads import TritonHeads

    return TritonHeads(module, blocks, projections)


def why_not_triton(module: Any) -> str | None:
    """Why passes of a module cannot run on the kernels in Triton, None if they can.

    Args:
        module: a model of transformers.
    """
    if reason := failure_of(module) or why_not_kernels(module.dtype, module.device):
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
