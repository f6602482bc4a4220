"""Tests of the random numbers of real texts: each stream is uniform, and any two are independent.

The laws of texts are enumerated on independent uniform numbers. Here the numbers of `SeededRandomness` are counted
over fixed seeds, so that the outcome is the same in every run.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drafttree.core.randomness import SeededRandomness
from drafttree.core.tree import Proposal
from drafttree.engine.drafting.learned_state import LearnedState

SEEDS = 3_000
CELLS = 4
"""Number of equal parts of the unit interval in which numbers are counted."""
COLUMNS = 64
"""Number of tokens of the uniform distribution whose draws reveal the random numbers."""
LEAST = 1e-9
"""The p-value below which the worst of some two hundred tests refutes the random numbers."""


@dataclass(frozen=True)
class NumbersFinding:
    """The result of all tests of the random numbers.

    Attributes:
        seeds: seeds that were tried.
        streams: streams of numbers per seed.
        tests: chi-square tests of single streams and of pairs of them.
        least: the least p-value.
        worst: the stream or pair with the least p-value.
    """

    seeds: int
    streams: int
    tests: int
    least: float
    worst: str

    @property
    def passed(self) -> bool:
        """Whether the least p-value may be due to chance."""
        return self.least > LEAST


def check_numbers(seeds: int = SEEDS) -> NumbersFinding:
    """Test the streams of many seeds against uniform numbers, and against each other."""
    numbers = [_numbers_of(seed) for seed in range(seeds)]
    cells = {
        name: torch.tensor([min(int(seed_numbers[name] * CELLS), CELLS - 1) for seed_numbers in numbers], device="cpu")
        for name in numbers[0]
    }
    p_values = {name: _uniform(stream_cells) for name, stream_cells in cells.items()}
    for stream, other_stream in itertools.combinations(cells, 2):
        p_values[f"{stream} and {other_stream}"] = _independent(cells[stream], cells[other_stream])
    worst_streams = min(p_values, key=lambda name: p_values[name])
    return NumbersFinding(seeds, len(cells), len(p_values), p_values[worst_streams], worst_streams)


def _numbers_of(seed: int) -> dict[str, float]:
    """The first number of every stream of a seed, as verifiers and trees see them."""
    text = SeededRandomness(seed, COLUMNS, torch.device("cpu"))
    engine_text = SeededRandomness(LearnedState().unshared_seed(seed), COLUMNS, torch.device("cpu"))
    next_text = SeededRandomness(seed + 1, COLUMNS, torch.device("cpu"))
    numbers = {f"{name}, position 5": number for name, number in _of_round(text, 5).items()}
    rounds = {"position 8": (text, 8), "text of an engine": (engine_text, 5), "next seed": (next_text, 5)}
    for round_name, (round_text, position) in rounds.items():
        round_numbers = _of_round(round_text, position)
        for name in ELSEWHERE:
            numbers[f"{name}, {round_name}"] = round_numbers[name]
    return numbers


ELSEWHERE = ("accept", "bonus", "level 1, sibling 1", "noise")
"""The streams that are tested in other rounds and texts too."""


def _of_round(text: SeededRandomness, position: int) -> dict[str, float]:
    flat_weights = torch.ones(COLUMNS, dtype=torch.float64, device="cpu")
    position_numbers = text.at(position)
    numbers = {"accept": _accepted_at(position_numbers.accept), "accept again": _accepted_at(position_numbers.accept)}
    numbers |= {
        "bonus": position_numbers.draw(flat_weights) / COLUMNS,
        "bonus again": position_numbers.draw(flat_weights) / COLUMNS,
    }
    counts = torch.tensor([2, 2], device="cpu")
    for level in (1, 2):
        rows = flat_weights.expand(2, -1) / COLUMNS
        tokens, _ = position_numbers.children(rows.clone(), counts, 2, Proposal.WITH_REPLACEMENT, level)
        numbers |= {f"level {level}, sibling {sibling + 1}": float(tokens[0, sibling]) / COLUMNS for sibling in (0, 1)}
        numbers[f"level {level}, other node"] = float(tokens[1, 0]) / COLUMNS
    numbers["noise"], numbers["noise, next token"] = _uniform_of_noise(position_numbers.gumbel(1)[:2])
    (numbers["noise, next depth"],) = _uniform_of_noise(position_numbers.gumbel(2)[:1])
    return numbers


def _uniform_of_noise(noise: Tensor) -> list[float]:
    """The uniform numbers that Gumbel noise was made from."""
    return noise.double().neg().exp().neg().exp().tolist()


def _accepted_at(accept: Callable[[float], bool]) -> float:
    """A decision at even odds as a number: below a half if it was accepted."""
    return 0.25 if accept(0.5) else 0.75


def _uniform(cells: Tensor) -> float:
    """The p-value of the hypothesis that numbers are uniform over the cells that occur."""
    counts = torch.bincount(cells, minlength=CELLS).double()
    counts = counts[counts > 0]
    return _p_value(counts, counts.mean().expand_as(counts), max(len(counts) - 1, 1))


def _independent(cells: Tensor, other_cells: Tensor) -> float:
    """The p-value of the hypothesis that two streams are independent."""
    table = torch.bincount(cells * CELLS + other_cells, minlength=CELLS * CELLS).double().view(CELLS, CELLS)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    expected_counts = table.sum(1, keepdim=True) * table.sum(0) / table.sum()
    return _p_value(table, expected_counts, max((table.shape[0] - 1) * (table.shape[1] - 1), 1))


def _p_value(counts: Tensor, expected: Tensor, freedom: int) -> float:
    """The upper tail of the chi-square distribution."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    half_freedom = torch.tensor(freedom / 2, dtype=torch.float64, device="cpu")
    return float(torch.special.gammaincc(half_freedom, statistic / 2))
