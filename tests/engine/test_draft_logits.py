"""Every request of a round sees the drafter's logits in its own way."""

import pytest
import torch

from drafttree import Sampling
from drafttree.core import SeededRandomness
from drafttree.drafters.base import Frontier, Session
from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.verifiers import Coupled, Greedy, RRSw

VOCAB, CPU = 7, torch.device("cpu")
WIDTHS = [3, 2, 1, 0, 3]
FRONTIERS = [Frontier([1, 2, 3][:width], [0] * width) for width in WIDTHS]


class Rows:
    """Random logits `[nodes, vocab]` for each level, the same at every call."""

    def __init__(self, levels: list[list[torch.Tensor]]) -> None:
        self.requests, self.given = levels, list[torch.Tensor]()

    @classmethod
    def random(cls, batch: int, dtype: torch.dtype = torch.float32) -> "Rows":
        generator = torch.Generator().manual_seed(0)
        shapes = [[1, width, width] for width in [*WIDTHS][:batch]]
        return cls([[torch.randn(each, VOCAB, generator=generator).to(dtype) for each in own] for own in shapes])

    def draft_root(self, sessions):
        self.level = 0
        return self._next()

    def draft_level(self, sessions, frontiers):
        return self._next()

    def _next(self):
        rows = torch.cat([own[self.level] for own in self.requests])
        self.given.append(rows)
        self.level += 1
        return rows


def only_after(token: int, columns: int):
    """Allows token 0 alone behind paths that end with a token; the target knows some tokens more than the drafter."""

    def constrain(paths, logits):
        wide = torch.full((len(paths), columns), -torch.inf)
        wide[..., :VOCAB] = logits
        for place, path in enumerate(paths):
            if path[-1:] == (token,):
                wide[place, 1:] = -torch.inf
        return wide

    return constrain


def adjustments(constrain=None) -> list[tuple]:
    """Verifier, randomness, temperature and constraint of five requests."""
    noise = [SeededRandomness(seed, VOCAB, CPU).at(5 + seed) for seed in range(5)]
    warm, cold = Sampling(0.7, seed=1), Sampling(0.0)
    return [
        (Greedy(cold), noise[0], 1.0, None),
        (Coupled(warm), noise[1], 1.0, None),
        (Greedy(cold), noise[2], 0.5, constrain),
        (Coupled(Sampling(1.0, seed=9)), noise[3], 1.0, None),
        (RRSw(warm), noise[4], 2.0, constrain),
    ]


def adjusted(rows: Rows, given: list[tuple]) -> AdjustedDraft:
    sessions = [Session(rows, CPU) for _ in given]
    return AdjustedDraft(sessions, [LogitsAdjustment(*each) for each in given], CPU)


@pytest.mark.parametrize("columns", [VOCAB, VOCAB + 2])
def test_requests_of_a_round_see_the_logits_that_each_sees_alone(columns):
    rows, given = Rows.random(5), adjustments(only_after(2, columns))
    together = adjusted(rows, given)
    levels = [together.draft_root().split([1] * 5)]
    levels += [together.draft_level(FRONTIERS).split(WIDTHS) for _ in range(2)]
    for place, (width, each) in enumerate(zip(WIDTHS, given, strict=True)):
        alone = adjusted(Rows(rows.requests[place : place + 1]), [each])
        expected = [alone.draft_root()]
        if width:
            expected += [alone.draft_level([FRONTIERS[place]]) for _ in range(2)]
        for depth, logits in enumerate(expected):
            seen = levels[depth][place]
            torch.testing.assert_close(seen[:, : logits.shape[1]], logits, atol=1e-6, rtol=0)
            assert seen[:, logits.shape[1] :].isneginf().all()


def test_requests_without_anything_to_adjust_cost_nothing():
    rows = Rows.random(2)
    draft = adjusted(rows, [adjustments()[0]] * 2)
    assert draft.draft_root() is rows.given[0]
    assert draft.draft_level(FRONTIERS[:2]) is rows.given[1]


def test_the_drafters_own_logits_stay_as_they_are():
    rows = Rows.random(5)
    before = [own[0].clone() for own in rows.requests]
    adjusted(rows, adjustments()).draft_root()
    assert all(torch.equal(own[0], kept) for own, kept in zip(rows.requests, before, strict=True))


def test_one_request_in_a_higher_precision_lifts_the_others():
    rows = Rows.random(5, torch.bfloat16)
    seen = adjusted(rows, adjustments()).draft_root()
    assert seen.dtype is torch.float32
    assert torch.equal(seen[0], rows.requests[0][0][0].float())
