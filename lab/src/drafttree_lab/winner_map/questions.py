"""What the papers leave open, asked at their own costs for drafters of every agreement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drafttree_lab.replay.jackknife import Jackknife
from drafttree_lab.replay.pass_costs import PassCosts
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.families import canonical, published_policy
from drafttree_lab.winner_map.pairs import published_costs

TARGETS, ROBUST = (0.4, 0.7), (0, 2, 3)
"""a* of DynaTree, of which the paper gives no value, and the k of TALON beside the paper's own choice."""
GROUP = "texts"
"""The one group of texts that are left out in turn."""
Texts = Mapping[float, Mapping[str, Sequence[TextCounts]]]
"""The counts of all texts by agreement and policy, in one order of prompts."""


@dataclass(frozen=True)
class Question:
    """Whether one policy is faster than another.

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
    """All questions."""
    dynatree, talon = published_costs("dynatree-v2", "DynaTree"), published_costs("talon", "TALON")
    history, none = (published_policy("dynatree-v2", name) for name in ("DynaTree", "DynaTree without history"))
    fixed = published_policy("dynatree-v2", "Fixed Tree")
    robust, eagle = (published_policy("talon", name) for name in ("TALON", "EAGLE-3"))
    found = [
        Question(f"DynaTree with its history, a* = {share}, over without", _with(history, share), none, dynatree)
        for share in TARGETS
    ]
    found.append(Question("DynaTree over the fixed tree", history, fixed, dynatree))
    for levels in ROBUST:
        other = published_policy("talon", f"TALON k={levels}")
        found.append(Question(f"TALON with k = 1 over k = {levels}", robust, other, talon))
    return [*found, Question("TALON over EAGLE-3's tree", robust, eagle, talon)]


def _with(dynatree: str, target: float) -> str:
    return canonical(f"{dynatree},target={target}")


def answer(question: Question, texts: Texts) -> Answer:
    """Judge a question at every agreement, by the same prompts for both policies."""
    ratios = [_ratio(question, each, texts[each]) for each in sorted(texts)]
    return Answer(question.text, question.costs.draft, ratios, verdict(ratios))


def _ratio(question: Question, agreement: float, texts: Mapping[str, Sequence[TextCounts]]) -> Ratio:
    sides = [
        [question.costs.fraction("tokens_per_second", each) for each in texts[side]]
        for side in (question.left, question.right)
    ]
    jackknife = Jackknife({GROUP: len(sides[0])})
    left, right = (jackknife.mean([(GROUP, side)]) for side in sides)
    found = jackknife.estimate(left / right)
    return Ratio(agreement, found.value, found.low, found.high)


def verdict(ratios: Sequence[Ratio]) -> str:
    """Where a ratio lies above 1, in words, with how many agreements the intervals decide."""
    if not ratios:
        return "not counted"
    holds = {each.agreement: each.estimate > 1 for each in ratios}
    decided = sum(each.is_decided for each in ratios)
    return f"{_where(holds, ratios)} ({decided} of {len(ratios)} decided)"


def _where(holds: Mapping[float, bool], ratios: Sequence[Ratio]) -> str:
    values = [*holds.values()]
    if all(values) or not any(values):
        return "holds at every agreement" if values[0] else "holds at no agreement"
    changes = [place for place in range(1, len(values)) if values[place] != values[place - 1]]
    if len(changes) > 1:
        return f"holds at {', '.join(f'{each:g}' for each, held in holds.items() if held)}"
    below, above = ratios[changes[0] - 1], ratios[changes[0]]
    share = (1 - below.estimate) / (above.estimate - below.estimate)
    crossing = below.agreement + share * (above.agreement - below.agreement)
    return f"holds {'above' if values[-1] else 'below'} agreement {crossing:.2f}"
