"""Groups of options: a command takes each group as one argument, a dataclass."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    DraftTemperature,
    Dtype,
    ExactText,
    IgnoreEos,
    PolicySpec,
    Quantize,
    QuantizeDrafter,
    VerifierName,
    parse_bias,
    parse_grammar,
)
from drafttree.loading import TunedPolicy, find_policy, find_verifier
from drafttree.loading.specs import default_policy
from drafttree.measure.shapes import find_shape

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder

Command = Callable[..., None]


def grouped(command: Command) -> Command:
    """Decorator of a command: the fields of an argument that is a dataclass become options of the command.

    The argument's default gives the defaults of the options; without one, the dataclass does.
    """
    parameters = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: argument.annotation for name, argument in parameters.items() if _is_group(argument)}

    @functools.wraps(command)
    def grouping(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    options = [option for argument in parameters.values() for option in _options(argument)]
    vars(grouping)["__signature__"] = inspect.Signature(options)
    grouping.__annotations__ = {option.name: option.annotation for option in options}
    return grouping


def _options(argument: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """The options that an argument of a command groups."""
    if not _is_group(argument):
        yield argument.replace(kind=argument.KEYWORD_ONLY)
        return
    for field in fields(argument.annotation):
        default = field.default if argument.default is argument.empty else getattr(argument.default, field.name)
        yield inspect.Parameter(field.name, argument.KEYWORD_ONLY, default=default, annotation=field.type)


def _is_group(argument: inspect.Parameter) -> bool:
    return is_dataclass(argument.annotation)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are not None; the others come from the model's generation config."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class DecoderOptions:
    """The drafter, policy and verifier, and how the models are loaded."""

    drafter: Drafter = "auto"
    policy: PolicySpec = None
    verifier: VerifierName = "auto"
    dtype: Dtype = "auto"
    device: Device = "auto"
    exact_text: ExactText = False
    lossy_window: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="TOKENS", help="Attend only to this many last tokens plus --sinks. Changes the output."
        ),
    ] = None
    sinks: Annotated[
        int,
        typer.Option(min=0, metavar="TOKENS", help="Number of first tokens that stay visible with --lossy-window."),
    ] = 4
    quantize: Quantize = None
    quantize_drafter: QuantizeDrafter = "auto"

    def check(self) -> None:
        """Refuse an unknown policy or verifier before a model is loaded."""
        find_policy(self.policy)
        find_verifier(self.verifier)

    def load(self, target: str, **load_options: Any) -> "Decoder":
        """Load the decoder of a target.

        Args:
            target: name or folder of the target.
            **load_options: further arguments of `drafttree.load`.
        """
        from drafttree.interfaces.cli.decoders import load_named

        form = {name: value for name, value in vars(self).items() if name not in ("drafter", "policy", "verifier")}
        return load_named(
            target, self.drafter, find_policy(self.policy), find_verifier(self.verifier), **form, **load_options
        )

    def load_served(self, target: str, max_model_len: int | None) -> "Decoder":
        """Load the decoder of a server; if `max_model_len` is given, print how much memory it saves per text."""
        from drafttree.core.machine_memory import share_arenas

        share_arenas()
        decoder = self.load(target, max_model_len=max_model_len)
        if max_model_len is not None:
            from drafttree.engine.memory import row_nbytes

            row_mb = row_nbytes(decoder.target) / 1e6
            context = getattr(decoder.target, "own_context", None)
            saving = (
                f" instead of {row_mb * context:.1f} MB for {context} tokens, the model's own context"
                if context
                else ""
            )
            memory_note = (
                f"{max_model_len} tokens of a text take {row_mb * max_model_len:.1f} MB of the KV cache{saving}"
            )
            print(f"drafttree: {memory_note}", file=sys.stderr, flush=True)
        return decoder

    def load_inflated(self, target: str, shape: str) -> "Decoder":
        """Load the decoder of a target that is inflated to the cost of a shape.

        Raises:
            ConfigError: the shape is unknown, or an option is given that an inflated target does not support.
        """
        find_shape(shape)
        flags = {"--exact-text": self.exact_text, "--lossy-window": self.lossy_window}
        if flag := next((name for name, value in flags.items() if value), None):
            raise ConfigError(f"--inflate and {flag} cannot be combined; leave one of them out")
        policy = find_policy(self.policy)
        verifier = find_verifier(self.verifier)
        if isinstance(policy, TunedPolicy):
            raise ConfigError(f"--policy {self.policy} was tuned for the target as it is; leave out --inflate")

        from drafttree.measure.inflation import load_inflated

        quantizations = self.quantize, self.quantize_drafter
        decoder = load_inflated(target, self.drafter, shape, str(self.dtype), self.device, *quantizations)
        tree_policy = policy or default_policy(verifier, decoder.drafter)
        return (
            decoder.with_policy(tree_policy).with_verifier(verifier) if verifier else decoder.with_policy(tree_policy)
        )


@dataclass(frozen=True)
class ShapingOptions:
    """Options of sampling and constraints; those that are not given come from the model's generation config."""

    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Sampling temperature. 0 is greedy decoding.",
            show_default="the model's own setting, or 0",
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Sample only from this many most probable tokens. 0 keeps all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="PROBABILITY", help="Sample from the most probable tokens that together reach this probability."
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="Drop tokens below this fraction of the best token's probability."),
    ] = None
    typical_p: Annotated[
        float | None,
        typer.Option(
            metavar="PROBABILITY",
            help="Locally typical sampling: keep typical tokens that together reach this probability.",
        ),
    ] = None
    epsilon_cutoff: Annotated[
        float | None, typer.Option(metavar="PROBABILITY", help="Drop tokens below this probability.")
    ] = None
    eta_cutoff: Annotated[
        float | None,
        typer.Option(
            metavar="PROBABILITY",
            help="Eta sampling: drop improbable tokens, by a cutoff that adapts to the entropy.",
        ),
    ] = None
    top_h: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="Keep the best tokens up to this fraction of the entropy. 0 keeps all."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Above 1, tokens that already occurred become less likely."),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Never repeat a sequence of this many tokens. 0 disables."),
    ] = None
    min_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="TOKENS", help="Minimum number of tokens to generate. Stop strings still end the text."
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=VALUE",
            help="Add VALUE to the logit of a token. ID,ID=VALUE adds it to the last token, but only right after the "
            "others. May be repeated.",
        ),
    ] = None
    schema: Annotated[
        Path | None,
        typer.Option("--json-schema", metavar="FILE", help="Write JSON that follows the schema in this file."),
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option("--regex", metavar="PATTERN", help="Write text that matches this regular expression."),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option("--ebnf", metavar="FILE", help="Write text that follows the EBNF grammar in this file."),
    ] = None

    def to_dict(self) -> dict[str, Any]:
        """The given options by their names in `Decoder.generate`, checked as far as possible without a model."""
        options = {name: value for name, value in vars(self).items() if name not in ("logit_bias", "schema", "pattern")}
        options["sequence_bias"] = [parse_bias(spec) for spec in self.logit_bias or ()] or None
        options["grammar"] = parse_grammar(self.schema, self.pattern, self.grammar)
        Sampling.from_options(options)
        return given_options(options)


@dataclass(frozen=True)
class TextOptions(ShapingOptions):
    """Options of sampling and constraints, and of seed, drafts and length."""

    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="NUMBER", help="Random seed.", show_default="a new one each run"),
    ] = None
    draft_temperature: DraftTemperature = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Stop string. May be repeated.")] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Maximum number of tokens to generate.",
            show_default="the model's own setting, or 128",
        ),
    ] = None
    ignore_eos: IgnoreEos = False
