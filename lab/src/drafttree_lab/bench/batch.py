"""Many requests at once: speculation with a shared budget, compared with packed plain decoding and fixed budgets.

In every turn all ways decode the same prompts; each turn has other prompts, and another way goes first. Only rounds of
the steady state count, in which the batch is full and no prompt is being read.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain, cycle, islice, product
from operator import attrgetter, itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError
from drafttree.core.lazy import np, torch
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Drafter, PolicySpec, parse_numbers, split_names
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.loading import make_policy
from drafttree.loading.specs import default_policy
from drafttree.measure.method import PLAIN
from drafttree.measure.shapes import find_shape
from drafttree_lab.options import DrawOptions, PromptOptions, TargetOptions
from drafttree_lab.peers.programs import LLAMA_CPP, TRANSFORMERS, check_installed, open_program
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.engine.batching.loop import BatchLoop, Result
    from drafttree.engine.decoder import Decoder
    from drafttree.engine.metrics import EngineRound
    from drafttree.measure.driver import Cell, Way
    from drafttree.measure.run_store import RunStore
    from drafttree.policies import TreePolicy

SPECULATIVE, ONE_BY_ONE, FIXED = "speculative", "one by one", "fixed "
PEERS = (TRANSFORMERS, LLAMA_CPP)
ALONE, ALONE_AT = 4, 16
"""Number of prompts of a turn decoded one by one, and the largest batch size whose turns have them.

One size suffices, since the batch does not change them.
"""
WARM_UP_TOKENS = 16
"""Length of the prompts and of the texts of the turn that warms a way up."""
TIE = 1e-5
"""Largest difference of the two best logits at which rounding may choose either."""
SHOWN = 10
"""Maximum number of differing texts that are listed."""
RATIOS = {"batch": ">", "turns": ">", "plain/s": ".1f", "R": ".2f", "R end to end": ".2f", "best fixed": ">"}
RATIOS |= dict.fromkeys(("over best fixed", "over transformers", "over llama.cpp"), ".2f")
RATIOS |= dict.fromkeys(("plain over transformers", "plain over llama.cpp", "plain over one by one"), ".2f")
DRAFTS = {"batch": ">", "k": ".1f", "drafted": ".0%", "tau": ".2f", "expected": ".2f", "predicted gain": ".2f"}
DRAFTS |= dict.fromkeys(("v", "c", "delta", "h", "h0", "R law", "R"), ".2f")


class Turn(NamedTuple):
    """Prompts that every way decodes before the next turn.

    Attributes:
        size: batch size.
        prompts: their token ids.
    """

    size: int
    prompts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class BatchRun:
    """Results of one method in one repeat.

    Attributes:
        texts: token ids, without the prompts.
        seconds: seconds from the first prompt to the last token.
        rounds: columns of its rounds in the steady state. `seconds` is the time until the next round begins; `gain` is
            the speed-up by drafting that the engine predicts, 0 before the first drafts.
        drafter_failures: number of rounds without drafts because the drafter raised an error.
    """

    texts: list[list[int]]
    seconds: float
    rounds: dict[str, list[float]]
    drafter_failures: int = 0


@dataclass(frozen=True)
class BatchPlan:
    """What is compared at which sizes.

    Attributes:
        sizes: batch sizes, the smallest first.
        budgets: fixed budgets to compare with.
        programs: other programs.
        policy: how trees grow.
        one_by_one: whether texts are also written one after the other.
        repeats: turns per size.
    """

    sizes: list[int]
    budgets: list[int]
    programs: list[str]
    policy: "TreePolicy"
    one_by_one: bool
    repeats: int

    def turns(self, prompts: Sequence[Sequence[int]]) -> list[tuple[str, Turn]]:
        """The turns of all sizes, each with its size, in the form of `race`'s prompts."""
        turns: list[tuple[str, Turn]] = []
        for number, size in product(range(self.repeats), self.sizes):
            turns.append((str(size), Turn(size, turn_prompts(prompts, size, number))))
        return turns

    def ways(self, decoder: "Decoder", options: Mapping[str, Any]) -> "dict[str, Way]":
        """drafttree's ways of decoding a turn, by name."""
        ways: dict[str, Way] = {
            SPECULATIVE: EngineWay(decoder, options).run,
            PLAIN: EngineWay(decoder.plain(), options).run,
        }
        for budget in self.budgets:
            ways[f"{FIXED}{budget}"] = EngineWay(decoder.with_target(decoder.target), options, budget).run
        if self.one_by_one:
            plain_way = EngineWay(decoder.plain(), options)
            ways[ONE_BY_ONE] = lambda turn: plain_way.run(Turn(1, turn.prompts[:ALONE]))
        return ways

    def runs(self, way: str, size: str) -> bool:
        """Whether a way runs at a size; texts are written one by one at a single size."""
        alone_size = max((size for size in self.sizes if size <= ALONE_AT), default=self.sizes[0])
        return way != ONE_BY_ONE or size == str(alone_size)

    def race(self, ways: "Mapping[str, Way]", turns: Sequence[tuple[str, Turn]], store: "RunStore") -> "list[Cell]":
        """Decode all turns in all ways."""
        run_count = sum(self.runs(way, size) for way, (size, _) in product(ways, turns))
        with progress(run_count) as advance:
            return measure.race(ways, turns, BatchRun, runs=self.runs, store=store, progress=advance)


@dataclass(frozen=True)
class BatchOptions:
    """What is compared at which sizes, by options."""

    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64"
    drafter: Drafter = "auto"
    policy: PolicySpec = None
    budgets: Annotated[
        str, typer.Option(help="Fixed budgets to compare with: drafted nodes per request and round.")
    ] = "1,2,4,8"
    peers: Annotated[
        str | None,
        typer.Option(
            help=f"Programs to compare with: {', '.join(PEERS)}. Of transformers, its generate_batch is measured."
        ),
    ] = None
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one/--no-one-by-one", help="Also generate the texts one after another.")
    ] = True
    repeats: Annotated[int, typer.Option(min=1, help="Number of turns per size, each with other prompts.")] = 3

    def parse(self) -> BatchPlan:
        """The plan that the options describe.

        Raises:
            ConfigError: an option has an unknown value, or a program is not installed.
        """
        sizes = sorted(set(parse_numbers(self.batches, "--batches", 1)))
        budgets = parse_numbers(self.budgets, "--budgets", 1)
        programs = split_names(self.peers) if self.peers else []
        check_installed(programs)
        if unsupported_peers := {*programs} - {*PEERS}:
            raise ConfigError(f"{unsupported_peers.pop()} writes one text at a time; leave it out of --peers")
        policy = make_policy(self.policy) if self.policy else default_policy(None)
        return BatchPlan(sizes, budgets, programs, policy, self.one_by_one, self.repeats)


@grouped
def bench(
    context: typer.Context,
    models: TargetOptions,
    prompts: PromptOptions,
    results: ResultOptions,
    draws: DrawOptions = DrawOptions(max_new_tokens=64),
    batch_options: BatchOptions = BatchOptions(),
) -> None:
    """Measure speculation by batch size.

    Compares the shared budget with packed plain decoding, fixed budgets and other programs, alternately on the same
    prompts, with texts of the same length.
    """
    plan = batch_options.parse()
    if plan.programs and draws.temperature:
        raise ConfigError(
            "other programs draw other random numbers, so only greedy texts can be compared; leave out "
            "--temperature or --peers"
        )
    Sampling.from_options(asdict(draws))
    if models.inflated:
        find_shape(models.inflated)

    decoder = models.load(batch_options.drafter).with_policy(plan.policy)
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {models.target!r}; name one with --drafter")
    ids = prompts.mixed_token_ids(decoder, draws.max_new_tokens)
    store = results.open_store(context, ids)
    report = _measure(plan, decoder, ids, models, draws, store)
    results.finish(store, measure.to_json(report), lambda: _show(report))


def _measure(
    plan: BatchPlan,
    decoder: "Decoder",
    prompts: Sequence[list[int]],
    models: TargetOptions,
    draws: DrawOptions,
    store: "RunStore",
) -> dict[str, Any]:
    """Decode all turns in all ways, and compare their texts."""
    options = {**asdict(draws), "ignore_eos": True}
    turns = plan.turns(prompts)
    with TemporaryDirectory(prefix="drafttree-peers-") as folder:
        peer_ways, notes = _peers(plan, decoder, prompts[0], draws.max_new_tokens, models, Path(folder))
        cells = plan.race(plan.ways(decoder, options) | peer_ways, turns, store)
    texts = chain.from_iterable(map(attrgetter("result.texts"), cells))
    return {
        "rows": make_rows(cells),
        "target": repr(decoder.target),
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "texts": len(list(texts)),
        "differences": list(find_differences(decoder, cells, turns, options)),
        "peers": notes,
        "drafter_failures": sum(map(attrgetter("result.drafter_failures"), cells)),
    }


def turn_prompts(prompts: Sequence[Sequence[int]], size: int, turn: int) -> list[list[int]]:
    """The next prompts for a turn; after the last prompt comes the first again.

    Prompts lose their beginnings, so that one pass can read all of a turn. Then texts begin together, and the batch is
    full until the first text ends.
    """
    from drafttree.engine.round_loop import LONGEST_PART

    prompt_length = LONGEST_PART // size + 1  # the last token of a prompt is not read with the others
    return [[*prompt[-prompt_length:]] for prompt in islice(cycle(prompts), turn * size, (turn + 1) * size)]


class EngineWay:
    """Decodes with the loop of an engine, without its thread, so that all prompts are submitted before it begins.

    Each batch size has a loop of its own, warmed up by a short turn. What it learns of costs and acceptance stays for
    later turns, as in a server.

    Args:
        decoder: the decoder whose target, drafter and policy decode.
        options: as for `Decoder.generate`; each prompt has the next seed.
        budget: drafted nodes per request and round; None lets the engine choose by costs.
    """

    def __init__(self, decoder: "Decoder", options: Mapping[str, Any], budget: int | None = None) -> None:
        self._decoder = decoder
        self._options = options
        self._budget = budget
        self._loops: dict[int, BatchLoop] = {}

    def run(self, turn: Turn) -> BatchRun:
        """Decode the prompts of a turn at its batch size."""
        size, prompts = turn
        if size not in self._loops:
            self._loops[size] = self._decoder.batch_loop(size, budget=self._budget)
            warm_up_prompts = [prompt[-WARM_UP_TOKENS:] for prompt in prompts]
            self._write(size, warm_up_prompts, {**self._options, "max_new_tokens": WARM_UP_TOKENS})
        return self._write(size, prompts, self._options)

    def _write(self, size: int, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]) -> BatchRun:
        loop = self._loops[size]
        earlier_failures = loop.metrics.drafter_failures
        errors: list[Exception] = []
        start_time = time.perf_counter()
        results = self._submit(loop, prompts, options, errors)
        steady_rounds = list(_run_loop(loop, size))
        seconds = time.perf_counter() - start_time
        if errors:
            raise errors[0]
        columns = measure.columns(round_ for round_, _ in steady_rounds)
        rounds = {name: columns[name].tolist() for name in columns.dtype.names or ()}
        rounds["gain"] = [gain for _, gain in steady_rounds]
        texts = list(map(attrgetter("text.tokens"), results))
        return BatchRun(texts, seconds, rounds, loop.metrics.drafter_failures - earlier_failures)

    def _submit(
        self, loop: "BatchLoop", prompts: Sequence[Sequence[int]], options: Mapping[str, Any], errors: list[Exception]
    ) -> "list[Result]":
        """Submit prompts to a loop, and return their results; errors of requests are added to `errors`."""
        from drafttree.engine.batching.loop import Result

        results: list[Result] = []
        for index, prompt in enumerate(prompts):
            request = self._decoder.prepare([*prompt], **{**options, "seed": options.get("seed", 0) + index})
            result = Result(errors)
            request.give_to(result)
            loop.add(request)
            results.append(result)
        return results


def _run_loop(loop: "BatchLoop", size: int) -> "Iterator[tuple[EngineRound, float]]":
    """Run a loop until its texts end; yield the rounds of its steady state, each with the predicted gain."""
    while loop.busy:
        started = time.perf_counter()
        loop.step()
        seconds = time.perf_counter() - started
        turn = loop.metrics.latest
        if turn and turn.batch == size and not turn.prefill_rows:
            expected_tokens = turn.batch if turn.expected is None else turn.expected
            steady_round = replace(turn, seconds=seconds, expected=expected_tokens)
            yield steady_round, loop.metrics.predicted_gain or 0.0


def _peers(
    plan: BatchPlan, decoder: "Decoder", trial: list[int], length: int, models: TargetOptions, folder: Path
) -> "tuple[dict[str, Way], list[str]]":
    """Other programs as ways, and by program its description, or why it does not run."""
    ways = dict[str, "Way"]()
    notes = list[str]()

    def way(program: Any, turn: Turn) -> BatchRun:
        texts, times = program(turn.prompts, length)
        return BatchRun(texts, max(map(itemgetter(-1), times)), steady_rounds(times))

    if TRANSFORMERS in plan.programs:
        from drafttree_lab.peers import continuous_batching

        reason = continuous_batching.why_not(decoder, trial)
        notes.append(f"transformers: {f'not measured: {reason}' if reason else continuous_batching.describe(decoder)}")
        if not reason:
            ways[TRANSFORMERS] = partial(way, partial(continuous_batching.generate_batch, decoder))
    if LLAMA_CPP in plan.programs:
        from drafttree.engine.round_loop import LONGEST_PART

        streams = max(plan.sizes)
        program = open_program(LLAMA_CPP, decoder, models, folder, LONGEST_PART + 1 + length, streams=streams)
        ways[LLAMA_CPP] = partial(way, program.generate_together)
    return ways, notes


def steady_rounds(times: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The passes of the steady state, from the first token of the last prompt to the end of the first text.

    Args:
        times: of each text, the times of its tokens.
    """
    begin = max(map(itemgetter(0), times))
    shortest_times = min(times, key=itemgetter(-1))
    pass_times = [begin, *(time for time in shortest_times if time > begin)]
    seconds = np.diff(pass_times).tolist()
    texts = [float(len(times))] * len(seconds)
    return {"seconds": seconds, "committed": texts, "batch": texts, "nodes": texts}


@dataclass(frozen=True)
class WayRuns:
    """The turns of a way at one size.

    Attributes:
        runs: its results, one per turn.
    """

    runs: Sequence[BatchRun]

    @cached_property
    def turn_rounds(self) -> "list[np.recarray]":
        """The rounds of the steady state of each turn."""
        return [measure.from_lists(run.rounds) for run in self.runs]

    @property
    def rounds(self) -> "np.recarray":
        """The rounds of the steady state of all turns."""
        return np.concatenate(self.turn_rounds).view(np.recarray)

    @cached_property
    def steady(self) -> list[tuple[float, float]]:
        """Tokens and seconds of the steady state of each turn; empty if a turn has no steady state."""
        totals = [(float(rounds.committed.sum()), float(rounds.seconds.sum())) for rounds in self.turn_rounds]
        return totals if all(map(itemgetter(1), totals)) else []

    @property
    def whole(self) -> list[tuple[int, float]]:
        """Tokens and seconds of each turn, prompts included."""
        return [(sum(map(len, run.texts)), run.seconds) for run in self.runs]

    def ratio(self, base_runs: "WayRuns | None") -> "measure.Interval | None":
        """The speed in the steady state over that of another way; None if one of them has no steady state."""
        if base_runs is None or not self.steady or not base_runs.steady:
            return None
        return measure.Interval.of_speeds_by_jackknife(self.steady, base_runs.steady)


def make_rows(cells: Sequence["Cell"]) -> list[dict[str, Any]]:
    """The figures of every batch size; speeds are of the steady state unless named end to end.

    `R` is the speed of speculative over plain decoding. A way without a steady state in a turn has no ratio. Plain
    decoding over texts one by one has no interval if those were written at another size.
    """
    rows = [_row(size, size_cells) for size, size_cells in group_by(cells, attrgetter("group")).items()]
    one_by_one_speed = next((row["speeds"][ONE_BY_ONE] for row in rows if ONE_BY_ONE in row["speeds"]), None)
    for row in rows:
        if one_by_one_speed and row["plain over one by one"] is None and (speed := row["speeds"].get(PLAIN)):
            row["plain over one by one"] = measure.Interval(speed / one_by_one_speed)
    return rows


def _row(size: str, cells: Iterable["Cell"]) -> dict[str, Any]:
    ways: dict[str, WayRuns] = {}
    speeds: dict[str, float] = {}
    end_to_end: dict[str, float] = {}
    for way, way_cells in group_by(cells, attrgetter("way")).items():
        runs = ways[way] = WayRuns(list(map(attrgetter("result"), way_cells)))
        end_to_end[way] = measure.total_speed(runs.whole)
        if runs.steady:
            speeds[way] = measure.total_speed(runs.steady)
    fixed_speeds = {way: speed for way, speed in speeds.items() if way.startswith(FIXED)}
    best_fixed = max(fixed_speeds, key=fixed_speeds.__getitem__, default=None)
    speculative = ways[SPECULATIVE]
    plain = ways[PLAIN]
    row: dict[str, Any] = {
        "batch": size,
        "turns": len(plain.runs),
        "plain/s": speeds.get(PLAIN),
        "speeds": speeds,
        "end to end": end_to_end,
        "R": speculative.ratio(plain),
        "R end to end": measure.Interval.of_speeds_by_jackknife(speculative.whole, plain.whole),
        "best fixed": best_fixed and best_fixed.removeprefix(FIXED),
        "over best fixed": speculative.ratio(ways[best_fixed]) if best_fixed else None,
    }
    for name in PEERS:
        row[f"over {name}"] = speculative.ratio(ways.get(name))
    for name in (*PEERS, ONE_BY_ONE):
        row[f"plain over {name}"] = plain.ratio(ways.get(name))
    if speculative.steady and plain.steady:
        row |= _draft_figures(speculative, plain)
    return row


def _draft_figures(speculative: WayRuns, plain: WayRuns) -> dict[str, Any]:
    """Figures about drafts, and the terms of the speed-up law, in the steady state."""
    speculative_rounds = speculative.rounds
    plain_rounds = plain.rounds
    draft_nodes = speculative_rounds.nodes - speculative_rounds.batch
    requests = speculative_rounds.batch.sum()
    predicted_gains = speculative_rounds.gain[(draft_nodes > 0) & (speculative_rounds.gain > 0)]
    law = measure.SpeedupLaw.of_rounds(
        speculative_rounds,
        plain_rounds,
        measured=measure.total_speed(speculative.whole) / measure.total_speed(plain.whole),
        decoding=_speed(speculative_rounds) / _speed(plain_rounds),
    )
    terms = asdict(law)
    del terms["measured"], terms["decoding"]
    return {
        "k": draft_nodes.sum() / requests,
        "drafted": (draft_nodes > 0).mean(),
        "expected": speculative_rounds.expected.sum() / requests,
        "predicted gain": predicted_gains.mean() if len(predicted_gains) else None,
        "R law": law.predicted,
        **terms,
    }


def _speed(rounds: "np.recarray") -> float:
    """Tokens per second of rounds."""
    return float(rounds.committed.sum() / rounds.seconds.sum())


def find_differences(
    decoder: "Decoder", cells: Sequence["Cell"], turns: Sequence[tuple[str, Turn]], options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The texts that differ from plain decoding's of the same turn, and whether rounding broke a tie."""
    size_count = len(set(map(attrgetter("group"), cells)))
    plain_texts = {cell.prompt: cell.result.texts for cell in cells if cell.way == PLAIN}
    for cell in cells:
        _, turn = turns[cell.prompt]
        labels = {"batch": turn.size, "turn": cell.prompt // size_count, "way": cell.way}
        for index, text in enumerate(cell.result.texts):
            seeded_options = {**options, "seed": options["seed"] + index}
            plain_text = plain_texts[cell.prompt][index]
            difference = measure.find_difference(decoder, turn.prompts[index], plain_text, text, **seeded_options)
            if difference:
                tie = difference.is_tie or difference.gap <= TIE
                yield labels | {"prompt": index, "position": difference.position, "gap": difference.gap, "tie": tie}


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    rows = report["rows"]
    caption = "each all tokens over all seconds; intervals are 95 %, by jackknife over the turns"
    console.print(measure.to_table(f"tokens/s in the steady state, R speculative over plain, {caption}", rows, RATIOS))
    drafts = "k nodes per request and round; R law = tau (1 + h0) / (v + c*delta + h), in plain passes at this batch"
    console.print(measure.to_table(drafts, rows, DRAFTS))
    ways = dict.fromkeys(chain.from_iterable(map(itemgetter("end to end"), rows)), ">")
    title = "tokens/s of all together: steady state / end to end"
    console.print(measure.to_table(title, map(_speed_row, rows), {"batch": ">", **ways}))
    for line in _notes(report):
        print(line)


def _speed_row(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the printed table: the speeds of every way at one size."""
    speeds = {"batch": row["batch"]}
    for way, speed in row["end to end"].items():
        steady = f"{row['speeds'][way]:.1f}" if way in row["speeds"] else "-"
        speeds[way] = f"{steady} / {speed:.1f}"
    return speeds


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    yield f"{report['target']}, {report['threads']} threads"
    yield "steady state: rounds of a full batch in which no prompt is read"
    yield "best fixed budget: the one that was fastest in the same turns"
    if any(ONE_BY_ONE in row["end to end"] for row in rows):
        yield f"one by one: plain decoding, without a batch, of the first {ALONE} prompts of each turn at one size"
    if failures := report["drafter_failures"]:
        yield f"the drafter FAILED in {failures} rounds, which went on without drafts; the log says why"
    yield from report["peers"]
    if max(int(row["batch"]) for row in rows) > report["prompts"]:
        yield f"{report['prompts']} different prompts: larger batches hold some of them more than once"
    yield from _difference_notes(report["texts"], report["differences"])


def _difference_notes(texts: int, differences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines that tell how many texts equal plain decoding's, and where the others begin to differ."""
    summary = f"texts: {texts - len(differences)} of {texts} are plain decoding's token for token"
    ties = sum(map(itemgetter("tie"), differences))
    yield f"{summary}, {ties} differ by a tie, {len(differences) - ties} DIFFER" if differences else summary
    for difference in sorted(differences, key=itemgetter("tie"))[:SHOWN]:
        location = (
            f"batch {difference['batch']}, turn {difference['turn']}, prompt {difference['prompt']}, "
            f"token {difference['position']}"
        )
        yield (
            f"  {difference['way']}: {location}: best logits {difference['gap']:.2e} apart"
            f"{' (tie)' if difference['tie'] else ''}"
        )
    if len(differences) > SHOWN:
        counts = Counter(map(itemgetter("way"), differences))
        yield f"  in all: {', '.join(f'{way} {count}' for way, count in counts.items())}"
