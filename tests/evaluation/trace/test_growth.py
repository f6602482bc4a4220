"""What was cut and by which rule, by hand: every node has children of probability 0.5, 0.3, 0.15 and 0.05."""

import math
from typing import ClassVar

import pytest

from drafttree.evaluation.trace import Rule, TracedRound, trace_text
from drafttree.policies import Chain, Eagle, Fixed, OptTree, Talon, TreePolicy
from drafttree.verifiers import PointMass, RRSw
from helpers.traces import DRAFTED, ROOT, always, hand_decoder, prefers

NEVER = prefers(ROOT, ROOT)
"""A target whose token is the drafter's last."""


def first_round(policy, law=NEVER, verifier=None, **options) -> TracedRound:
    decoder = hand_decoder(policy, law, verifier)
    return trace_text(decoder, [ROOT], **{"max_new_tokens": 12, **options}).rounds[0]


def path(turn: TracedRound, node: int) -> tuple[int, ...]:
    """The tokens from below the root to a node."""
    found = turn.nodes[node]
    return () if found.parent < 0 else (*path(turn, found.parent), found.token)


def tree(turn: TracedRound) -> dict[tuple[int, ...], Rule]:
    """What ended the path at every node of the tree, none where it goes on."""
    return {path(turn, node): turn.nodes[node].rule for node in range(turn.size)}


def cut(turn: TracedRound) -> list[tuple[tuple[int, ...], Rule]]:
    """The candidates that were cut, and by which rule, in order."""
    return [(path(turn, node), turn.nodes[node].rule) for node in range(turn.size, len(turn.nodes))]


def test_a_policy_that_does_not_expand_ends_a_path():
    turn = first_round(Fixed(depth=3, breadth=2, threshold=0.2))
    ends = {(0, 0): Rule.NONE, (0, 1): Rule.EXPAND, (1, 0): Rule.EXPAND, (1, 1): Rule.EXPAND}
    inner = {(): Rule.NONE, (0,): Rule.NONE, (1,): Rule.NONE}
    assert tree(turn) == {**inner, **ends, (0, 0, 0): Rule.EXPAND, (0, 0, 1): Rule.EXPAND}
    assert turn.cut == {}
    assert turn.widths == [1, 2, 1]


def test_a_full_tree_cuts_what_the_policy_kept():
    turn = first_round(Fixed(depth=2, breadth=3, threshold=0.0, budget=6))
    assert list(tree(turn)) == [(), (0,), (1,), (2,), (0, 0), (0, 1)]
    assert tree(turn)[1,] == tree(turn)[2,] == Rule.BUDGET
    assert turn.cut == {"budget": 7}
    assert cut(turn)[0] == ((1, 0), Rule.BUDGET)
    assert {rule for _, rule in cut(turn)} == {Rule.BUDGET}
    assert len(cut(turn)) == 7


def test_what_the_policy_does_not_keep_is_cut_the_most_probable_first():
    turn = first_round(Talon(width=2, margin=0.5, depth=2))
    assert list(tree(turn)) == [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    assert [path for path, _ in cut(turn)] == [(1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    assert {rule for _, rule in cut(turn)} == {Rule.KEEP}
    assert turn.cut == {"keep": 5}


def test_nodes_that_are_dropped_in_the_end_are_cut_by_reranking():
    turn = first_round(Eagle(depth=2, top_k=2, budget=4))
    assert tree(turn) == {(): Rule.NONE, (0,): Rule.NONE, (1,): Rule.RERANK, (0, 0): Rule.DEPTH}
    assert cut(turn) == [((0, 1), Rule.RERANK), ((1, 0), Rule.RERANK), ((1, 1), Rule.RERANK)]
    assert turn.cut == {"rerank": 3}


def test_a_policy_may_stop_a_tree():
    turn = first_round(OptTree(threshold=10, budget=4))
    assert tree(turn) == {(): Rule.NONE, (0,): Rule.STOP, (1,): Rule.STOP, (2,): Rule.STOP}


class Broadcast(TreePolicy):
    """Answers with arrays smaller than the candidates' own."""

    source: ClassVar[str] = "a test"

    def keep(self, layer):
        return layer.rank < 2

    def expand(self, layer):
        return layer.parent_logprobs[:, None] > math.log(0.4)

    def stop(self, tree, frontier):
        return tree.depths.count(tree.levels) > 2


def test_answers_that_broadcast_are_those_of_every_candidate():
    turn = first_round(Broadcast())
    inner = {(): Rule.NONE, (0,): Rule.NONE, (1,): Rule.NONE}
    ends = {(0, 0): Rule.STOP, (0, 1): Rule.STOP, (1, 0): Rule.EXPAND, (1, 1): Rule.EXPAND}
    assert tree(turn) == {**inner, **ends}
    assert turn.cut == {"keep": 2 + 4}


def test_the_most_probable_cut_candidates_are_kept_and_all_are_counted():
    turn = first_round(Eagle(depth=4, top_k=4, budget=8))
    assert turn.cut == {"rerank": 4 + 3 * 16 - 7}
    assert len(cut(turn)) == 24
    assert cut(turn)[0] == ((1, 1), Rule.RERANK)


@pytest.mark.parametrize(
    ("policy", "law", "rule"),
    [
        (Talon(width=2, margin=0.5, depth=2), prefers(0, 2), Rule.KEEP),
        (Talon(width=2, margin=0.5, depth=2), prefers(2, 2), Rule.WIDTH),
        (Fixed(depth=2, breadth=3, threshold=0.0, budget=6), prefers(1, 0), Rule.BUDGET),
        (Eagle(depth=2, top_k=2, budget=4), prefers(0, 1), Rule.RERANK),
        (Fixed(depth=3, breadth=2, threshold=0.2), prefers(1, 1), Rule.EXPAND),
        (Chain(depth=2), prefers(0, 0), Rule.DEPTH),
    ],
    ids=lambda value: str(getattr(value, "value", "")),
)
def test_a_bonus_token_tells_what_kept_it_out_of_the_tree(policy, law, rule):
    assert first_round(policy, law).bonus.rule is rule


def test_a_bonus_token_has_the_drafters_rank_and_probability_where_it_was_asked():
    asked, not_asked = (
        first_round(Chain(depth=2), prefers(3, 3)).bonus,
        first_round(Chain(depth=2), prefers(0, 0)).bonus,
    )
    assert (asked.rank, asked.draft, asked.parent, asked.depth) == (3, pytest.approx(DRAFTED[3]), 0, 1)
    assert (not_asked.rank, not_asked.draft, not_asked.parent, not_asked.depth) == (-1, None, 2, 3)


def test_children_that_found_no_room_to_be_drawn_are_counted():
    policy = Fixed(depth=2, breadth=3, threshold=0.0, budget=6)
    turn = first_round(policy, always(DRAFTED), RRSw, temperature=1.0, seed=2)
    assert turn.size == 6
    assert turn.cut == {"budget": 7}
    assert [turn.nodes[node].rank for node in (1, 2, 3)] == [0, 1, 2]


def test_a_rejected_token_that_comes_as_the_bonus_has_no_rule():
    """A verifier that draws at every node takes a drafted token as accepted, so a bonus was never in the tree."""
    turns = trace_text(hand_decoder(Chain(depth=2), always(DRAFTED), PointMass), [ROOT], temperature=1.0, seed=1).rounds
    assert {turn.bonus.rule for turn in turns} <= {Rule.WIDTH, Rule.DEPTH}
    assert len(turns) > 10
