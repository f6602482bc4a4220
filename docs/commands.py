"""Write commands.md: every command of `drafttree` with its arguments and options, from the command line itself."""

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from drafttree.interfaces import cli
from drafttree.interfaces.cli.lab_commands import LAB_COMMANDS

DOCUMENT = Path(__file__).parent / "commands.md"
INTRODUCTION = """# Commands

<!-- `python docs/commands.py` makes this page. -->

This page lists every command with its arguments and options. `drafttree COMMAND --help` prints the same for one
command. Where no default is given, the meaning says what happens without the option, or the model's generation config
decides. An option that may be repeated takes one value each time.
"""
LAB = f"""The last ones (`{"`, `".join(LAB_COMMANDS)}`) are part of drafttree-lab, an [extra](install.md#extras). See
[Benchmark commands](benches.md) and [The papers replayed](replay.md). The exit codes are in
[What is stable](stability.md#exit-codes)."""


def document() -> str:
    """The whole page."""
    commands = dict(_commands(typer.main.get_command(cli.app), "drafttree"))
    sections = [_section(name, command) for name, command in commands.items()]
    return "\n".join([INTRODUCTION, *_overview(commands), "", LAB, "", *sections])


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command of a group, at any depth, by the words that call it; hidden ones are left out."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _overview(commands: dict[str, Any]) -> list[str]:
    head = ["| command | what it does |", "| --- | --- |"]
    rows = [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_paragraphs(command.help)[0]} |"
        for name, command in commands.items()
    ]
    return head + rows


def _section(name: str, command: Any) -> str:
    """The heading, usage line, help and options of a command."""
    shown_parameters = [parameter for parameter in command.params if not parameter.hidden]
    parameters = sorted(shown_parameters, key=_is_argument, reverse=True)
    arguments = [_usage(parameter) for parameter in parameters if _is_argument(parameter)]
    usage = " ".join([name, "[OPTIONS]", *arguments])
    rows = [f"| {_names(parameter)} | {_meaning(parameter)} | {_default(parameter)} |" for parameter in parameters]
    table = ["| argument or option | meaning | default |", "| --- | --- | --- |", *rows] if rows else []
    paragraphs = "\n\n".join(_paragraphs(command.help))
    return "\n".join([f"## {name}", "", f"`{usage}`", "", paragraphs, "", *table, ""])


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def _usage(argument: Any) -> str:
    """An argument in a usage line: in brackets if it may be left out, with dots if there may be several."""
    words = f"{argument.name}..." if argument.nargs < 0 else argument.name
    return words if argument.required else f"[{words}]"


def _names(parameter: Any) -> str:
    """The names of an option, those that switch it off last; for an argument its name."""
    names = [parameter.name] if _is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name}`" for name in names)


def _meaning(parameter: Any) -> str:
    """The help of a parameter, the range of its values, and the environment variable that gives it too."""
    sentences = [_escaped(parameter.help or "")]
    bounds = getattr(parameter, "type", parameter)  # a type of its own in older versions of typer
    lowest = getattr(bounds, "min", None)
    highest = getattr(bounds, "max", None)
    if lowest is not None and highest is not None:
        sentences.append(f"From {lowest} to {highest}.")
    elif lowest is not None:
        sentences.append(f"At least {lowest}.")
    if getattr(parameter, "multiple", False) and "May be repeated" not in sentences[0]:
        sentences.append("May be repeated.")
    if parameter.envvar:
        sentences.append(f"Also from the environment variable `{parameter.envvar}`.")
    return " ".join(filter(None, sentences))


def _default(parameter: Any) -> str:
    """The default of a parameter; empty if it has none, or if it is a switch that is off."""
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if value is None or value is False or value == [] or value == "":
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each on one line."""
    return [_escaped(" ".join(paragraph.split())) for paragraph in re.split(r"\n\s*\n", text.strip())]


def _escaped(text: str) -> str:
    """A text whose characters have no meaning in Markdown."""
    return re.sub(r"([|*])", r"\\\1", text).replace("<", "&lt;")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
