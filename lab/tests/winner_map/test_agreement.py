"""Agreement and the grades that reach it."""

from itertools import pairwise

import pytest
import torch

from drafttree_lab.graded import Grade, agreement, bisect, confidence, find_grade
from testing.small_trees import DRAFT, TARGET
from testing.toy import argmax, greedy_text
from winner_map.conftest import LENGTH, PROMPTS


def test_agreement_is_counted_as_by_hand(texts):
    hits = []
    for prompt in PROMPTS:
        text = [*prompt, *greedy_text(TARGET, prompt, LENGTH)]
        hits += [argmax(DRAFT(text[:place])) == text[place] for place in range(len(prompt), len(text))]
    assert agreement(Grade(), texts) == pytest.approx(sum(hits) / len(hits))
    assert agreement(Grade(weight=1.0), texts) == 1.0


def test_agreement_rises_with_the_weight_of_the_target(texts):
    shares = [agreement(Grade(step / 20), texts) for step in range(21)]
    assert all(low <= high for low, high in pairwise(shares))


def test_a_temperature_changes_no_agreement(texts):
    assert agreement(Grade(0.4), texts) == agreement(Grade(0.4, temperature=0.1), texts)


@pytest.mark.parametrize("wanted", [0.3, 0.5, 0.8, 0.95])
def test_a_grade_reaches_the_agreement_and_is_as_sure_as_it_is_right(texts, wanted):
    found = find_grade(wanted, texts, seed=3)
    assert found.reached == agreement(found.grade, texts)
    assert found.reached == pytest.approx(wanted, abs=0.11)  # sixty positions, many of them alike
    assert found.confidence == pytest.approx(found.reached, abs=1e-3)
    assert found.confidence == pytest.approx(confidence(found.grade, texts))
    assert (found.grade.noise > 0) == (agreement(Grade(), texts) > wanted)


def test_the_grades_follow_from_the_seed(texts):
    assert find_grade(0.3, texts, seed=3) == find_grade(0.3, texts, seed=3)


def test_a_bisection_finds_a_crossing_or_an_end():
    assert bisect(lambda x: x**2, 2.0, 0.0, 4.0) == pytest.approx(2**0.5, abs=1e-5)
    assert bisect(lambda x: x, 9.0, 0.0, 1.0) == 1.0
    assert bisect(lambda x: x, -1.0, 0.0, 1.0) == pytest.approx(0.0, abs=1e-6)


def test_logits_along_a_text_are_those_of_the_models(texts):
    text = [*PROMPTS[0], *greedy_text(TARGET, PROMPTS[0], LENGTH)]
    rows = [TARGET(text[:place]) for place in range(len(PROMPTS[0]), len(text))]
    torch.testing.assert_close(texts[0].target, torch.tensor(rows))
    assert texts[0].wanted.tolist() == text[len(PROMPTS[0]) :]
    assert texts[0].tokens.tolist() == text[len(PROMPTS[0]) - 1 : -1]
