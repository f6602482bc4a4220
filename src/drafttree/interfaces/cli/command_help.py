"""The help of a command: its options in groups of one order, with placeholders, ranges and defaults in words."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand

SLOWER = "https://github.com/drafttree/drafttree/blob/main/docs/slower.md"
"""Address of the page "Why is it slower?"."""
OTHER_OPTIONS = "Options"
"""Heading of options that have no group."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Model": ("target", "dtype", "device", "quantize", "exact_text"),
    "Drafting": (
        *("drafter", "drafters", "policy", "policies", "verifier", "verifiers"),
        *("quantize_drafter", "draft_temperature"),
    ),
    "Text": (
        *("prompts", "limit", "chat", "image", "system", "template"),
        *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop"),
        *("schema", "pattern", "grammar"),
    ),
    OTHER_OPTIONS: (),
    "Server": (
        *("host", "port", "discovery", "namespace", "served_model_name", "tool_parser", "reasoning_parser"),
        *("access_log", "audit"),
    ),
    "Limits": (
        *("max_batch", "max_queue", "timeout", "max_model_len", "max_kv_tokens", "prefix_tokens"),
        *("max_token_gap", "max_texts_per_key", "max_images", "max_pixels"),
    ),
    "Access": (
        *("api_key", "api_key_file", "allowed_hosts", "cors", "trusted_proxies", "share_prefixes"),
        "allow_image_urls",
    ),
    "Output": ("out", "output", "save", "minutes", "compare", "repeats", "live_trees", "pace", "json_"),
    "Advanced": (
        *("ignore_eos", "min_new_tokens", "no_repeat_ngram_size", "logit_bias"),
        *("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"),
        *("lossy_window", "sinks", "inflated", "costs", "tensor_parallel_size", "ray", "workers"),
        *("keep_alive", "grace", "sanitize_control_tokens"),
    ),
    "Help": ("help",),
}
"""By the heading of a group of options: the names of their parameters, in the order of the help."""
POSITIONS = {
    name: (group, position) for group, names in enumerate(GROUPS.values()) for position, name in enumerate(names)
}
"""By the name of an option: the number of its group, and its place there."""
HEADINGS = {name: heading for heading, names in GROUPS.items() for name in names}
PLACEHOLDERS = {int: "NUMBER", float: "NUMBER", Path: "FILE", str: "TEXT"}
"""By type of a value: its placeholder in the help, unless its option gives one."""


class HelpCommand(TyperCommand):
    """A command whose options are in the order of `GROUPS`, and shown so in its help."""

    def __init__(
        self,
        name: str | None,
        *,
        callback: Callable[..., Any] | None = None,
        params: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        annotations = {} if callback is None else inspect.signature(callback).parameters
        ordered_parameters = sorted(params or (), key=_position)
        for parameter in ordered_parameters:
            if _is_argument(parameter):
                parameter.metavar = parameter.metavar or parameter.name.upper()
                continue
            parameter.rich_help_panel = heading(parameter)
            if not (parameter.metavar or parameter.is_flag):
                parameter.metavar = _placeholder(annotations[parameter.name].annotation)
        super().__init__(name, callback=callback, params=ordered_parameters, **settings)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = self.get_params(ctx)
        parameters = [parameter for parameter in parameters if not parameter.hidden]
        arguments = [parameter for parameter in parameters if _is_argument(parameter)]
        options = [parameter for parameter in parameters if not _is_argument(parameter)]
        _write_section(formatter, "Arguments", _rows(arguments, ctx))
        for group in GROUPS:
            members = [option for option in options if heading(option) == group]
            _write_section(formatter, group, _rows(members, ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def heading(option: Any) -> str:
    """The heading that an option is shown under."""
    return HEADINGS.get(option.name, OTHER_OPTIONS)


def describe(parameter: Any) -> str:
    """The help of an option or argument, with its range, its default and its environment variable in words."""
    sentences = [parameter.help or "", _range(parameter)]
    if default := _default(parameter):
        sentences.append(f"Default: {default}.")
    if parameter.envvar:
        sentences.append(f"Also read from {parameter.envvar}.")
    if parameter.required:
        sentences.append("Required.")
    return " ".join(filter(None, sentences))


def footer(examples: Iterable[str], *, timed: bool) -> str:
    """The end of a command's help: examples and, if its speed matters, where to look if it is slow."""
    lines = ["Examples:", *(f"  {example}" for example in examples)]
    if timed:
        lines += ["", f"Slower than expected? {SLOWER}"]
    return "\n".join(lines)


def _position(parameter: Any) -> tuple[int, int]:
    """The place of a parameter in the help: its group, and its place there.

    Arguments come first. They and options without a group keep the order of the command.
    """
    if _is_argument(parameter):
        return -1, 0
    return POSITIONS.get(parameter.name, (list(GROUPS).index(OTHER_OPTIONS), 0))


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def _placeholder(annotation: Any) -> str:
    """The placeholder for a value of an annotation, which may be optional, or a list: a word, or the choices."""
    if annotation in PLACEHOLDERS:
        return PLACEHOLDERS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return next((_placeholder(argument_type) for argument_type in get_args(annotation)), "VALUE")


def _write_section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _rows(parameters: Iterable[Any], context: Any) -> list[tuple[str, str]]:
    """The names and the description of each parameter, for two columns."""
    return [(_names(parameter, context), describe(parameter)) for parameter in parameters]


def _names(parameter: Any, context: Any) -> str:
    """The names of an option with its placeholder, or the placeholder of an argument."""
    if _is_argument(parameter):
        return parameter.metavar
    names, _ = parameter.get_help_record(context)
    return names


def _range(parameter: Any) -> str:
    """The range of a number as a sentence; empty if it has none, or only excludes negative numbers."""
    bounds = getattr(parameter, "type", parameter)  # a type of its own in older versions of typer
    lowest = getattr(bounds, "min", None)
    highest = getattr(bounds, "max", None)
    if highest is not None:
        return f"From {lowest} to {highest}."
    return f"At least {lowest}." if lowest else ""


def _default(parameter: Any) -> str:
    """The default in words; empty for none, and for a flag that is off."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if value is None or not parameter.show_default:
        return ""
    if isinstance(value, bool):
        return parameter.opts[0] if value else ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
