"""Recipes run at toy size, in this process."""

import importlib
from pathlib import Path

SIZES = ("--heads", "3", "--length", "16", "--batch", "64", "--tokens", "640", "--threads", "1", "--dtype", "float32")


def train(kind, target: Path, data: Path, out: Path, *options: str) -> None:
    name, *own = kind
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    importlib.import_module(name).main([*places, *SIZES, *own, *options])
