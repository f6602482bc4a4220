"""What to do at which share of the budget: how deep, how wide a batch, how long a context, how fast to learn.

Everything is a function of one number, `progress` in [0, 1]. Where it comes from (a deadline on the wall clock,
or a count of tokens) is the budget's business, so a paused or resumed run still ends with a learning rate of zero.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

STAGES = ((0.00, 3, 4096), (0.92, 6, 4096), (0.97, 12, 4096))
WARM_UNTIL = 0.01
DECAY_FROM = 0.22
LONG = ((0.45, 0.54), (0.985, 1.00))


@dataclass(frozen=True)
class Plan:
    """The settings of one optimizer step: depth, tokens in the batch, tokens in a window, share of the full rate."""

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
    long = any(start <= progress < end for start, end in LONG)
    return Plan(layers, tokens, 2048 if long else 256, warmup * decay)


class Deadline:
    """Progress by the wall clock: from where the run (re)started to a moment at which it must be over."""

    def __init__(self, end: datetime, progress: float):
        self.start, self.end, self.base = time.time(), end.timestamp(), progress
        if self.end <= self.start:
            raise ValueError(f"the deadline {end:%Y-%m-%d %H:%M} has passed")

    def progress(self, tokens: int) -> float:
        return self.base + (1.0 - self.base) * (time.time() - self.start) / (self.end - self.start)


class TokenBudget:
    """Progress by tokens: what is left of the run is spread over what is left of the budget."""

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
