"""The papers' pairs of models on the map: their c as the papers' files have it, agreement from tokens per round."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from drafttree.core.cost_curve import Costs
from drafttree_lab.replay.paper import AVERAGE, Result, read_paper
from drafttree_lab.replay.pass_costs import PassCosts
from drafttree_lab.winner_map.families import canonical

DYNATREE, TALON, TRAVERSAL = "dynatree-v2", "talon", "traversal"
EAGLE, LINEAR, CHAIN = "EAGLE-3", "Linear Spec", "Chain Tok.V"


@dataclass(frozen=True)
class PublishedPair:
    """A target and its drafter by what a paper prints of one policy.

    Attributes:
        name: target, and set of prompts where the paper has more than one.
        paper: name of the paper.
        policy: specification of the policy, with which the drafter is placed.
        tau: published tokens per round.
        draft_cost: c.
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


def published_pairs() -> list[PublishedPair]:
    """All pairs: of TALON by EAGLE-3's row, of DynaTree by the linear row, of Traversal Verification by the chain's."""
    return [*_talon(), *_dynatree(), *_traversal()]


def published_costs(paper: str, method: str, model: str | None = None) -> PassCosts:
    """The costs of a method's passes, on a target of the paper or on its first one."""
    found = read_paper(paper)
    own, role = found.models[model or next(iter(found.models))], found.methods[method].role
    assert role
    return PassCosts(own.draft_pass[role], Costs.of(own.target_pass), own.round)


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
    result = read_paper(TALON).results["1"]
    for model in read_paper(TALON).models:
        tau = fmean(_lengths(result, EAGLE, model).values())
        yield PublishedPair(model, TALON, _policy(TALON, EAGLE), tau, published_costs(TALON, EAGLE, model).draft)


def _dynatree() -> Iterator[PublishedPair]:
    for model in read_paper(DYNATREE).models:
        for name, tau in _lengths(read_paper(DYNATREE).results["3"], LINEAR, model).items():
            policy, cost = _policy(DYNATREE, LINEAR, name), published_costs(DYNATREE, LINEAR, model).draft
            yield PublishedPair(f"{model}, {name}", DYNATREE, policy, tau, cost)


def _traversal() -> Iterator[PublishedPair]:
    for table in ("2", "3"):
        result = read_paper(TRAVERSAL).results[table]
        model = result.published[0].model
        tau, cost = _lengths(result, CHAIN, model)[AVERAGE], published_costs(TRAVERSAL, CHAIN, model).draft
        yield PublishedPair(model, TRAVERSAL, _policy(TRAVERSAL, CHAIN), tau, cost, sampled=True)


def _lengths(result: Result, method: str, model: str) -> dict[str, float]:
    """The published tokens per round of a method by column."""
    blocks = (each for each in result.published if each.metric == "tau" and each.model == model)
    row, columns = next((each.rows[method], each.columns) for each in blocks if method in each.rows)
    return dict(zip(map(str, columns), row, strict=True))


def _policy(paper: str, method: str, prompt_set: str = "") -> str:
    return canonical(read_paper(paper).methods[method].policy_at(prompt_set))
