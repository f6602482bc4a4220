"""What both suites have in common: one thread per process, a cache folder of their own, no test that a clock decides.

Small models gain nothing from more threads, and the processes share the cores. What a test measures is not kept for the
user's own runs, and what those have kept does not decide a test. The terminal is as wide as Rich takes it to be where
there is none, so that no text is broken elsewhere.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.native import kernels, native_backend
from testing.fixed_costs import fixed_costs

__all__ = ["fixed_costs"]
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a job in the background, whose children would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["COLUMNS"] = "80"
os.environ.pop("FORCE_COLOR", None)
settings.register_profile(
    "drafttree",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # which runs for minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("drafttree")

_caches = tempfile.mkdtemp(prefix="drafttree-caches-")
os.environ["XDG_CACHE_HOME"] = _caches
atexit.register(shutil.rmtree, _caches, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    """Where there is a GPU, too, tests load models on the CPU, but for those that `make gpu-tests` asks for by mark."""
    if "cuda" not in config.getoption("markexpr"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test as slow, but for as many as its mark `few` says."""
    cases_of_tests = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases_of_tests[item.nodeid.partition("[")[0]].append(item)
    for cases in cases_of_tests.values():
        mark = cases[0].get_closest_marker("few")
        assert mark is not None
        for case in slow_cases(cases, *mark.args):
            case.add_marker(pytest.mark.slow)


def slow_cases(cases: list[pytest.Function], most: int) -> list[pytest.Function]:
    """All cases but so many, which have as many values of each parameter as possible; of equal ones the first."""
    others, values = [*cases], set[tuple[str, int]]()
    for _ in range(min(most, len(cases))):
        best = max(others, key=lambda case: len(case.callspec.indices.items() - values))
        others.remove(best)
        values |= best.callspec.indices.items()
    return others


def pytest_collection_finish() -> None:
    forget_garbage()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        forget_garbage()


def forget_garbage() -> None:
    """Leave what tests keep, which is collected by the million, out of collections to come."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the command that repeats a property's smallest failing case, which Hypothesis keeps in `.hypothesis`."""
    report = yield
    if report.failed and is_hypothesis_test(getattr(item, "obj", None)):
        known = [f"{name}={os.environ[name]} " for name in ("CI", "FUZZ_CASES") if name in os.environ]
        slow = "-m slow " * bool(item.get_closest_marker("slow"))
        report.sections.append(("repeat", f"{''.join(known)}{sys.executable} -m pytest {slow}'{item.nodeid}'"))
    return report


@pytest.fixture
def on_torch(monkeypatch):
    """Passes run on torch, as where drafttree-native is not installed."""
    monkeypatch.setattr(kernels, "native", None)


@pytest.fixture(params=[FusedBackend, native_backend.NativeBackend], ids=["fused", "native"])
def fast(request, monkeypatch):
    """The fastest backend of a Llama where drafttree-native is installed, and where it is not."""
    if request.param is FusedBackend:
        monkeypatch.setattr(kernels, "native", None)
    elif kernels.native is None:
        pytest.skip("drafttree-native is not installed")
    return request.param
