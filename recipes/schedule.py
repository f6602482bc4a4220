"""The training schedule: depth, batch size, window length and learning rate as functions of the spent budget.

Everything depends on one number, `progress` in [0, 1], which the budget (a deadline or a number of tokens) computes, so
a paused and resumed run still ends with a learning rate of zero.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

# (progress from which it holds, layers of the target, tokens in a batch)
STAGES = ((0.00, 3, 4096), (0.92, 6, 4096), (0.97, 12, 4096))
WARM_UNTIL = 0.01
DECAY_FROM = 0.22
LONG_WINDOWS = ((0.45, 0.54), (0.985, 1.00))


@dataclass(frozen=True)
class Plan:
    """Settings of one optimizer step: layers, tokens per batch, tokens per window, share of the full learning rate."""

    layers: int
    tokens: int
    length: int
    rate: float


def plan(progress: float) -> Plan:
    """Warm up, hold, decay linearly to zero, and deepen twice.

    The decay is long because the budget is short: with batches this small, a constant rate mostly stirs noise.
    The full context is learnt while the target is shallow, where long windows are cheap, and refreshed at the end.
    """
    layers, tokens = [stage[1:] for stage in STAGES if stage[0] <= progress][-1]
    decay = min(1.0, (1.0 - progress) / (1.0 - DECAY_FROM))
    warmup = min(1.0, 0.05 + progress / WARM_UNTIL)
    long = any(start <= progress < end for start, end in LONG_WINDOWS)
    return Plan(layers, tokens, 2048 if long else 256, warmup * decay)


class Deadline:
    """Progress by the wall clock, from the progress at the (re)start to 1 at the deadline."""

    def __init__(self, end: datetime, progress: float):
        self.start, self.end, self.base = time.time(), end.timestamp(), progress
        if self.end <= self.start:
            raise ValueError(f"the deadline {end:%Y-%m-%d %H:%M} has passed")

    def progress(self, tokens: int) -> float:
        return self.base + (1.0 - self.base) * (time.time() - self.start) / (self.end - self.start)


class TokenBudget:
    """Progress by tokens: the remaining progress is spread over the remaining tokens of the budget."""

    def __init__(self, total: int, tokens: int, progress: float):
        self.total, self.start, self.base = total, tokens, progress
        if total <= tokens:
            raise ValueError(f"the budget of {total:,} tokens is spent: {tokens:,} seen")

    def progress(self, tokens: int) -> float:
        return self.base + (1.0 - self.base) * (tokens - self.start) / (self.total - self.start)


def next_moment(clock: str) -> datetime:
    """The next time the local clock shows `HH:MM`."""
    now = datetime.now()
    time_of_day = datetime.strptime(clock, "%H:%M").time()
    moment = datetime.combine(now.date(), time_of_day)
    return moment if moment > now else moment + timedelta(days=1)
