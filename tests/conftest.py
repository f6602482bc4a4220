"""One thread per test process, those that tests start included, and a cache folder of their own.

Small models gain nothing from more threads, and the processes share the cores. What a test measures is not kept for the
user's own runs, and what those have kept does not decide a test.
"""

import atexit
import os
import shutil
import tempfile

import pytest
import torch

from helpers.fixed_costs import fixed_costs

__all__ = ["fixed_costs"]
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

_caches = tempfile.mkdtemp(prefix="drafttree-caches-")
os.environ["XDG_CACHE_HOME"] = _caches
atexit.register(shutil.rmtree, _caches, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
