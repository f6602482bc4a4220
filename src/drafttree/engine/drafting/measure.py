"""Measures a `CostCurve`, by two seconds of passes and rounds at most, and mends it by the rounds of texts.

What there is no time for, since a pass of a large model takes long, is estimated by the bytes that a pass reads. Of
repeated passes the fastest counts, since what else a machine does lengthens some and not others, and of repeated
rounds the median, which is what rounds of a text take too.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters.base import Drafter, sources_of
from drafttree.engine.drafting.prices import UNKNOWN, CostFile, KeptCosts, Prices
from drafttree.engine.metrics import Round
from drafttree.models import Model, Segment, TreeCache, prefill
from drafttree.models.segment import causal
from drafttree.policies import Auto, Chain, TreePolicy

Rounds = Callable[[Drafter | None, TreePolicy, list[int], int], Iterator[Round]]
SIZES = (1, 8, 64, 4, 16, 2, 32)
"""Nodes of the passes, in the order in which they are measured as long as there is time."""
CONTEXT = 16
"""Tokens before the rounds; few, since large models read them slowly. Passes alone stand behind one."""
TOKENS = 64
"""Tokens of the rounds' text at most."""
READ = 512
"""Tokens that are read before passes are timed behind a long context."""
WIDE = 8
"""Nodes of the frontiers, at most, whose draft passes are measured beside those of a single node."""
LONGEST_WAIT = 2.0
"""Seconds that a text may wait for costs."""
PASS_SECONDS, ROUND_SECONDS, REPEATS = 0.9, 0.25, 12
"""The time for all passes, for the rounds of each policy, and how often each is measured at most."""
FEWEST_ROUNDS = 3
"""Rounds of each policy at least; the first is not counted."""
QUICK_REPEATS, QUICK_SECONDS = 4, 0.3
"""The same for the passes that tell whether costs of an earlier process still hold."""
WRONG_BY = 0.15
"""The share by which costs may be wrong before their file is mended, or they are measured anew."""
FEWEST = 16
"""Rounds of texts that have to be seen before they change anything."""
TRIAL_TEMPERATURE = 0.3
"""Of sampled rounds: low enough that lookup finds drafts in their text, high enough that trees grow wide."""
UNKNOWN_SHARE = 0.25
"""What a draft pass costs in target passes where neither's bytes are known."""


class Trial(NamedTuple):
    """A kind of rounds that are measured.

    Attributes:
        policy: their policy.
        nodes: of their trees, the root included, at most.
        widths: of the frontiers that are drafted from, at most.
    """

    policy: TreePolicy
    nodes: int
    widths: tuple[int, ...]


PLAIN = Trial(Chain(depth=1), 1, ())
CHAIN_OF_1 = Trial(Auto(depth=1, children=1), 2, (1,))
CHAIN_OF_3 = Trial(Auto(depth=3, children=1), 4, (1, 1, 1))
WIDE_LEVELS = Trial(Auto(depth=3, children=WIDE, budget=4 * WIDE), 4 * WIDE, (1, WIDE, WIDE))
TRIALS = (CHAIN_OF_3, PLAIN, CHAIN_OF_1, WIDE_LEVELS)
"""In the order in which they are measured as long as there is time."""
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
        kept_costs = self._file.read()
        if kept_costs is None or not is_current(kept_costs, target):
            kept_costs = self._file.write(measure_costs(target, drafter, rounds))
        self._kept = kept_costs
        self.first = self.curve = kept_costs.costs
        self._prices = Prices(kept_costs.costs)
        self._seen = 0
        self._told = False

    def watch(self, rounds: Sequence[Round]) -> None:
        """Mend the curve by the rounds of a text that has ended; the file, where they show it to be quite wrong."""
        watched_rounds = rounds[1:]  # the first one also reads what the prompt has left
        self._prices.observe_text(watched_rounds)
        self._seen += len(watched_rounds)
        if self._seen < FEWEST:
            return
        self.curve = self._prices.curve()
        if _differ(self._kept.costs, self.curve, watched_rounds):
            self._kept = self._file.write(replace(self._kept, costs=self.curve))
            if not self._told:
                logger.info("the costs were wrong by more than %.0f %%; rounds of texts mend them", 100 * WRONG_BY)
            self._told = True


def _differ(curve: CostCurve, found: CostCurve, rounds: Sequence[Round]) -> bool:
    """Whether two curves compare any of these rounds with plain decoding by numbers that are quite different.

    A machine that has become slower or faster as a whole makes no curve wrong: only ratios of costs decide.
    """
    return any(
        abs(found.round(*shape) / found.plain_round / (curve.round(*shape) / curve.plain_round) - 1) > WRONG_BY
        for shape in {(turn.nodes, turn.widths, turn.source) for turn in rounds}
    )


def measure_costs(target: Model, drafter: Drafter, rounds: Rounds) -> KeptCosts:
    """Measure the costs of a target and a drafter, by passes and rounds behind a short text.

    It takes `LONGEST_WAIT` at most, unless a single pass takes longer. Rounds that there is no time for are left out,
    and `estimate_costs` stands for them.

    Args:
        target: the target whose passes are timed.
        drafter: the drafter whose passes are timed, and those of its models apart if it has several.
        rounds: decodes a prompt with a drafter, or plainly, and a policy, a round at a time; the last
            argument is how many tokens at most. A policy that uses costs is to be given `TRIAL_COSTS`.
    """
    deadline = time.perf_counter() + LONGEST_WAIT
    contexts = [context_limit for context_limit in (target.context, drafter.context) if context_limit is not None]
    room = min(contexts, default=4 * (CONTEXT + max(SIZES)))
    context = max(min(CONTEXT, room // 4), 1)
    sizes = [size for size in SIZES if target.context is None or 1 + size <= target.context]
    pass_costs = Costs.of(_time_or_guess_passes(target, sizes))
    estimate = estimate_costs(target, drafter, pass_costs)
    period = min(max(context // 4, 1), target.vocab_size)
    prompt = [token % period for token in range(context)]  # a text that repeats itself
    trials = _Trials(rounds, prompt, min(TOKENS, room - context), estimate, deadline)
    sources = sources_of(drafter)
    mixed = len(sources) > 1
    trials.runs_left = 1 + (len(TRIALS) - 1) * (len(sources) + mixed)
    plain_rounds: list[Round] = []
    drafter_rounds: dict[Trial, list[Round]] = {}
    by_source: list[dict[Trial, list[Round]]] = [{} for _ in sources]
    for trial in TRIALS:
        if trial is PLAIN:
            plain_rounds = trials.run(None, trial, 0)
            continue
        for source in reversed(range(len(sources))):  # a model's passes are dear, those of lookup cost next to nothing
            by_source[source][trial] = trials.run(sources[source], trial, source)
        drafter_rounds[trial] = trials.run(drafter, trial, len(sources) - 1) if mixed else by_source[0][trial]
    if trials.left_out:
        logger.info(
            "rounds that tell costs would have taken more than %.0f s; until rounds of texts tell them, those of draft "
            "passes are estimated by their bytes",
            LONGEST_WAIT,
        )
    samples = [sample for sample in (plain_rounds, drafter_rounds[CHAIN_OF_3], drafter_rounds[WIDE_LEVELS]) if sample]
    turns = drafter_rounds[CHAIN_OF_3] + drafter_rounds[WIDE_LEVELS]
    plain_overhead = median(turn.outside_seconds for turn in plain_rounds) if plain_rounds else 0.0
    curve = CostCurve(
        target=_behind_drafts(pass_costs, samples),
        draft=tuple(
            _draft_costs(*rounds_and_estimate) for rounds_and_estimate in zip(by_source, estimate.draft, strict=True)
        ),
        overhead=median(turn.outside_seconds - turn.growth_seconds for turn in turns) if turns else plain_overhead,
        plain_overhead=plain_overhead,
    )
    return KeptCosts(curve, pass_costs.at(WIDE) / pass_costs.at(1))


def estimate_costs(target: Model, drafter: Drafter, passes: Costs) -> CostCurve:
    """What is to be expected of draft passes before any was timed: each takes as long as reading its weights.

    Args:
        target: the target.
        drafter: the drafter.
        passes: the costs of the target's passes.
    """

    def draft_costs(source: Drafter) -> DraftCosts:
        share = source.nbytes / target.nbytes if target.nbytes else UNKNOWN_SHARE
        return DraftCosts(share * passes.at(1), Costs.of({size: share * passes.at(size) for size in (1, WIDE)}))

    return CostCurve(passes, tuple(map(draft_costs, sources_of(drafter))), overhead=0.0, plain_overhead=0.0)


def is_current(kept: KeptCosts, target: Model) -> bool:
    """Whether target passes still compare as when the costs were measured, by a few of one node and of several.

    Where even these few would take longer than a text may wait, the costs are taken as they are.
    """
    if target.context is not None and target.context < 1 + WIDE:
        return True
    if sum(map(kept.costs.target.at, (1, 1, WIDE))) > LONGEST_WAIT:
        return True
    seconds = time_passes(target, (1, WIDE), 1, QUICK_REPEATS, QUICK_SECONDS, min)
    return abs(seconds[WIDE] / seconds[1] / kept.alone - 1) <= WRONG_BY


def _time_or_guess_passes(target: Model, sizes: Sequence[int]) -> dict[int, float]:
    """The seconds of target passes by their nodes; of a target that is too slow for more, by a single pass.

    They stand behind one token, since more would have to be read first and change next to nothing.
    """
    one_pass = _time_first_pass(target)
    default_costs = UNKNOWN.target
    if one_pass * (2 + sum(map(default_costs.at, sizes[:2]))) > LONGEST_WAIT:
        return {size: one_pass * default_costs.at(size) for size in sizes}
    return time_passes(target, sizes, 1, REPEATS, PASS_SECONDS, min)


def _behind_drafts(alone: Costs, kinds: Sequence[Sequence[Round]]) -> Costs:
    """Costs of target passes in rounds: one that stands behind draft passes is dearer than one alone.

    Args:
        alone: the costs of passes alone.
        kinds: rounds of several kinds; those nearest in size tell how much dearer a pass is.
    """
    slowdowns = {
        median(turn.nodes for turn in sample): median(turn.target_seconds / alone.at(turn.nodes) for turn in sample)
        for sample in kinds
    } or {1: 1.0}
    return Costs.of(
        {
            size: cost * slowdowns[min(slowdowns, key=lambda nodes: abs(nodes - size))]
            for size, cost in zip(alone.sizes, alone.costs, strict=True)
        }
    )


def _draft_costs(rounds: Mapping[Trial, list[Round]], estimate: DraftCosts) -> DraftCosts:
    """What draft passes cost, growth included, by rounds of one level, of several, and of several wide ones.

    Where one of these kinds is missing, the rounds of the others tell by what the estimate is wrong.
    """
    if not all(rounds.values()):
        factors = [
            turn.drafting_seconds / by_estimate
            for sample in rounds.values()
            for turn in sample
            if turn.widths and (by_estimate := estimate.first + sum(map(estimate.later.at, turn.widths[1:])))
        ]
        factor = median(factors) if factors else 1.0
        level_seconds = {
            size: factor * cost for size, cost in zip(estimate.later.sizes, estimate.later.costs, strict=True)
        }
        return DraftCosts(factor * estimate.first, Costs.of(level_seconds))
    seconds = [turn.drafting_seconds for turn in rounds[CHAIN_OF_1] if turn.widths]
    first_seconds = median(seconds) if seconds else 0.0
    level_seconds = _each(rounds[CHAIN_OF_3], first_seconds, lambda width: 1)
    node = _each(rounds[WIDE_LEVELS], first_seconds, lambda width: width - 1, level_seconds)
    return DraftCosts(first_seconds, Costs.of({1: level_seconds, WIDE: level_seconds + (WIDE - 1) * node}))


def _each(rounds: list[Round], first: float, count: Callable[[int], int], level: float = 0.0) -> float:
    """Seconds that each of something adds to levels behind the first one; 0 where there was none.

    Args:
        rounds: rounds that were timed.
        first: seconds of the first level.
        count: how many a level has, by its width.
        level: seconds of a level without any.
    """
    increments = [
        (turn.drafting_seconds - first - level * len(turn.widths[1:])) / divisor
        for turn in rounds
        if (divisor := sum(map(count, turn.widths[1:])))
    ]
    return max(median(increments), 0.0) if increments else 0.0


class _Trials:
    """Rounds of a short text, as many as there is time for.

    Args:
        rounds: decodes the text.
        prompt: what it begins with.
        length: tokens behind it at most.
        estimate: what rounds are expected to cost.
        deadline: when all of them are to have ended.

    Attributes:
        runs_left: runs that are still to come, which share the time that is left.
        left_out: runs that there was no time for.
    """

    def __init__(self, rounds: Rounds, prompt: list[int], length: int, estimate: CostCurve, deadline: float) -> None:
        self._rounds = rounds
        self._prompt = prompt
        self._length = length
        self._estimate = estimate
        self._deadline = deadline
        self.runs_left = 1
        self.left_out = 0

    def run(self, drafter: Drafter | None, trial: Trial, source: int) -> list[Round]:
        """Rounds of one kind without the first, in which drafters read what the prompt has left; perhaps none."""
        start = time.perf_counter()
        estimate = self._estimate
        prompt_length = len(self._prompt)
        time_left = (self._deadline - start) / self.runs_left
        self.runs_left -= 1
        reading_seconds = estimate.target.at(prompt_length) + (
            estimate.draft_of(source).later.at(prompt_length) if drafter else 0.0
        )
        if start + reading_seconds + FEWEST_ROUNDS * estimate.round(trial.nodes, trial.widths, source) > self._deadline:
            self.left_out += 1
            return []
        end = start + min(ROUND_SECONDS, time_left)
        turns = []
        for turn in islice(self._rounds(drafter, trial.policy, self._prompt, self._length), REPEATS + 1):
            turns.append(turn)
            if time.perf_counter() > end and len(turns) >= FEWEST_ROUNDS:
                break
        return turns[1:] or turns


def _time_first_pass(model: Model) -> float:
    """Seconds of a pass over one node of an empty text."""
    with torch.inference_mode():
        return _time_pass(model, model.new_cache(1), 1, 0)


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
        context: tokens before them. At most `READ` are read, and the rows of the others are copies of theirs: what a
            pass costs depends on how many rows there are, not on what they hold.
        repeats: repeats of each size.
        seconds: leave out passes that are expected to end later than this, but measure the first two sizes at least;
            None for no limit. What was run only once counts with that run.
        typical: chooses among the seconds of one size; their minimum is the same on a machine that does other work
            beside.
    """
    cache = model.new_cache(context + max(sizes))
    _fill(model, cache, context)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    end = time.perf_counter() + (seconds or float("inf"))
    for _ in range(1 + repeats):
        for size in sizes:
            if all(times[early_size] for early_size in sizes[:2]):
                pass_costs = Costs.of({size: min(pass_seconds) for size, pass_seconds in times.items() if pass_seconds})
                if time.perf_counter() + pass_costs.at(size) > end:
                    continue
            times[size].append(_time_pass(model, cache, size, context))
    return {size: typical(pass_seconds[1:] or pass_seconds) for size, pass_seconds in times.items() if pass_seconds}


def _fill(model: Model, cache: TreeCache, context: int) -> None:
    """Commit so many rows to an empty cache."""
    prefill_length = min(context, READ) if cache.windowed is None else context
    prefill(model, cache, [0] * prefill_length)
    while cache.length < context:
        count = min(prefill_length, context - cache.length)
        for buffer in cache.buffers:
            buffer[..., cache.length : cache.length + count, :] = buffer[..., :count, :]
        cache.length += count


def _time_pass(model: Model, cache, size: int, context: int) -> float:
    # different ones, since experts are chosen by them
    tokens = np.arange(size) % model.vocab_size
    segment = Segment(cache, tokens, np.arange(context, context + size), causal(size))
    pass_seconds = time_work(lambda: model.forward([segment]), model.device)
    cache.commit([])
    return pass_seconds


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, until its device has finished."""
    wait_for(device)
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
