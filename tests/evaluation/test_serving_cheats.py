"""Biased parts of what serves, put back one at a time: `certify --exact` finds each of them out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from drafttree.constraints.processors import PathConstraints
from drafttree.core import randomness
from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine import prefixes
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.drafting.tree_drafter import TreeDrafter
from drafttree.engine.drafting.tree_growth import Growth
from drafttree.engine.request import Request
from drafttree.engine.round_loop import RoundLoop
from drafttree.evaluation import pair_sweep
from drafttree.evaluation.edit_checks import check_edits
from drafttree.evaluation.number_tests import NumbersFinding, check_numbers
from drafttree.evaluation.pair_sweep import sweep_pair, sweep_pairs
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.verifiers import RRS, Greedy
from drafttree.verifiers.base import Verifier
from testing.marks import needs_native

FOUND = 1e-3
Patch = pytest.MonkeyPatch


def equal_seeds_share_numbers(patch: Patch) -> None:
    """Texts of one engine use the numbers of their own seeds."""
    patch.setattr(LearnedState, "unshared_seed", lambda self, seed: seed)


def prefix_is_a_token_too_long(patch: Patch) -> None:
    """One row more is taken over than two texts have in common."""
    longest = prefixes._longest_match
    patch.setattr(
        prefixes, "_longest_match", lambda *given: (lambda text, shared: (text, shared + 1))(*longest(*given))
    )


def processors_miss_the_path(patch: Patch) -> None:
    """Processors see the committed text at every node."""
    process = PathConstraints._process

    def blind(self: Any, tokens: list[int], paths: Any, scores: Any) -> None:
        process(self, tokens, [()] * len(paths), scores)

    patch.setattr(PathConstraints, "_process", blind)


def processors_miss_the_last_token(patch: Patch) -> None:
    """Processors see the path to a node without the node."""
    process = PathConstraints._process

    def late(self: Any, tokens: list[int], paths: Any, scores: Any) -> None:
        for row, path in enumerate(paths):
            process(self, tokens, [path[:-1]], scores[row : row + 1])

    patch.setattr(PathConstraints, "_process", late)


def greedy_takes_the_least_that_top_p_leaves(patch: Patch) -> None:
    """Greedy decoding takes another token where top_p truncates."""
    verify = Greedy.verify

    def wrong(self: Any, tree: Any, logits: Any, randomness: Any) -> Verdict:
        return verify(self, tree, -logits if self.sampling.top_p < 1 else logits, randomness)

    patch.setattr(Greedy, "verify", wrong)


def bonus(patch: Patch, verifier: type[Verifier], when: Callable[[Any, Any], bool]) -> None:
    """Let a verifier take the likeliest bonus token where something holds of itself and the tree."""
    verify = verifier.verify

    def wrong(self: Any, tree: Any, logits: Any, randomness: Any) -> Verdict:
        path, token = verify(self, tree, logits.clone(), randomness)
        return Verdict(path, int(logits[path[-1]].argmax()) if when(self, tree) else token)

    patch.setattr(verifier, "verify", wrong)


def large_trees_are_biased(patch: Patch) -> None:
    """In trees of more than 12 nodes."""
    bonus(patch, RRS, lambda _, tree: tree.size > 12)


def fruitless_rounds_bias(patch: Patch) -> None:
    """After three rounds that have accepted nothing."""
    verify = RRS.verify

    def wrong(self: Any, tree: Any, logits: Any, randomness: Any) -> Verdict:
        rows = logits.clone()
        path, token = verify(self, tree, logits, randomness)
        fruitless = getattr(self, "fruitless", 0)
        self.fruitless = fruitless + 1 if tree.size > 1 and len(path) == 1 else 0
        return Verdict(path, int(rows[0].argmax()) if fruitless >= 3 and len(path) == 1 else token)

    patch.setattr(RRS, "verify", wrong)


def the_test_of_heads_is_shared(patch: Patch) -> None:
    """What texts before have shown of a head decides when a text that draws pauses."""
    patch.setattr(LearnedState, "head_watch_of", lambda self, request: request.drafting.head_watch)


def plain_rounds_take_the_likeliest(patch: Patch) -> None:
    """In rounds without drafts."""
    bonus(patch, RRS, lambda _, tree: tree.size == 1)


def positions_repeat(patch: Patch) -> None:
    """The numbers of a round are those of the round before it."""
    settle = RoundLoop._settle

    def wrong(self: Any, request: Any, *others: Any) -> Any:
        randomness = request.task.randomness
        object.__setattr__(request.task, "randomness", _Earlier(randomness))
        try:
            return settle(self, request, *others)
        finally:
            object.__setattr__(request.task, "randomness", randomness)

    patch.setattr(RoundLoop, "_settle", wrong)


class _Earlier:
    def __init__(self, randomness: Any) -> None:
        self._randomness = randomness

    def at(self, position: int) -> Any:
        return self._randomness.at(position // 2)


def rows_of_another_text(patch: Patch) -> None:
    """The second text of a batch is chosen from the first one's logits."""
    score = RoundLoop.score

    def wrong(self: Any, requests: Any, trees: Any, parts: Any = (), clock: Any = None) -> Any:
        outputs = score(self, requests, trees, parts, clock)
        if len(requests) > 1 and trees[0].size >= trees[1].size:
            outputs[1] = outputs[1]._replace(logits=outputs[0].logits[:, : trees[1].size])
        return outputs

    patch.setattr(RoundLoop, "score", wrong)


def drawn_nodes_are_cut(patch: Patch) -> None:
    """The controller cuts the least likely node of a drawn tree too."""
    cut = Controller.cut

    def wrong(self: Any, trees: Any, *given: Any) -> Any:
        kept, expected = cut(self, trees, *given)
        return [tree.best(max(tree.size - 1, 2)) if tree.size > 2 else tree for tree in kept], expected

    patch.setattr(Controller, "cut", wrong)


def unlikely_draws_are_left_out(patch: Patch) -> None:
    """A child that was drawn with a probability below 0.3 does not join the tree."""
    draw = Growth._draw

    def wrong(self: Any, *given: Any) -> Any:
        tokens, logprobs, counts = draw(self, *given)
        row, left = 0, []
        for own in counts:
            first = logprobs[row : row + len(own), :1]
            row += len(own)
            left.append(np.where(first < math.log(0.3), 0, own))
        return tokens, logprobs, left

    patch.setattr(Growth, "_draw", wrong)


def unlikely_trees_are_not_verified(patch: Patch) -> None:
    """A round goes on without its tree where the first drawn child is unlikely."""
    draft = TreeDrafter.draft

    def wrong(self: Any, requests: Any, *given: Any) -> Any:
        drafts = draft(self, requests, *given)
        drafts.trees = [
            DraftTree.rooted(tree.tokens[0], tree.proposal)
            if tree.size > 1 and tree.path_logprobs[1] < math.log(0.5)
            else tree
            for tree in drafts.trees
        ]
        return drafts

    patch.setattr(TreeDrafter, "draft", wrong)


def drafted_ends_are_overlooked(patch: Patch) -> None:
    """A token that ends the text does not, where it was drafted and others follow it."""
    commit = Request.commit

    def wrong(self: Any, tokens: list[int], accepted: int) -> int:
        eos = self.task.eos
        object.__setattr__(self.task, "eos", frozenset() if accepted else eos)
        try:
            return commit(self, tokens, accepted)
        finally:
            object.__setattr__(self.task, "eos", eos)

    patch.setattr(Request, "commit", wrong)


CHEATS: list[tuple[Callable[[Patch], None], str, str]] = [
    (equal_seeds_share_numbers, "chain", "rrs"),
    (prefix_is_a_token_too_long, "chain", "rrs"),
    (processors_miss_the_path, "chain", "rrs"),
    (processors_miss_the_last_token, "chain", "traversal"),
    (greedy_takes_the_least_that_top_p_leaves, "chain", "greedy"),
    (large_trees_are_biased, "chain", "rrs"),
    (fruitless_rounds_bias, "chain", "rrs"),
    (the_test_of_heads_is_shared, "auto", "rrs"),
    (plain_rounds_take_the_likeliest, "chain", "rrs"),
    (positions_repeat, "chain", "rrs"),
    (rows_of_another_text, "chain", "coupled"),
    (drawn_nodes_are_cut, "talon", "rrsw"),
    (unlikely_draws_are_left_out, "chain", "traversal"),
    (unlikely_trees_are_not_verified, "chain", "rrsw"),
    (drafted_ends_are_overlooked, "chain", "rrs"),
]


@pytest.mark.parametrize(("cheat", "policy", "verifier"), CHEATS, ids=lambda each: getattr(each, "__name__", each))
def test_a_biased_part_is_found_out(cheat, policy, verifier, monkeypatch):
    cheat(monkeypatch)
    finding = sweep_pair(policy, verifier, 1)
    print(cheat.__name__, finding.total_variation, finding.equal, finding.texts, finding.reach)
    assert finding.verdict == "BIASED"
    assert finding.equal < finding.texts if finding.texts else (finding.total_variation or 0) > FOUND


@pytest.mark.parametrize("verifier", ["rrs", "greedy", "coupled", "traversal"])
def test_what_serves_is_exact(verifier):
    assert sweep_pair("chain", verifier, 1).passed


def test_a_pair_is_tried_for_what_serves_unless_quickly():
    whole, quick = (sweep_pairs(["chain"], ["rrs"], models=1, quick=own).findings[0] for own in (False, True))
    assert (whole.reach.texts, quick.reach.texts) == (3, 2)
    assert whole.trials - quick.trials == 9


def test_the_numbers_that_serve_are_uniform_and_apart():
    finding = check_numbers(1000)
    assert finding.passed, finding
    assert finding.streams == 25
    assert finding.tests == 25 + 25 * 24 // 2


@pytest.mark.parametrize(
    ("one", "other"), [("accept", "bonus"), ("draft/1", "bonus/0"), ("draft/2", "draft/1"), ("accept/0", "draft/1")]
)
def test_streams_that_share_numbers_are_found_out(one, other, monkeypatch):
    seed_of = randomness.derived_seed
    monkeypatch.setattr(randomness, "derived_seed", lambda seed, name: seed_of(seed, name.replace(other, one)))
    finding = check_numbers(500)
    assert not finding.passed
    assert finding.least < 1e-80


@pytest.mark.parametrize("place", ["sibling", "text", "position", "next seed"])
def test_numbers_that_repeat_elsewhere_are_found_out(place, monkeypatch):
    if place == "sibling":
        drawn = randomness.draw_children
        monkeypatch.setattr(
            randomness,
            "draw_children",
            lambda probs, counts, shares, proposal: drawn(probs, counts, shares[..., :1].expand_as(shares), proposal),
        )
    elif place == "text":
        monkeypatch.setattr(LearnedState, "unshared_seed", lambda self, seed: seed)
    elif place == "position":
        at = randomness.SeededRandomness.at
        monkeypatch.setattr(randomness.SeededRandomness, "at", lambda self, position: at(self, position // 4))
    else:
        init = randomness.SeededRandomness.__init__
        monkeypatch.setattr(
            randomness.SeededRandomness, "__init__", lambda self, seed, *rest: init(self, seed // 2, *rest)
        )
    assert not check_numbers(500).passed


def test_numbers_that_are_not_uniform_are_found_out(monkeypatch):
    uniform = randomness.uniform
    monkeypatch.setattr(randomness, "uniform", lambda *given: uniform(*given) ** 1.3)
    assert not check_numbers(1000).passed


@needs_native
def test_a_packed_model_that_outlives_an_edit_is_found_out(monkeypatch):
    assert check_edits().passed
    monkeypatch.setattr(SelectedBackend, "refresh", lambda self: False)
    finding = check_edits()
    assert finding.backend == "NativeBackend"
    assert finding.stale
    assert not finding.passed


def test_the_summary_holds_what_serves(monkeypatch):
    monkeypatch.setattr(pair_sweep, "check_numbers", lambda: NumbersFinding(1, 1, 1, 0.0, "accept"))
    table = sweep_pairs(["chain"], ["greedy"], models=1, quick=True, checks_serving=True)
    assert not table.passed
    summary: Any = table.summary()
    assert summary["serving"]["numbers"]["worst"] == "accept"
    assert summary["serving"]["edits"]["stale"] == []
