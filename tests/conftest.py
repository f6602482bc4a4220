"""One thread per test process, and a cache folder of their own.

Small models gain nothing from more threads, and the processes share the cores. What a test measures is not kept for the
user's own runs, and what those have kept does not decide a test.
"""

import atexit
import os
import shutil
import tempfile

import torch

torch.set_num_threads(1)

_caches = tempfile.mkdtemp(prefix="drafttree-caches-")
os.environ["XDG_CACHE_HOME"] = _caches
atexit.register(shutil.rmtree, _caches, ignore_errors=True)
