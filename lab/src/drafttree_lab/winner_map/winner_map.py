"""Who wins where: the best policy by agreement of drafter and target, cost of a draft pass and cost of a tree."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.agreement import GradedAgreement
from drafttree_lab.winner_map.cost_grid import GridCosts, cost_grid, tau
from drafttree_lab.winner_map.families import PLAIN, families
from drafttree_lab.winner_map.pairs import PlacedPair, place, published_pairs
from drafttree_lab.winner_map.questions import Answer, answer, questions
from drafttree_lab.winner_map.text_runs import TextRuns

AGREEMENTS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Shares of positions at which the drafter's best token is the target's."""


@dataclass(frozen=True)
class Entrant:
    """A family of policies at a point of the map.

    Attributes:
        setting: its fastest policy.
        speedup: R of that policy.
    """

    setting: str
    speedup: float


@dataclass(frozen=True)
class MapPoint:
    """A point of the map.

    Attributes:
        agreement: of drafter and target.
        costs: of passes.
        entrants: families by name, plain decoding among them.
        auto: R of the policy `auto`; None where it is not counted.
    """

    agreement: float
    costs: GridCosts
    entrants: Mapping[str, Entrant]
    auto: float | None

    @property
    def winner(self) -> str:
        """The fastest family, `auto` left out; the earlier one of equals."""
        return max(self.entrants, key=lambda name: self.entrants[name].speedup)

    @property
    def best(self) -> float:
        """R of the winner."""
        return self.entrants[self.winner].speedup

    @property
    def share(self) -> float | None:
        """R of `auto` over that of the winner."""
        return None if self.auto is None else self.auto / self.best


@dataclass(frozen=True)
class WinnerMap:
    """What is counted so far.

    Attributes:
        grades: drafters, by the agreement that was looked for.
        points: points of the map whose families are all counted.
        pairs: the papers' pairs of models; empty before anything is counted.
        answers: what the papers leave open.
        prompts: number of prompts.
        looping: how many of their texts end in a loop.
        differing: texts that are not the target's own, which rounding may cause where two tokens are as likely.
        length: tokens of a text.
    """

    grades: list[GradedAgreement]
    points: list[MapPoint]
    pairs: list[PlacedPair]
    answers: list[Answer]
    prompts: int
    looping: int
    differing: int
    length: int

    def to_json(self) -> dict[str, object]:
        """Plain data, with the winner of every point."""
        found = asdict(self)
        for point, plain in zip(self.points, found["points"], strict=True):
            plain |= {"winner": point.winner, "best": point.best, "share": point.share}
        return found

    def of_slope(self, slope: float) -> list[MapPoint]:
        """The points of one curve v(n)."""
        return [point for point in self.points if point.costs.slope == slope]


def policies() -> list[str]:
    """Every policy that is counted: those of the families, then those that only questions are about."""
    asked = (side for question in questions() for side in (question.left, question.right))
    return list(dict.fromkeys([*(spec for each in families().values() for spec in each), *asked]))


def count_steps(prompts: int) -> int:
    """Calls of `progress` of a whole run."""
    return len(AGREEMENTS) * (len(policies()) * prompts + len(cost_grid()))


def run_map(runs: TextRuns, progress: Callable[[str], None] = lambda _: None) -> WinnerMap:
    """Count what is not kept yet, and tell who wins where; after an interruption, with what is finished.

    Args:
        runs: runs texts after the chosen prompts.
        progress: called after every text, and after the texts of `auto` at one point.
    """
    with runs.store.interruptible():
        for agreement in AGREEMENTS:
            grade = runs.grade(agreement)
            for policy in policies():
                for prompt in runs.prompts:
                    runs.counts(grade, policy, prompt)
                    progress(f"{agreement:g} {policy.partition(':')[0]}")
            for costs in cost_grid():
                runs.auto_counts(grade, costs)
                progress(f"{agreement:g} auto")
    return summarise(runs)


def summarise(runs: TextRuns) -> WinnerMap:
    """What the kept texts amount to."""
    texts = {each: kept for each in AGREEMENTS if (kept := _kept(runs, each))}
    plain = [own for prompt in runs.prompts if (own := runs.found_plain(prompt))]
    drafted = (kept for by_policy in texts.values() for kept in by_policy.values())
    return WinnerMap(
        grades=[grade for each in AGREEMENTS if (grade := runs.found_grade(each))],
        points=[_point(runs, each, costs, texts[each]) for costs in cost_grid() for each in texts],
        pairs=list(_pairs(runs, texts)) if texts else [],
        answers=[answer(question, texts) for question in questions()],
        prompts=len(runs.prompts),
        looping=sum(each.looping for each in plain),
        differing=sum(each.tokens != own.tokens for kept in drafted for each, own in zip(kept, plain, strict=True)),
        length=runs.length,
    )


def _kept(runs: TextRuns, agreement: float) -> dict[str, list[TextCounts]] | None:
    """The texts of every policy by a drafter; None where some are missing."""
    found = {policy: runs.found(agreement, policy) for policy in policies()}
    whole = {policy: kept for policy, kept in found.items() if kept is not None}
    return whole if len(whole) == len(found) else None


def _point(runs: TextRuns, agreement: float, costs: GridCosts, texts: Mapping[str, Sequence[TextCounts]]) -> MapPoint:
    entrants = {PLAIN: Entrant(PLAIN, 1.0)}
    for name, settings in families().items():
        speedups = {spec: costs.speedup(texts[spec]) for spec in settings}
        best = max(speedups, key=speedups.__getitem__)
        entrants[name] = Entrant(best, speedups[best])
    auto = runs.found_auto(agreement, costs)
    return MapPoint(agreement, costs, entrants, costs.speedup(auto) if auto else None)


def _pairs(runs: TextRuns, texts: Mapping[float, Mapping[str, Sequence[TextCounts]]]) -> Iterator[PlacedPair]:
    """Every pair at the agreement that was reached, which the wanted one may miss by a token."""
    reached = {each: grade.reached for each in texts if (grade := runs.found_grade(each))}
    for pair in published_pairs():
        yield place(pair, {reached[each]: tau(texts[each][pair.policy]) for each in reached})
