"""A toy model and a toy drafter whose passes take time by a clock that only they move."""

import pytest
import torch

from drafttree.core.cost_curve import CostCurve
from testing.toy import ToyDraft, ToyDrafter, ToyModel


class FakeClock:
    """Stands for `time.perf_counter`.

    Attributes:
        now: seconds.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr("time.perf_counter", lambda: self.now)


class TimedModel(ToyModel):
    """A model whose passes cost what a curve says."""

    def __init__(self, law, clock: FakeClock, curve: CostCurve, **options) -> None:
        super().__init__(law, **options)
        self.clock, self.curve = clock, curve

    def score(self, segment):
        self.clock.now += self.curve.target.at(segment.nodes)
        return super().score(segment)


class TimedDrafter(ToyDrafter):
    """A drafter whose passes cost what a curve says, and a commit its overhead."""

    def __init__(self, law, clock: FakeClock, curve: CostCurve, source: int = 0, **options) -> None:
        super().__init__(law, **options)
        self.clock, self.curve, self.drafting = clock, curve, curve.draft[source]

    def start(self, prompt, capacity):
        return TimedDraft(self, prompt)


class TimedDraft(ToyDraft):
    """A session that counts the seconds of its passes."""

    seconds = 0.0

    def __init__(self, drafter: TimedDrafter, prompt) -> None:
        super().__init__([drafter.law], [prompt], torch.float32)
        self.drafter = drafter

    def _score(self, frontier):
        width, costs = len(frontier[0]), self.drafter.drafting
        spent = costs.later.at(width) if len(frontier[0][0]) > len(self.prefixes[0]) else costs.first
        self.seconds += spent
        self.drafter.clock.now += spent
        return super()._score(frontier)

    def commit(self, tokens, hidden_states):
        self.drafter.clock.now += self.drafter.curve.overhead
        super().commit(tokens, hidden_states)
