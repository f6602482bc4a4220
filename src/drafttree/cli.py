"""The command line: every command is one call into the modules below, and a way to show what came of it."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn, cast

import transformers
import typer
from rich.text import Text

import drafttree
from drafttree import display
from drafttree import prompts as prompt_files
from drafttree.bench import Comparison, bench_policies, compare, measure_overhead
from drafttree.bench.policies import shipped_prompts
from drafttree.certify import certify, fit, parse_policies
from drafttree.decoder import Decoder, Prompt
from drafttree.distributions import Sampling
from drafttree.errors import ConfigError, DraftTreeError
from drafttree.inspection import inspect as inspect_folder
from drafttree.loading import DEFAULT_POLICY, choose_drafter, load
from drafttree.policies import POLICIES
from drafttree.sequence import Generation
from drafttree.verifiers import VERIFIERS

INTERRUPTED = 130
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)

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
Drafter = Annotated[str, typer.Option(help='A language model or head that drafts: as --target, "none", or "auto".')]
PolicySpec = Annotated[str, typer.Option(help='How the tree grows, such as "talon:budget=60,margin=0.03".')]
PolicySpecs = Annotated[list[str], typer.Option(help='Specifications or "all"; repeat it or separate by semicolons.')]
VerifierName = Annotated[str, typer.Option(help=f'What is accepted: {", ".join(VERIFIERS)} or "auto".')]
Dtype = Annotated[str, typer.Option(help='"float32", "bfloat16", "float16" or "auto".')]
Device = Annotated[str, typer.Option(help='"cpu", "cuda", ... or "auto".')]
Temperature = Annotated[float, typer.Option(help="0 decodes greedily.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the most probable tokens up to this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less probable than this share of the best.")]
DraftTemperature = Annotated[float, typer.Option(help="Divides the drafter's logits; below 1 it is trusted more.")]
Seed = Annotated[int, typer.Option(help="Of the draws.")]
Length = Annotated[int, typer.Option(min=1, help="Tokens to generate at most, per prompt.")]
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
    draft_temperature: DraftTemperature = 1.0,
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
    options |= {"stop": stop or (), "ignore_eos": ignore_eos, "draft_temperature": draft_temperature}
    text = prompt_files.read_prompt(prompt)
    decoder = _load(target, drafter, policy, verifier, dtype=dtype, device=device)
    if decoder.drafter is None and compare:
        raise ConfigError("--compare needs a drafter; name one with --drafter")
    start = _chat(decoder, text) if chat else text
    generation = _write(decoder, start, options, quiet=json_, echo="" if chat else text)
    interrupted = generation.finish_reason == "interrupted"
    compared = _compare(decoder, start, repeats, options) if compare and not interrupted else None
    if json_:
        _print_json(_report(generation, compared))
    elif compared:
        display.show_comparison(compared, policy)
    else:
        display.show_speed(generation)
    raise typer.Exit(INTERRUPTED if interrupted else 0)


@app.command()
def policies() -> None:
    """List the tree policies: parameters, defaults, ranges and sources."""
    display.show_policies(POLICIES)


@app.command()
def inspect(path: Annotated[str, typer.Argument(help="A folder, a hub name or an embedded name.")]) -> None:
    """Say what a drafter's folder is, which target it fits, its sizes, and what it lacks."""
    found = inspect_folder(path)
    display.show_inspection(found)
    raise typer.Exit(1 if found.problems else 0)


@app.command()
def verifiers() -> None:
    """List the verifiers and their sources."""
    display.show_verifiers(VERIFIERS)


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
    with display.progress(runs) as advance:
        options = {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        certificate = certify(decoder, texts, specs, sampling=sampling, progress=advance, **options)
    if json_:
        _print_json(certificate.summary())
    else:
        display.show_certificate(certificate, decoder)
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
    with display.progress(repeats * len(texts) * (len(specs) + 1)) as advance:
        result = bench_policies(decoder, texts, specs, repeats=repeats, progress=advance, **options)
    display.show_bench(result)
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
    display.show_overhead(measure_overhead(decoder, texts, specs, repeats=repeats, **options))


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


def _load(target: str, drafter: str, *arguments: str, **options: str) -> Decoder:
    """A decoder; what "auto" stands for is said where it is not the embedded pair."""
    decoder = load(target, drafter, *arguments, **options)
    if drafter == "auto" and target != "embedded":
        choice = choose_drafter(target)
        print(f"drafter: {choice.name} ({choice.reason}); name another with --drafter", file=sys.stderr)
    return decoder


def _speculative(target: str, drafter: str, dtype: str, device: str) -> Decoder:
    """A decoder that has a drafter.

    Raises:
        ConfigError: it would have none.
    """
    decoder = _load(target, drafter, dtype=dtype, device=device)
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
    console, show = display.make_console(), not quiet
    if show and console.is_terminal:
        console.print(Text(echo, style="dim"), end="", soft_wrap=True)
    for chunk in decoder.follow(sequence):
        if show:
            display.show_chunk(console, chunk)
    if show:
        print(flush=True)
    return Generation.of(sequence)


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


def _print_json(report: dict[str, object]) -> None:
    print(json.dumps(report, ensure_ascii=False))
