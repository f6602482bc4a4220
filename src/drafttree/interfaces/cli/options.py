"""Options that several commands share, and the parsing of their values."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.measure.prompts import read_text
from drafttree.measure.shapes import SHAPES
from drafttree.verifiers import VERIFIERS

if TYPE_CHECKING:
    from drafttree.constraints.grammar import Grammar


def complete_policy(incomplete: str) -> list[str]:
    """The names of policies that begin with `incomplete`, for completion in the shell."""
    return [name for name in POLICY_CLASSES.names() if name.startswith(incomplete)]


def complete_verifier(incomplete: str) -> list[str]:
    """The names of verifiers that begin with `incomplete`, for completion in the shell."""
    return [name for name in VERIFIER_CLASSES.names() if name.startswith(incomplete)]


Target = Annotated[
    str,
    typer.Option(metavar="NAME", help='The model to generate with: "embedded", a folder, a GGUF file or a hub name.'),
]
ServedTarget = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help='The model to serve: "embedded", a folder, a GGUF file or a hub name.',
        show_default="embedded",
    ),
]
ServedTargetName = Annotated[str | None, typer.Argument(metavar="NAME", help="The same as --target NAME.")]
Drafter = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help='The drafter: a model or head (a folder, GGUF file or hub name), "lookup", "suffix", "mixed:NAME", "none" '
        'or "auto".',
    ),
]
PolicySpec = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help='The tree policy, such as "talon:budget=60" or "module.Class".',
        autocompletion=complete_policy,
        show_default="auto; dynatree with verifiers that draw from the drafts",
    ),
]
PolicySpecs = Annotated[
    list[str],
    typer.Option(
        "--policies",
        "--policy",
        metavar="SPECS",
        help='Policies, separated by semicolons, or "all". May be repeated.',
        autocompletion=complete_policy,
    ),
]
VerifierNames = Annotated[
    list[str],
    typer.Option(
        "--verifiers",
        "--verifier",
        metavar="NAMES",
        help='Verifiers for --exact, separated by commas, or "all"; the one verifier for --live.',
        autocompletion=complete_verifier,
    ),
]
VerifierName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help=f'The verifier: {", ".join(VERIFIERS)} or "auto".', autocompletion=complete_verifier
    ),
]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help='Data type: "float32", "bfloat16", "float16" or "auto".')]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help='"cpu", "cuda", "cuda:1" ... or "auto".')]
ExactText = Annotated[
    bool,
    typer.Option(
        "--exact-text", help="Keep the text identical to plain decoding's in bfloat16 and float16 too. Slower."
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="BITS",
        help='"int8" rounds the target\'s weights to 8 bits, "int4" to 4 ("drafttree quantize" keeps them). Both '
        'change the output. "none" unpacks weights that are stored in few bits, as in a GGUF file.',
        show_default="weights as they are stored",
    ),
]
Inflate = Annotated[
    str | None,
    typer.Option(
        "--inflate", metavar="SHAPE", help=f"Make the target as expensive as a larger model: {', '.join(SHAPES)}."
    ),
]
QuantizeDrafter = Annotated[
    str,
    typer.Option(
        metavar="BITS",
        help='"int8" rounds the weights of a drafter that is a language model, "none" leaves them as they are. "auto" '
        'is "int8" for large ones on a CPU. Does not change the output.',
    ),
]
TensorParallelSize = Annotated[
    int, typer.Option(min=1, metavar="PROCESSES", help="Number of torchrun processes that share the target.")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="NUMBER", help="Sampling temperature. 0 is greedy decoding.")
]
DraftTemperature = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Temperature of the drafter. Below 1, its best tokens become more probable.",
        show_default="1, or the tuned value",
    ),
]
MaxBatch = Annotated[
    int, typer.Option(min=1, metavar="TEXTS", help="Maximum number of texts generated at the same time.")
]
PrefixTokens = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="TOKENS",
        help="Number of tokens kept for reuse by prompts with the same prefix. 0 disables.",
        show_default="as many as fit",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="TOKENS",
        help="Maximum number of tokens of prompt and text together. Limits the memory of a text.",
        show_default="the model's context",
    ),
]
MaxTokenGap = Annotated[
    float,
    typer.Option(
        min=0.001,
        metavar="SECONDS",
        help="Maximum seconds between two tokens of a text while new prompts are read. Longer gaps let new texts begin "
        "sooner.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Random seed.")]
Length = Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Maximum number of tokens to generate per prompt.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Do not stop at end-of-text tokens.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Prompt file (.jsonl, .txt or .raw, also .gz). May be repeated."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="PROMPTS", help="Maximum number of prompts.", show_default="all")
]
Repeats = Annotated[int, typer.Option(min=1, metavar="RUNS", help="Number of runs.")]
PromptText = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help='The prompt. "-" or no prompt reads standard input.')
]


def choose_target(name: str | None, target: str | None) -> str:
    """The target of a server, which NAME or --target gives; "embedded" without both.

    Raises:
        ConfigError: they name different models.
    """
    if name is None:
        return "embedded" if target is None else target
    if target not in (None, name):
        raise ConfigError(f"NAME is {name!r} and --target is {target!r}; give one of them")
    return name


def parse_bias(spec: str) -> list:
    """Parse ID=VALUE or ID,ID=VALUE to an element of `sequence_bias`."""
    tokens, _, value = spec.partition("=")
    try:
        ids = [int(token) for token in tokens.split(",")]
        bias = float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {spec!r} is not of the form ID=VALUE or ID,ID=VALUE") from None
    if not math.isfinite(bias):
        raise ConfigError(f"--logit-bias {spec!r} adds {bias}; give a finite number")
    return [ids, bias]


def parse_grammar(schema: Path | None, pattern: str | None, text: Path | None) -> "Grammar | None":
    """Make the grammar of the given option; None if none is given.

    Args:
        schema: file of a JSON schema.
        pattern: regular expression.
        text: file of an EBNF grammar.

    Raises:
        ConfigError: more than one is given, or the grammar is malformed.
    """
    sources = {"json_schema": schema, "regex": pattern, "ebnf": text}
    sources = {notation: value for notation, value in sources.items() if value is not None}
    if len(sources) > 1:
        raise ConfigError("a text follows one grammar: give one of --json-schema, --regex and --ebnf")
    if not sources:
        return None
    from drafttree.constraints import grammar

    ((notation, value),) = sources.items()
    make_grammar = getattr(grammar, notation)
    if not isinstance(value, Path):
        return make_grammar(value)
    try:
        return make_grammar(read_text(value))
    except ConfigError as error:
        prefix = "" if str(value) in str(error) else f"{value}: "
        raise ConfigError(f"{prefix}{error}") from None


def parse_numbers(text: str, option: str, minimum: int = 2) -> list[int]:
    """Parse whole numbers of at least `minimum`, separated by commas.

    Raises:
        ConfigError: an element is not such a number; the message names `option`.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isdecimal() and int(entry) >= minimum for entry in entries):
        raise ConfigError(f"{option} is {text!r}; give whole numbers above {minimum - 1}, separated by commas")
    return [int(entry) for entry in entries]


def parse_floats(text: str, option: str, accepted_numbers: str, accepts: Callable[[float], object]) -> list[float]:
    """Parse numbers separated by commas; repeated ones are dropped.

    Args:
        text: the list.
        option: the option's name, for the error.
        accepted_numbers: the accepted numbers in words, for the error; "separated by commas" follows there.
        accepts: whether a number is valid.

    Raises:
        ConfigError: an element is not a number, or not accepted.
    """
    try:
        numbers = [float(entry) for entry in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(map(accepts, numbers)):
        raise ConfigError(f"{option} is {text!r}; give {accepted_numbers} separated by commas")
    return list(dict.fromkeys(numbers))


def parse_temperatures(text: str, *, zero: bool = False) -> list[float]:
    """Parse temperatures above 0 separated by commas; if `zero`, 0 is allowed too.

    Raises:
        ConfigError: an element is not such a number.
    """
    accepted_numbers = "numbers" if zero else "numbers above 0,"
    return parse_floats(text, "--temperatures", accepted_numbers, lambda value: Sampling(value).temperature or zero)


def split_names(text: str, separator: str = ",") -> list[str]:
    """Split a list of names; repeated ones are dropped.

    Raises:
        ConfigError: the list is empty.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(separator) if name.strip()))
    if not names:
        raise ConfigError(f"{text!r} names nothing; give names separated by {separator!r}")
    return names


def name_files(paths: list[Path] | None) -> list[tuple[str, Path]]:
    """Prompt files by short names, or by their paths if two short names would be equal."""
    short_names = [re.sub(r"(\.(jsonl|txt|raw|gz))+$", "", path.name) for path in paths or ()]
    return [
        (str(path) if short_names.count(name) > 1 else name, path)
        for name, path in zip(short_names, paths or (), strict=True)
    ]
