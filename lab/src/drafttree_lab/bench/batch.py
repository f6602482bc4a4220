"""Many requests at once: speculation under one budget against packed plain decoding, fixed budgets and others.

Every way decodes the same prompts, a turn after the other; each turn has other prompts, and another way goes first.
Only rounds of the steady state count: the batch is full, and no prompt is being read.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from drafttree.engine.batching.loop import BatchLoop
    from drafttree.engine.decoder import Decoder
    from drafttree.measure.driver import Cell, Way

SPECULATIVE, ONE_BY_ONE, FIXED = "speculative", "one by one", "fixed "
PEERS = (TRANSFORMERS, LLAMA_CPP)
ALONE, ALONE_AT = 4, 16
"""Prompts of a turn that are decoded one by one, at one size (or one below it), since the batch does not change it."""
WARM_UP_TOKENS = 16
"""Of the prompts and of the texts of the turn by which a way is warmed up at a size."""
TIE = 1e-5
"""The distance of the two best logits up to which either may be taken."""
SHOWN = 10
"""Differing texts that are listed at most."""
RATIOS = {"batch": ">", "turns": ">", "plain/s": ".1f", "R": ".2f", "R end to end": ".2f", "best fixed": ">"}
RATIOS |= dict.fromkeys(("over best fixed", "over transformers", "over llama.cpp"), ".2f")
RATIOS |= dict.fromkeys(("plain over transformers", "plain over llama.cpp", "plain over one by one"), ".2f")
DRAFTS = {"batch": ">", "k": ".1f", "drafted": ".0%", "tau": ".2f", "expected": ".2f", "predicted gain": ".2f"}
DRAFTS |= dict.fromkeys(("v", "c", "delta", "h", "h0", "R law", "R"), ".2f")


@dataclass(frozen=True)
class BatchRun:
    """What one way has made of the prompts of one turn.

    Attributes:
        texts: token ids, without the prompts.
        seconds: from the first prompt that was given to the last token, prompts included.
        rounds: columns of its rounds in the steady state, `seconds` until the next one begins; and `gain`, the speed of
            drafting over plain rounds that the engine predicts, 0 before any drafts.
        drafter_failures: rounds that went on without drafts, since the drafter raised an error.
    """

    texts: list[list[int]]
    seconds: float
    rounds: dict[str, list[float]]
    drafter_failures: int = 0


@grouped
def bench(
    context: typer.Context,
    models: TargetOptions,
    prompts: PromptOptions,
    results: ResultOptions,
    draws: DrawOptions = DrawOptions(max_new_tokens=64),
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64",
    drafter: Drafter = "auto",
    policy: PolicySpec = None,
    budgets: Annotated[
        str, typer.Option(help="Fixed budgets to compare with: drafted nodes per request and round.")
    ] = "1,2,4,8",
    peers: Annotated[
        str | None, typer.Option(help=f"Programs to compare with: {', '.join(PEERS)}; transformers' generate_batch.")
    ] = None,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one/--no-one-by-one", help="Also generate one text after the other.")
    ] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Number of turns per size, each with other prompts.")] = 3,
) -> None:
    """Measure speculation by batch size.

    Compares the shared budget with packed plain decoding, fixed budgets and other programs, in turns on the same
    prompts, with texts of the same length.
    """
    sizes = list(dict.fromkeys(sorted(parse_numbers(batches, "--batches", 1))))
    nodes = parse_numbers(budgets, "--budgets", 1)
    programs = split_names(peers) if peers else []
    check_installed(programs)
    if unsupported_peers := {*programs} - {*PEERS}:
        raise ConfigError(f"{unsupported_peers.pop()} writes one text at a time; leave it out of --peers")
    if programs and draws.temperature:
        raise ConfigError("other programs draw in their own ways; leave out --temperature or --peers")
    tree_policy = make_policy(policy) if policy else default_policy(None)
    Sampling.from_options(asdict(draws))
    if models.inflated:
        find_shape(models.inflated)

    decoder = models.load(drafter).with_policy(tree_policy)
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {models.target!r}; name one with --drafter")
    ids = prompts.mixed_token_ids(decoder, draws.max_new_tokens)
    store = results.open_store(context, ids)
    options = {**asdict(draws), "ignore_eos": True}
    turns = [(str(size), (size, turn_prompts(ids, size, turn))) for turn in range(repeats) for size in sizes]
    alone_size = str(max((size for size in sizes if size <= ALONE_AT), default=sizes[0]))
    ways: dict[str, Way] = {
        SPECULATIVE: EngineWay(decoder, options).run,
        PLAIN: EngineWay(decoder.plain(), options).run,
        **{f"{FIXED}{budget}": EngineWay(decoder.with_target(decoder.target), options, budget).run for budget in nodes},
    }
    if one_by_one:
        plain_way = EngineWay(decoder.plain(), options)
        ways[ONE_BY_ONE] = lambda turn: plain_way.run((1, turn[1][:ALONE]))
    with TemporaryDirectory(prefix="drafttree-peers-") as folder:
        peer_ways, notes = _peers(programs, decoder, ids[0], draws.max_new_tokens, max(sizes), models, Path(folder))
        ways |= peer_ways

        def runs(way: str, size: str) -> bool:
            return way != ONE_BY_ONE or size == alone_size

        with progress(sum(runs(way, size) for size, _ in turns for way in ways)) as advance:
            cells = measure.race(ways, turns, BatchRun, runs=runs, store=store, progress=advance)
    report: dict[str, Any] = {"rows": make_rows(cells), "target": repr(decoder.target)}
    report |= {"threads": torch.get_num_threads(), "prompts": len(ids)}
    report["texts"] = sum(len(cell.result.texts) for cell in cells)
    report |= {"differences": [*find_differences(decoder, cells, dict(enumerate(turns)), options)], "peers": notes}
    report["drafter_failures"] = sum(cell.result.drafter_failures for cell in cells)
    results.finish(store, measure.to_json(report), lambda: _show(report))


def turn_prompts(prompts: Sequence[Sequence[int]], size: int, turn: int) -> list[list[int]]:
    """The prompts of a turn, which are the next ones, and begin anew where they end.

    So much is cut off at their beginning that one pass can read all of a turn: texts begin together then, and the batch
    is full from their first tokens to the end of one.
    """
    from drafttree.engine.round_loop import LONGEST_PART

    prompt_length = LONGEST_PART // size + 1  # the last token of a prompt is not read with the others
    return [[*prompt[-prompt_length:]] for prompt in islice(cycle(prompts), turn * size, (turn + 1) * size)]


class EngineWay:
    """Decoding by the loop of an engine, driven without its thread, so that all prompts are there before it begins.

    There is one for every batch size, warmed up by a short turn; what it learns of costs and acceptance it knows in
    later turns, as a server does.

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

    def run(self, turn: tuple[int, Sequence[Sequence[int]]]) -> BatchRun:
        """Decode the prompts of a turn, so many at a time."""
        size, prompts = turn
        if size not in self._loops:
            self._loops[size] = self._decoder.batch_loop(size, budget=self._budget)
            warm_up_prompts = [prompt[-WARM_UP_TOKENS:] for prompt in prompts]
            self._write(size, warm_up_prompts, {**self._options, "max_new_tokens": WARM_UP_TOKENS})
        return self._write(size, prompts, self._options)

    def _write(self, size: int, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]) -> BatchRun:
        from drafttree.engine.batching.loop import Result

        errors: list[Exception] = []
        loop = self._loops[size]
        start_time = time.perf_counter()
        metrics = loop.metrics
        failures = loop.metrics.drafter_failures
        results = [Result(errors) for _ in prompts]
        for index, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            request = self._decoder.prepare([*prompt], **{**options, "seed": options.get("seed", 0) + index})
            request.reader = result
            request.order = index
            loop.add(request)
        rounds = []
        gains = list[float]()
        while loop.busy:
            started = time.perf_counter()
            loop.step()
            turn = metrics.latest
            if turn and turn.batch == size and not turn.prefill_rows:
                expected_tokens = turn.batch if turn.expected is None else turn.expected
                rounds.append(replace(turn, seconds=time.perf_counter() - started, expected=expected_tokens))
                gains.append(metrics.predicted_gain or 0.0)
        seconds = time.perf_counter() - start_time
        if errors:
            raise errors[0]
        columns = measure.columns(rounds)
        texts = [result.text.tokens for result in results]
        round_columns = {name: columns[name].tolist() for name in columns.dtype.names or ()} | {"gain": gains}
        return BatchRun(texts, seconds, round_columns, metrics.drafter_failures - failures)


def _peers(
    programs: Sequence[str],
    decoder: "Decoder",
    trial: list[int],
    length: int,
    largest: int,
    models: TargetOptions,
    folder: Path,
) -> tuple[dict[str, "Way"], list[str]]:
    """Other programs as ways, and what they are, or why they do not run."""
    ways = dict[str, "Way"]()
    notes = list[str]()

    def way(program: Any, turn: tuple[int, Sequence[Sequence[int]]]) -> BatchRun:
        texts, times = program(turn[1], length)
        return BatchRun(texts, max(text_times[-1] for text_times in times), steady_rounds(times))

    if TRANSFORMERS in programs:
        from drafttree_lab.peers import continuous_batching

        reason = continuous_batching.why_not(decoder, trial)
        notes.append(f"transformers: {f'not measured: {reason}' if reason else continuous_batching.describe(decoder)}")
        if not reason:
            ways[TRANSFORMERS] = partial(way, partial(continuous_batching.generate_batch, decoder))
    if LLAMA_CPP in programs:
        from drafttree.engine.round_loop import LONGEST_PART

        program = open_program(LLAMA_CPP, decoder, models, folder, LONGEST_PART + 1 + length, streams=largest)
        ways[LLAMA_CPP] = partial(way, program.generate_together)
    return ways, notes


def steady_rounds(times: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The passes between the last prompt's first token and the end of a text, each with a token for every text.

    Args:
        times: when each token of each text was there.
    """
    begin = max(text_times[0] for text_times in times)
    shortest_times = min(times, key=lambda own: own[-1])
    seconds = [
        next_time - previous_time
        for previous_time, next_time in pairwise([begin, *(time for time in shortest_times if time > begin)])
    ]
    texts = [float(len(times))] * len(seconds)
    return {"seconds": seconds, "committed": texts, "batch": texts, "nodes": texts}


def make_rows(cells: Sequence["Cell"]) -> list[dict[str, Any]]:
    """The figures of every batch size; speeds are of the steady state unless they are said to be end to end.

    `R` is speculative over plain decoding. A ratio is left out where a way has no steady state in some turn; plain
    decoding over one text after the other has no interval where those are of the turns of another size.
    """
    sizes = dict.fromkeys(cell.group for cell in cells)
    rows = [_row(size, [cell for cell in cells if cell.group == size]) for size in sizes]
    one_by_one_speed = next((row["speeds"][ONE_BY_ONE] for row in rows if ONE_BY_ONE in row["speeds"]), None)
    for row in rows:
        if one_by_one_speed and row["plain over one by one"] is None and (speed := row["speeds"].get(PLAIN)):
            row["plain over one by one"] = measure.Interval(speed / one_by_one_speed)
    return rows


def _row(size: str, cells: Sequence["Cell"]) -> dict[str, Any]:
    ways = dict.fromkeys(cell.way for cell in cells)
    runs = {way: [cell.result for cell in cells if cell.way == way] for way in ways}
    rounds = {way: [measure.from_lists(run.rounds) for run in way_runs] for way, way_runs in runs.items()}
    steady = {
        way: [(float(turn_rounds.committed.sum()), float(turn_rounds.seconds.sum())) for turn_rounds in way_rounds]
        for way, way_rounds in rounds.items()
        if all(turn_rounds.seconds.sum() for turn_rounds in way_rounds)
    }
    whole_turns = {way: [(sum(map(len, run.texts)), run.seconds) for run in way_runs] for way, way_runs in runs.items()}
    speeds = {way: measure.total_speed(totals) for way, totals in steady.items()}
    end_to_end = {way: measure.total_speed(totals) for way, totals in whole_turns.items()}
    best_fixed = max((way for way in speeds if way.startswith(FIXED)), key=speeds.__getitem__, default=None)

    def ratio(own: str, other: str | None) -> "measure.Interval | None":
        if own not in steady or other not in steady:
            return None
        return measure.Interval.of_speeds_by_jackknife(steady[own], steady[other])

    row: dict[str, Any] = {"batch": size, "turns": len(runs[PLAIN]), "plain/s": speeds.get(PLAIN)}
    row |= {"speeds": speeds, "end to end": end_to_end, "R": ratio(SPECULATIVE, PLAIN)}
    row["R end to end"] = measure.Interval.of_speeds_by_jackknife(whole_turns[SPECULATIVE], whole_turns[PLAIN])
    row |= {
        "best fixed": best_fixed and best_fixed.removeprefix(FIXED),
        "over best fixed": ratio(SPECULATIVE, best_fixed),
    }
    row |= {f"over {name}": ratio(SPECULATIVE, name) for name in PEERS}
    row |= {f"plain over {name}": ratio(PLAIN, name) for name in (*PEERS, ONE_BY_ONE)}
    if SPECULATIVE not in steady or PLAIN not in steady:
        return row
    speculative_rounds = np.concatenate(rounds[SPECULATIVE]).view(np.recarray)
    plain_rounds = np.concatenate(rounds[PLAIN]).view(np.recarray)
    draft_nodes = speculative_rounds.nodes - speculative_rounds.batch
    requests = speculative_rounds.batch.sum()
    predicted_gains = speculative_rounds.gain[(draft_nodes > 0) & (speculative_rounds.gain > 0)]
    speed = float(speculative_rounds.committed.sum() / speculative_rounds.seconds.sum())
    base = float(plain_rounds.committed.sum() / plain_rounds.seconds.sum())
    measured = end_to_end[SPECULATIVE] / end_to_end[PLAIN]
    law = measure.SpeedupLaw.of_rounds(speculative_rounds, plain_rounds, measured=measured, decoding=speed / base)
    row |= {
        "k": draft_nodes.sum() / requests,
        "drafted": (draft_nodes > 0).mean(),
        "expected": speculative_rounds.expected.sum() / requests,
    }
    row |= {"predicted gain": predicted_gains.mean() if len(predicted_gains) else None, "R law": law.predicted}
    return row | {name: term for name, term in asdict(law).items() if name not in ("measured", "decoding")}


def find_differences(
    decoder: "Decoder",
    cells: Sequence["Cell"],
    turns: Mapping[int, tuple[str, tuple[int, Sequence[list[int]]]]],
    options: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """The texts that are not plain decoding's of the same turn, and whether the choice was a tie."""
    plain = {cell.prompt: cell.result.texts for cell in cells if cell.way == PLAIN}
    for cell in cells:
        size, prompts = turns[cell.prompt][1]
        for index, text in enumerate(cell.result.texts):
            seeded_options = {**options, "seed": options["seed"] + index}
            if difference := measure.find_difference(
                decoder, prompts[index], plain[cell.prompt][index], text, **seeded_options
            ):
                labels = {"batch": size, "turn": cell.prompt // len({c.group for c in cells}), "way": cell.way}
                tie = difference.is_tie or difference.gap <= TIE
                yield labels | {"prompt": index, "position": difference.position, "gap": difference.gap, "tie": tie}


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    rows = report["rows"]
    caption = "each all tokens over all seconds; intervals are 95 %, by jackknife over the turns"
    console.print(measure.to_table(f"tokens/s in the steady state, R speculative over plain, {caption}", rows, RATIOS))
    drafts = "k nodes per request and round; R law = tau (1 + h0) / (v + c*delta + h), in plain passes at this batch"
    console.print(measure.to_table(drafts, rows, DRAFTS))
    ways = dict.fromkeys(way for row in rows for way in row["end to end"])
    speeds = [{"batch": row["batch"], **{way: _speeds(row, way) for way in ways}} for row in rows]
    columns = {"batch": ">", **dict.fromkeys(ways, ">")}
    console.print(measure.to_table("tokens/s of all together: steady state / end to end", speeds, columns))
    for line in _notes(report):
        print(line)


def _speeds(row: Mapping[str, Any], way: str) -> str | None:
    steady = f"{row['speeds'][way]:.1f}" if way in row["speeds"] else "-"
    return f"{steady} / {row['end to end'][way]:.1f}" if way in row["end to end"] else None


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{report['target']}, {report['threads']} threads"
    yield "steady state: rounds of a full batch in which no prompt is read"
    yield "the best fixed budget is the one that was fastest in these very turns"
    if any(ONE_BY_ONE in row["end to end"] for row in report["rows"]):
        yield f"one by one: plain decoding, without a batch, of the first {ALONE} prompts of each turn at one size"
    if failures := report["drafter_failures"]:
        yield f"the drafter FAILED in {failures} rounds, which went on without drafts; the log says why"
    yield from report["peers"]
    if max(int(row["batch"]) for row in report["rows"]) > report["prompts"]:
        yield f"{report['prompts']} different prompts: larger batches hold some of them more than once"
    differences = report["differences"]
    texts = report["texts"]
    summary = f"texts: {texts - len(differences)} of {texts} are plain decoding's token for token"
    ties = sum(difference["tie"] for difference in differences)
    yield f"{summary}, {ties} differ by a tie, {len(differences) - ties} DIFFER" if differences else summary
    for difference in sorted(differences, key=lambda each: each["tie"])[:SHOWN]:
        location = (
            f"batch {difference['batch']}, turn {difference['turn']}, prompt {difference['prompt']}, "
            f"token {difference['position']}"
        )
        yield (
            f"  {difference['way']}: {location}: best logits {difference['gap']:.2e} apart"
            f"{' (tie)' if difference['tie'] else ''}"
        )
    if len(differences) > SHOWN:
        yield (
            "  in all: "
            f"{', '.join(f'{way} {n}' for way, n in Counter(difference['way'] for difference in differences).items())}"
        )
