"""The options that several commands share, and how their values are read."""

import functools
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.evaluation.prompt_form import PromptForm
from drafttree.evaluation.prompts import read_text
from drafttree.evaluation.shapes import SHAPES
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.verifiers import VERIFIERS

if TYPE_CHECKING:
    from drafttree.constraints.grammar import Grammar


def complete_policy(incomplete: str) -> list[str]:
    """The names of policies that begin so, for the shell."""
    return [name for name in POLICY_CLASSES.names() if name.startswith(incomplete)]


def complete_verifier(incomplete: str) -> list[str]:
    """The names of verifiers that begin so, for the shell."""
    return [name for name in VERIFIER_CLASSES.names() if name.startswith(incomplete)]


Target = Annotated[str, typer.Option(help='The model whose text is wanted: "embedded", a folder or a hub name.')]
Drafter = Annotated[
    str,
    typer.Option(help='Who drafts: a model or head as --target, "lookup", "suffix", "mixed:MODEL", "none" or "auto".'),
]
PolicySpec = Annotated[
    str,
    typer.Option(
        help='How the tree grows, such as "talon:budget=60" or "module.Class".', autocompletion=complete_policy
    ),
]
PolicySpecs = Annotated[
    list[str],
    typer.Option(
        "--policies",
        "--policy",
        help='Specifications or "all"; repeat it or separate by semicolons.',
        autocompletion=complete_policy,
    ),
]
VerifierNames = Annotated[
    list[str],
    typer.Option(
        "--verifiers",
        "--verifier",
        help='Names or "all", for --exact; separate by commas.',
        autocompletion=complete_verifier,
    ),
]
VerifierName = Annotated[
    str,
    typer.Option(help=f'What is accepted: {", ".join(VERIFIERS)} or "auto".', autocompletion=complete_verifier),
]
Dtype = Annotated[str, typer.Option(help='"float32", "bfloat16", "float16" or "auto".')]
Device = Annotated[str, typer.Option(help='"cpu", "cuda", ... or "auto".')]
ExactText = Annotated[
    bool, typer.Option("--exact-text", help="Write plain decoding's text token for token in every dtype; costs time.")
]
LossyWindow = Annotated[
    int | None,
    typer.Option(min=1, help="Let the target see the latest tokens only, so many, and the --sinks: another model."),
]
Sinks = Annotated[int, typer.Option(min=0, help="First tokens that stay visible with --lossy-window.")]
Quantize = Annotated[str | None, typer.Option(help='"int8" rounds the target\'s weights to eight bits: another model.')]
Inflate = Annotated[str | None, typer.Option("--inflate", help=f"Cost of the target: {', '.join(SHAPES)}.")]
QuantizeDrafter = Annotated[str | None, typer.Option(help='"int8" does so with a language model that drafts.')]
TensorParallelSize = Annotated[
    int, typer.Option(min=1, help="Processes of torchrun that the target's weights are sharded over.")
]
Temperature = Annotated[float | None, typer.Option(help="0 decodes greedily.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float | None, typer.Option(help="Keep the most probable tokens up to this probability.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens less probable than this share of the best.")]
TypicalP = Annotated[
    float | None, typer.Option(help="Keep the tokens of most typical surprise up to this probability.")
]
EpsilonCutoff = Annotated[float | None, typer.Option(help="Drop tokens less probable than this.")]
EtaCutoff = Annotated[float | None, typer.Option(help="Drop improbable tokens, fewer where much is possible.")]
TopH = Annotated[float | None, typer.Option(help="Keep the best tokens up to this share of the entropy; 0 keeps all.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1, tokens of prompt and text become less likely.")]
NoRepeat = Annotated[int | None, typer.Option(help="No so many tokens come twice in a row; 0 lets them.")]
MinNewTokens = Annotated[int | None, typer.Option(min=0, help="Tokens to generate at least, stop strings aside.")]
LogitBias = Annotated[
    list[str] | None, typer.Option(help="ID=VALUE adds to a token's logit; ID,ID=VALUE to the last one's. Repeatable.")
]
SchemaFile = Annotated[Path | None, typer.Option("--json-schema", help="Write JSON that follows the schema in FILE.")]
Pattern = Annotated[str | None, typer.Option("--regex", help="Write a text that matches this regular expression.")]
EbnfFile = Annotated[Path | None, typer.Option("--ebnf", help="Write a text of the EBNF grammar in FILE.")]
DraftTemperature = Annotated[float, typer.Option(help="Divides the drafter's logits; below 1 it is trusted more.")]
SeedOrNone = Annotated[int | None, typer.Option("--seed", help="Of the draws; without one every text is another.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the text; may be repeated.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens to generate at most; by default what the model says, or 128.")
]
MaxBatch = Annotated[int, typer.Option(min=1, help="Texts that are written at once, at most.")]
Seed = Annotated[int, typer.Option(help="Of the draws.")]
Length = Annotated[int, typer.Option(min=1, help="Tokens to generate at most, per prompt.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of the text.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Files = Annotated[list[Path] | None, typer.Option(help="Prompt file (.jsonl or .txt, also .gz); may be repeated.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only so many prompts.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of everything; medians are reported.")]
Chat = Annotated[bool, typer.Option("--chat", help="Render prompts by the tokenizer's chat template, all turns.")]
Category = Annotated[str | None, typer.Option(help="Take only lines whose category begins so (.jsonl).")]
Turns = Annotated[
    int | None,
    typer.Option(min=1, help="Turns of a prompt at most, each behind the target's own answers; 1, with --chat all."),
]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a turn at most, cut at its end; no long text is cut otherwise.")
]
PromptText = Annotated[str | None, typer.Argument(help="The prompt; - or nothing reads standard input.")]


def shaping_options(
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    epsilon_cutoff: EpsilonCutoff = None,
    eta_cutoff: EtaCutoff = None,
    top_h: TopH = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeat = None,
    min_new_tokens: MinNewTokens = None,
    logit_bias: LogitBias = None,
    schema: SchemaFile = None,
    pattern: Pattern = None,
    grammar: EbnfFile = None,
) -> dict[str, Any]:
    """The given options of `Decoder.generate` that shape the text, checked as far as that needs no model."""
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "epsilon_cutoff": epsilon_cutoff,
        "eta_cutoff": eta_cutoff,
        "top_h": top_h,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "min_new_tokens": min_new_tokens,
        "sequence_bias": [parse_bias(spec) for spec in logit_bias or ()] or None,
        "grammar": parse_grammar(schema, pattern, grammar),
    }
    Sampling.from_options(options)
    return given_options(options)


def prompt_form(
    chat: Chat = False, category: Category = None, turns: Turns = None, prompt_tokens: PromptTokens = None
) -> PromptForm:
    """The form in which prompts are asked."""
    return PromptForm(chat, category, turns, prompt_tokens)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line; the others are the model's own."""
    return {name: value for name, value in options.items() if value is not None}


Command = Callable[..., None]


def with_options(options: Callable[..., Any], result: str) -> Callable[[Command], Command]:
    """A decorator of commands that adds the options of a function, whose result becomes an argument of the command.

    Args:
        options: the function.
        result: name of the argument.
    """
    shared = inspect.signature(options).parameters

    def decorate(command: Command) -> Command:
        """The command with these options."""
        own = {name: option for name, option in inspect.signature(command).parameters.items() if name != result}

        @functools.wraps(command)
        def decorated(**arguments: Any) -> None:
            made = options(**{name: arguments.pop(name) for name in shared})
            command(**{result: made}, **arguments)

        parameters = [*own.values(), *shared.values()]
        vars(decorated)["__signature__"] = inspect.Signature(parameters)
        decorated.__annotations__ = {option.name: option.annotation for option in parameters}
        return decorated

    return decorate


shaped = with_options(shaping_options, "shaping")
"""Gives a command the options of `shaping_options`."""
formed = with_options(prompt_form, "form")
"""Gives a command the options of `prompt_form`."""


def parse_bias(spec: str) -> list:
    """A member of `sequence_bias` from ID=VALUE or ID,ID=VALUE."""
    tokens, _, value = spec.partition("=")
    try:
        ids, added = [int(token) for token in tokens.split(",")], float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {spec!r} is not of the form ID=VALUE or ID,ID=VALUE") from None
    if not math.isfinite(added):
        raise ConfigError(f"--logit-bias {spec!r} adds {added}; give a finite number")
    return [ids, added]


def parse_grammar(schema: Path | None, pattern: str | None, text: Path | None) -> "Grammar | None":
    """The grammar asked for, None for none.

    Raises:
        ConfigError: more than one, or one that is not well formed.
    """
    given = {"json_schema": schema, "regex": pattern, "ebnf": text}
    given = {kind: value for kind, value in given.items() if value is not None}
    if len(given) > 1:
        raise ConfigError("a text follows one grammar: give one of --json-schema, --regex and --ebnf")
    if not given:
        return None
    from drafttree.constraints import grammar

    ((kind, value),) = given.items()
    return getattr(grammar, kind)(read_text(value) if isinstance(value, Path) else value)


def parse_numbers(text: str, option: str, least: int = 2) -> list[int]:
    """Whole numbers, none below the least one, from a list separated by commas.

    Raises:
        ConfigError: they are not.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"{option} is {text!r}; give whole numbers above {least - 1}, separated by commas")
    return [int(part) for part in parts]


def parse_temperatures(text: str, *, zero: bool = False) -> list[float]:
    """Temperatures above 0, or of 0 and more, from a list separated by commas.

    Raises:
        ConfigError: they are not.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(Sampling(temperature).temperature or zero for temperature in found):
        raise ConfigError(f"--temperatures is {text!r}; give numbers {'' if zero else 'above 0, '}separated by commas")
    return list(dict.fromkeys(found))


def split_names(text: str, separator: str = ",") -> list[str]:
    """The different names of a list.

    Raises:
        ConfigError: there is none.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(separator) if name.strip()))
    if not names:
        raise ConfigError(f"{text!r} names nothing; give names separated by {separator!r}")
    return names


def parse_drafters(entries: list[str]) -> list[str]:
    """The names of drafters, from a list whose members may each hold several, separated by semicolons.

    Raises:
        ConfigError: there is none, or one is no drafter of its own.
    """
    names = split_names(";".join(entries), ";")
    if wrong := {"none", "auto"}.intersection(names):
        raise ConfigError(f"--drafters: {wrong.pop()!r} is no drafter of its own; plain decoding is run in any case")
    return names


def name_files(paths: list[Path] | None) -> list[tuple[str, Path]]:
    """Prompt files with short names, whole paths where those would be the same."""
    short = [re.sub(r"(\.(jsonl|txt|raw|gz))+$", "", path.name) for path in paths or ()]
    return [(str(path) if short.count(name) > 1 else name, path) for name, path in zip(short, paths or (), strict=True)]
