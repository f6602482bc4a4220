"""Lets only the first process of torchrun print."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def one_voice() -> Iterator[None]:
    """Context manager: discard the output of all processes but the first.

    On exit, output is restored, so that every process can report its error. The process also leaves the process group
    that was made when the sharded target was loaded.
    """
    with ExitStack() as stack:
        stack.callback(_leave)
        if int(os.environ.get("RANK", "0")):
            null_file = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(redirect_stdout(null_file))
            stack.enter_context(redirect_stderr(null_file))
        yield


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
