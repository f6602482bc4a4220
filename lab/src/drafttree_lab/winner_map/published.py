"""What the map takes from the papers: families of policies, pairs of models, and open questions."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

from torch import Tensor

from drafttree.core.cost_curve import Costs
from drafttree.loading import make_policy, policy_spec
from drafttree_lab.graded import CALIBRATED, CONFIDENCES
from drafttree_lab.replay.costs import PassCosts, published_costs
from drafttree_lab.replay.intervals import LEVEL, Estimate, Jackknife
from drafttree_lab.replay.paper import AVERAGE, AxisValue, Result
from drafttree_lab.replay.paper_files import read_paper
from drafttree_lab.replay.text_cell import TextCounts

PLAIN, AUTO = "plain", "auto"
"""Plain decoding, whose R is 1, and the policy that chooses by the costs of passes."""
TWO_CORES = 0.07
"""Cost of each further node of a target pass, on two CPU cores."""
Texts = Mapping[float, Mapping[str, Mapping[str, Sequence[TextCounts]]]]
"""The counts of texts by agreement, confidence and policy; all lists are in the same order of prompts."""


@functools.cache
def canonical(spec: str) -> str:
    """A policy's specification in the form that the results have as keys."""
    return policy_spec(make_policy(spec))


def published_policy(paper: str, method: str, prompt_set: str = "", value: AxisValue | None = None) -> str:
    """The policy of a paper's method, by prompt set and axis value if the paper's policy depends on them."""
    return canonical(read_paper(paper).methods[method].policy_at(prompt_set, value))


def method_costs(paper: str, method: str, model: str | None = None) -> PassCosts:
    """The pass costs of a method on a target of the paper, by default its first."""
    publication = read_paper(paper)
    costs = published_costs(
        publication.models[model or next(iter(publication.models))], publication.methods[method].role
    )
    assert costs
    return costs


def families() -> Mapping[str, list[str]]:
    """The policies of each family; the R of a family is that of its fastest policy."""
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
class Pair:
    """A target and a drafter of a paper, and their place on the map.

    Attributes:
        name: the target, and the prompt set if the paper has several.
        paper: name of the paper.
        policy: the policy of the published numbers.
        tau: published tokens per round.
        draft_cost: c.
        sampled: whether the numbers are for temperature 1.
        agreement: agreement at which a graded drafter has the same tokens per round with this policy.
        beyond: "below" or "above" if no graded drafter has so few or so many tokens per round; `agreement` is then the
            lowest or highest one. Empty otherwise.
    """

    name: str
    paper: str
    policy: str
    tau: float
    draft_cost: float
    sampled: bool = False
    agreement: float = math.nan
    beyond: str = ""


def published_pairs() -> Iterator[Pair]:
    """All pairs of the papers.

    They are from the rows of EAGLE-3 in TALON, of linear drafts in DynaTree, and of chains in Traversal Verification.
    """
    paper, method = "talon", "EAGLE-3"
    for model in read_paper(paper).models:
        tau = fmean(_lengths(read_paper(paper).results["1"], method, model).values())
        cost = method_costs(paper, method, model).draft
        yield Pair(model, paper, published_policy(paper, method), tau, cost)
    paper, method = "dynatree-v2", "Linear Spec"
    for model in read_paper(paper).models:
        for name, tau in _lengths(read_paper(paper).results["3"], method, model).items():
            policy = published_policy(paper, method, name)
            cost = method_costs(paper, method, model).draft
            yield Pair(f"{model}, {name}", paper, policy, tau, cost)
    paper, method = "traversal", "Chain Tok.V"
    for table in ("2", "3"):
        result = read_paper(paper).results[table]
        model = result.published[0].model
        tau = _lengths(result, method, model)[AVERAGE]
        cost = method_costs(paper, method, model).draft
        yield Pair(model, paper, published_policy(paper, method), tau, cost, sampled=True)


def _lengths(result: Result, method: str, model: str) -> dict[str, float]:
    """The published tokens per round of a method by column, from the first block that has it."""
    for block in result.published:
        if block.metric == "tau" and block.model == model and method in block.rows:
            return dict(zip(map(str, block.columns), block.rows[method], strict=True))
    raise LookupError(f"no tokens per round of {method} on {model}")


def place(model_pair: Pair, lengths: Mapping[float, float]) -> Pair:
    """Give a pair the agreement at which a graded drafter has its tokens per round, by linear interpolation.

    Args:
        model_pair: the published pair.
        lengths: tokens per round of the pair's policy, by agreement of the graded drafter.
    """
    points = sorted(zip(lengths.values(), lengths, strict=True))
    for (low, low_agreement), (high, high_agreement) in pairwise(points):
        if low <= model_pair.tau <= high:
            share = (model_pair.tau - low) / (high - low) if high > low else 0.0
            return replace(model_pair, agreement=low_agreement + share * (high_agreement - low_agreement))
    agreement, direction = (points[0][1], "below") if model_pair.tau < points[0][0] else (points[-1][1], "above")
    return replace(model_pair, agreement=agreement, beyond=direction)


@dataclass(frozen=True)
class Question:
    """Whether one policy is faster than another, and the answer that was counted.

    Attributes:
        text: both policies in words.
        left: the policy that may be faster.
        right: the policy that it is compared with.
        costs: the pass costs of both.
        settings: policies by the value of a parameter, from `right` to `left`, for a question about a trend: does the
            best value rise with agreement? Empty otherwise.
        ratios: R of `left` over R of `right`, by confidence and agreement.
        trends: by confidence, the ratio at the highest agreement over that at the lowest; empty without `settings`.
        best: the fastest of `settings`, by confidence and agreement.
        verdict: the answer in words.
    """

    text: str
    left: str
    right: str
    costs: PassCosts
    settings: Mapping[str, str] = field(default_factory=dict)
    ratios: Mapping[str, Mapping[float, Estimate]] = field(default_factory=dict)
    trends: Mapping[str, Estimate] = field(default_factory=dict)
    best: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    verdict: str = ""


def questions() -> Iterator[Question]:
    """All questions: what the papers leave open, and claims that one pair of models cannot decide.

    DynaTree gives no value of a*, the policy's `target`. TALON's choice of k = 1 robust level is compared with others.
    """
    yield from _dynatree_questions()
    yield from _talon_questions()
    yield _depth_question()


def _dynatree_questions() -> Iterator[Question]:
    paper = "dynatree-v2"
    costs = method_costs(paper, "DynaTree")
    policy = published_policy(paper, "DynaTree")
    no_history_policy = published_policy(paper, "DynaTree without history")
    for share in (0.4, 0.7):
        target_policy = canonical(f"{policy},target={share}")
        text = f"DynaTree with its history, a* = {share}, over without"
        yield Question(text, target_policy, no_history_policy, costs)
    yield Question("DynaTree over the fixed tree", policy, published_policy(paper, "Fixed Tree"), costs)


def _talon_questions() -> Iterator[Question]:
    paper = "talon"
    costs = method_costs(paper, "TALON")
    policy = published_policy(paper, "TALON")
    eagle_policy = published_policy(paper, "EAGLE-3")
    for levels in (0, 2, 3):
        alternative = published_policy(paper, f"TALON k={levels}")
        yield Question(f"TALON with k = 1 over k = {levels}", policy, alternative, costs)
    yield Question("TALON over EAGLE-3's tree", policy, eagle_policy, costs)
    yield _margin_question(costs)
    deeper_tree = canonical(eagle_policy.replace("depth=9", "depth=12"))
    yield Question("EAGLE-3's tree of 12 levels over 9, by tau (TALON's figure 4)", deeper_tree, eagle_policy, FREE)


def _margin_question(costs: PassCosts) -> Question:
    margins = {}
    for mu in read_paper("talon").results["fig13"].values:
        margins[str(mu)] = published_policy("talon", "TALON by threshold", value=mu)
    low, *_, high = margins
    text = f"TALON with mu = {high} over mu = {low} (figure 13)"
    return Question(text, margins[high], margins[low], costs, margins)


def _depth_question() -> Question:
    paper = "dynatree-v1"
    method = "DynaTree by depth"
    shallow_tree = published_policy(paper, method, value=4)
    deep_tree = published_policy(paper, method, value=9)
    costs = replace(method_costs(paper, "DynaTree"), target=linear_costs(TWO_CORES))
    text = "DynaTree v1 with D = 3 over D = 8 on two CPU cores (figure 3)"
    return Question(text, shallow_tree, deep_tree, costs)


def linear_costs(slope: float) -> Costs:
    """v(n) = 1 + s (n - 1), the cost of a target pass by its nodes."""
    return Costs((1, 2), (1.0, 1 + slope))


FREE = PassCosts(0.0, linear_costs(0.0))
"""Costs at which drafts and further nodes are free, so that R is tau, the tokens per round."""


def speedups(costs: PassCosts, texts: Sequence[TextCounts]) -> Tensor:
    """R over all texts, then R without each text in turn: float64 `[1 + texts]`."""
    fractions = [costs.fraction("tokens_per_second", counts) for counts in texts]
    return Jackknife({"texts": len(texts)}).mean([("texts", fractions)])


def estimate(ratios: Tensor) -> Estimate:
    """The estimate of a ratio over prompts, with its interval.

    Args:
        ratios: `[1 + texts]`, a quotient of two results of `speedups` for the same prompts.
    """
    return Jackknife({"texts": len(ratios) - 1}).estimate(ratios)


def side(ratio: Estimate) -> int:
    """1 or -1 if the whole interval of a ratio lies above or below 1; 0 if it includes 1 or does not exist."""
    return 0 if ratio.p > LEVEL else (ratio.value > 1) - (ratio.value < 1)


def answer(question: Question, texts: Texts) -> Question:
    """A question with its answer, counted on the same prompts for both policies."""
    ratios: dict[str, dict[float, Estimate]] = {}
    trends: dict[str, Estimate] = {}
    best_settings: dict[str, dict[float, str]] = {}
    for confidence in CONFIDENCES if texts else ():
        replicates: dict[float, Tensor] = {}
        ratios[confidence] = {}
        for agreement in sorted(texts):
            replicates[agreement] = _ratios(question, texts[agreement][confidence])
            ratios[confidence][agreement] = estimate(replicates[agreement])
        if question.settings:
            trends[confidence] = estimate(replicates[max(texts)] / replicates[min(texts)])
            best_settings[confidence] = {}
            for agreement in sorted(texts):
                best_settings[confidence][agreement] = _best_setting(question, texts[agreement][confidence])
    answered = replace(question, ratios=ratios, trends=trends, best=best_settings)
    return replace(answered, verdict=verdict(answered))


def _ratios(question: Question, texts: Mapping[str, Sequence[TextCounts]]) -> Tensor:
    """R of the left policy over R of the right one, `[1 + texts]` as from `speedups`."""
    return speedups(question.costs, texts[question.left]) / speedups(question.costs, texts[question.right])


def _best_setting(question: Question, texts: Mapping[str, Sequence[TextCounts]]) -> str:
    return max(question.settings, key=lambda name: speedups(question.costs, texts[question.settings[name]])[0].item())


def verdict(question: Question) -> str:
    """At which agreements a claim holds, in words; it counts as decided if all confidences agree."""
    if not question.ratios:
        return "not counted"
    if question.settings:
        return f"rises with agreement: {_outcome(question.trends.values())}"
    agreements_by_outcome: dict[str, list[str]] = {}
    for agreement in question.ratios[CALIBRATED]:
        outcome = _outcome(estimates[agreement] for estimates in question.ratios.values())
        agreements_by_outcome.setdefault(outcome, []).append(f"{agreement:g}")
    if len(agreements_by_outcome) == 1:
        return f"{next(iter(agreements_by_outcome))} at every agreement"
    return "; ".join(f"{outcome} at {', '.join(agreements)}" for outcome, agreements in agreements_by_outcome.items())


def _outcome(ratios: Iterable[Estimate]) -> str:
    """Whether a claim holds, by its ratios at all confidences."""
    sides = {side(ratio) for ratio in ratios}
    if sides >= {1, -1}:
        return "undecided, flips with confidence,"
    return {1: "holds", -1: "fails", 0: "undecided"}[sides.pop() if len(sides) == 1 else 0]
