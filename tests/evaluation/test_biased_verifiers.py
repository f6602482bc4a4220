"""Biased variants that have been published or are easily written: the enumeration finds each of them out."""

from collections.abc import Callable, Iterator

import pytest
import torch

from drafttree import Verdict
from drafttree.core import Proposal, SeededRandomness
from drafttree.errors import ConfigError
from drafttree.evaluation import pair_sweep
from drafttree.evaluation.pair_sweep import sweep_pair
from drafttree.evaluation.pair_trials import FORMS, ordinary_trials, toy_pair, trial_of_rounds
from drafttree.exactness import ScriptedRandom, coupled_text, law
from drafttree.loading import make_policy
from drafttree.policies import Chain, Eagle, TreePolicy
from drafttree.verifiers import RRS, Coupled, LossyTypical, PointMass, RRSw, Traversal, Verifier, traversal
from drafttree.verifiers.base import residual, without
from testing.toy_pairs import EXACT, SMALL_TREES, constant

SIBLINGS, RAGGED = SMALL_TREES["siblings"], SMALL_TREES["ragged"]
LATE = SMALL_TREES["late branch"]
FOUND = 1e-3


def variations(policy: TreePolicy, verifier: type[Verifier], seeds=range(8)) -> Iterator[float]:
    """The total variation in each of some worlds."""
    for each in map(toy_pair, seeds):
        yield law(each.target, each.draft, policy, verifier).total_variation


def is_found_out(*arguments) -> bool:
    """Whether the law is biased in one of the worlds, arguments as for `variations`."""
    return any(each > FOUND for each in variations(*arguments))


def is_exact(*arguments) -> bool:
    return all(each < EXACT for each in variations(*arguments))


class DropsImprobable(RRSw):
    """Removes a drawn token because the draft finds it improbable."""

    def judge(self, view):
        for node, children in enumerate(view.children):
            if children:
                q = view.draft(node)
                view.children[node] = [child for child in children if q[view.tokens[child]] >= 0.2]
        return super().judge(view)


class ReRanks(RRSw):
    """Keeps the drawn nodes of the best paths only, as EAGLE-2 does with selected ones."""

    def verify(self, tree, logits, randomness):
        self.best = sorted(range(tree.size), key=lambda node: -tree.path_logprobs[node])[:3]
        return super().verify(tree, logits, randomness)

    def judge(self, view):
        view.children[:] = [[child for child in children if child in self.best] for children in view.children]
        return super().judge(view)


class LikeliestFirst(RRSw):
    """Judges drawn siblings in the order of their probability."""

    def judge(self, view):
        for node, children in enumerate(view.children):
            if children:
                q = view.draft(node)
                children.sort(key=lambda child: -float(q[view.tokens[child]]))
        return super().judge(view)


class NeverRenormalises(RRSw):
    """Takes a rejected token out of q and leaves the rest as it is."""

    def reject(self, p, q, token):
        return residual(p, q), q.index_fill(0, torch.tensor(token), 0.0)


class DropsDuplicates(RRS):
    """Forgets a sibling equal to one before it, then judges as if all had been drawn independently."""

    def judge(self, view):
        for node, children in enumerate(view.children):
            first = {view.tokens[child]: child for child in reversed(children)}
            view.children[node] = sorted(first.values())
        return super().judge(view)


class DropsDuplicatesRightly(DropsDuplicates):
    """Distinct tokens in order of appearance are draws without replacement, and are judged as such."""

    def reject(self, p, q, token):
        return residual(p, q), without(q, token)


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (RAGGED, DropsImprobable),
        (RAGGED, ReRanks),
        (SIBLINGS, LikeliestFirst),
        (SIBLINGS, NeverRenormalises),
        (SIBLINGS, DropsDuplicates),
        (SIBLINGS, LossyTypical),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_biased_verifier_is_found_out(policy, verifier):
    assert is_found_out(policy, verifier)


def test_distinct_independent_draws_are_draws_without_replacement():
    assert is_exact(SIBLINGS, DropsDuplicatesRightly, range(3))
    assert is_exact(RAGGED, DropsDuplicatesRightly, range(3))


def keeps_its_rate(rate: float, mass: float, drafted: float) -> float:
    return rate


def takes_the_mass_as_rate(rate: float, mass: float, drafted: float) -> float:
    return mass


def divides_by_what_is_left_of_the_draft(rate: float, mass: float, drafted: float) -> float:
    return min(mass / (1 - drafted), 1.0) if drafted < 1 else 0.0


def is_right(rate: float, mass: float, drafted: float) -> float:
    return mass / (mass + (1 - rate)) if mass > 0 else 0.0


def rejecting(rule: Callable[[float, float, float], float]) -> Callable:
    """The update of Traversal with another rule for the rate."""

    def reject(node, token: int) -> None:
        left = (node.rate * node.target - node.draft).clamp_min(0)
        mass = float(left.sum())
        node.target = left / mass if mass > 0 else node.target
        node.rate = torch.tensor(rule(float(node.rate), mass, float(node.draft[token])), dtype=torch.float64)
        node.draft = without(node.draft, token)

    return reject


@pytest.mark.parametrize("rule", [keeps_its_rate, takes_the_mass_as_rate, divides_by_what_is_left_of_the_draft])
def test_a_wrong_update_of_traversal_is_found_out(rule, monkeypatch):
    monkeypatch.setattr(traversal.ChainNode, "reject", rejecting(rule))
    assert is_found_out(LATE, Traversal)


def test_the_update_written_out_is_the_right_one(monkeypatch):
    monkeypatch.setattr(traversal.ChainNode, "reject", rejecting(is_right))
    assert is_exact(LATE, Traversal, range(3))


def takes_the_best(randomness: ScriptedRandom, probs, counts, most, proposal, depth):
    """Selects the best tokens and calls them drawn."""
    return probs.topk(most).indices, probs


def draws_again(randomness: ScriptedRandom, probs, counts, most, proposal, depth):
    """Draws once more where the draft finds what was drawn improbable, and says nothing."""
    tokens = torch.zeros(len(counts), most, dtype=torch.long)
    for node, count in enumerate(counts.tolist()):
        row = probs[node].clone()
        for place in range(count):
            token = randomness.draw(row)
            tokens[node, place] = token = randomness.draw(row) if row[token] < 0.25 else token
            row[token] = 0
    return tokens, probs


@pytest.mark.parametrize("children", [takes_the_best, draws_again])
def test_children_that_were_not_drawn_as_told_are_found_out(children, monkeypatch):
    monkeypatch.setattr(ScriptedRandom, "children", children)
    assert is_found_out(SIBLINGS, RRSw, (0, 1, 6))


def test_the_law_with_improbable_tokens_dropped_is_the_one_worked_out_by_hand():
    tables = constant([0.2, 0.5, 0.3], [0.6, 0.3, 0.1])
    found = law(tables.target, tables.draft, SIBLINGS, DropsImprobable)
    first = [sum(weight for text, weight in found.committed.items() if text[0] == token) for token in range(3)]
    assert first == pytest.approx([0.2222, 0.6056, 0.1722], abs=5e-5)


def test_the_controls_are_sampled_as_they_say():
    assert DropsDuplicates.proposal is Proposal.WITH_REPLACEMENT
    assert ReRanks.proposal is Proposal.WITHOUT_REPLACEMENT


def changed(change):
    """A verifier that judges as PointMass does, and says something else."""

    class Says(PointMass):
        def judge(self, view):
            return change(*super().judge(view))

    return Says


@pytest.mark.parametrize(
    "change",
    [
        lambda path, bonus: ([0, path[-1]] if len(path) > 2 else path, bonus),
        lambda path, bonus: ([*path, path[-1]], bonus),
        lambda path, bonus: (path[1:], bonus),
        lambda path, bonus: ([*path[:-1], 99], bonus),
        lambda path, bonus: ([0, -1], bonus),
        lambda path, bonus: ([], bonus),
    ],
    ids=["skips a node", "repeats a node", "drops the root", "invents a node", "counts from the end", "says nothing"],
)
def test_a_path_that_is_none_is_found_out(change):
    tables = toy_pair(1)
    with pytest.raises(ConfigError, match=r"Says accepts the nodes .*do not form a path from the root"):
        law(tables.target, tables.draft, Chain(depth=3), changed(change))


def test_a_verifier_that_drops_the_last_node_is_found_out():
    assert is_found_out(SIBLINGS, changed(lambda path, bonus: (path[:-1] or path, bonus)))


class GreedyWhereNodesWereCut(PointMass):
    """Takes the likeliest token where the tree has lost children of nodes that were expanded."""

    def verify(self, tree, logits, randomness):
        verdict = super().verify(tree, logits, randomness)
        path, bonus = verdict
        cut = sum(tree.widths) > sum(map(bool, tree.children))
        return Verdict(path, int(logits[path[-1]].argmax()) if cut else bonus)


def test_a_verifier_that_draws_otherwise_where_nodes_were_cut_is_found_out():
    assert is_found_out(make_policy(FORMS["auto"][0]), GreedyWhereNodesWereCut)


@pytest.mark.parametrize("bonus", [-1, 3])
def test_a_bonus_that_is_no_token_is_found_out(bonus):
    tables = toy_pair(1)
    with pytest.raises(ConfigError, match=f"Says gives the bonus token {bonus}; the vocabulary has 3"):
        law(tables.target, tables.draft, Chain(depth=1), changed(lambda path, _: (path, bonus)))


class SkipsAhead(Coupled):
    """Leaves out the first node of a longer path."""

    def verify(self, tree, logits, randomness):
        path, bonus = super().verify(tree, logits, randomness)
        return Verdict([path[0], path[-1]], bonus)


def test_a_coupled_path_that_is_none_is_found_out():
    tables = toy_pair(2)
    with pytest.raises(ConfigError, match="SkipsAhead accepts the nodes"):
        coupled_text(tables.target, tables.target, Chain(depth=3), SkipsAhead)


def test_a_pair_that_is_refused_can_be_looked_at():
    tables = toy_pair(1)
    eagle = Eagle(depth=2, top_k=2, budget=5)
    with pytest.raises(ConfigError, match="Eagle with RRSw is not lossless"):
        law(tables.target, tables.draft, eagle, RRSw)
    law(tables.target, tables.draft, eagle, RRSw, checked=False)


class GreedyLater(RRSw):
    """Takes the likeliest bonus token from the second round on."""

    rounds = 0

    def judge(self, view):
        path, bonus = super().judge(view)
        self.rounds += 1
        return path, bonus if self.rounds == 1 else int(view.target(path[-1]).argmax())


class GreedyMuchLater(Traversal):
    """Takes the likeliest bonus token from the fourth round on, and only where two drafted tokens were accepted."""

    rounds = 0

    def judge(self, view):
        path, bonus = super().judge(view)
        self.rounds += 1
        late = self.rounds >= 4 and len(path) >= 3
        return path, int(view.target(path[-1]).argmax()) if late else bonus


class BeginsAgain(RRSw):
    """Takes the random numbers of position 0 in every round."""

    def verify(self, tree, logits, randomness):
        return super().verify(tree, logits, randomness.at(0))


class ForgetsThePosition(Coupled):
    """Takes the Gumbel noise of the depth, without the root's position."""

    def verify(self, tree, logits, randomness):
        noise = SeededRandomness(self.sampling.seed, logits.shape[-1], logits.device).at(0)
        return super().verify(tree, logits, noise)


class TrustsTheFourth(RRSw):
    """Accepts the fourth sibling, should it come to that."""

    def _reject_all(self, view, node):
        chances, left = super()._reject_all(view, node)
        return [*chances[:3], *(torch.ones_like(chance) for chance in chances[3:])], left


class TrustsTheDeep(RRSw):
    """Accepts whatever was drafted from level 4 on."""

    def judge(self, view):
        path, bonus = super().judge(view)
        while len(path) > 3 and view.children[path[-1]]:
            path.append(view.children[path[-1]][0])
            bonus = view.draw(view.target(path[-1]))
        return path, bonus


LATE_BIASES = [
    ("chain", GreedyLater),
    ("chain", GreedyMuchLater),
    ("chain", BeginsAgain),
    ("template", TrustsTheFourth),
    ("chain", TrustsTheDeep),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("policy", "verifier"), LATE_BIASES)
def test_a_bias_that_comes_late_is_found_out(policy, verifier, monkeypatch):
    """None of them shows in a round at position 0 with small trees; larger trees and more rounds show it."""
    assert is_exact(SIBLINGS, verifier, [1])
    assert is_exact(Chain(depth=3), verifier, [1])
    monkeypatch.setattr(
        pair_sweep, "precision_trials", lambda *_: [trial_of_rounds(toy_pair(1).rounded(), SIBLINGS, 1)]
    )
    monkeypatch.setattr(pair_sweep, "text_trials", lambda *_: [])
    found = sweep_pair(policy, verifier, models=1)
    assert found.verdict == "BIASED"
    assert found.total_variation is not None
    assert found.total_variation > FOUND


def test_noise_that_forgets_the_position_is_found_out(monkeypatch):
    """At position 0 the first round is right, whatever the seed."""
    tables = toy_pair(1)
    for seed in range(10):
        found = coupled_text(tables.target, tables.draft, Chain(depth=1), ForgetsThePosition, seed=seed, length=1)
        assert found.tokens == found.plain
    monkeypatch.setattr(pair_sweep, "text_trials", lambda *_: [])
    assert sweep_pair("chain", ForgetsThePosition, models=1).verdict == "BIASED"


def takes_the_likeliest(view, path: list[int], bonus: int, where: bool) -> tuple[list[int], int]:
    """The verdict with the likeliest token as bonus in some cases."""
    return path, int(view.target(path[-1]).argmax()) if where else bonus


class GreedyWithoutDrafts(RRSw):
    """Takes the likeliest token where nothing was drafted: in plain rounds, pauses, and for a text's last token."""

    def judge(self, view):
        return takes_the_likeliest(view, *super().judge(view), where=len(view.tokens) == 1)


class RepeatsTheOtherText(RRSw):
    """Gives the last bonus token again where another text was judged since its own last round."""

    last: tuple[Verifier | None, int] = (None, 0)
    begun = False

    def judge(self, view):
        path, bonus = super().judge(view)
        judged, before = RepeatsTheOtherText.last
        if self.begun and judged is not self:
            bonus = before
        self.begun, RepeatsTheOtherText.last = True, (self, bonus)
        return path, bonus


class GreedyInFloat32(RRSw):
    """Takes the likeliest token where logits are in float32."""

    def judge(self, view):
        where = view.target(0).dtype == torch.float32
        return takes_the_likeliest(view, *super().judge(view), where=where)


class GreedyOverManyColumns(RRSw):
    """Takes the likeliest token where a draw looks at blocks of columns first."""

    def judge(self, view):
        return takes_the_likeliest(view, *super().judge(view), where=len(view.target(0)) > 4096)


class GreedyInFloat32OverManyColumns(RRSw):
    """Takes the likeliest token where both hold, as in a text of a real model."""

    def judge(self, view):
        row = view.target(0)
        where = row.dtype == torch.float32 and len(row) > 4096
        return takes_the_likeliest(view, *super().judge(view), where=where)


class AcceptsAfterAPause(RRSw):
    """Accepts whatever was drafted in the first round behind one without drafts."""

    paused = False

    def judge(self, view):
        path, bonus = super().judge(view)
        after, self.paused = self.paused, len(view.tokens) == 1
        path = [0] if after else path
        while after and view.children[path[-1]]:
            path.append(view.children[path[-1]][0])
            bonus = view.draw(view.target(path[-1]))
        return path, bonus


class GreedyOnUnknownTokens(RRSw):
    """Takes the likeliest token where the drafter knows fewer tokens than the target."""

    def verify(self, tree, logits, randomness):
        verdict = super().verify(tree, logits, randomness)
        path, bonus = verdict
        narrow = any(len(row) < logits.shape[-1] for row in tree.draft_probs.values())
        return Verdict(path, int(logits[path[-1]].argmax()) if narrow else bonus)


BEYOND_ROUNDS = [
    ("chain", GreedyWithoutDrafts),
    ("chain", RepeatsTheOtherText),
    ("chain", GreedyInFloat32),
    ("chain", GreedyOverManyColumns),
    ("chain", GreedyInFloat32OverManyColumns),
    ("chain", AcceptsAfterAPause),
    ("chain", GreedyOnUnknownTokens),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("policy", "verifier"), BEYOND_ROUNDS)
def test_a_bias_that_no_round_of_a_small_model_alone_shows_is_found_out(policy, verifier, monkeypatch):
    small = [make_policy(form) for form in FORMS[policy]]
    for trial in ordinary_trials(small, 1):
        assert trial.law(verifier, {}).total_variation < EXACT
    monkeypatch.setattr(pair_sweep, "large_trials", lambda *_: [])
    found = sweep_pair(policy, verifier, models=1)
    assert found.verdict == "BIASED"
    assert max(found.total_variation or 0, found.rounded or 0) > FOUND
