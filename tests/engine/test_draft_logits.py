"""Every request of a round sees the drafter's logits in its own way."""

import pytest
import torch

from drafttree.core.randomness import SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.engine.draft_logits import AdjustedDraft, AdjustedPackedDraft, LogitsAdjustment
from drafttree.verifiers import Coupled, Greedy, RRSw

VOCAB, CPU = 7, torch.device("cpu")
TOKENS, ORIGINS, WIDTHS = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 0]]), [3, 2, 1, 0, 3]


class Rows:
    """Random logits for each level, the same at every call."""

    def __init__(self, batch: int, dtype: torch.dtype = torch.float32, columns: int = VOCAB) -> None:
        generator = torch.Generator().manual_seed(0)
        self.levels = [torch.randn(batch, width, columns, generator=generator).to(dtype) for width in (1, 3, 3)]

    def root(self):
        self.left = iter(self.levels)
        return next(self.left)

    def expand(self, tokens, origins, widths=None):
        level = next(self.left)
        return level if level.shape[1] == tokens.shape[1] else level[:, : tokens.shape[1]]

    def of(self, place: int) -> "Rows":
        alone = Rows(1)
        alone.levels = [level[place : place + 1] for level in self.levels]
        return alone


def only_after(token: int, columns: int):
    """Allows token 0 alone behind paths that end with a token; the target knows some tokens more than the drafter."""

    def constrain(paths, logits):
        wide = torch.full((1, len(paths), columns), -torch.inf)
        wide[..., :VOCAB] = logits
        for place, path in enumerate(paths):
            if path[-1:] == (token,):
                wide[0, place, 1:] = -torch.inf
        return wide

    return constrain


def adjustments(constrain=None) -> list[tuple]:
    """Verifier, randomness, temperature and constraint of five requests."""
    noise = [[SeededRandomness(seed, VOCAB, CPU).at(5 + seed)] for seed in range(5)]
    warm, cold = Sampling(0.7, seed=1), Sampling(0.0)
    return [
        (Greedy(cold), noise[0], 1.0, None),
        (Coupled(warm), noise[1], 1.0, None),
        (Greedy(cold), noise[2], 0.5, constrain),
        (Coupled(Sampling(1.0, seed=9)), noise[3], 1.0, None),
        (RRSw(warm), noise[4], 2.0, constrain),
    ]


@pytest.mark.parametrize("columns", [VOCAB, VOCAB + 2])
def test_requests_of_a_round_see_the_logits_that_each_sees_alone(columns):
    rows, given = Rows(5), adjustments(only_after(2, columns))
    packed = AdjustedPackedDraft(rows, [LogitsAdjustment(*each) for each in given])
    tokens, origins = TOKENS.expand(5, -1), ORIGINS.expand(5, -1)
    levels = [packed.root(), packed.expand(tokens, origins, WIDTHS), packed.expand(tokens, origins, WIDTHS)]
    for place, (width, each) in enumerate(zip(WIDTHS, given, strict=True)):
        alone = AdjustedDraft(rows.of(place), *each)
        own = slice(width)
        expected = [alone.root()]
        if width:
            expected += [alone.expand(TOKENS[:, own], ORIGINS[:, own]) for _ in range(2)]
        for depth, logits in enumerate(expected):
            seen = levels[depth][place : place + 1, : logits.shape[1]]
            torch.testing.assert_close(seen[..., : logits.shape[2]], logits, atol=1e-6, rtol=0)
            assert seen[..., logits.shape[2] :].isneginf().all()


def test_requests_without_anything_to_adjust_cost_nothing():
    rows = Rows(2)
    packed = AdjustedPackedDraft(rows, [LogitsAdjustment(*adjustments()[0]) for _ in range(2)])
    assert packed.root() is rows.levels[0]
    tokens, origins = TOKENS.expand(2, -1), ORIGINS.expand(2, -1)
    assert packed.expand(tokens, origins, [3, 1]) is rows.levels[1]


def test_the_drafters_own_logits_stay_as_they_are():
    rows = Rows(5)
    before = rows.levels[0].clone()
    AdjustedPackedDraft(rows, [LogitsAdjustment(*each) for each in adjustments()]).root()
    assert torch.equal(rows.levels[0], before)


def test_one_request_in_a_higher_precision_lifts_the_others():
    rows = Rows(5, torch.bfloat16)
    seen = AdjustedPackedDraft(rows, [LogitsAdjustment(*each) for each in adjustments()]).root()
    assert seen.dtype is torch.float32
    assert torch.equal(seen[0], rows.levels[0][0].float())
