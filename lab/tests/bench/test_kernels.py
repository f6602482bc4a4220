"""The bench of kernels: what is timed, what its figures are, and what it does where there is no device."""

import json
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from drafttree.measure.shapes import SHAPES, Shape
from drafttree_lab import device_clock
from drafttree_lab.bench import kernels
from drafttree_lab.bench.kernels import time_points
from drafttree_lab.device_clock import CudaClock, copies
from drafttree_lab.kernel_calls import AttentionPoint, MemoryPoint, ProductPoint, product_points
from testing.command_line import complaint, run
from testing.device_clocks import StandInClock

SMALL = Shape(hidden=32, layers=3, intermediate=48, heads=4, key_value_heads=2, head_dim=16)
SIZES = ["--shape", "small", "--vocab", 40, "--rows", "1,3", "--prefixes", "9", "--nodes", "1,5"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(kernels, "MEMORY", 4000)
    monkeypatch.setitem(SHAPES, "small", SMALL)


def use(monkeypatch, clock: StandInClock) -> None:
    """Where kernels do not run, as in most environments of the tests."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(device_clock, "open_clock", lambda *_: clock)


def test_without_cuda_one_line_says_so(capsys):
    said = complaint(capsys, "bench", "kernels", "--device", "cpu")
    assert "bench kernels measures kernels on CUDA, and torch sees no CUDA device" in said
    assert len(said.strip().splitlines()) == 1


def test_figures_without_the_kernels(monkeypatch):
    """A copy moves 8,000 bytes in 2 ms, a sum 4,000: the memory moves 4 MB/s, and every call takes 1 ms."""
    times = {(1000,): 2e-3, (): 2e-3}
    clock = StandInClock(lambda results: times.get(tuple(getattr(results[0], "shape", [0])), 1e-3))
    use(monkeypatch, clock)
    report = json.loads(run("bench", "kernels", *SIZES, "--repeats", 2, "--json").stdout)
    assert report["no_triton"] == "its kernels do not run on cpu"
    memory, *rows = report["rows"]
    assert memory["rate"] == pytest.approx({"copy": 4e6, "read": 2e6})
    assert [row["name"] for row in rows if "name" in row][::2] == ["qkv", "output", "gate and up", "down", "head"] * 2
    qkv = rows[1]
    assert (qkv["name"], qkv["outputs"], qkv["inputs"], qkv["rows"]) == ("qkv", 128, 32, 3)
    moved = 2 * (128 * 32 + 3 * 32 + 3 * 128)
    assert qkv["us"] == pytest.approx({"torch": 1e3, "mm": 1e3})
    assert qkv["rate"]["mm"] == pytest.approx(moved * 1e3)
    assert qkv["of_memory"]["mm"] == pytest.approx(moved * 1e3 / 4e6)
    attention = rows[-1]
    assert (attention["prefix"], attention["nodes"]) == (9, 5)
    assert attention["rate"] == pytest.approx({"torch": 1e3 * 2 * (2 * 14 * 2 * 16 + 2 * 5 * 4 * 16)})
    whole_pass = report["passes"][0]
    assert whole_pass["us"] == pytest.approx({"torch": 13e3, "mm": 13e3})
    shares = [row["of_memory"]["mm"] for row in rows if row.get("rows") == 1 and not row["int8"]]
    assert whole_pass["of_memory"]["mm"] == pytest.approx((3 * sum(shares[:4]) + shares[4]) / 13)
    assert [row["us"] for row in report["passes"][2:]] == [{"torch": pytest.approx(13e3)}] * 2


def test_ratios_are_of_repeats_and_have_intervals():
    found = kernels._ratios({"triton": [1.0, 2.0], "torch": [2.0, 8.0], "mm": [1.0, 2.0]})
    assert found["torch / triton"].mean == 3.0
    assert found["torch / triton"].low < 2 < 4 < found["torch / triton"].high
    assert (found["mm / triton"].low, found["mm / triton"].high) == (1.0, 1.0)
    assert kernels._ratios({"torch": [1.0]}) == {}


def test_a_kernel_that_fails_stops_no_other(monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("out of registers\nmore")

    use(monkeypatch, StandInClock())
    monkeypatch.setattr(AttentionPoint, "_on_torch", fail)
    result = run("bench", "kernels", *SIZES, "--repeats", 1)
    assert result.exit_code == 0, result.exception
    assert "torch failed at attention, 5 nodes behind 9: ValueError: out of registers" in result.stdout
    assert "gate and up" in result.stdout


def test_calls_read_more_than_the_cache_before_they_read_the_same_again():
    clock = StandInClock(cache_bytes=1000)
    point = ProductPoint("qkv", 10, 16, "", 1, int8=False)
    assert copies(point.item_bytes, clock) == 10  # 320 bytes each
    assert copies(5000, clock) == 1
    time_points([point], clock, has_kernels=False, repeats=1)
    assert [len(results) for results in clock.results] == [10, 10]
    assert len({result.sum().item() for result in clock.results[0][0:10] for result in result}) == 10


def test_weights_of_a_layer_are_those_of_its_shape():
    """Llama 3.1 8B: 218,103,808 weights of products in a layer, 525,336,576 in the head."""
    points = product_points(SHAPES["llama-8b"], 128256, [1])
    sizes = [point.outputs * point.inputs for point in points if not point.int8]
    assert sum(sizes[:4]) == 218_103_808
    assert sizes[4] == 525_336_576
    assert 32 * sum(sizes[:4]) == SHAPES["llama-8b"].weights


def test_the_same_inputs_give_torchs_ways_the_same_product():
    torch.manual_seed(0)
    calls = ProductPoint("qkv", 64, 96, "", 3, int8=False).make(torch.device("cpu"), 1)
    (found,) = calls["torch"]()[0]()
    torch.testing.assert_close(found, calls["mm"]()[0]())
    (rounded,) = ProductPoint("qkv", 64, 96, "", 3, int8=True).make(torch.device("cpu"), 1)["torch"]()[0]()
    assert (rounded.double() - found.double()).norm() < 0.02 * found.double().norm()  # weights in steps of 5 / 127


def test_bytes_are_those_that_must_be_moved():
    """An addition reads rows and a residual, and writes the residual and its norm; gates leave half of the outputs."""
    added, gated, rounded = (
        ProductPoint("some", 10, 16, ending, 2, is_int8).moved_bytes("torch")
        for ending, is_int8 in (("add", False), ("gate", False), ("", True))
    )
    assert added == 2 * (160 + 2 * 16 + 3 * 2 * 10)
    assert gated == 2 * (160 + 2 * 16 + 2 * 5)
    assert rounded == 160 + 4 * 10 + 2 * (2 * 16 + 2 * 10)


def test_trees_are_binary():
    visible = AttentionPoint(9, 6, 4, 2, 16).visible
    seen = [set(row.nonzero()[0].tolist()) for row in visible]
    assert seen == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}]


def test_a_copy_copies_and_a_sum_reads_everything():
    calls = MemoryPoint(400).make(torch.device("cpu"), 1)
    assert torch.equal(calls["copy"]()[0](), torch.ones(100))
    assert calls["read"]()[0]() == 100


def test_a_call_takes_its_share_of_a_graphs_replay(monkeypatch):
    """Three calls, six times in a graph which takes 18 ms, but 36 ms when it is replayed for the third time."""
    elapsed = iter([18.0, 18.0, 36.0, *[18.0] * 5])
    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Mock(L2_cache_size=77))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Mock(elapsed_time=lambda _: next(elapsed)))
    calls = [Mock(), Mock(), Mock()]
    clock = CudaClock(torch.device("cuda"))
    assert clock.cache_bytes == 77
    assert clock.time(calls) == pytest.approx((1e-3, 1e-3, 2e-3))
    assert [call.call_count for call in calls] == [7, 7, 7]


@pytest.mark.cuda
def test_a_copy_takes_as_long_as_events_say():
    clock = CudaClock(torch.device("cuda"))
    calls = MemoryPoint(1 << 30).make(clock.device, 1)["copy"]()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    timing = clock.time(calls)
    start.record()
    for _ in range(20):
        calls[0]()
    end.record()
    end.synchronize()
    assert 0.5 < timing.seconds / (start.elapsed_time(end) / 20e3) < 1.5
