"""What the map takes from the papers: families of policies, pairs of models, and what the papers leave open."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from drafttree.core.cost_curve import Costs
from drafttree.loading import make_policy, policy_spec
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.paper import AVERAGE, Result, read_paper
from drafttree_lab.replay.text_cell import TextCounts

PLAIN, AUTO = "plain", "auto"
"""Plain decoding, whose R is 1, and the policy that weighs the costs themselves."""
Texts = Mapping[float, Mapping[str, Sequence[TextCounts]]]
"""The counts of all texts by agreement and policy, in one order of prompts."""


@functools.cache
def canonical(spec: str) -> str:
    """A specification as the results are kept by it."""
    return policy_spec(make_policy(spec))


def published_policy(paper: str, method: str, prompt_set: str = "") -> str:
    """The specification of a paper's method, on a set of prompts if one is named."""
    return canonical(read_paper(paper).methods[method].policy_at(prompt_set))


def published_costs(paper: str, method: str, model: str | None = None) -> PassCosts:
    """The costs of a method's passes, on a target of the paper or on its first one."""
    found = read_paper(paper)
    own, role = found.models[model or next(iter(found.models))], found.methods[method].role
    assert role
    return PassCosts(own.draft_pass[role], Costs.of(own.target_pass), own.round)


def families() -> Mapping[str, list[str]]:
    """Specifications by the name of their family; a family's R is that of its best setting."""
    return {
        "chain": [canonical(f"chain:depth={depth}") for depth in (2, 5, 8)],
        "fixed tree": [
            published_policy("dynatree-v1", "DynaTree"),
            published_policy("dynatree-v2", "Fixed Tree D=5 B=2"),
        ],
        "DynaTree": [published_policy("dynatree-v2", name) for name in ("DynaTree", "DynaTree without history")],
        "EAGLE": [published_policy("talon", "EAGLE-3"), canonical("eagle:depth=4,top_k=4,budget=16")],
        "OPT-Tree": [published_policy("talon", "OPT-Tree"), canonical("opt-tree:budget=16")],
        "TALON": [published_policy("talon", "TALON"), canonical("talon:budget=16,width=4")],
    }


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
    return list(_pairs())


def _pairs() -> Iterator[PublishedPair]:
    paper, method = "talon", "EAGLE-3"
    for model in read_paper(paper).models:
        tau = fmean(_lengths(read_paper(paper).results["1"], method, model).values())
        cost = published_costs(paper, method, model).draft
        yield PublishedPair(model, paper, published_policy(paper, method), tau, cost)
    paper, method = "dynatree-v2", "Linear Spec"
    for model in read_paper(paper).models:
        for name, tau in _lengths(read_paper(paper).results["3"], method, model).items():
            policy, cost = published_policy(paper, method, name), published_costs(paper, method, model).draft
            yield PublishedPair(f"{model}, {name}", paper, policy, tau, cost)
    paper, method = "traversal", "Chain Tok.V"
    for table in ("2", "3"):
        result = read_paper(paper).results[table]
        model = result.published[0].model
        tau, cost = _lengths(result, method, model)[AVERAGE], published_costs(paper, method, model).draft
        yield PublishedPair(model, paper, published_policy(paper, method), tau, cost, sampled=True)


def _lengths(result: Result, method: str, model: str) -> dict[str, float]:
    """The published tokens per round of a method by column."""
    blocks = (each for each in result.published if each.metric == "tau" and each.model == model)
    row, columns = next((each.rows[method], each.columns) for each in blocks if method in each.rows)
    return dict(zip(map(str, columns), row, strict=True))


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


@dataclass(frozen=True)
class Question:
    """Whether one policy is faster than another, which the papers leave open.

    Attributes:
        text: both policies in words.
        left: the policy that it is about.
        right: the policy that it is compared with.
        costs: the costs of the paper.
    """

    text: str
    left: str
    right: str
    costs: PassCosts


@dataclass(frozen=True)
class Ratio:
    """R of one policy over that of another.

    Attributes:
        agreement: of the drafter.
        estimate: the ratio over all texts.
        low: lower end of its 95 % interval over prompts; None of one prompt.
        high: upper end.
    """

    agreement: float
    estimate: float
    low: float | None
    high: float | None

    @property
    def is_decided(self) -> bool:
        """Whether the interval lies on one side of 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Answer:
    """What was counted for a question.

    Attributes:
        text: both policies in words.
        draft_cost: c, at which it is judged.
        ratios: by agreement, rising.
        verdict: where the claim holds, in words.
    """

    text: str
    draft_cost: float
    ratios: list[Ratio]
    verdict: str


def questions() -> list[Question]:
    """All questions, at the costs of their papers.

    DynaTree gives no value of a*, its `target`; TALON's k, the robust levels, stands beside its own choice of 1.
    """
    dynatree, talon = published_costs("dynatree-v2", "DynaTree"), published_costs("talon", "TALON")
    history, none = (published_policy("dynatree-v2", name) for name in ("DynaTree", "DynaTree without history"))
    fixed = published_policy("dynatree-v2", "Fixed Tree")
    robust, eagle = (published_policy("talon", name) for name in ("TALON", "EAGLE-3"))
    found = [
        Question(
            f"DynaTree with its history, a* = {share}, over without",
            canonical(f"{history},target={share}"),
            none,
            dynatree,
        )
        for share in (0.4, 0.7)
    ]
    found.append(Question("DynaTree over the fixed tree", history, fixed, dynatree))
    for levels in (0, 2, 3):
        other = published_policy("talon", f"TALON k={levels}")
        found.append(Question(f"TALON with k = 1 over k = {levels}", robust, other, talon))
    return [*found, Question("TALON over EAGLE-3's tree", robust, eagle, talon)]


def answer(question: Question, texts: Texts) -> Answer:
    """Judge a question at every agreement, by the same prompts for both policies."""
    ratios = []
    for agreement in sorted(texts):
        own = texts[agreement]
        jackknife = Jackknife({"texts": len(own[question.left])})
        left, right = (
            jackknife.mean([("texts", [question.costs.fraction("tokens_per_second", text) for text in own[side]])])
            for side in (question.left, question.right)
        )
        found = jackknife.estimate(left / right)
        ratios.append(Ratio(agreement, found.value, found.low, found.high))
    return Answer(question.text, question.costs.draft, ratios, verdict(ratios))


def verdict(ratios: Sequence[Ratio]) -> str:
    """Where a ratio lies above 1, in words, with how many agreements the intervals decide."""
    if not ratios:
        return "not counted"
    holds = [each.estimate > 1 for each in ratios]
    changes = [place for place in range(1, len(holds)) if holds[place] != holds[place - 1]]
    if not changes:
        where = f"at {'every' if holds[0] else 'no'} agreement"
    elif len(changes) > 1:
        where = f"at {', '.join(f'{each.agreement:g}' for each in ratios if each.estimate > 1)}"
    else:
        below, above = ratios[changes[0] - 1], ratios[changes[0]]
        share = (1 - below.estimate) / (above.estimate - below.estimate)
        crossing = below.agreement + share * (above.agreement - below.agreement)
        where = f"{'above' if holds[-1] else 'below'} agreement {crossing:.2f}"
    return f"holds {where} ({sum(each.is_decided for each in ratios)} of {len(ratios)} decided)"
