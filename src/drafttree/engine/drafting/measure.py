"""Measures a `CostCurve`, by a second or two of passes and rounds, and mends it by the rounds of texts.

Of repeated passes the fastest counts, since what else a machine does lengthens some and not others, and of repeated
rounds the median, which is what rounds of a text take too.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median

import torch

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters.base import Drafter, sources_of
from drafttree.engine.drafting.prices import CostFile, KeptCosts, Prices
from drafttree.engine.metrics import Round
from drafttree.models import Model, Segment, prefill
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
"""The share by which costs may be wrong before their file is mended, or they are measured anew."""
FEWEST = 16
"""Rounds of texts that have to be seen before they change anything."""
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
logger = logging.getLogger("drafttree")


class MeasuredCosts:
    """The costs of greedy rounds, or of sampled ones, of texts that are written alone.

    Args:
        target: as for `measure_costs`, which runs where no costs are kept on disk that still hold.
        drafter: as for `measure_costs`.
        rounds: as for `measure_costs`.
        greedy: whether the rounds are; costs of the others are kept apart.

    Attributes:
        first: the curve as measured.
        curve: the same, as the rounds of texts have mended it since.
    """

    def __init__(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> None:
        self._file = CostFile(target, drafter, greedy=greedy)
        kept = self._file.read()
        if kept is None or not is_current(kept, target):
            kept = self._file.write(measure_costs(target, drafter, rounds))
        self._kept = kept
        self.first = self.curve = kept.costs
        self._prices, self._seen = Prices(kept.costs), 0

    def watch(self, rounds: Sequence[Round]) -> None:
        """Mend the curve by the rounds of a text that has ended; the file, where they show it to be quite wrong."""
        watched = rounds[1:]  # the first one also reads what the prompt has left
        self._prices.observe_text(watched)
        self._seen += len(watched)
        if self._seen < FEWEST:
            return
        self.curve = self._prices.curve()
        if _differ(self._kept.costs, self.curve, watched):
            logger.info("the measured costs were wrong by more than %.0f %%; they are corrected", 100 * WRONG_BY)
            self._kept = self._file.write(replace(self._kept, costs=self.curve))


def _differ(curve: CostCurve, found: CostCurve, rounds: Sequence[Round]) -> bool:
    """Whether two curves compare any of these rounds with plain decoding by numbers that are quite different.

    A machine that has become slower or faster as a whole makes no curve wrong: only ratios of costs decide.
    """
    return any(
        abs(found.round(*shape) / found.plain_round / (curve.round(*shape) / curve.plain_round) - 1) > WRONG_BY
        for shape in {(each.nodes, each.widths, each.source) for each in rounds}
    )


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
    run = partial(_run, rounds, prompt, min(TOKENS, room - context))
    plain, kinds = run(None, PLAIN_ROUNDS), (CHAIN_OF_1, CHAIN_OF_3, WIDE_LEVELS)
    whole = [run(drafter, policy) for policy in kinds]
    _, levels, wide = whole
    models = sources_of(drafter)
    drafts = [whole] if len(models) == 1 else [[run(model, policy) for policy in kinds] for model in models]
    # A pass that stands behind draft passes is dearer than one alone, as much as in the rounds nearest to it in size.
    alone = Costs.of(passes)
    dearer = {
        median(each.nodes for each in kind): median(each.target_seconds / alone.at(each.nodes) for each in kind)
        for kind in (plain, levels, wide)
    }
    curve = CostCurve(
        target=Costs.of(
            {size: cost * dearer[min(dearer, key=lambda nodes: abs(nodes - size))] for size, cost in passes.items()}
        ),
        draft=tuple(_draft_costs(*each) for each in drafts),
        overhead=median(each.outside_seconds - each.growth_seconds for each in levels + wide),
        plain_overhead=median(each.outside_seconds for each in plain),
    )
    return KeptCosts(curve, alone.at(WIDE) / alone.at(1))


def is_current(kept: KeptCosts, target: Model) -> bool:
    """Whether target passes still compare as when the costs were measured, by a few of one node and of several."""
    context = max(min(CONTEXT, (target.context or 4 * CONTEXT) // 4), 1)
    if target.context is not None and context + WIDE > target.context:
        return True
    found = time_passes(target, (1, WIDE), context, QUICK_REPEATS, QUICK_SECONDS, min)
    return abs(found[WIDE] / found[1] / kept.alone - 1) <= WRONG_BY


def _draft_costs(level: list[Round], levels: list[Round], wide: list[Round]) -> DraftCosts:
    """What draft passes cost, growth included, by rounds of one level, of several, and of several wide ones."""
    seconds = [each.drafting_seconds for each in level if each.widths]
    first = median(seconds) if seconds else 0.0
    later = _each(levels, first, lambda width: 1)
    node = _each(wide, first, lambda width: width - 1, later)
    return DraftCosts(first, Costs.of({1: later, WIDE: later + (WIDE - 1) * node}))


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


@torch.inference_mode()
def time_passes(
    model: Model,
    sizes: Sequence[int],
    context: int,
    repeats: int,
    seconds: float | None = None,
    typical: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[int, float]:
    """Typical seconds of target passes over chains of these sizes, interleaved, after one of each to warm up.

    Args:
        model: the target.
        sizes: nodes of the passes.
        context: tokens before them.
        repeats: repeats of each size.
        seconds: stop when so much time has passed, but measure the first two sizes at least; None for no limit. What
            was run only once counts with that run.
        typical: chooses among the seconds of one size; their minimum is the same on a machine that does other work
            beside.
    """
    cache = model.new_cache(context + max(sizes))
    prefill(model, cache, [0] * context)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    end = time.perf_counter() + (seconds or float("inf"))
    for _ in range(1 + repeats):
        for size in sizes:
            if time.perf_counter() > end and all(times[first] for first in sizes[:2]):
                break
            times[size].append(_time_pass(model, cache, size, context))
    return {size: typical(spent[1:] or spent) for size, spent in times.items() if spent}


def _time_pass(model: Model, cache, size: int, context: int) -> float:
    tokens = torch.zeros(1, size, dtype=torch.long, device=model.device)
    positions = torch.arange(context, context + size, device=model.device)[None]
    visible = torch.ones(1, size, size, dtype=torch.bool, device=model.device).tril()
    segment = Segment(cache, tokens, positions, visible)
    spent = time_work(lambda: model.forward([segment]), model.device)
    cache.commit([])
    return spent


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, until its device has finished."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
