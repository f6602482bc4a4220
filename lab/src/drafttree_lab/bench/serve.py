"""A server under load, by turns beside one without a drafter, or one that shares no prefixes, on the same prompts."""

import asyncio
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import given_options
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

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell, Way
    from drafttree_lab.http_load import LoadRun

SPECULATIVE, WITHOUT_DRAFTER = "speculative", "no drafter"
SHARED, WHOLE = "prefixes shared", "prompts read whole"
SECOND = {WITHOUT_DRAFTER: "those without a drafter", WHOLE: "those of prompts read whole"}
TURN_STEP = 97
"""Tokens by which the system prompts of two turns begin later in the same text."""
SHARES = (50, 95, 99)
"""The percentiles that are told."""
SPEEDS = "tokens/s of all clients and turns together, and their ratio with its 95 % interval (jackknife over the turns)"
WAITS = f"milliseconds that clients waited: percentiles {', '.join(map(str, SHARES))}"
ROUNDING = (
    "In bfloat16 and float16, rounding decides between two tokens that are nearly tied, and so texts differ; "
    "--dtype float32 shows whether that is all."
)


def bench(
    model: Annotated[str, typer.Argument(help='The model to serve: "embedded", a folder or a hub name.')] = "embedded",
    prompts: Files = None,
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients.")] = "1,4,16",
    drafter: Drafter = "auto",
    policy: PolicySpec = None,
    verifier: VerifierName = "auto",
    system_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length of a shared system prompt in tokens. The other server then shares no prefixes.",
        ),
    ] = None,
    per_client: Annotated[int, typer.Option(min=1, help="Number of texts per client and turn.")] = 2,
    max_new_tokens: Length = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 5,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    quantize: Quantize = None,
    json_: AsJson = False,
) -> None:
    """Measure a server under load, with and without drafts.

    Both servers run as processes of their own and answer the same prompts over HTTP in turns. With --system-tokens, the
    other server is `drafttree serve --prefix-tokens 0`, and each turn has another system prompt.
    """
    check_requirements("serving", "serve")
    sizes = parse_numbers(clients, "--clients", 1)
    find_policy(policy)
    find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import shipped_examples
    from drafttree.measure.prompt_form import AS_TEXT
    from drafttree.measure.prompts import read_examples

    texts = [
        example.prompt for example in (read_examples(prompts, limit) if prompts else shipped_examples(limit, AS_TEXT))
    ]
    options = {"policy": policy, "verifier": verifier, "dtype": dtype, "device": device, "quantize": quantize}
    common_options = [argument for name, value in given_options(options).items() for argument in (f"--{name}", value)]
    common_options += ["--max-batch", str(max(sizes)), "--port", "0"]
    servers = {SPECULATIVE: [drafter], WITHOUT_DRAFTER: ["none"]}
    systems = [""]
    if system_tokens:
        from drafttree.loading.pretrained import load_tokenizer

        servers = {SHARED: [drafter], WHOLE: [drafter, "--prefix-tokens", "0"]}
        systems = system_prompts(texts, load_tokenizer(model), system_tokens, len(sizes) * (repeats + 1))
    turns = make_turns(texts, sizes, systems, repeats, per_client)
    request_options = {
        "max_tokens": max_new_tokens,
        "temperature": temperature or 0.0,
        "seed": seed,
        "ignore_eos": True,
    }
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(_served([model, "--drafter", *server_options, *common_options]))
            for name, server_options in servers.items()
        }
        ways: dict[str, Way] = {name: partial(_load, address, request_options) for name, address in addresses.items()}
        with progress(len(ways) * len(turns)) as advance:
            cells = measure.race(ways, turns, Any, progress=advance)
    warm_up_prompts = {group: next(cell.prompt for cell in cells if cell.group == group) for group, _ in turns}
    rows = make_rows([cell for cell in cells if cell.prompt != warm_up_prompts[cell.group]], [*addresses])
    report = {"rows": rows, "turns": repeats, "tokens": max_new_tokens}
    print_json(measure.to_json(report)) if json_ else _show(report)


def make_turns(
    prompts: Sequence[str], sizes: Sequence[int], systems: Sequence[str], repeats: int, per_client: int
) -> list[tuple[str, tuple[int, list[str]]]]:
    """By the number of clients, the texts of so many turns behind one that is not counted.

    A turn takes the next prompts and the next system prompt, which all its prompts begin with.
    """
    source = cycle(prompts)
    begins = cycle(systems)
    return [
        (str(size), (size, [begin + text for text in islice(source, size * per_client)]))
        for size in sizes
        for begin in islice(begins, repeats + 1)
    ]


def system_prompts(texts: Sequence[str], tokenizer: Any, tokens: int, turns: int) -> list[str]:
    """A beginning of about so many tokens for each turn, out of some texts.

    Args:
        texts: what it is made of, again and again where they are short.
        tokenizer: of the served model.
        tokens: its length.
        turns: how many are wanted.
    """
    ids: list[int] = tokenizer("\n".join(texts), add_special_tokens=False)["input_ids"]
    starts = [turn * TURN_STEP for turn in range(turns)]
    return [tokenizer.decode([*islice(cycle(ids), start, start + tokens)]) + "\n\n" for start in starts]


def _load(address: str, options: Mapping[str, Any], turn: tuple[int, Sequence[str]]) -> "LoadRun":
    from drafttree_lab.http_load import run_load

    return asyncio.run(run_load(address, turn[1], turn[0], options))


def make_rows(cells: Sequence["Cell"], ways: Sequence[str]) -> list[dict[str, Any]]:
    """The two servers by the number of clients: speeds, how long clients waited, and how many texts are the same."""
    rows = []
    main_way, base_way = ways
    for size in dict.fromkeys(cell.group for cell in cells):
        runs = {
            way: [cell.result for cell in cells if (cell.way, cell.group) == (way, size)]
            for way in (main_way, base_way)
        }
        counts = {way: [(run.tokens, run.seconds) for run in way_runs] for way, way_runs in runs.items()}
        texts = [[text.text for run in way_runs for text in run.texts] for way_runs in runs.values()]
        row: dict[str, Any] = {"clients": size, "ways": {way: _figures(way_runs) for way, way_runs in runs.items()}}
        ratio = measure.Interval.of_speeds_by_jackknife(counts[main_way], counts[base_way])
        row |= {"ratio": ratio, "texts": len(texts[0])}
        rows.append(row | {"same": sum(our_text == their_text for our_text, their_text in zip(*texts, strict=True))})
    return rows


def _figures(runs: Sequence["LoadRun"]) -> dict[str, Any]:
    texts = [text for run in runs for text in run.texts]
    return {
        "tokens_per_second": measure.total_speed((run.tokens, run.seconds) for run in runs),
        "first_token": _percentiles([text.first_token for text in texts]),
        "next_token": _percentiles([gap for text in texts for gap in text.gaps]),
        "cached": sum(text.cached_tokens for text in texts) / max(sum(text.prompt_tokens for text in texts), 1),
    }


def _percentiles(values: Sequence[float]) -> dict[int, float]:
    """Seconds by percent; those of one value are that value."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return {share: cuts[share - 1] for share in SHARES if cuts}


@contextmanager
def _served(arguments: Sequence[str]) -> Iterator[str]:
    """A server as a process of its own; its address.

    Raises:
        ConfigError: it does not start, and says why.
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
    ways = [*rows[0]["ways"]]
    speeds = [
        {
            "clients": row["clients"],
            **{way: row["ways"][way]["tokens_per_second"] for way in ways},
            "ratio": row["ratio"],
        }
        for row in rows
    ]
    waits = [
        {"clients": row["clients"], "server": way, **_waiting(figures), "prompts cached": figures["cached"]}
        for row in rows
        for way, figures in row["ways"].items()
    ]
    console.print(measure.to_table(SPEEDS, speeds, {"clients": ">", **dict.fromkeys(ways, ".1f"), "ratio": ".2f"}))
    columns = {"clients": ">", "server": "", "first token": ">", "next token": ">", "prompts cached": ".0%"}
    console.print(measure.to_table(WAITS, waits, columns))
    same_count = sum(row["same"] for row in rows)
    texts = sum(row["texts"] for row in rows)
    print(f"{report['turns']} turns of each; {same_count} of {texts} texts are {SECOND[ways[1]]}")
    if same_count < texts:
        print(ROUNDING)


def _waiting(figures: Mapping[str, Any]) -> dict[str, str]:
    """Milliseconds to the first token, and from token to token, by percentile."""
    waits = {"first token": figures["first_token"], "next token": figures["next_token"]}
    return {
        name: " / ".join(f"{1000 * seconds:.1f}" for seconds in percentiles.values())
        for name, percentiles in waits.items()
    }
