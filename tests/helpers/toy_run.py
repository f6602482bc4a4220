"""Recipes run at toy size, in this process."""

import importlib
import signal
from pathlib import Path

SIZES = ("--heads", "3", "--length", "16", "--batch", "64", "--tokens", "640", "--threads", "1", "--dtype", "float32")


def stop(monkeypatch, *steps: int, kind: type | None = None) -> None:
    """Let every run of a class be told to stop at these steps."""
    kind = kind or importlib.import_module("heads").HeadRun
    update = kind.update

    def stopped(run, now):
        losses = update(run, now)
        if run.step in steps:
            signal.raise_signal(signal.SIGTERM)
        return losses

    monkeypatch.setattr(kind, "update", stopped)


def train(kind, target: Path, data: Path, out: Path, *options: str) -> None:
    name, *own = kind
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    importlib.import_module(name).main([*places, *SIZES, *own, *options])
