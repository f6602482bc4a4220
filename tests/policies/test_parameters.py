"""What a policy says of wrong parameters, and what its copies remember."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from drafttree import DraftTree
from drafttree.engine import grow
from drafttree.errors import ConfigError
from drafttree.policies import POLICIES, DynaTree, OptTree, Talon, Template
from drafttree.policies.base import RoundOutcome, TextContext, best_mask
from helpers.trees import plain_draft
from testing.toy import Table, ToyDraft

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


def message(policy, **options) -> str:
    with pytest.raises(ConfigError) as error:
        policy(**options)
    assert "\n" not in str(error.value)
    return str(error.value)


@every_policy
def test_defaults_are_legal_and_the_source_is_named(policy):
    assert policy().budget >= 2
    assert policy.source


@every_policy
def test_every_parameter_is_described(policy):
    assert all(field.description for field in policy.model_fields.values())


@every_policy
def test_a_parameter_without_a_name_names_those_there_are(policy):
    with pytest.raises(ConfigError) as error:
        policy(3)
    assert str(error.value).startswith(f"{policy.__name__}: 3 has no name; give it one of budget=")


def test_the_names_are_in_the_order_of_the_parameters():
    with pytest.raises(ConfigError) as error:
        Talon(3)
    assert str(error.value) == "Talon: 3 has no name; give it one of budget=, width=, margin=, robust=, depth="


@every_policy
def test_an_unknown_parameter_names_the_nearest_one(policy):
    text = message(policy, budgte=3)
    assert "'budgte'" in text
    assert "did you mean 'budget'?" in text


@every_policy
@pytest.mark.parametrize("value", [0, -1, 4097])
def test_a_budget_out_of_range_is_an_error_that_states_the_range(policy, value):
    text = message(policy, budget=value)
    assert f"budget is {value}" in text
    assert "1" in text
    assert "4096" in text


@every_policy
@pytest.mark.parametrize("value", ["many", None, 2.5, [3]])
def test_a_budget_of_the_wrong_type_is_an_error(policy, value):
    assert f"budget is {value!r}" in message(policy, budget=value)


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        (Talon, {"margin": 1.5}, ["margin is 1.5", "0", "1"]),
        (Talon, {"margin": float("nan")}, ["margin is nan"]),
        (Talon, {"width": 0}, ["width is 0", "1", "4096"]),
        (Talon, {"depth": 0}, ["depth is 0", "1", "4096"]),
        (DynaTree, {"window": 0}, ["window is 0", "1", "10000"]),
        (DynaTree, {"base_depth": 9}, ["base_depth", "9", "max_depth", "8"]),
        (DynaTree, {"low": 0.5, "high": 0.4}, ["low", "0.5", "high", "0.4"]),
        (DynaTree, {"token_share": True, "per_prompt": True}, ["per_prompt", "leave token_share out"]),
        (DynaTree, {"breadth": "perhaps"}, ["breadth is 'perhaps'"]),
        (Template, {"tree": "eagle-spare"}, ["eagle-sparse", "'eagle-spare'"]),
        (Template, {"tree": "binary-12"}, ["binary-1 to binary-11", "'binary-12'"]),
        (Template, {"paths": "0+0.1.2"}, ["0.1.2", "parent"]),
        (Template, {"paths": "0+x"}, ["'x'"]),
        (Template, {"paths": [(-1,)]}, ["-1"]),
        (Template, {"paths": []}, ["at least one path"]),
    ],
)
def test_other_wrong_values_are_errors_that_say_what_is_right(policy, options, words):
    text = message(policy, **options)
    assert policy.__name__ in text
    assert all(word in text for word in words), text


def test_paths_can_be_written_as_text():
    assert Template(paths="0+1+0.0").paths == ((0,), (1,), (0, 0))


def test_templates_that_have_grown_trees_are_compared_by_their_parameters():
    one, other, third = Template(paths="0+1+0.0"), Template(paths="0+1+0.0"), Template(paths="0+1")
    for policy in (one, other, third):
        grow(policy, plain_draft([ToyDraft([Table(5)], [[1]], torch.float32)]), [1], [3], states=[None])
    assert one == other
    assert hash(one) == hash(other)
    assert one != third


NEW = TextContext()


def outcome(accepted: int, levels: int) -> RoundOutcome:
    """A round whose tree had so many levels, and of which so many tokens were accepted."""
    return RoundOutcome(replace(DraftTree.rooted(torch.tensor([[1]])), levels=levels), range(accepted + 1))


def observed(policy: DynaTree, *rounds: tuple[int, int]) -> list[tuple[float, float]]:
    """The adapted base_depth and high after each round of (accepted, levels)."""
    state, found = policy.init_state(NEW), []
    for accepted, levels in rounds:
        state = policy.observe(state, outcome(accepted, levels))
        found.append((state.base_depth, state.high))
    return found


def test_dynatree_history_is_the_papers_proportional_rule():
    policy = DynaTree(base_depth=4, max_depth=9, high=0.8, window=2, target=0.5, depth_rate=2, high_rate=0.1)
    # The mean share is 1, then (1 + 0) / 2, then (0 + 1/4) / 2 over the window of two: errors .5, 0, -.375.
    first, second, third = observed(policy, (4, 4), (0, 5), (1, 4))
    assert first == pytest.approx((5.0, 0.75))
    assert second == pytest.approx((5.0, 0.75))
    assert third == pytest.approx((4.25, 0.7875))


def test_dynatree_history_may_count_tokens_in_place_of_levels():
    # Two levels of three tokens each, of which two are accepted: all levels, and a third of the tokens.
    tree = DraftTree(range(7), (-1, 0, 0, 0, 1, 1, 1), (0.0,) * 7, (0.0,) * 7, levels=2)
    for token_share, share in ((False, 1), (True, 1 / 3)):
        policy = DynaTree(base_depth=5, max_depth=8, target=0.5, token_share=token_share)
        state = policy.observe(policy.init_state(NEW), RoundOutcome(tree, (0, 1, 4)))
        assert (state.base_depth, state.high) == pytest.approx((5 + share - 0.5, 0.9 - 0.05 * (share - 0.5)))


def test_dynatree_history_is_clipped():
    policy = DynaTree(base_depth=4, max_depth=6, high=0.9, low=0.1, depth_rate=64, high_rate=1, window=1)
    first, second = observed(policy, (6, 6), (0, 6))
    assert first == pytest.approx((5, 0.6))
    assert second == pytest.approx((1, 1.0))


def test_a_round_without_drafts_and_history_switched_off_change_nothing():
    assert observed(DynaTree(), (0, 0)) == [(5, 0.9)]
    assert observed(DynaTree(history=False), (5, 5)) == [(5, 0.9)]


def after_texts(policy: DynaTree, *texts: list[int]) -> list[tuple[float, float, float]]:
    """The adapted base_depth, high and deep_above that follow each text, given the tokens of its rounds."""
    state, found = policy.init_state(NEW), []
    for rounds in texts:
        for tokens in rounds:
            state = policy.observe(state, outcome(tokens - 1, 8))
        state = policy.init_state(TextContext(learned=state))
        found.append((state.base_depth, state.high, state.deep_above))
    return found


PER_PROMPT = DynaTree(base_depth=5, max_depth=8, high=0.9, deep_above=0.5, per_prompt=True)


def test_twelve_texts_with_the_authors_history_end_where_the_authors_logs_do():
    # 7 tokens a round over D0 + 2 levels are a share of 1: from the fifth text on every text is a step.
    found = after_texts(PER_PROMPT, *[[7, 7]] * 12)
    assert found[:4] == [(5, 0.9, 0.5)] * 4
    assert found[4] == pytest.approx((6, 0.85, 0.45))
    assert found[5] == pytest.approx((7, 0.8, 0.4))
    assert found[-1] == pytest.approx((7, 0.5, 0.3))


def test_the_authors_history_steps_back_where_few_levels_are_accepted():
    found = after_texts(PER_PROMPT, *[[1, 3]] * 9)  # a share of 2/7
    assert found[4] == pytest.approx((4, 0.95, 0.55))
    assert found[-1] == pytest.approx((2, 0.95, 0.75))


def test_the_authors_history_stands_still_near_the_wanted_share():
    assert after_texts(PER_PROMPT, *[[5, 5]] * 7) == [(5, 0.9, 0.5)] * 7  # 5/7 is within 0.1 of 0.7


def test_the_authors_history_is_of_the_last_texts_only():
    policy = DynaTree(base_depth=5, max_depth=8, per_prompt=True, window=2)
    found = after_texts(policy, [7], [7], [1], [1])
    # Mean shares: 1 (one text), 1, 4/7, 1/7; a window of two needs two.
    assert [round(base) for base, *_ in found] == [5, 6, 5, 4]


def test_the_authors_history_changes_nothing_within_a_text():
    state = PER_PROMPT.init_state(NEW)
    after = PER_PROMPT.observe(state, outcome(0, 8))
    assert (after.base_depth, after.high, after.deep_above) == (state.base_depth, state.high, state.deep_above)


def test_rho_deep_that_was_learned_decides_which_paths_go_deep():
    policy = DynaTree(base_depth=1, max_depth=6, stop_below=0, prune_below=0, deep_above=0.8, per_prompt=True)
    fresh = policy.init_state(NEW)
    deep, usual = tokens_of(policy, 0, replace(fresh, deep_above=0.01), fresh)
    assert len(deep) > len(usual)


def tokens_of(policy, seed: int = 0, *states) -> list[list[int]]:
    """The tokens of a tree for each state, of one new text where there are none."""
    states = states or (policy.init_state(NEW),)
    sessions = [ToyDraft([Table(seed=seed, scale=0.5)], [[1]], torch.float64) for _ in states]
    trees = grow(policy, plain_draft(sessions), [1] * len(states), [99] * len(states), states=states)
    return [tree.tokens for tree in trees]


def test_history_changes_the_tree_of_its_text_and_of_no_other():
    policy = DynaTree(base_depth=2, max_depth=5, stop_below=0, prune_below=0, deep_above=1)
    before = tokens_of(policy)
    state = policy.observe(policy.init_state(NEW), outcome(0, 5))
    assert len(tokens_of(policy, 0, state)[0]) < len(before[0])
    assert tokens_of(policy) == before


def test_one_object_serves_a_batch_of_texts_with_different_histories():
    policy = DynaTree(base_depth=2, max_depth=5, stop_below=0, prune_below=0, deep_above=1, high=0.5, low=0.1)
    fresh = policy.init_state(NEW)
    states = (fresh, policy.observe(fresh, outcome(0, 5)), policy.observe(fresh, outcome(5, 5)))
    together = tokens_of(policy, 1, *states)
    assert together == [tokens_of(policy, 1, state)[0] for state in states]
    assert len({tuple(tokens) for tokens in together}) > 1


@every_policy
def test_a_policy_is_frozen_and_hashable(policy):
    made = policy(budget=17)
    with pytest.raises(ValidationError, match="frozen"):
        made.budget = 18
    assert hash(made) == hash(policy(budget=17))
    assert made == policy(budget=17) != policy(budget=18)


def test_a_tree_does_not_depend_on_the_tree_before_it():
    policy = OptTree(budget=8, threshold=0.3)
    alone = tokens_of(OptTree(budget=8, threshold=0.3), seed=2)
    tokens_of(policy, seed=1)
    assert tokens_of(policy, seed=2) == alone


def test_best_mask_takes_ties_from_the_left_and_nothing_that_is_not_among():
    scores = np.array([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    among = np.array([[True, False, True, True], [False, True, True, True]])
    assert best_mask(scores, among, 1).tolist() == [[False, False, True, False], [False] * 4]
    assert best_mask(scores, among, 3).tolist() == [[True, False, True, True], [False] * 4]
    assert best_mask(scores, among, 9).tolist() == among.tolist()
    assert best_mask(scores, among, 0).tolist() == [[False] * 4] * 2


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from([-3.0, -1.0, 0.5, 2.0]), st.booleans()), min_size=1, max_size=30), st.data())
def test_best_mask_is_a_stable_sort_cut_off(entries, data):
    count = data.draw(st.integers(-1, len(entries) + 1))
    scores, among = (np.array(column) for column in zip(*entries, strict=True))
    allowed = [place for place, (_, kept) in enumerate(entries) if kept]
    wanted = sorted(allowed, key=lambda place: -entries[place][0])[: max(count, 0)]
    assert best_mask(scores, among, count).nonzero()[0].tolist() == sorted(wanted)
