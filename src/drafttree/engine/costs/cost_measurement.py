"""Measures a `CostCurve`, by a second or two of passes and rounds.

Of repeated passes the fastest counts, since what else a machine does lengthens some and not others, and of repeated
rounds the median, which is what rounds of a text take too.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters.base import Drafter, sources_of
from drafttree.engine.costs.cost_file import KeptCosts
from drafttree.engine.costs.pass_times import time_passes
from drafttree.engine.metrics import Round
from drafttree.models import Model
from drafttree.policies import Auto, Chain, TreePolicy

Rounds = Callable[[Drafter | None, TreePolicy, list[int], int], Iterator[Round]]
SIZES = (1, 4, 16, 64, 2, 8, 32)
"""Nodes of the passes, in the order in which they are measured as long as there is time."""
CONTEXT = 64
"""Tokens before the passes and rounds."""
TOKENS = 64
"""Tokens of the rounds' text at most."""
WIDE = 8
"""Nodes of the frontiers, at most, whose draft passes are measured beside those of a single node."""
PASS_SECONDS, ROUND_SECONDS, REPEATS = 0.9, 0.25, 12
"""The time for all passes, for the rounds of each policy, and how often each is measured at most."""
QUICK_REPEATS, QUICK_SECONDS = 4, 0.3
"""The same for the passes that tell whether costs of an earlier process still hold."""
WRONG_BY = 0.15
"""The share by which costs may be wrong before they are mended or measured anew."""
TRIAL_TEMPERATURE = 0.3
"""Of sampled rounds: low enough that lookup finds drafts in their text, high enough that trees grow wide."""
PLAIN_ROUNDS, CHAIN_OF_1, CHAIN_OF_3 = Chain(depth=1), Auto(depth=1, children=1), Auto(depth=3, children=1)
WIDE_LEVELS = Auto(depth=3, children=WIDE, budget=4 * WIDE)
TRIAL_COSTS = CostCurve(
    target=Costs((1,), (1.0,)),
    draft=(DraftCosts(0.0, Costs.of({1: 1e-9, WIDE: 1e-9, WIDE + 1: 1e9})),),
    overhead=0.0,
    plain_overhead=0.0,
)
"""Costs by which `auto` drafts as deep and wide as it may; the rounds that are measured are its own."""


def measure_costs(target: Model, drafter: Drafter, rounds: Rounds) -> KeptCosts:
    """Measure the costs of a target and a drafter, by passes and rounds behind a short text.

    Args:
        target: the target whose passes are timed.
        drafter: the drafter whose passes are timed, and those of its models apart if it has several.
        rounds: decodes a prompt with a drafter, or plainly, and a policy, a round at a time; the last
            argument is how many tokens at most. A policy that uses costs is to be given `TRIAL_COSTS`.
    """
    contexts = [each for each in (target.context, drafter.context) if each is not None]
    room = min(contexts, default=4 * (CONTEXT + max(SIZES)))
    context = max(min(CONTEXT, room // 4), 1)
    sizes = [size for size in SIZES if target.context is None or context + size <= target.context]
    passes = time_passes(target, sizes, context, REPEATS, PASS_SECONDS, min)
    period = min(max(context // 4, 1), target.vocab_size)
    prompt = [token % period for token in range(context)]  # a text that repeats itself
    models = sources_of(drafter)
    length = min(TOKENS, room - context)
    run = partial(_run, rounds, prompt, length)
    alone, plain, whole = Costs.of(passes), run(None, PLAIN_ROUNDS), _Drafting.of(run, drafter)
    single = len(models) == 1
    costs = CostCurve(
        target=Costs.of(_in_rounds(passes, alone, plain, whole.levels, whole.wide)),
        draft=tuple((whole if single else _Drafting.of(run, model)).costs for model in models),
        overhead=median(each.outside_seconds - each.growth_seconds for each in whole.levels + whole.wide),
        plain_overhead=median(each.outside_seconds for each in plain),
    )
    return KeptCosts(costs, alone.at(WIDE) / alone.at(1))


def _in_rounds(passes: Mapping[int, float], alone: Costs, *kinds: Sequence[Round]) -> dict[int, float]:
    """What target passes cost where they stand, behind draft passes or other work.

    Args:
        passes: what they cost alone, by nodes.
        alone: the same.
        kinds: rounds of several kinds; each pass is as much dearer as in those with trees nearest to it in size.
    """
    dearer = {
        median(each.nodes for each in rounds): median(each.target_seconds / alone.at(each.nodes) for each in rounds)
        for rounds in kinds
    }
    return {size: cost * dearer[min(dearer, key=lambda nodes: abs(nodes - size))] for size, cost in passes.items()}


def is_current(kept: KeptCosts, target: Model) -> bool:
    """Whether target passes still compare as when the costs were measured, by a few of one node and of several."""
    context = max(min(CONTEXT, (target.context or 4 * CONTEXT) // 4), 1)
    if target.context is not None and context + WIDE > target.context:
        return True
    found = time_passes(target, (1, WIDE), context, QUICK_REPEATS, QUICK_SECONDS, min)
    return abs(found[WIDE] / found[1] / kept.alone - 1) <= WRONG_BY


@dataclass(frozen=True)
class _Drafting:
    """Rounds in which a drafter drafts one level of one node, several of one node, and several of several nodes."""

    level: list[Round]
    levels: list[Round]
    wide: list[Round]

    @classmethod
    def of(cls, run: Callable[[Drafter, TreePolicy], list[Round]], drafter: Drafter) -> "_Drafting":
        return cls(*(run(drafter, policy) for policy in (CHAIN_OF_1, CHAIN_OF_3, WIDE_LEVELS)))

    @property
    def costs(self) -> DraftCosts:
        """What the draft passes cost, growth included."""
        found = [each.drafting_seconds for each in self.level if each.widths]
        first = median(found) if found else 0.0
        level = _each(self.levels, first, lambda width: 1)
        node = _each(self.wide, first, lambda width: width - 1, level)
        return DraftCosts(first, Costs.of({1: level, WIDE: level + (WIDE - 1) * node}))


def _each(rounds: list[Round], first: float, count: Callable[[int], int], level: float = 0.0) -> float:
    """Seconds that each of something adds to levels behind the first one; 0 where there was none.

    Args:
        rounds: rounds that were timed.
        first: seconds of the first level.
        count: how many a level has, by its width.
        level: seconds of a level without any.
    """
    found = [
        (each.drafting_seconds - first - level * len(each.widths[1:])) / counted
        for each in rounds
        if (counted := sum(map(count, each.widths[1:])))
    ]
    return max(median(found), 0.0) if found else 0.0


def _run(rounds: Rounds, prompt: list[int], length: int, drafter: Drafter | None, policy: TreePolicy) -> list[Round]:
    """Some rounds, without the first, in which drafters read what a prompt has left."""
    end, done = time.perf_counter() + ROUND_SECONDS, []
    for turn in islice(rounds(drafter, policy, prompt, length), REPEATS + 1):
        done.append(turn)
        if time.perf_counter() > end and len(done) > 2:
            break
    return done[1:] or done
