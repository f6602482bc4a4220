"""PassTimer counts the time inside its blocks and no other."""

import time

import pytest
import torch

from drafttree.drafters.timing import PassTimer


def test_blocks_are_summed_and_pauses_left_out():
    timer = PassTimer(torch.device("cpu"))
    assert timer.seconds == 0
    for _ in range(2):
        with timer:
            time.sleep(0.01)
        time.sleep(0.05)
    assert timer.seconds >= 0.02


def test_a_block_that_raises_is_counted():
    timer = PassTimer(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError):
        _divide(timer)
    assert timer.seconds >= 0.01


def _divide(timer: PassTimer) -> float:
    with timer:
        time.sleep(0.01)
        return 1 / 0


class _Event:
    """A fake stream event; each is one millisecond after the previous one."""

    waited = made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:1"
        _Event.made += 1
        self.at = _Event.made

    def synchronize(self) -> None:
        _Event.waited += 1

    def elapsed_time(self, other: "_Event") -> float:
        return other.at - self.at


def test_on_cuda_events_are_compared_only_when_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    timer = PassTimer(torch.device("cuda:1"))
    for _ in range(3):
        with timer:
            pass
    assert _Event.waited == 0
    assert timer.seconds == pytest.approx(3e-3)
    assert timer.seconds == pytest.approx(3e-3)
    assert _Event.waited == 3


@pytest.mark.cuda
def test_a_kernel_is_timed_to_its_end():
    timer, weight = PassTimer(torch.device("cuda")), torch.ones(4096, 4096, device="cuda")
    weight @ weight
    torch.cuda.synchronize()
    with timer:
        for _ in range(20):
            weight @ weight
    assert timer.seconds > 20 * 2 * 4096**3 / 1e15
