"""The command line: every command is one call into the modules below, and a way to show what came of it."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import Annotated, NoReturn, cast

import transformers
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import drafttree
from drafttree import prompts as prompt_files
from drafttree.bench import Comparison, Overhead, PolicyBench, bench_policies, compare, measure_overhead
from drafttree.bench.overhead import PARTS
from drafttree.bench.policies import shipped_prompts
from drafttree.certify import Certificate, certify, fit, parse_policies
from drafttree.decoder import Decoder, Prompt
from drafttree.distributions import Sampling
from drafttree.errors import ConfigError, DraftTreeError
from drafttree.loading import DEFAULT_POLICY, load
from drafttree.policies import POLICIES
from drafttree.reference import TOLERANCE_ULPS, Difference
from drafttree.sequence import Chunk, Generation
from drafttree.verifiers import VERIFIERS

INTERRUPTED = 130
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)
DRAFTED = "green"

app = typer.Typer(
    help="Tree speculative decoding: any drafter, any tree policy, any verifier, losslessly.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None)
app.add_typer(bench, name="bench")

Target = Annotated[str, typer.Option(help='The model whose text is wanted: "embedded", a folder or a hub name.')]
Drafter = Annotated[str, typer.Option(help='The model that drafts: as --target, "none", or "auto".')]
PolicySpec = Annotated[str, typer.Option(help='How the tree grows, such as "talon:budget=60,margin=0.03".')]
PolicySpecs = Annotated[list[str], typer.Option(help='Specifications or "all"; repeat it or separate by semicolons.')]
VerifierName = Annotated[str, typer.Option(help='What is accepted: "greedy", "coupled" or "auto".')]
Dtype = Annotated[str, typer.Option(help='"float32", "bfloat16", "float16" or "auto".')]
Device = Annotated[str, typer.Option(help='"cpu", "cuda", ... or "auto".')]
Temperature = Annotated[float, typer.Option(help="0 decodes greedily.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the most probable tokens up to this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less probable than this share of the best.")]
Seed = Annotated[int, typer.Option(help="Of the draws.")]
Length = Annotated[int, typer.Option(help="Tokens to generate at most, per prompt.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of the text.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Files = Annotated[list[Path] | None, typer.Option(help="Prompt file (.jsonl or .txt, also .gz); may be repeated.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only so many prompts.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of everything; medians are reported.")]
PromptText = Annotated[str | None, typer.Argument(help="The prompt; - or nothing reads standard input.")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 if all went well, 1 if a certificate failed, 2 for a mistake of the user's."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _quiet()
    try:
        code = app(arguments or ["--help"], prog_name="drafttree", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    except DraftTreeError as error:
        code = _complain(str(error))
    except USAGE_ERROR as error:
        code = _complain(getattr(error, "format_message", error.__str__)())
    sys.exit(code if isinstance(code, int) else 0)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(drafttree.__version__)
        raise typer.Exit


@app.command()
def generate(
    prompt: PromptText = None,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    policy: PolicySpec = DEFAULT_POLICY,
    verifier: VerifierName = "auto",
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the text; may be repeated.")] = None,
    max_new_tokens: Length = 128,
    dtype: Dtype = "auto",
    device: Device = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Also time plain decoding and transformers.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each way for --compare.")] = 3,
    json_: AsJson = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template to the prompt.")] = False,
    ignore_eos: IgnoreEos = False,
) -> None:
    """Write from a prompt; on a terminal, what was accepted from the draft tree is green."""
    options = {**_sampling_options(temperature, top_k, top_p, min_p, seed), "max_new_tokens": max_new_tokens}
    options |= {"stop": stop or (), "ignore_eos": ignore_eos}
    text = prompt_files.read_prompt(prompt)
    decoder = load(target, drafter, policy, verifier, dtype=dtype, device=device)
    start = _chat(decoder, text) if chat else text
    generation = _write(decoder, start, options, quiet=json_, echo="" if chat else text)
    interrupted = generation.finish_reason == "interrupted"
    compared = _compare(decoder, start, repeats, options) if compare and not interrupted else None
    if json_:
        _print_json(_report(generation, compared))
    elif compared:
        _show_comparison(compared, policy)
    else:
        _show_speed(generation)
    raise typer.Exit(INTERRUPTED if interrupted else 0)


@app.command()
def policies() -> None:
    """List the tree policies: parameters, defaults, ranges and sources."""
    for name, policy in POLICIES.items():
        _console().print(Text.assemble((name, "bold"), "  ", policy.source), Text(_first_paragraph(policy)), sep="\n")
        table = _table("parameter", "default", "range", "meaning")
        for key, field in policy.model_fields.items():
            table.add_row(key, str(field.default).lower(), _range(field), field.description or "")
        _console().print(table, "")


@app.command()
def verifiers() -> None:
    """List the verifiers and their sources."""
    for name, verifier in VERIFIERS.items():
        title = Text.assemble((name, "bold"), "  ", verifier.source)
        _console().print(title, Text(_first_paragraph(verifier)), "", sep="\n")


@app.command(name="certify")
def certify_(
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    ignore_eos: IgnoreEos = False,
    json_: AsJson = False,
) -> None:
    """Check that every policy's text is the reference's, token for token.

    The reference is transformers' own generate; above temperature 0 it is decoding without speculation.
    """
    if not prompts:
        raise ConfigError("certify needs a prompt file: --prompts FILE")
    specs, texts = parse_policies(policies), prompt_files.read_prompts(prompts, limit)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    decoder = _speculative(target, drafter, dtype, device)
    runs = len(texts) * (len(specs) + 1 + sampling.greedy)
    with _progress(runs) as advance:
        options = {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        certificate = certify(decoder, texts, specs, sampling=sampling, progress=advance, **options)
    if json_:
        _print_json(certificate.summary())
    else:
        _show_certificate(certificate, decoder)
    raise typer.Exit(0 if certificate.passed else 1)


@bench.command(name="policies")
def bench_policies_(
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Every policy and plain decoding, interleaved: every term of the law, predicted and measured speed-up."""
    specs = parse_policies(policies)
    decoder = _speculative(target, drafter, dtype, device)
    texts = _bench_prompts(decoder, prompts, limit, max_new_tokens)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with _progress(repeats * len(texts) * (len(specs) + 1)) as advance:
        result = bench_policies(decoder, texts, specs, repeats=repeats, progress=advance, **options)
    _show_bench(result)
    _print_json(result.summary())


@bench.command(name="overhead")
def bench_overhead(
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = 2,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """The time of a round outside the two models' forward passes, and where it goes."""
    specs = parse_policies(policies)
    decoder = _speculative(target, drafter, dtype, device)
    texts = _bench_prompts(decoder, prompts, limit, max_new_tokens)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    _show_overhead(measure_overhead(decoder, texts, specs, repeats=repeats, **options))


def _quiet() -> None:
    """No progress bars, warnings or retry notices of the libraries below, and no crash on an odd terminal encoding."""
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    for name in ("huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _complain(message: str) -> int:
    print(f"drafttree: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _sampling_options(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> dict:
    """The options of `Decoder.start`, checked before any model is loaded."""
    return vars(Sampling(temperature, top_k, top_p, min_p, seed)).copy()


def _speculative(target: str, drafter: str, dtype: str, device: str) -> Decoder:
    """A decoder that has a drafter.

    Raises:
        ConfigError: it would have none.
    """
    decoder = load(target, drafter, dtype=dtype, device=device)
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {target!r}; name one with --drafter")
    return decoder


def _chat(decoder: Decoder, prompt: str) -> list[int]:
    if decoder.tokenizer is None or not decoder.tokenizer.chat_template:
        raise ConfigError("the target's tokenizer has no chat template; leave out --chat")
    messages = [{"role": "user", "content": prompt}]
    return decoder.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def _bench_prompts(decoder: Decoder, paths: list[Path] | None, limit: int | None, length: int) -> list[list[int]]:
    texts = prompt_files.read_prompts(paths, limit) if paths else shipped_prompts()[:limit]
    return [fit(decoder, text, length)[0] for text in texts]


def _write(decoder: Decoder, prompt: Prompt, options: dict, *, quiet: bool, echo: str) -> Generation:
    """Generate, and show the text as it is made unless `quiet`."""
    sequence = decoder.start(prompt, **options)
    console, show = _console(), not quiet
    if show and console.is_terminal:
        console.print(Text(echo, style="dim"), end="", soft_wrap=True)
    for chunk in decoder.follow(sequence):
        if show:
            _show_chunk(console, chunk)
    if show:
        print(flush=True)
    return Generation.of(sequence)


def _show_chunk(console: Console, chunk: Chunk) -> None:
    if not console.is_terminal:
        print(chunk.text, end="", flush=True)
        return
    characters = zip(chunk.text, chunk.drafted_text, strict=True)
    for drafted, run in groupby(characters, key=lambda pair: pair[1]):
        piece = Text("".join(character for character, _ in run), style=DRAFTED if drafted else "")
        console.print(piece, end="", soft_wrap=True)


def _compare(decoder: Decoder, prompt: Prompt, repeats: int, options: dict) -> Comparison:
    if sys.stderr.isatty():
        print("timing ...", end="\r", file=sys.stderr, flush=True)
    return compare(decoder, prompt, repeats=repeats, **options)


def _report(generation: Generation, compared: Comparison | None) -> dict[str, object]:
    report: dict[str, object] = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "metrics": generation.metrics.summary(),
    }
    return report | ({"comparison": compared.summary()} if compared else {})


def _show_speed(generation: Generation) -> None:
    metrics = generation.metrics
    line = f"{metrics.tokens} tokens, {metrics.tokens_per_second:.1f} tokens/s, "
    line += f"{metrics.mean_accepted_tokens:.2f} tokens per target pass ({generation.finish_reason})"
    _console(stderr=True).print(Text(line, style="dim"))


def _show_comparison(compared: Comparison, policy: str) -> None:
    console, law = _console(), compared.law
    table = _table("", "tokens/s", "ratio", right=2)
    names = {
        "speculative": f"drafttree, {policy}",
        "plain": "drafttree, plain",
        "transformers": "transformers generate",
    }
    for way, speed in compared.speeds.items():
        table.add_row(names[way], f"{speed:.1f}", f"{speed / compared.speeds['plain']:.2f}")
    console.print("", table, "", sep="\n")
    terms = _table("R = tau / (v + c*delta + h)", "", "", right=1)
    for symbol, value, meaning in _law_terms(compared):
        terms.add_row(symbol, f"{value:.3f}", meaning)
    terms.add_row("R predicted", f"{law.predicted:.3f}", "by the law")
    terms.add_row("R measured", f"{law.measured:.3f}", "tokens/s over plain, prompt included")
    console.print(terms, "", sep="\n")
    for line in _agreement(compared):
        console.print(Text(line))
    console.print(Text(compared.verdict, style="bold"), soft_wrap=True)


def _law_terms(compared: Comparison) -> list[tuple[str, float, str]]:
    law, nodes = compared.law, compared.speculative.metrics.mean_nodes
    return [
        ("tau", law.tau, "tokens per target pass"),
        ("v", law.v, f"pass over {nodes:.1f} nodes, in plain passes"),
        ("c", law.c, "a draft pass, in plain passes"),
        ("delta", law.delta, "draft passes per round"),
        ("h", law.h, "rest of a round, in plain passes"),
    ]


def _agreement(compared: Comparison) -> Iterator[str]:
    if compared.transformers is None:
        return
    pairs = [("plain decoding", compared.from_plain)] if compared.seeded else []
    pairs += [("transformers", compared.from_transformers)] if compared.greedy else []
    for name, difference in pairs:
        yield f"text against {name}: {_describe(difference) if difference else 'identical, token for token'}"
    if not compared.seeded:
        yield "text against plain decoding: not comparable, this verifier's draws depend on the tree"
    if not compared.greedy:
        yield "text against transformers: not comparable above temperature 0, it draws its own random numbers"


def _describe(difference: Difference) -> str:
    excuse = f"a tie in this dtype (tolerance {difference.tolerance:.3g})" if difference.explained else "NOT a tie"
    return f"differs from token {difference.position} on; gap of the two best logits {difference.gap:.3g}: {excuse}"


def _show_certificate(certificate: Certificate, decoder: Decoder) -> None:
    console = _console()
    table = _table("policy", "identical", "verdict")
    for policy in certificate.policies:
        verdict = "ties only" if policy.findings and policy.passed else "ok" if policy.passed else "DIFFERENT"
        table.add_row(policy.policy, f"{policy.identical}/{policy.prompts}", verdict)
    console.print(table)
    if any(policy.findings for policy in certificate.policies):
        console.print(_differences(certificate, decoder))
    console.print(Text(_conclusion(certificate)), soft_wrap=True)


def _differences(certificate: Certificate, decoder: Decoder) -> Table:
    table = _table("policy", "prompt", "position", "expected", "got", "gap", "tolerance", "a tie")
    for policy in certificate.policies:
        for finding in policy.findings:
            found = finding.difference
            tokens = [_token(decoder, token) for token in (found.expected, found.got)]
            numbers = [f"{found.gap:.3g}", f"{found.tolerance:.3g}", "yes" if found.explained else "NO"]
            table.add_row(policy.policy, str(finding.prompt), str(found.position), *tokens, *numbers)
    return table


def _token(decoder: Decoder, token: int | None) -> str:
    if token is None:
        return "(ended)"
    return f"{token} {decoder.tokenizer.decode([token])!r}" if decoder.tokenizer else str(token)


def _conclusion(certificate: Certificate) -> str:
    count = certificate.policies[0].prompts if certificate.policies else 0
    lines = f"{count} prompts, {certificate.tokens} reference tokens, {certificate.dtype}, reference: "
    lines += f"{certificate.reference}."
    if certificate.truncated:
        lines += f" {certificate.truncated} prompts were cut to their last tokens to fit the context."
    if any(policy.findings for policy in certificate.policies) and certificate.dtype != "float32":
        lines += f" A tie: both tokens within {TOLERANCE_ULPS} ulps of the best logit."
    return f"{lines} {'Certified.' if certificate.passed else 'NOT certified.'}"


def _show_bench(result: PolicyBench) -> None:
    columns = ["policy", "tau", "delta", "v", "c", "h", "R law", "R", "tokens/s", "accepted", "nodes"]
    for group in dict.fromkeys(row.group for row in result.rows):
        rows = [row for row in result.rows if row.group == group]
        table = _table(*columns, right=len(columns) - 1)
        table.title = f"{group}: {rows[0].prompts} prompts"
        for row in rows:
            law = row.law
            terms = [law.tau, law.delta, law.v, law.c, law.h, row.predicted, law.measured]
            rest = [f"{row.tokens_per_second:.1f}", f"{row.acceptance_rate:.1%}", f"{row.mean_nodes:.1f}"]
            table.add_row(row.policy, *(f"{term:.2f}" for term in terms), *rest)
        _console().print(table)
    print(f"{result.looping} of {result.prompts} texts loop (their last 48 tokens repeat with a period of at most 16)")


def _show_overhead(results: list[Overhead]) -> None:
    columns = ["policy", "round", "target", "draft", "outside", "share", *PARTS]
    table = _table(*columns, right=len(columns) - 1)
    table.title = "mean µs per round; outside the two models' passes:"
    for result in results:
        passes = [result.round, result.target, result.draft, result.seconds]
        parts = [getattr(result, part) for part in PARTS]
        cells = [f"{seconds * 1e6:.0f}" for seconds in passes + parts]
        table.add_row(result.policy, *cells[: len(passes)], f"{result.share:.1%}", *cells[len(passes) :])
    _console().print(table)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error; what it gives advances it by one and says what was done."""
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def _console(stderr: bool = False) -> Console:
    """As wide as the terminal, and without a limit where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 1000)


def _table(*columns: str, right: int = 0) -> Table:
    """An empty table whose last `right` columns, or those after the first, are numbers."""
    table = Table(box=None, header_style="bold", title_justify="left", pad_edge=False, padding=(0, 2, 0, 0))
    numbers = range(1, 1 + right)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    return table


def _first_paragraph(thing: type) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())


def _range(field) -> str:
    """The range of a pydantic field, as "1 to 64"."""
    bounds = [getattr(limit, side) for limit in field.metadata for side in ("ge", "le") if hasattr(limit, side)]
    if field.annotation is bool:
        return "true, false"
    return " to ".join(map(str, bounds)) if bounds else "text"


def _print_json(report: dict[str, object]) -> None:
    print(json.dumps(report, ensure_ascii=False))
