"""Recipes run at toy size, in this process."""

import importlib
import signal
from pathlib import Path

SIZES = ("--heads", "3", "--length", "16", "--batch", "64", "--tokens", "640", "--threads", "1", "--dtype", "float32")


def stop(monkeypatch, *steps: int) -> None:
    """Let every run be told to stop at these steps."""
    recipe_heads = importlib.import_module("heads")
    update = recipe_heads.HeadRun.update

    def stopped(run, now):
        losses = update(run, now)
        if run.step in steps:
            signal.raise_signal(signal.SIGTERM)
        return losses

    monkeypatch.setattr(recipe_heads.HeadRun, "update", stopped)


def train(kind, target: Path, data: Path, out: Path, *options: str) -> None:
    name, *own = kind
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    importlib.import_module(name).main([*places, *SIZES, *own, *options])
