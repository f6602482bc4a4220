"""A server under load, compared with one without a drafter or prefix sharing, alternately on the same prompts."""

import asyncio
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import given_options, grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    Dtype,
    Files,
    Length,
    Limit,
    PolicySpec,
    Quantize,
    Repeats,
    Seed,
    Temperature,
    VerifierName,
    parse_numbers,
)
from drafttree.interfaces.console import make_console, print_json, progress
from drafttree.loading import find_policy, find_verifier
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell, Way
    from drafttree_lab.http_load import LoadRun, ServedText

SPECULATIVE, WITHOUT_DRAFTER = "speculative", "no drafter"
SHARED, WHOLE = "prefixes shared", "prompts read whole"
SECOND = {WITHOUT_DRAFTER: "those without a drafter", WHOLE: "those of prompts read whole"}
TURN_STEP = 97
"""Number of tokens between the beginnings of two turns' system prompts in the same text."""
SHARES = (50, 95, 99)
"""The percentiles that are reported."""
SPEEDS = "tokens/s of all clients and turns together, and their ratio with its 95 % interval (jackknife over the turns)"
WAITS = f"milliseconds that clients waited: percentiles {', '.join(map(str, SHARES))}"
ROUNDING = (
    "In bfloat16 and float16, rounding decides between two tokens that are nearly tied, and so texts differ; "
    "--dtype float32 shows whether that is all."
)


@dataclass(frozen=True)
class ServedOptions:
    """What is served, and the options of requests."""

    model: Annotated[str, typer.Argument(help='The model to serve: "embedded", a folder or a hub name.')] = "embedded"
    prompts: Files = None
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients.")] = "1,4,16"
    drafter: Drafter = "auto"
    policy: PolicySpec = None
    verifier: VerifierName = "auto"
    system_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length of a shared system prompt in tokens. The other server then shares no prefixes.",
        ),
    ] = None
    per_client: Annotated[int, typer.Option(min=1, help="Number of texts per client and turn.")] = 2
    max_new_tokens: Length = 64
    temperature: Temperature = 0.0
    seed: Seed = 0
    repeats: Repeats = 5
    limit: Limit = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    quantize: Quantize = None

    def texts(self) -> list[str]:
        """The prompts, as texts."""
        from drafttree.interfaces.cli.decoders import shipped_examples
        from drafttree.measure.prompt_form import AS_TEXT
        from drafttree.measure.prompts import read_examples

        examples = read_examples(self.prompts, self.limit) if self.prompts else shipped_examples(self.limit, AS_TEXT)
        return list(map(attrgetter("prompt"), examples))

    def servers(self, largest: int) -> dict[str, list[str]]:
        """The arguments of `drafttree serve` by the server's name.

        Args:
            largest: maximum number of clients.
        """
        arguments = {SPECULATIVE: [self.drafter], WITHOUT_DRAFTER: ["none"]}
        if self.system_tokens:
            arguments = {SHARED: [self.drafter], WHOLE: [self.drafter, "--prefix-tokens", "0"]}
        names = ("policy", "verifier", "dtype", "device", "quantize")
        common_arguments: list[str] = []
        for name, value in given_options({name: getattr(self, name) for name in names}).items():
            common_arguments += [f"--{name}", value]
        common_arguments += ["--max-batch", str(largest), "--port", "0"]
        for name, own_arguments in arguments.items():
            arguments[name] = [self.model, "--drafter", *own_arguments, *common_arguments]
        return arguments

    def systems(self, texts: Sequence[str], turns: int) -> list[str]:
        """The system prompt of each turn; a single empty one without --system-tokens."""
        if not self.system_tokens:
            return [""]

        from drafttree.loading.pretrained import load_tokenizer

        return system_prompts(texts, load_tokenizer(self.model), self.system_tokens, turns)

    @property
    def request_options(self) -> dict[str, Any]:
        """The options of every request."""
        return {
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature or 0.0,
            "seed": self.seed,
            "ignore_eos": True,
        }


@grouped
def bench(served: ServedOptions, json_: AsJson = False) -> None:
    """Measure a server under load, with and without drafts.

    Both servers run as processes of their own and answer the same prompts over HTTP alternately. With --system-tokens,
    the other server is `drafttree serve --prefix-tokens 0`, and each turn has another system prompt.
    """
    check_requirements("serving", "serve")
    sizes = parse_numbers(served.clients, "--clients", 1)
    find_policy(served.policy)
    find_verifier(served.verifier)

    texts = served.texts()
    systems = served.systems(texts, len(sizes) * (served.repeats + 1))
    turns = make_turns(texts, sizes, systems, served.repeats, served.per_client)
    ways: dict[str, Way] = {}
    with ExitStack() as stack:
        for name, arguments in served.servers(max(sizes)).items():
            ways[name] = partial(_load, stack.enter_context(_served(arguments)), served.request_options)
        with progress(len(ways) * len(turns)) as advance:
            cells = measure.race(ways, turns, Any, progress=advance)
    rows = make_rows(list(_without_warm_up(cells)), list(ways))
    report = {"rows": rows, "turns": served.repeats, "tokens": served.max_new_tokens}
    print_json(measure.to_json(report)) if json_ else _show(report)


def _without_warm_up(cells: Sequence["Cell"]) -> Iterator["Cell"]:
    """The cells without those of the first turn for each number of clients."""
    for size_cells in group_by(cells, attrgetter("group")).values():
        first_turn = size_cells[0].prompt
        yield from (cell for cell in size_cells if cell.prompt != first_turn)


def make_turns(
    prompts: Sequence[str], sizes: Sequence[int], systems: Sequence[str], repeats: int, per_client: int
) -> list[tuple[str, tuple[int, list[str]]]]:
    """The turns for each number of clients, the first of which warms up; in the form of `race`'s prompts.

    All prompts of a turn begin with the same system prompt; each turn takes the next prompts and system prompt.
    """
    source = cycle(prompts)
    begins = cycle(systems)
    turns: list[tuple[str, tuple[int, list[str]]]] = []
    for size in sizes:
        for begin in islice(begins, repeats + 1):
            turn_texts = [begin + text for text in islice(source, size * per_client)]
            turns.append((str(size), (size, turn_texts)))
    return turns


def system_prompts(texts: Sequence[str], tokenizer: Any, tokens: int, turns: int) -> list[str]:
    """A system prompt for each turn, cut out of some texts.

    Args:
        texts: the texts; they are repeated if they are too short.
        tokenizer: tokenizer of the served model.
        tokens: approximate length of a system prompt in tokens.
        turns: number of turns.
    """
    ids: list[int] = tokenizer("\n".join(texts), add_special_tokens=False)["input_ids"]
    starts = [turn * TURN_STEP for turn in range(turns)]
    return [tokenizer.decode([*islice(cycle(ids), start, start + tokens)]) + "\n\n" for start in starts]


def _load(address: str, options: Mapping[str, Any], turn: tuple[int, Sequence[str]]) -> "LoadRun":
    from drafttree_lab.http_load import run_load

    return asyncio.run(run_load(address, turn[1], turn[0], options))


@dataclass
class ServerRuns:
    """The runs of a server at one number of clients, one per turn."""

    runs: "list[LoadRun]" = field(default_factory=list)

    @property
    def texts(self) -> "list[ServedText]":
        """The texts of all turns."""
        return list(chain.from_iterable(map(attrgetter("texts"), self.runs)))

    @property
    def counts(self) -> list[tuple[int, float]]:
        """Tokens and seconds of each turn."""
        return list(map(attrgetter("tokens", "seconds"), self.runs))

    @property
    def figures(self) -> dict[str, Any]:
        """The speed, percentiles of waiting times, and the share of prompt tokens that came from the prefix cache."""
        texts = self.texts
        prompt_tokens = sum(map(attrgetter("prompt_tokens"), texts))
        return {
            "tokens_per_second": measure.total_speed(self.counts),
            "first_token": _percentiles(list(map(attrgetter("first_token"), texts))),
            "next_token": _percentiles(list(chain.from_iterable(map(attrgetter("gaps"), texts)))),
            "cached": sum(map(attrgetter("cached_tokens"), texts)) / max(prompt_tokens, 1),
        }


def make_rows(cells: Sequence["Cell"], ways: Sequence[str]) -> list[dict[str, Any]]:
    """A row per number of clients: speeds and waiting times of both servers, and the number of equal texts."""
    rows: list[dict[str, Any]] = []
    for size, size_cells in group_by(cells, attrgetter("group")).items():
        servers = {way: ServerRuns() for way in ways}
        for cell in size_cells:
            servers[cell.way].runs.append(cell.result)
        main_server, base_server = servers.values()
        text_pairs = zip(main_server.texts, base_server.texts, strict=True)
        row: dict[str, Any] = {
            "clients": size,
            "ways": {way: server.figures for way, server in servers.items()},
            "ratio": measure.Interval.of_speeds_by_jackknife(main_server.counts, base_server.counts),
            "texts": len(main_server.texts),
            "same": sum(main_text.text == base_text.text for main_text, base_text in text_pairs),
        }
        rows.append(row)
    return rows


def _percentiles(values: Sequence[float]) -> dict[int, float]:
    """The values at the percentiles of `SHARES`; a single value is every percentile."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return {share: cuts[share - 1] for share in SHARES if cuts}


@contextmanager
def _served(arguments: Sequence[str]) -> Iterator[str]:
    """Run a server as a process of its own, and give its address.

    Raises:
        ConfigError: the server does not start; the message says why.
    """
    command = [sys.executable, "-m", "drafttree", "serve", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()


def _address(process: "subprocess.Popen[str]") -> str:
    line = ""
    for line in process.stderr or ():
        if match := re.search(r"serving .* at (http://\S+)", line):
            return match[1]
    raise ConfigError(
        f"a server does not start: {line.removeprefix('drafttree: error: ').strip() or 'it says nothing'}"
    )


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    rows = report["rows"]
    ways = list(rows[0]["ways"])
    columns = {"clients": ">", **dict.fromkeys(ways, ".1f"), "ratio": ".2f"}
    console.print(measure.to_table(SPEEDS, map(_speed_row, rows), columns))
    columns = {"clients": ">", "server": "", "first token": ">", "next token": ">", "prompts cached": ".0%"}
    console.print(measure.to_table(WAITS, chain.from_iterable(map(_wait_rows, rows)), columns))
    same_count = sum(map(itemgetter("same"), rows))
    texts = sum(map(itemgetter("texts"), rows))
    print(f"{report['turns']} turns of each server; {same_count} of {texts} texts equal {SECOND[ways[1]]}")
    if same_count < texts:
        print(ROUNDING)


def _speed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The speeds of both servers, and their ratio."""
    speeds = {way: figures["tokens_per_second"] for way, figures in row["ways"].items()}
    return {"clients": row["clients"], **speeds, "ratio": row["ratio"]}


def _wait_rows(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each server: how long clients waited for the first token, and between tokens."""
    for way, figures in row["ways"].items():
        yield {
            "clients": row["clients"],
            "server": way,
            "first token": _in_milliseconds(figures["first_token"]),
            "next token": _in_milliseconds(figures["next_token"]),
            "prompts cached": figures["cached"],
        }


def _in_milliseconds(percentiles: Mapping[int, float]) -> str:
    return " / ".join(f"{1000 * seconds:.1f}" for seconds in percentiles.values())
