"""A training run that reports its progress, saves checkpoints and can be resumed."""

import argparse
import pickle
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import schedule
from disk import atomic_file
from schedule import Deadline, Plan, TokenBudget

COUNTERS = ("step", "tokens", "progress", "history")


class Interval:
    """A timer that is due once per interval, first at the end of the first interval."""

    def __init__(self, seconds: float, first: float | None = None):
        self.seconds, self.next = seconds, time.time() + (seconds if first is None else first)

    def due(self) -> bool:
        if time.time() < self.next:
            return False
        self.next = time.time() + self.seconds
        return True


class Run:
    """The training loop; a subclass defines `losses`, `update`, `export`, `state` and `restore`.

    Attributes:
        step: optimizer steps done.
        tokens: tokens seen.
        progress: spent share of the budget, in [0, 1].
        history: all progress lines so far.
        stopping: set by SIGTERM and Ctrl-C; the current step is finished first.
    """

    def __init__(self, out: Path):
        self.out = out
        self.checkpoint = out / "checkpoint.pt"
        self.step = self.tokens = 0
        self.progress = 0.0
        self.history: list[dict] = []
        self.stopping = False

    def spend(self, options: argparse.Namespace) -> None:
        """Train until the options' budget of tokens or deadline is spent; exit the program if stopped before.

        Training that was complete already, with only the export missing, is not repeated.
        """
        if self.progress < 1.0 and not self.run(self._budget(options)):
            sys.exit(f"stopped at progress {self.progress:.3f}; the same command goes on from there")

    def _budget(self, options: argparse.Namespace) -> Deadline | TokenBudget:
        if options.deadline:
            return Deadline(options.deadline, self.progress)
        return TokenBudget(options.tokens, self.tokens, self.progress)

    def run(self, budget: Deadline | TokenBudget) -> bool:
        """Train until the budget is spent (True), or until told to stop (False)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        shown, saved, exported = Interval(20), Interval(240), Interval(600, first=150)
        losses, since, began = self.losses(), time.time(), (time.time(), self.progress)
        while not self.stopping and self.progress < 1.0:
            now = schedule.plan(self.progress)
            losses += self._update(now)
            self.progress = min(1.0, budget.progress(self.tokens))
            if shown.due() or self.progress >= 1.0:
                self._report(now, losses, time.time() - since, began)
                losses, since = self.losses(), time.time()
            if saved.due():
                self.save()
            if exported.due():
                self.export("snapshot")
        self.save()
        return self.progress >= 1.0

    def _update(self, now: Plan):
        """Do one step; if it fails for lack of disk space, save the state before it if that still fits."""
        try:
            return self.update(now)
        except OSError:
            with suppress(OSError):
                self.save()
            raise

    def losses(self):
        """Return zero losses, of the type `update` returns: with `+=`, `positions` and `means()`."""
        raise NotImplementedError

    def update(self, now: Plan):
        """Do one optimizer step as planned and count it in `step` and `tokens`."""
        raise NotImplementedError

    def export(self, name: str) -> None:
        """Write the trained modules as they are now to `out/name`."""
        raise NotImplementedError

    def state(self) -> dict:
        """Return the state that `restore` needs, besides the counters."""
        raise NotImplementedError

    def restore(self, state: dict) -> None:
        """Take over the state of a saved run."""
        raise NotImplementedError

    def facts(self) -> dict:
        """Return further entries of a progress line."""
        return {}

    def save(self) -> None:
        """Write the checkpoint atomically."""
        with atomic_file(self.checkpoint) as file:
            torch.save(self.state() | {part: getattr(self, part) for part in COUNTERS}, file)

    def load(self) -> None:
        """Read the checkpoint.

        Raises:
            ValueError: the checkpoint cannot be read.
        """
        with self.checkpoint.open("rb") as file:
            try:
                state = torch.load(file, map_location="cpu", weights_only=True)
            except (RuntimeError, EOFError, OSError, LookupError, ValueError, pickle.UnpicklingError) as error:
                raise ValueError(f"{self.checkpoint} is truncated or damaged; delete it to begin again") from error
        self.restore(state)
        for part in COUNTERS:
            setattr(self, part, state[part])

    def _report(self, now: Plan, losses, seconds: float, began: tuple[float, float]) -> None:
        """Print a progress line and add it to the history."""
        row = {
            "step": self.step,
            "tokens": self.tokens,
            "progress": round(self.progress, 4),
            **self.facts(),
            "rate": round(now.rate, 3),
            "speed": round(losses.positions / seconds),
            **losses.means(),
        }
        self.history.append(row)
        left = (time.time() - began[0]) * (1.0 - self.progress) / max(self.progress - began[1], 1e-9)
        words = (f"{name} {value}" for name, value in row.items())
        print(time.strftime("%H:%M:%S"), *words, f"minutes left {left / 60:.0f}", flush=True)
