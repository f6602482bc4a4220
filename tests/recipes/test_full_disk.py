"""A full disk: one line reports it, no partial file is left, and the same command resumes."""

import importlib
import re
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from drafttree.drafters.formats.checkpoints import read_tensors
from helpers.small_disk import SmallDisk
from helpers.toy_run import train

CACHED = ("eagle3", "--mlp", "24", "--cache")
MEDUSA = ("medusa",)


def stopped_by_the_disk(kind, target: Path, data: Path, out: Path, reason: str) -> None:
    with pytest.raises(SystemExit, match=f"^{kind[0]}: the disk is full: {reason}") as stopped:
        train(kind, target, data, out)
    assert "\n" not in stopped.value.code
    assert not list(out.rglob("*.partial"))


def assert_same(out: Path, whole: Path) -> None:
    parts, expected = (read_tensors(folder / "final") for folder in (out, whole))
    for name, tensor in expected.items():
        torch.testing.assert_close(parts[name], tensor, atol=1e-2, rtol=1e-2, msg=name)


@pytest.mark.parametrize("without", [False, True], ids=["with room", "without --cache"])
def test_hidden_states_that_do_not_fit(without, target, data, tmp_path, monkeypatch):
    """The state before the failure is saved; then the run resumes, with or without a cache, as if never interrupted."""
    train(CACHED[:-1], target, data, tmp_path / "whole")
    out = tmp_path / "parts"
    with monkeypatch.context() as patch:
        SmallDisk(patch, 60_000, "batch-")
        reason = f"{re.escape(str(out))}/features/batch-.* make room, and the same command goes on. "
        reason += rf"3 of 10 batches .* need 0.1 MB; .* delete {re.escape(str(out))}/features and leave out --cache"
        stopped_by_the_disk(CACHED, target, data, out, reason)
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == 3
    train(CACHED[:-1] if without else CACHED, target, data, out)
    assert_same(out, tmp_path / "whole")


def test_no_room_for_hidden_states_nor_for_the_checkpoint(target, data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        SmallDisk(patch, 60_000)
        stopped_by_the_disk(CACHED, target, data, tmp_path, ".*features/batch-.*3 of 10 batches")
    assert not (tmp_path / "checkpoint.pt").exists()
    train(CACHED, target, data, tmp_path)
    assert (tmp_path / "final/model.safetensors").exists()


def test_no_room_for_a_checkpoint_leaves_the_one_before(target, data, tmp_path, monkeypatch):
    train(MEDUSA, target, data, tmp_path / "whole")
    out, size = tmp_path / "parts", (tmp_path / "whole/checkpoint.pt").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("run").Interval, "due", lambda interval: interval.seconds == 240)
        SmallDisk(patch, int(2.5 * size), "checkpoint")
        stopped_by_the_disk(
            MEDUSA, target, data, out, r".*/checkpoint.pt could not be written, [\d,.]+ MB are free; make"
        )
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == 2
    train(MEDUSA, target, data, out)
    assert_same(out, tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "told"),
    [("tokens", "tokens.npy"), ("settings", "settings.json"), ("checkpoint", "checkpoint.pt"), ("hydra", "final")],
)
def test_no_room_for_anything_else(name, told, target, data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        SmallDisk(patch, 100, name)
        stopped_by_the_disk(("hydra",), target, data, tmp_path, f".*/{told} could not be written")
    assert not list(tmp_path.rglob(f"{name}*"))
    train(("hydra",), target, data, tmp_path)
    assert (tmp_path / "final/hydra_lm_head.pt").exists()


def test_no_room_for_the_heads_of_a_run_that_is_over(target, data, tmp_path, monkeypatch):
    """safetensors reports a full disk by an error of its own; nothing is trained again."""

    def full(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("medusa"), "save_file", full)
        stopped_by_the_disk(MEDUSA, target, data, tmp_path, ".*/final could not be written")
    assert not (tmp_path / "final").exists()
    monkeypatch.setattr(importlib.import_module("heads").HeadRun, "update", None)
    train(MEDUSA, target, data, tmp_path)
    assert (tmp_path / "final/medusa_lm_head.safetensors").exists()
