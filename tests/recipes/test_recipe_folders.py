"""Runs in a folder that holds other settings, the remains of a failed start, or damaged files."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from drafttree.drafters.formats.checkpoints import read_tensors
from helpers.toy_run import stop, train

MEDUSA = ("medusa",)


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def test_a_run_is_not_resumed_with_other_settings(target, data, tmp_path):
    train(MEDUSA, target, data, tmp_path)
    with pytest.raises(SystemExit, match="begun with --heads 3, not 2; use another --out"):
        train(MEDUSA, target, data, tmp_path, "--heads", "2")
    with pytest.raises(SystemExit, match="begun with --own-projection False, not True; use another --out"):
        train(MEDUSA, target, data, tmp_path, "--own-projection")


def test_a_run_is_not_resumed_by_another_recipe(target, data, tmp_path):
    train(MEDUSA, target, data, tmp_path)
    with pytest.raises(SystemExit, match=r"^hydra: .* was begun with the recipe medusa, not hydra; use another --out"):
        train(("hydra",), target, data, tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"heads": "3", "le', b"[]", b"\xff"])
def test_damaged_settings_are_one_clear_line(content, target, data, tmp_path):
    train(MEDUSA, target, data, tmp_path)
    (tmp_path / "settings.json").write_bytes(content)
    with pytest.raises(
        SystemExit, match=r"^medusa: .*settings.json is damaged; delete it if .*, or use another --out$"
    ):
        train(MEDUSA, target, data, tmp_path)


def other_target(folder: Path, target: Path) -> Path:
    """The same tokenizer beside a model without weights."""
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def short(folder: Path) -> Path:
    folder.mkdir()
    (folder / "short.txt").write_text("w1 w2 w3")
    return folder


MISTAKES = {
    "no such data": lambda target, data, path: (target, path),
    "too little text": lambda target, data, path: (target, short(path)),
    "no such target": lambda target, data, path: (path, data),
    "no weights": lambda target, data, path: (other_target(path, target), data),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_first_command_can_be_put_right(mistake, target, data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match=r"^medusa: "):
        train(MEDUSA, *mistake(target, data, tmp_path / "mistaken"), out)
    assert not (out / "settings.json").exists()
    train(MEDUSA, target, data, out)
    assert (out / "final").exists()
    assert len(np.load(out / "tokens.npy")) > 700


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [0, 0.2, 0.9])
@pytest.mark.parametrize(
    ("name", "way_out"),
    [("checkpoint.pt", "delete it to begin again"), ("tokens.npy", "delete it, and the same command makes it again")],
)
def test_a_truncated_file_is_one_clear_line(name, way_out, share, target, data, tmp_path):
    train(MEDUSA, target, data, tmp_path)
    shutil.rmtree(tmp_path / "final")
    cut(tmp_path / name, share)
    with pytest.raises(SystemExit, match=f"^medusa: .*{name} is truncated or damaged; {way_out}$"):
        train(MEDUSA, target, data, tmp_path)
    (tmp_path / name).unlink()
    train(MEDUSA, target, data, tmp_path)
    assert (tmp_path / "final").exists()


@pytest.mark.parametrize("share", [0, 0.2, 0.9])
def test_truncated_hidden_states_are_computed_again(share, target, data, tmp_path):
    kind = (*MEDUSA, "--cache")
    train(kind, target, data, tmp_path)
    path = tmp_path / "features/batch-000003.safetensors"
    content = path.read_bytes()
    cut(path, share)
    shutil.rmtree(tmp_path / "final")
    (tmp_path / "checkpoint.pt").unlink()
    train(kind, target, data, tmp_path)
    assert path.read_bytes() == content


@pytest.mark.few(1)
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
