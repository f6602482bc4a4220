"""The command line: every command is one call into the modules below, and a way to show what came of it."""

import functools
import inspect
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import transformers
import typer
from rich.text import Text

import drafttree
from drafttree.constraints.grammar import Grammar, ebnf, json_schema, regex
from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.core.sampling import Sampling
from drafttree.drafters import LOOKUPS
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.request import Generation
from drafttree.evaluation import prompts as prompt_files
from drafttree.evaluation.bench import (
    Comparison,
    bench_acceptance,
    bench_drafters,
    bench_lookup,
    bench_policies,
    bench_verifiers,
    code_edits,
    compare,
    measure_law,
    measure_overhead,
)
from drafttree.evaluation.bench.inflation import SHAPES, load_inflated
from drafttree.evaluation.bench.policies import shipped_prompts
from drafttree.evaluation.certify import certify, fit, parse_policies, parse_verifiers
from drafttree.evaluation.exactness import OPTIONS
from drafttree.evaluation.pair_sweep import sweep_pairs
from drafttree.evaluation.reference import transformers_model
from drafttree.interfaces import display
from drafttree.loading import zoo
from drafttree.loading.inspect import inspect as inspect_folder
from drafttree.loading.load import DEFAULT_POLICY, choose_drafter, find_device, find_drafter, load
from drafttree.policies import POLICIES
from drafttree.verifiers import VERIFIERS

INTERRUPTED = 130
EXACT = {"exact", "policies", "verifiers", "models", "json_"}
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
Drafter = Annotated[
    str,
    typer.Option(help='Who drafts: a model or head as --target, "lookup", "suffix", "mixed:MODEL", "none" or "auto".'),
]
PolicySpec = Annotated[str, typer.Option(help='How the tree grows, such as "talon:budget=60,margin=0.03".')]
PolicySpecs = Annotated[
    list[str],
    typer.Option("--policies", "--policy", help='Specifications or "all"; repeat it or separate by semicolons.'),
]
VerifierNames = Annotated[
    list[str], typer.Option("--verifiers", "--verifier", help='Names or "all", for --exact; separate by commas.')
]
VerifierName = Annotated[str, typer.Option(help=f'What is accepted: {", ".join(VERIFIERS)} or "auto".')]
Dtype = Annotated[str, typer.Option(help='"float32", "bfloat16", "float16" or "auto".')]
Device = Annotated[str, typer.Option(help='"cpu", "cuda", ... or "auto".')]
Temperature = Annotated[float, typer.Option(help="0 decodes greedily.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the most probable tokens up to this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less probable than this share of the best.")]
TypicalP = Annotated[float, typer.Option(help="Keep the tokens of the most typical surprise up to this probability.")]
EpsilonCutoff = Annotated[float, typer.Option(help="Drop tokens less probable than this.")]
EtaCutoff = Annotated[float, typer.Option(help="Drop improbable tokens, fewer where much is possible.")]
TopH = Annotated[float, typer.Option(help="Keep the best tokens up to this share of the entropy; 0 keeps all.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1, tokens of prompt and text become less likely.")]
NoRepeat = Annotated[int, typer.Option(help="No so many tokens come twice in a row; 0 lets them.")]
MinNewTokens = Annotated[int, typer.Option(min=0, help="Tokens to generate at least, stop strings aside.")]
LogitBias = Annotated[
    list[str] | None, typer.Option(help="ID=VALUE adds to a token's logit; ID,ID=VALUE to the last one's. Repeatable.")
]
SchemaFile = Annotated[Path | None, typer.Option("--json-schema", help="Write JSON that follows the schema in FILE.")]
Pattern = Annotated[str | None, typer.Option("--regex", help="Write a text that matches this regular expression.")]
EbnfFile = Annotated[Path | None, typer.Option("--ebnf", help="Write a text of the EBNF grammar in FILE.")]
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


def _shaping(
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    typical_p: TypicalP = 1.0,
    epsilon_cutoff: EpsilonCutoff = 0.0,
    eta_cutoff: EtaCutoff = 0.0,
    top_h: TopH = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    no_repeat_ngram_size: NoRepeat = 0,
    min_new_tokens: MinNewTokens = 0,
    logit_bias: LogitBias = None,
    schema: SchemaFile = None,
    pattern: Pattern = None,
    grammar: EbnfFile = None,
) -> dict[str, Any]:
    """The options of `Decoder.new_request` that shape the text, checked as far as that needs no model."""
    sampling = vars(Sampling(temperature, top_k, top_p, min_p, 0, typical_p, epsilon_cutoff, eta_cutoff, top_h)).copy()
    del sampling["seed"]
    return sampling | {
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "min_new_tokens": min_new_tokens,
        "sequence_bias": [_bias(spec) for spec in logit_bias or ()] or None,
        "grammar": _grammar(schema, pattern, grammar),
    }


def _shaped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `_shaping`, whose result becomes its `shaping`."""
    shared = inspect.signature(_shaping).parameters
    own = {name: option for name, option in inspect.signature(command).parameters.items() if name != "shaping"}

    @functools.wraps(command)
    def shaped(**arguments: Any) -> None:
        shaping = _shaping(**{name: arguments.pop(name) for name in shared})
        command(shaping=shaping, **arguments)

    parameters = [*own.values(), *shared.values()]
    vars(shaped)["__signature__"] = inspect.Signature(parameters)
    shaped.__annotations__ = {option.name: option.annotation for option in parameters}
    return shaped


@app.command()
@_shaped
def generate(
    prompt: PromptText = None,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    policy: PolicySpec = DEFAULT_POLICY,
    verifier: VerifierName = "auto",
    seed: Annotated[int | None, typer.Option(help="Of the draws; without one every text is another.")] = None,
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
    *,
    shaping: dict[str, Any],
) -> None:
    """Write from a prompt; on a terminal, what was accepted from the draft tree is green."""
    options = shaping | {"seed": seed, "max_new_tokens": max_new_tokens, "stop": stop or ()}
    options |= {"ignore_eos": ignore_eos, "draft_temperature": draft_temperature}
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


@app.command(name="inspect")
def inspect_(path: Annotated[str, typer.Argument(help="A folder, a hub name or an embedded name.")]) -> None:
    """Say what a drafter's folder is, which target it fits, its sizes, and what it lacks."""
    found = inspect_folder(path)
    display.show_inspection(found)
    raise typer.Exit(1 if found.problems else 0)


@app.command()
def verifiers() -> None:
    """List the verifiers and their sources."""
    display.show_verifiers(VERIFIERS)


@app.command(name="certify")
@_shaped
def certify_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    ignore_eos: IgnoreEos = False,
    json_: AsJson = False,
    exact: Annotated[bool, typer.Option("--exact", help="Enumerate toy models instead; needs no prompts.")] = False,
    verifiers: VerifierNames = ["all"],  # noqa: B006
    models: Annotated[int, typer.Option(min=1, help="Toy models per pair, for --exact.")] = 50,
    *,
    shaping: dict[str, Any],
) -> None:
    """Check that every policy's text is the reference's, token for token.

    The reference is transformers' own generate; above temperature 0 it is decoding without speculation. With --exact,
    prove instead that policies and verifiers have the target's law, by enumerating every draw and every decision.
    """
    given = _given(context)
    if exact:
        sampling = _exact_sampling(given, shaping)
        _certify_exactly(parse_policies(policies), parse_verifiers(verifiers), models, sampling, json_)
    for name in ("verifiers", "models"):
        if name in given:
            raise ConfigError(f"{given[name]} is for --exact alone; give --exact, or leave it out")
    if not prompts:
        raise ConfigError("certify needs a prompt file: --prompts FILE")
    specs, texts = parse_policies(policies), prompt_files.read_prompts(prompts, limit)
    sampling = Sampling.from_options(shaping)
    decoder = _speculative(target, drafter, dtype, device)
    runs = len(texts) * (len(specs) + 1 + sampling.greedy)
    with display.progress(runs) as advance:
        options = shaping | {"seed": seed, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        certificate = certify(decoder, texts, specs, progress=advance, **options)
    if json_:
        _print_json(certificate.summary())
    else:
        display.show_certificate(certificate, decoder)
    raise typer.Exit(0 if certificate.passed else 1)


def _given(context: typer.Context) -> dict[str, str]:
    """The flags on the command line, by the names of their parameters."""
    sources = {option.name: context.get_parameter_source(option.name) for option in context.command.params}
    flags = {option.name: option.opts[0] for option in context.command.params}
    return {name: flags[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _exact_sampling(given: Mapping[str, str], shaping: Mapping[str, Any]) -> dict[str, float]:
    """The sampling of toy models.

    Raises:
        ConfigError: a flag that says nothing of them, or nothing is drawn.
    """
    for name, flag in given.items():
        if name not in EXACT | OPTIONS:
            raise ConfigError(f"{flag} does not apply to --exact, which enumerates toy models; leave it out")
    if "temperature" in given and not shaping["temperature"]:
        raise ConfigError("--temperature 0 draws nothing, so there is nothing to enumerate; leave it out for 1")
    return {name: shaping[name] for name in OPTIONS & given.keys()}


def _certify_exactly(
    policies: list[str], verifiers: list[str], models: int, sampling: Mapping[str, float], json_: bool
) -> NoReturn:
    with display.progress(len(policies) * len(verifiers)) as advance:
        table = sweep_pairs(policies, verifiers, models=models, progress=advance, **sampling)
    if json_:
        _print_json(table.summary())
    else:
        display.show_enumeration(table)
    raise typer.Exit(0 if table.passed else 1)


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


@bench.command(name="law")
def bench_law(
    prompts: Files = None,
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree;fixed"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    inflated: Annotated[str | None, typer.Option("--inflate", help=f"Cost of the target: {', '.join(SHAPES)}.")] = None,
    max_new_tokens: Length = 128,
    draft_temperature: DraftTemperature = 1.0,
    repeats: Repeats = 3,
    limit: Limit = None,
    contexts: Annotated[
        str | None, typer.Option(help='Also time passes behind so many tokens: "512,2048,8192".')
    ] = None,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also time transformers' own ways.")] = True,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Passes, memory bandwidth, and greedy decoding against both; with --inflate at the cost of a larger target.

    An inflated target computes what the small one does: real acceptance of the pair at the cost of the large model.
    """
    specs = parse_policies(policies)
    decoder = _speculative(target, drafter, dtype, device, inflated)
    texts = _bench_prompts(decoder, prompts, limit, max_new_tokens)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "draft_temperature": draft_temperature, "peers": peers}
    options["contexts"] = _numbers(contexts, "--contexts") if contexts else ()
    ways = len(specs) + 1 + (4 if peers else 0)
    with display.progress(repeats * len(texts) * ways) as advance:
        law = measure_law(decoder, texts, specs, repeats=repeats, progress=advance, **options)
    display.show_law(law)
    _print_json(law.summary())


@bench.command(name="verifiers")
def bench_verifiers_(
    verifiers: Annotated[list[str], typer.Option("--verifiers", "--verifier", help='Names or "all".')] = ["all"],  # noqa: B006
    nodes: Annotated[str, typer.Option(help="Tree sizes, root included.")] = "16,64,256",
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "4000,32000,128000",
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states the logits are made from.")] = 4096,
    temperature: Annotated[float, typer.Option(help="Above 0; greedy decodes at 0.")] = 1.0,
    repeats: Repeats = 5,
    device: Device = "auto",
) -> None:
    """The time every verifier takes for a tree, beside that of the logits it needs, on synthetic trees."""
    sizes, vocabs, names = _numbers(nodes, "--nodes"), _numbers(vocab, "--vocab"), parse_verifiers(verifiers)
    on = find_device(device)
    options = {"hidden": hidden, "temperature": temperature, "repeats": repeats, "device": on}
    with display.progress(len(sizes) * len(vocabs) * len(names)) as advance:
        result = bench_verifiers(names, nodes=sizes, vocabs=vocabs, progress=advance, **options)
    display.show_verifier_times(result)
    _print_json(result.summary())


@bench.command(name="acceptance")
def bench_acceptance_(
    prompts: Files = None,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    temperatures: Annotated[str, typer.Option(help="Above 0.")] = "0.2,0.4,0.6,0.8,1.0",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds judged per prompt and temperature.")] = 2,
    stride: Annotated[int, typer.Option(min=1, help="Tokens between them.")] = 24,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """How many tokens RRSw, Traversal, PointMass and Coupled accept, over tree shapes and temperatures.

    With --limit, as many prompts are taken of each file, evenly spaced.
    """
    warmth = _temperatures(temperatures)
    decoder = _speculative(target, drafter, dtype, device)
    texts = prompt_files.spread_prompts(prompts, limit) if prompts else shipped_prompts()[:limit]
    ids = [fit(decoder, text, rounds * stride + 64)[0] for text in texts]
    options = {"temperatures": warmth, "rounds": rounds, "stride": stride, "seed": seed}
    with display.progress(len(warmth) * len(ids)) as advance:
        result = bench_acceptance(decoder, ids, progress=advance, **options)
    display.show_acceptance(result)
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


@bench.command(name="drafters")
def bench_drafters_(
    prompts: Files = None,
    drafters: Annotated[list[str], typer.Option("--drafters", "--drafter", help="Names, folders or hub names.")] = [  # noqa: B006
        "embedded-draft;lookup;mixed:embedded-draft"
    ],
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree"],  # noqa: B006
    target: Target = "embedded",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each file at most, evenly spaced.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Every drafter with every policy on one target: the law's terms by prompt file, and what each drafter costs."""
    specs = parse_policies(policies)
    decoder = load(target, "none", dtype=dtype, device=device)
    names = list(dict.fromkeys(name.strip() for entry in drafters for name in entry.split(";") if name.strip()))
    model = transformers_model(decoder)
    if wrong := {"none", "auto"}.intersection(names):
        raise ConfigError(f"--drafters: {wrong.pop()!r} is no drafter of its own; plain decoding is run in any case")
    found = {name: drafter for name in names if (drafter := find_drafter(name, model, decoder.tokenizer))}
    files = {name: prompt_files.spread_prompts([path], limit) for name, path in _named(prompts)}
    sets = files or {"openings": shipped_prompts()[:limit]}
    texts = {name: [fit(decoder, text, max_new_tokens)[0] for text in given] for name, given in sets.items()}
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    ways = repeats * sum(map(len, texts.values())) * (len(specs) * len(found) + 1)
    with display.progress(ways) as advance:
        result = bench_drafters(decoder, found, texts, specs, repeats=repeats, progress=advance, **options)
    display.show_drafters(result)
    _print_json(result.summary())


@bench.command(name="lookup")
def bench_lookup_(
    prompts: Files = None,
    policies: PolicySpecs = ["chain:depth=10", "talon:budget=16,width=4,depth=10", "talon:depth=10"],  # noqa: B006
    target: Target = "embedded",
    max_new_tokens: Length = 128,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Lookup drafters on prompt files and on edits of this package's source: trees against chains, cost by length.

    Prompts with a "reference" are also replayed: the reference is taken for the target's output.
    """
    specs = parse_policies(policies)
    sets = {"code edits": code_edits()[:limit]}
    sets |= {name: prompt_files.read_examples(path, limit) for name, path in _named(prompts)}
    decoder = load(target, "none", dtype=dtype, device=device)
    ways = sum(1 + any(example.reference for example in examples) for examples in sets.values())
    with display.progress(ways * len(specs) * len(LOOKUPS)) as advance:
        options = {"max_new_tokens": max_new_tokens, "repeats": repeats, "progress": advance}
        result = bench_lookup(decoder, sets, specs, **options)
    display.show_lookup(result)
    _print_json(result.summary())


def _quiet() -> None:
    """No warnings, retry notices or progress bars of the libraries below but, on a terminal, those of downloads.

    Nor a crash on an odd terminal encoding.
    """
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
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


def _named(paths: list[Path] | None) -> list[tuple[str, Path]]:
    """Prompt files with short names, whole paths where those would be the same."""
    short = [re.sub(r"(\.(jsonl|txt|raw|gz))+$", "", path.name) for path in paths or ()]
    return [(str(path) if short.count(name) > 1 else name, path) for name, path in zip(short, paths or (), strict=True)]


def _bias(spec: str) -> list:
    """A member of `sequence_bias` from ID=VALUE or ID,ID=VALUE."""
    tokens, _, value = spec.partition("=")
    try:
        ids, added = [int(token) for token in tokens.split(",")], float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {spec!r} is not of the form ID=VALUE or ID,ID=VALUE") from None
    if not math.isfinite(added):
        raise ConfigError(f"--logit-bias {spec!r} adds {added}; give a finite number")
    return [ids, added]


def _grammar(schema: Path | None, pattern: str | None, text: Path | None) -> Grammar | None:
    """The grammar asked for, None for none.

    Raises:
        ConfigError: more than one, or one that is not well formed.
    """
    if sum(each is not None for each in (schema, pattern, text)) > 1:
        raise ConfigError("a text follows one grammar: give one of --json-schema, --regex and --ebnf")
    if pattern is not None:
        return regex(pattern)
    if schema:
        return json_schema(prompt_files.read_text(schema))
    return ebnf(prompt_files.read_text(text)) if text else None


def _load(target: str, drafter: str, *arguments: str, **options: str) -> Decoder:
    """A decoder; what "auto" stands for is said where it is not the embedded pair."""
    if sys.stderr.isatty() and target not in zoo.NAMES and not Path(target).exists():
        print(f"looking for {target} on the Hugging Face hub ...", file=sys.stderr)
    if drafter != "auto":
        return load(target, drafter, *arguments, **options)
    choice = choose_drafter(target)
    decoder = load(target, choice.name, *arguments, **options)
    if target != "embedded":
        print(f"drafter: {choice.name} ({choice.reason}); name another with --drafter", file=sys.stderr)
    return decoder


def _speculative(target: str, drafter: str, dtype: str, device: str, shape: str | None = None) -> Decoder:
    """A decoder that has a drafter, its target inflated to a shape if one is named.

    Raises:
        ConfigError: it would have none.
    """
    decoder = load_inflated(target, drafter, shape, dtype, device) if shape else None
    decoder = decoder or _load(target, drafter, dtype=dtype, device=device)
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {target!r}; name one with --drafter")
    return decoder


def _chat(decoder: Decoder, prompt: str) -> list[int]:
    if decoder.tokenizer is None or not decoder.tokenizer.chat_template:
        raise ConfigError("the target's tokenizer has no chat template; leave out --chat")
    messages = [{"role": "user", "content": prompt}]
    return decoder.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def _numbers(text: str, option: str) -> list[int]:
    """Whole numbers above 1 from a list separated by commas.

    Raises:
        ConfigError: they are not.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 1 for part in parts):
        raise ConfigError(f"{option} is {text!r}; give whole numbers above 1, separated by commas")
    return [int(part) for part in parts]


def _temperatures(text: str) -> list[float]:
    """Temperatures above 0 from a list separated by commas.

    Raises:
        ConfigError: they are not.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(Sampling(temperature).temperature for temperature in found):
        raise ConfigError(f"--temperatures is {text!r}; give numbers above 0, separated by commas")
    return found


def _bench_prompts(decoder: Decoder, paths: list[Path] | None, limit: int | None, length: int) -> list[list[int]]:
    texts = prompt_files.read_prompts(paths, limit) if paths else shipped_prompts()[:limit]
    return [fit(decoder, text, length)[0] for text in texts]


def _write(decoder: Decoder, prompt: Prompt, options: dict, *, quiet: bool, echo: str) -> Generation:
    """Generate, and show the text as it is made unless `quiet`."""
    sequence = decoder.new_request(prompt, **options)
    console, show = display.make_console(), not quiet
    if show and console.is_terminal:
        console.print(Text(echo, style="dim"), end="", soft_wrap=True)
    for chunk in decoder.stream_request(sequence):
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
        "seed": generation.seed,
        "metrics": generation.metrics.summary(),
    }
    return report | ({"comparison": compared.summary()} if compared else {})


def _print_json(report: dict[str, object]) -> None:
    print(json.dumps(report, ensure_ascii=False))
