"""Operations and calls of a round, counted."""

import gc
import sys

import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.loading import find_drafter
from drafttree.policies import Chain, Talon
from drafttree_lab.round_work import count_work
from testing.small_trees import DRAFT, PROMPT, TARGET
from testing.toy import ToyDrafter, ToyModel


class Busy(ToyModel):
    """Adds some operations to every pass."""

    def score(self, segment):
        for _ in range(5):
            torch.ones(1).add_(1)
        return super().score(segment)


def work_of(target: ToyModel, length: int = 12):
    decoder = Decoder(target, ToyDrafter(DRAFT), Chain(depth=2))
    return count_work(decoder, PROMPT, max_new_tokens=length, ignore_eos=True)


@pytest.fixture(autouse=True)
def garbage_stays():
    """What other tests have left may call functions of the package when it is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_operations_are_those_that_torch_runs():
    work_of(ToyModel(TARGET))  # masks of chains are made once
    quiet, busy = work_of(ToyModel(TARGET)), work_of(Busy(TARGET))
    assert busy.operations == quiet.operations + 10
    assert busy.calls == quiet.calls > 20
    assert work_of(ToyModel(TARGET), 24).calls < 1.5 * quiet.calls


def test_a_profiler_that_was_there_stays():
    def profile(*_: object) -> None: ...

    sys.setprofile(profile)
    try:
        work_of(ToyModel(TARGET))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


TEXT = "The old man looked at the sea for a long time, and then he said"


@pytest.fixture(scope="module")
def embedded():
    return drafttree.load(dtype="float32")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("drafter", "policy", "operations", "calls"),
    [
        (None, Chain(depth=5), 390, 290),
        ("embedded-eagle3", Chain(depth=5), 930, 960),
        ("embedded-draft", Talon(budget=16, width=4), 665, 635),
    ],
    ids=["plain decoding", "a chain of 5", "TALON-16"],
)
def test_a_round_takes_few_operations_and_calls(embedded, drafter, policy, operations, calls):
    """As `drafttree bench methods --count-work` counts: torch operations, passes included, and our own functions."""
    found = find_drafter(drafter, embedded.target, embedded.tokenizer)
    pair = embedded.with_drafter(found).with_policy(policy)
    work = count_work(pair, TEXT, max_new_tokens=48, ignore_eos=True)
    assert work.operations <= operations
    assert work.calls <= calls
