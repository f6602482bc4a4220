"""A prompt that is read in parts is drafted from as one that is read at once."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from helpers.drafter_kinds import DRAFTERS, drafter_of, random_states, random_text

LENGTH = 23


def read(kind: str, parts: list[int], resumed: int = 0) -> Any:
    """A session that has read the same random prompt in parts, the first tokens taken over from another."""
    drafter, prompt = drafter_of(kind), random_text(LENGTH, seed=1)
    session = drafter.start(prompt, 40)
    start = session.restore(read(kind, [LENGTH - 1]).snapshot(resumed), resumed) if resumed else 0
    states = random_states(drafter, LENGTH - 1, seed=2)
    for tokens in parts:
        session.prefill(tuple(state[:, start : start + tokens] for state in states), tokens)
        start += tokens
    return session


def drafted(session: Any) -> list[torch.Tensor]:
    return [session.draft_root(), session.draft_level(torch.tensor([[3, 4, 5]]), torch.tensor([[0, 0, 0]]))]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_prompt_read_in_parts_gives_the_logits_of_one_read_at_once(kind):
    expected = drafted(read(kind, [LENGTH - 1]))
    for seed in range(6):
        rng = random.Random(seed)
        cuts = [0, *sorted(rng.choices(range(LENGTH), k=rng.randrange(1, 5))), LENGTH - 1]
        session = read(kind, [end - start for start, end in pairwise(cuts)])
        for logits, whole in zip(drafted(session), expected, strict=True):
            torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["language model", "eagle3", "eagle3, module", "hydra++"])
def test_parts_begin_behind_what_was_taken_over(kind):
    expected = drafted(read(kind, [LENGTH - 1]))
    for logits, whole in zip(drafted(read(kind, [4, LENGTH], resumed=10)), expected, strict=True):
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["language model", "a user's model", "lookup", "suffix"])
def test_the_first_round_reads_what_no_part_has_covered(kind):
    expected = drafted(read(kind, [LENGTH - 1]))
    for logits, whole in zip(drafted(read(kind, [5, 3])), expected, strict=True):
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


def test_reading_the_prompt_counts_as_no_pass():
    assert read("language model", [7, 15]).passes == 0
