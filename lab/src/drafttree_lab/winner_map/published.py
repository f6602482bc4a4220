"""What the map takes from the papers: families of policies, pairs of models, and what the papers leave open."""

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
"""Plain decoding, whose R is 1, and the policy that weighs the costs themselves."""
TWO_CORES = 0.07
"""Cost of a node of a target pass beyond the first, on two CPU cores."""
Texts = Mapping[float, Mapping[str, Mapping[str, Sequence[TextCounts]]]]
"""The counts of all texts by agreement, confidence and policy, in one order of prompts."""


@functools.cache
def canonical(spec: str) -> str:
    """A specification as the results are kept by it."""
    return policy_spec(make_policy(spec))


def published_policy(paper: str, method: str, prompt_set: str = "", value: AxisValue | None = None) -> str:
    """The specification of a paper's method, on a set of prompts if one is named, at a value of its figure's axis."""
    return canonical(read_paper(paper).methods[method].policy_at(prompt_set, value))


def method_costs(paper: str, method: str, model: str | None = None) -> PassCosts:
    """The costs of a method's passes, on a target of the paper or on its first one."""
    publication = read_paper(paper)
    costs = published_costs(
        publication.models[model or next(iter(publication.models))], publication.methods[method].role
    )
    assert costs
    return costs


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
class Pair:
    """A target and its drafter by what a paper prints of one policy, and their place on the map.

    Attributes:
        name: target, and set of prompts where the paper has more than one.
        policy: specification of the policy, with which the drafter is placed.
        tau: published tokens per round.
        draft_cost: c.
        sampled: whether the numbers are of temperature 1.
        agreement: agreement at which the graded drafter commits as many tokens per round with the same policy.
        beyond: "below" or "above" where its tokens per round lie outside those of the graded drafters, whose end the
            agreement then is; empty otherwise.
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
    """All pairs: of TALON by EAGLE-3's row, of DynaTree by the linear row, of Traversal Verification by the chain's."""
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
    """The published tokens per round of a method by column."""
    blocks = (block for block in result.published if block.metric == "tau" and block.model == model)
    row, columns = next((block.rows[method], block.columns) for block in blocks if method in block.rows)
    return dict(zip(map(str, columns), row, strict=True))


def place(pair: Pair, lengths: Mapping[float, float]) -> Pair:
    """Place a pair where a drafter commits its tokens per round, between two agreements in proportion.

    Args:
        pair: what is published.
        lengths: tokens per round of the pair's policy by agreement of the graded drafter.
    """
    points = sorted((length, agreement) for agreement, length in lengths.items())
    for (low, low_agreement), (high, high_agreement) in pairwise(points):
        if low <= pair.tau <= high:
            share = (pair.tau - low) / (high - low) if high > low else 0.0
            return replace(pair, agreement=low_agreement + share * (high_agreement - low_agreement))
    agreement, direction = (points[0][1], "below") if pair.tau < points[0][0] else (points[-1][1], "above")
    return replace(pair, agreement=agreement, beyond=direction)


@dataclass(frozen=True)
class Question:
    """Whether one policy is faster than another, and what was counted for it.

    Attributes:
        text: both policies in words.
        settings: policies by the value of a parameter, from that of `right` to that of `left`, where it is asked
            whether the best value rises with agreement; then R of `left` over R of `right` rises.
        ratios: R of `left` over R of `right` by confidence and agreement.
        trends: the ratio at the highest agreement over that at the lowest, by confidence; empty without `settings`.
        best: the fastest of `settings` by confidence and agreement.
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

    DynaTree gives no value of a*, its `target`; TALON's k, the robust levels, stands beside its own choice of 1.
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
"""Drafts and trees cost nothing: R is tau, the tokens per round."""


def speedups(costs: PassCosts, texts: Sequence[TextCounts]) -> Tensor:
    """R over all texts, then without each of them: float64 `[1 + texts]`."""
    fractions = [costs.fraction("tokens_per_second", counts) for counts in texts]
    return Jackknife({"texts": len(texts)}).mean([("texts", fractions)])


def estimate(ratios: Tensor) -> Estimate:
    """A ratio of what `speedups` gives for the same prompts, with its interval over them."""
    return Jackknife({"texts": len(ratios) - 1}).estimate(ratios)


def side(ratio: Estimate) -> int:
    """On which side of 1 the whole interval of a ratio lies: 1, -1, or 0 where it includes 1 or there is none."""
    return 0 if ratio.p > LEVEL else (ratio.value > 1) - (ratio.value < 1)


def answer(question: Question, texts: Texts) -> Question:
    """A question with what was counted, by the same prompts for both policies."""
    ratios = {}
    trends = {}
    best_settings = {}
    for confidence in CONFIDENCES if texts else ():
        texts_by_agreement = {agreement: texts[agreement][confidence] for agreement in sorted(texts)}
        replicates = {
            agreement: _ratios(question, policy_texts) for agreement, policy_texts in texts_by_agreement.items()
        }
        ratios[confidence] = {agreement: estimate(ratio) for agreement, ratio in replicates.items()}
        if question.settings:
            trends[confidence] = estimate(replicates[max(texts)] / replicates[min(texts)])
            best_settings[confidence] = {
                agreement: _best_setting(question, policy_texts)
                for agreement, policy_texts in texts_by_agreement.items()
            }
    answered = replace(question, ratios=ratios, trends=trends, best=best_settings)
    return replace(answered, verdict=verdict(answered))


def _ratios(question: Question, texts: Mapping[str, Sequence[TextCounts]]) -> Tensor:
    """R of the left policy over that of the right one, as `speedups` gives them."""
    return speedups(question.costs, texts[question.left]) / speedups(question.costs, texts[question.right])


def _best_setting(question: Question, texts: Mapping[str, Sequence[TextCounts]]) -> str:
    return max(question.settings, key=lambda name: speedups(question.costs, texts[question.settings[name]])[0].item())


def verdict(question: Question) -> str:
    """Where a claim holds, in words: where all confidences agree."""
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
