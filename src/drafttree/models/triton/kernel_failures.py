"""Kernels in Triton that do not compile, and the modules that are refused from then on. It imports no Triton."""

from typing import Any
from weakref import WeakKeyDictionary

import torch

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


def failure_of(module: Any) -> str | None:
    """The reason why a kernel of a module did not compile, None if all did so far."""
    return _failures.get(module)


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
