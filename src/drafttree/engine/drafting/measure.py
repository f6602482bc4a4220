"""Measures a `CostCurve` by passes and rounds of at most two seconds, and corrects it by the rounds of texts.

Passes of a large model may take too long for that; what was not measured is estimated from the bytes that a pass reads.
The fastest of repeated passes counts, since other work on the machine slows down some of them. Of repeated rounds the
median counts, since that is what rounds of a text take too.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, starmap
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters.base import Drafter, sources_of
from drafttree.engine.drafting.prices import UNKNOWN, CostFile, KeptCosts, Prices
from drafttree.engine.metrics import TextRound
from drafttree.models import Model, Segment, TreeCache
from drafttree.models.base import prefill
from drafttree.models.segment import causal
from drafttree.policies import Auto, Chain, TreePolicy

Rounds = Callable[[Drafter | None, TreePolicy, list[int], int], Iterator[TextRound]]
SIZES = (1, 8, 64, 4, 16, 2, 32)
"""Numbers of nodes of the passes to measure, in this order while there is time."""
CONTEXT = 16
"""Tokens of the prompt of trials; few, since large models read slowly. Passes that are timed alone follow one token."""
TOKENS = 64
"""The most tokens that a trial generates."""
READ = 512
"""To time passes after a long context, at most this many of its tokens are read."""
WIDE = 8
"""Draft passes are measured over frontiers of one node and of this many nodes."""
LONGEST_WAIT = 2.0
"""Seconds that a text may wait for costs."""
PASS_SECONDS, ROUND_SECONDS, REPEATS = 0.9, 0.25, 12
"""Seconds for all passes, seconds for each trial, and the most repeats of a pass or a round."""
FEWEST_ROUNDS = 3
"""The fewest rounds of a trial; the first does not count."""
QUICK_REPEATS, QUICK_SECONDS = 4, 0.3
"""Repeats and seconds of the passes that check whether the costs of an earlier process still hold."""
WRONG_BY = 0.15
"""Relative error from which costs are corrected in their file, or measured anew."""
FEWEST = 16
"""Rounds of texts before these change the costs."""
TRIAL_TEMPERATURE = 0.3
"""Temperature of sampled trials: low enough that lookup finds drafts, high enough that trees grow wide."""
UNKNOWN_SHARE = 0.25
"""Cost of a draft pass relative to a target pass, if the target's bytes are not known."""


class Trial(NamedTuple):
    """A kind of rounds to measure.

    Attributes:
        policy: the policy of its trees.
        nodes: the most nodes of a tree, the root included.
        widths: per level, the largest width of the frontier that is drafted from.
    """

    policy: TreePolicy
    nodes: int
    widths: tuple[int, ...]


PLAIN = Trial(Chain(depth=1), 1, ())
CHAIN_OF_1 = Trial(Auto(depth=1, children=1), 2, (1,))
CHAIN_OF_3 = Trial(Auto(depth=3, children=1), 4, (1, 1, 1))
WIDE_LEVELS = Trial(Auto(depth=3, children=WIDE, budget=4 * WIDE), 4 * WIDE, (1, WIDE, WIDE))
TRIALS = (CHAIN_OF_3, PLAIN, CHAIN_OF_1, WIDE_LEVELS)
"""All trials, in the order in which they run while there is time."""
TRIAL_COSTS = CostCurve(
    target=Costs((1,), (1.0,)),
    draft=(DraftCosts(0.0, Costs.of({1: 1e-9, WIDE: 1e-9, WIDE + 1: 1e9})),),
    overhead=0.0,
    plain_overhead=0.0,
)
"""Costs with which `auto` drafts as deep and as wide as it may. The trials use them."""
logger = logging.getLogger("drafttree")


class MeasuredCosts:
    """The costs of greedy or of sampled rounds of texts that are written alone.

    They are read from disk, or measured if the file is missing or no longer right.

    Args:
        target: as for `measure_costs`.
        drafter: as for `measure_costs`.
        rounds: as for `measure_costs`.
        greedy: whether the rounds are greedy.

    Attributes:
        first: the cost curve as it was read or measured.
        curve: the same curve, corrected by the rounds of texts since then.
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

    def watch(self, rounds: Sequence[TextRound]) -> None:
        """Correct the curve by the rounds of an ended text; if the file is wrong by `WRONG_BY`, correct it too."""
        watched_rounds = rounds[1:]  # the first round also reads the rest of the prompt
        self._prices.observe_text(watched_rounds)
        self._seen += len(watched_rounds)
        if self._seen < FEWEST:
            return
        self.curve = self._prices.curve()
        if _differ(self._kept.costs, self.curve, watched_rounds):
            self._kept = self._file.write(replace(self._kept, costs=self.curve))
            if not self._told:
                logger.info(
                    "the measured costs were wrong by more than %.0f %%; they are now corrected with the times of "
                    "later rounds",
                    100 * WRONG_BY,
                )
            self._told = True


def _differ(old_curve: CostCurve, new_curve: CostCurve, rounds: Sequence[TextRound]) -> bool:
    """Whether two curves differ by `WRONG_BY` in the cost of any of these rounds, relative to a plain round.

    Only ratios of costs matter, so a curve stays right if the whole machine becomes slower or faster.
    """
    shapes = {(text_round.nodes, text_round.widths, text_round.source) for text_round in rounds}
    return any(
        abs(new_curve.round(*shape) / new_curve.plain_round / (old_curve.round(*shape) / old_curve.plain_round) - 1)
        > WRONG_BY
        for shape in shapes
    )


def measure_costs(target: Model, drafter: Drafter, rounds: Rounds) -> KeptCosts:
    """Measure the costs of a target and a drafter, by passes and rounds after a short text.

    This takes at most `LONGEST_WAIT` seconds, unless a single pass takes longer. If there is no time for a trial, its
    costs come from `estimate_costs`.

    Args:
        target: the target whose passes are timed.
        drafter: the drafter whose passes are timed; if it has several models, each of them too.
        rounds: called with a drafter (None for plain decoding), a policy, a prompt and the most tokens to generate, it
            yields a `TextRound` at a time. It must give `TRIAL_COSTS` to a policy that uses costs.
    """
    deadline = time.perf_counter() + LONGEST_WAIT
    prompt, max_tokens = _trial_text(target, drafter)
    sizes = [size for size in SIZES if target.context is None or 1 + size <= target.context]
    pass_costs = Costs.of(_time_or_guess_passes(target, sizes))
    estimate = estimate_costs(target, drafter, pass_costs)
    trials = _Trials(rounds, prompt, max_tokens, estimate, deadline)
    trial_rounds = trials.run_all(drafter)
    if trials.left_out:
        logger.info(
            "measuring the costs of draft passes would have taken more than %.0f s; they are estimated from "
            "the size of the weights until rounds of generated texts have been timed",
            LONGEST_WAIT,
        )
    return KeptCosts(_curve_of(trial_rounds, pass_costs, estimate), pass_costs.at(WIDE) / pass_costs.at(1))


def _trial_text(target: Model, drafter: Drafter) -> tuple[list[int], int]:
    """A repetitive prompt, and the most tokens to generate after it, within the contexts of both models."""
    contexts = [context_limit for context_limit in (target.context, drafter.context) if context_limit is not None]
    room = min(contexts, default=4 * (CONTEXT + max(SIZES)))
    context = max(min(CONTEXT, room // 4), 1)
    period = min(max(context // 4, 1), target.vocab_size)
    prompt = [token % period for token in range(context)]
    return prompt, min(TOKENS, room - context)


def estimate_costs(target: Model, drafter: Drafter, passes: Costs) -> CostCurve:
    """Estimate costs before any draft pass was timed: a pass takes as long as reading the model's weights.

    Args:
        target: the target.
        drafter: the drafter.
        passes: the costs of the target's passes.
    """

    def draft_costs(source: Drafter) -> DraftCosts:
        share = source.nbytes / target.nbytes if target.nbytes else UNKNOWN_SHARE
        return DraftCosts(share * passes.at(1), Costs.of({size: share * passes.at(size) for size in (1, WIDE)}))

    return CostCurve(passes, tuple(map(draft_costs, sources_of(drafter))), overhead=0.0, plain_overhead=0.0)


def is_current(kept_costs: KeptCosts, target: Model) -> bool:
    """Check by a few target passes whether wide passes still cost as much relative to those of one node.

    Costs count as current if the context is too short for these passes, or if they would take longer than a text may
    wait.
    """
    if target.context is not None and target.context < 1 + WIDE:
        return True
    if sum(map(kept_costs.costs.target.at, (1, 1, WIDE))) > LONGEST_WAIT:
        return True
    seconds = time_passes(target, (1, WIDE), 1, QUICK_REPEATS, QUICK_SECONDS, min)
    return abs(seconds[WIDE] / seconds[1] / kept_costs.alone - 1) <= WRONG_BY


def _time_or_guess_passes(target: Model, sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of target passes by number of nodes; if the target is too slow, guessed from a single pass.

    The passes follow one token. More tokens would have to be read first, and would hardly change the times.
    """
    one_pass = _time_first_pass(target)
    default_costs = UNKNOWN.target
    if one_pass * (2 + sum(map(default_costs.at, sizes[:2]))) > LONGEST_WAIT:
        return {size: one_pass * default_costs.at(size) for size in sizes}
    return time_passes(target, sizes, 1, REPEATS, PASS_SECONDS, min)


def _costs_in_rounds(costs_alone: Costs, samples: Sequence[Sequence[TextRound]]) -> Costs:
    """The costs of target passes in rounds. After draft passes, a target pass is slower than alone.

    Args:
        costs_alone: the costs of passes that were timed alone.
        samples: the rounds of each trial. For each size, the trial nearest in size shows how much slower a pass is.
    """
    if not samples:
        return costs_alone
    slowdowns = dict[float, float]()
    for sample in samples:
        nodes = median(text_round.nodes for text_round in sample)
        slowdowns[nodes] = median(text_round.target_seconds / costs_alone.at(text_round.nodes) for text_round in sample)
    costs = dict[int, float]()
    for size, cost in zip(costs_alone.sizes, costs_alone.costs, strict=True):
        nearest = min(slowdowns, key=lambda nodes: abs(nodes - size))
        costs[size] = cost * slowdowns[nearest]
    return Costs.of(costs)


def _draft_costs(rounds: Mapping[Trial, list[TextRound]], estimate: DraftCosts) -> DraftCosts:
    """The costs of draft passes and tree growth, from rounds of one level, of several levels, and of wide levels.

    If one of these trials was left out, the other trials tell by which factor the estimate is wrong.
    """
    if not all(rounds.values()):
        factors = [
            text_round.drafting_seconds / by_estimate
            for sample in rounds.values()
            for text_round in sample
            if text_round.widths
            and (by_estimate := estimate.first + sum(map(estimate.later.at, text_round.widths[1:])))
        ]
        factor = median(factors) if factors else 1.0
        level_seconds = {
            size: factor * cost for size, cost in zip(estimate.later.sizes, estimate.later.costs, strict=True)
        }
        return DraftCosts(factor * estimate.first, Costs.of(level_seconds))
    seconds = [text_round.drafting_seconds for text_round in rounds[CHAIN_OF_1] if text_round.widths]
    first_seconds = median(seconds) if seconds else 0.0
    level_seconds = _seconds_per_item(rounds[CHAIN_OF_3], first_seconds, lambda width: 1)
    node = _seconds_per_item(rounds[WIDE_LEVELS], first_seconds, lambda width: width - 1, level_seconds)
    return DraftCosts(first_seconds, Costs.of({1: level_seconds, WIDE: level_seconds + (WIDE - 1) * node}))


def _seconds_per_item(
    rounds: list[TextRound], first_seconds: float, count: Callable[[int], int], level_seconds: float = 0.0
) -> float:
    """Median seconds per item in draft levels after the first; 0 if there was no item.

    Args:
        rounds: timed rounds.
        first_seconds: seconds of the first level.
        count: the number of items in a level of a width.
        level_seconds: seconds of a level besides its items.
    """
    increments = [
        (text_round.drafting_seconds - first_seconds - level_seconds * len(text_round.widths[1:])) / divisor
        for text_round in rounds
        if (divisor := sum(map(count, text_round.widths[1:])))
    ]
    return max(median(increments), 0.0) if increments else 0.0


class _TrialRounds(NamedTuple):
    """The rounds of all trials. A trial that was left out has an empty list.

    Attributes:
        plain: rounds without a drafter.
        by_source: for each model of the drafter, by trial, the rounds in which it drafted alone.
        whole: by trial, the rounds of the whole drafter.
    """

    plain: list[TextRound]
    by_source: list[dict[Trial, list[TextRound]]]
    whole: dict[Trial, list[TextRound]]


def _curve_of(rounds: _TrialRounds, pass_costs: Costs, estimate: CostCurve) -> CostCurve:
    """The cost curve that trials show.

    Args:
        rounds: the rounds of the trials.
        pass_costs: the costs of target passes alone.
        estimate: replaces what the trials do not show.
    """
    chain_rounds = rounds.whole[CHAIN_OF_3]
    wide_rounds = rounds.whole[WIDE_LEVELS]
    text_rounds = chain_rounds + wide_rounds
    plain_overhead = median(text_round.outside_seconds for text_round in rounds.plain) if rounds.plain else 0.0
    overhead = (
        median(text_round.outside_seconds - text_round.growth_seconds for text_round in text_rounds)
        if text_rounds
        else plain_overhead
    )
    return CostCurve(
        target=_costs_in_rounds(pass_costs, [*filter(None, (rounds.plain, chain_rounds, wide_rounds))]),
        draft=tuple(starmap(_draft_costs, zip(rounds.by_source, estimate.draft, strict=True))),
        overhead=overhead,
        plain_overhead=plain_overhead,
    )


class _Trials:
    """Runs trials on a short text, as far as there is time.

    Args:
        rounds: generates the text; see `measure_costs`.
        prompt: the prompt of the text.
        length: the most tokens to generate.
        estimate: the costs that rounds are expected to have.
        deadline: when all trials have to be over, by `time.perf_counter`.

    Attributes:
        runs_left: number of further runs, which share the time that is left.
        left_out: number of runs for which there was no time.
    """

    def __init__(self, rounds: Rounds, prompt: list[int], length: int, estimate: CostCurve, deadline: float) -> None:
        self._rounds = rounds
        self._prompt = prompt
        self._length = length
        self._estimate = estimate
        self._deadline = deadline
        self.runs_left = 1
        self.left_out = 0

    def run_all(self, drafter: Drafter) -> _TrialRounds:
        """Run all trials with the whole drafter and, if it has several models, with each of them."""
        sources = sources_of(drafter)
        mixed = len(sources) > 1
        self.runs_left = 1 + (len(TRIALS) - 1) * (len(sources) + mixed)
        plain_rounds: list[TextRound] = []
        by_source: list[dict[Trial, list[TextRound]]] = [{} for _ in sources]
        drafter_rounds: dict[Trial, list[TextRound]] = {}
        for trial in TRIALS:
            if trial is PLAIN:
                plain_rounds = self.run(None, trial, 0)
                continue
            for source in reversed(range(len(sources))):  # slow models first; lookup takes no time
                by_source[source][trial] = self.run(sources[source], trial, source)
            drafter_rounds[trial] = self.run(drafter, trial, len(sources) - 1) if mixed else by_source[0][trial]
        return _TrialRounds(plain_rounds, by_source, drafter_rounds)

    def run(self, drafter: Drafter | None, trial: Trial, source: int) -> list[TextRound]:
        """Run a trial, and return its rounds except the first, in which the drafter reads the rest of the prompt.

        Args:
            drafter: the drafter, None for plain decoding.
            trial: the trial to run.
            source: the index of the model whose estimated costs decide whether there is time.

        Returns:
            The rounds; none if there is no time for `FEWEST_ROUNDS`.
        """
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
        text_rounds = []
        for text_round in islice(self._rounds(drafter, trial.policy, self._prompt, self._length), REPEATS + 1):
            text_rounds.append(text_round)
            if time.perf_counter() > end and len(text_rounds) >= FEWEST_ROUNDS:
                break
        return text_rounds[1:] or text_rounds


def _time_first_pass(model: Model) -> float:
    """Seconds of the first pass of a model, over one node with nothing before it."""
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
    """Time target passes over chains of several sizes, alternately, after one of each to warm up.

    Args:
        model: the target.
        sizes: numbers of nodes of the passes.
        context: tokens before the chains. At most `READ` are read; further KV rows are copies of theirs, since the time
            of a pass depends on the number of rows only.
        repeats: repeats of each size after the warm-up.
        seconds: time limit. After the first two sizes, passes that would exceed it are left out. None for no limit. If
            a size was run only once, that run counts.
        typical: reduces the times of one size to one; the minimum is least affected by other work on the machine.

    Returns:
        The typical seconds by size.
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
    """Fill an empty KV cache with `context` committed rows."""
    prefill_length = min(context, READ) if cache.windowed is None else context
    prefill(model, cache, [0] * prefill_length)
    while cache.length < context:
        count = min(prefill_length, context - cache.length)
        for buffer in cache.buffers:
            buffer[..., cache.length : cache.length + count, :] = buffer[..., :count, :]
        cache.length += count


def _time_pass(model: Model, cache, size: int, context: int) -> float:
    # different tokens, since experts are chosen by them
    tokens = np.arange(size) % model.vocab_size
    segment = Segment(cache, tokens, np.arange(context, context + size), causal(size))
    pass_seconds = time_work(lambda: model.forward([segment]), model.device)
    cache.commit([])
    return pass_seconds


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, until the device has finished it too."""
    wait_for(device)
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
