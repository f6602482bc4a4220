"""The graded drafter: its logits, its passes, and the texts that are written with it."""

import pytest
import torch

from drafttree import Decoder
from drafttree.errors import ConfigError
from drafttree.policies import Chain, Eagle, Talon
from drafttree_lab.graded import Grade, GradedDrafter
from testing.small_trees import DRAFT, LENGTH, PROMPT, TARGET
from testing.toy import greedy_text

GRADES = [Grade(), Grade(weight=0.3), Grade(noise=2.0), Grade(weight=0.6, noise=0.5, temperature=0.2)]
OPTIONS = {"temperature": 0.0, "max_new_tokens": LENGTH, "ignore_eos": True, "seed": 0}


def write(draft, target, grade, policy):
    """A greedy text with a graded drafter."""
    return Decoder(target.model, GradedDrafter(draft, target, grade), policy).generate(PROMPT, **OPTIONS)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("policy", [Chain(depth=4), Talon(width=3, budget=10), Eagle(depth=3, top_k=2, budget=8)])
def test_texts_are_the_targets_own(draft, target, grade, policy):
    assert write(draft, target, grade, policy).tokens == greedy_text(TARGET, PROMPT, LENGTH)


def test_a_drafter_that_is_the_target_has_everything_accepted(draft, target):
    rounds = write(draft, target, Grade(weight=1.0), Chain(depth=4)).metrics.rounds
    assert all(each.accepted == each.levels == 4 for each in rounds[:-1])


def test_a_pass_is_counted_for_each_level_whoever_is_asked(draft, target):
    for grade in GRADES:
        rounds = write(draft, target, grade, Chain(depth=4)).metrics.rounds
        assert [each.draft_passes for each in rounds] == [each.levels for each in rounds]


@pytest.mark.parametrize("grade", GRADES)
def test_logits_are_mixed_by_the_formula_on_every_level(draft, target, grade):
    session = GradedDrafter(draft, target, grade).start([3, 1, 4], 32)
    session.commit([1, 5], ())
    rows = [session.draft_root()[0], session.draft_level(torch.tensor([[2, 6]]), torch.tensor([[0, 0]]))[0]]
    rows.append(session.draft_level(torch.tensor([[0]]), torch.tensor([[1]]))[0])
    contexts = [[[3, 1, 4, 1, 5]], [[3, 1, 4, 1, 5, 2], [3, 1, 4, 1, 5, 6]], [[3, 1, 4, 1, 5, 6, 0]]]
    for row, level in zip(rows, contexts, strict=True):
        for logits, context in zip(row, level, strict=True):
            own, other = torch.tensor(DRAFT(context)), torch.tensor(TARGET(context))
            place, last = torch.tensor([len(context) - 1]), torch.tensor([context[-1]])
            expected = (1 - grade.weight) * own + grade.weight * other
            if grade.noise:
                silent = torch.zeros(1, 8)
                expected += Grade(noise=grade.noise, seed=grade.seed).logits(silent, None, place, last)[0]
            torch.testing.assert_close(logits, expected / grade.temperature)


def test_noise_follows_from_seed_position_and_token():
    draft, place, token = torch.zeros(1, 8), torch.tensor([5]), torch.tensor([2])
    first = Grade(noise=1.0).logits(draft, None, place, token)
    assert torch.equal(first, Grade(noise=1.0).logits(draft, None, place, token))
    others = [(Grade(noise=1.0, seed=1), place, token), (Grade(noise=1.0), place + 1, token)]
    for grade, where, which in [*others, (Grade(noise=1.0), place, token + 1)]:
        assert not torch.allclose(first, grade.logits(draft, None, where, which))


@pytest.mark.parametrize("grade", [Grade(weight=1.5), Grade(weight=-0.1), Grade(noise=-1.0), Grade(temperature=0.0)])
def test_a_grade_out_of_range_is_refused(draft, target, grade):
    with pytest.raises(ConfigError, match="weight lies between 0 and 1"):
        GradedDrafter(draft, target, grade)
