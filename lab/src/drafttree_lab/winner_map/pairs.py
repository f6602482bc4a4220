"""The papers' pairs of models on the map: c from their numbers by their law, agreement from their tokens per round."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from drafttree.loading import make_policy
from drafttree_lab.replay.paper import AUTOREGRESSIVE, AVERAGE, Metric, Result, read_paper
from drafttree_lab.winner_map.families import canonical

DYNATREE, TALON, TRAVERSAL = "dynatree-v2", "talon", "traversal"
EAGLE, LINEAR, CHAIN = "EAGLE-3", "Linear Spec", "Chain Tok.V"
TREES = {"EAGLE Tok.V": 26, "Binary Tok.V": 63}
"""Nodes of the trees of Traversal Verification, the root included."""


@dataclass(frozen=True)
class PublishedPair:
    """A target and its drafter by what a paper prints of one policy.

    Attributes:
        name: target, and set of prompts where the paper has more than one.
        paper: name of the paper.
        policy: specification of the policy, with which the drafter is placed.
        tau: published tokens per round.
        draft_cost: c by the speed-up law with v = 1.
        sampled: whether the numbers are of temperature 1.
    """

    name: str
    paper: str
    policy: str
    tau: float
    draft_cost: float
    sampled: bool = False


@dataclass(frozen=True)
class PlacedPair:
    """A pair on the map.

    Attributes:
        pair: what is published.
        agreement: agreement at which the graded drafter commits as many tokens per round with the same policy.
        beyond: "below" or "above" where its tokens per round lie outside those of the graded drafters, whose end the
            agreement then is; empty otherwise.
    """

    pair: PublishedPair
    agreement: float
    beyond: str = ""


def draft_cost(tau: float, speedup: float, passes: int) -> float:
    """c by the law R = tau / (1 + c delta), which the papers use."""
    return (tau / speedup - 1) / passes


def published_pairs() -> list[PublishedPair]:
    """All pairs: of TALON by EAGLE-3's row, of DynaTree by the linear row, of Traversal Verification by the chain's."""
    return [*_talon(), *_dynatree(), *_traversal()]


def talon_cost() -> float:
    """c of TALON's drafters, as its file has it."""
    cost = read_paper(TALON).roles[EAGLE].cost
    assert cost is not None
    return cost


def dynatree_cost() -> float:
    """c of DynaTree's pair, the mean over its sets."""
    return fmean(pair.draft_cost for pair in _dynatree())


def implied_target_costs() -> Mapping[str, Mapping[int, float]]:
    """By target, v(n) of the trees of Traversal Verification by their nodes, at the c that the chain's row gives."""
    found = {}
    for model, lengths, speeds in _traversal_tables():
        chain = _depth(TRAVERSAL, CHAIN)
        cost = draft_cost(lengths[CHAIN], speeds[CHAIN], chain)
        found[model] = {nodes: lengths[row] / speeds[row] - chain * cost for row, nodes in TREES.items()}
    return found


def place(pair: PublishedPair, lengths: Mapping[float, float]) -> PlacedPair:
    """Place a pair where a drafter commits its tokens per round, between two agreements in proportion.

    Args:
        pair: what is published.
        lengths: tokens per round of the pair's policy by agreement of the graded drafter.
    """
    known = sorted((length, agreement) for agreement, length in lengths.items())
    for (low, below), (high, above) in pairwise(known):
        if low <= pair.tau <= high:
            share = (pair.tau - low) / (high - low) if high > low else 0.0
            return PlacedPair(pair, below + share * (above - below))
    return PlacedPair(pair, known[0][1], "below") if pair.tau < known[0][0] else PlacedPair(pair, known[-1][1], "above")


def _talon() -> Iterator[PublishedPair]:
    """TALON's models; the median over sets, since long prompts take time that the law does not know."""
    result = read_paper(TALON).results["1"]
    for model in dict.fromkeys(block.model for block in result.published):
        lengths, speeds = (_row(result, metric, EAGLE, model) for metric in ("tau", "speedup"))
        cost = median(draft_cost(lengths[name], speeds[name], _depth(TALON, EAGLE)) for name in lengths)
        yield PublishedPair(model, TALON, _policy(TALON, EAGLE), fmean(lengths.values()), cost)


def _dynatree() -> Iterator[PublishedPair]:
    results = read_paper(DYNATREE).results
    model = results["1"].published[0].model
    lengths, speeds = _row(results["3"], "tau", LINEAR, model), _row(results["1"], "speedup", LINEAR, model)
    for name, tau in lengths.items():
        cost = draft_cost(tau, speeds[name], _depth(DYNATREE, LINEAR, name))
        yield PublishedPair(f"{model}, {name}", DYNATREE, _policy(DYNATREE, LINEAR, name), tau, cost)


def _traversal() -> Iterator[PublishedPair]:
    for model, lengths, speeds in _traversal_tables():
        cost = draft_cost(lengths[CHAIN], speeds[CHAIN], _depth(TRAVERSAL, CHAIN))
        yield PublishedPair(model, TRAVERSAL, _policy(TRAVERSAL, CHAIN), lengths[CHAIN], cost, sampled=True)


def _traversal_tables() -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Model, tokens per round and speed-up over plain decoding by method, of tables 2 and 3."""
    results = read_paper(TRAVERSAL).results
    for table in ("2", "3"):
        own, timed = results[table], results[f"{table}-speed"]
        model, (place,) = own.published[0].model, timed.sets
        rows = [CHAIN, *TREES]
        plain = _row(timed, "tokens_per_second", AUTOREGRESSIVE, model)[place]
        lengths = {row: _row(own, "tau", row, model)[AVERAGE] for row in rows}
        yield model, lengths, {row: _row(timed, "tokens_per_second", row, model)[place] / plain for row in rows}


def _row(result: Result, metric: Metric, method: str, model: str) -> dict[str, float]:
    """The published numbers of a method by column."""
    blocks = (each for each in result.published if each.metric == metric and each.model == model)
    row, columns = next((each.rows[method], each.columns) for each in blocks if method in each.rows)
    return dict(zip(map(str, columns), row, strict=True))


def _policy(paper: str, method: str, prompt_set: str = "") -> str:
    return canonical(read_paper(paper).methods[method].policy_at(prompt_set))


def _depth(paper: str, method: str, prompt_set: str = "") -> int:
    """Draft passes of a round of a policy of constant depth."""
    levels = make_policy(_policy(paper, method, prompt_set)).levels()
    assert levels is not None
    return levels
