"""What a run finds in its folder."""

import importlib

import numpy as np
import pytest
import torch
from toy_run import stop, train

from drafttree.drafters.checkpoints import read_tensors

MEDUSA = ("medusa",)


@pytest.mark.parametrize("caches", [("--cache", ""), ("", "--cache")], ids=["switched off", "switched on"])
def test_a_run_goes_on_with_or_without_a_cache(caches, target, data, tmp_path, monkeypatch):
    train(MEDUSA, target, data, tmp_path / "whole")
    kinds = [(*MEDUSA, *cache.split()) for cache in caches]
    with monkeypatch.context() as patch:
        stop(patch, 4)
        with pytest.raises(SystemExit, match="goes on from there"):
            train(kinds[0], target, data, tmp_path / "parts")
    train(kinds[1], target, data, tmp_path / "parts")
    ends = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["windows"] for name in ("whole", "parts")]
    assert ends[0] == ends[1]
    whole, parts = (read_tensors(tmp_path / name / "final") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=1e-2, rtol=1e-2, msg=name)


@pytest.mark.parametrize("switch", range(0, 11, 5))
def test_a_position_means_the_same_with_or_without_a_cache(switch):
    """The first epoch gives the same windows wherever a run changes over, and all epochs give as many."""
    plain, repeated = importlib.import_module("windows").Windows, importlib.import_module("features").RepeatedWindows
    stream = np.arange(702)
    for first, second in ((plain, repeated), (repeated, plain)):
        alone, before = plain(stream), first(stream)
        for _ in range(switch):
            assert torch.equal(before.take(4, 16)[0], alone.take(4, 16)[0])
        after = second(stream, before.positions)
        for _ in range(switch, 10):
            assert torch.equal(after.take(4, 16)[0], alone.take(4, 16)[0])
        for _ in range(12):
            for windows in (after, alone):
                windows.take(4, 16)
            assert after.positions == alone.positions
