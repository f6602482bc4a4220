"""Where kernels are launched: on the device of their data, with compiler errors as `KernelError`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.errors import TritonError  # pyright: ignore[reportMissingImports]

from drafttree.models.triton.kernel_failures import fail

COMPILER_ERROR = "PassManager::run failed"
"""What the compiler says in a RuntimeError, where its other errors have classes of their own."""


@contextmanager
def launching(module: Any, tensor: Tensor) -> Iterator[None]:
    """Context manager: kernels of a module run on the device of a tensor.

    Raises:
        KernelError: a kernel does not compile. From then on `why_not_triton` refuses the module.
    """
    try:
        with torch.cuda.device_of(tensor):  # kernels run on the current device
            yield
    except (TritonError, RuntimeError) as error:
        if isinstance(error, TritonError) or COMPILER_ERROR in str(error):
            raise fail(module, error) from error
        raise
