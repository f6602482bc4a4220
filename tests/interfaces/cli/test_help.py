"""The help of commands: groups of options in one order, placeholders, defaults in words, and examples that run."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli import worker
from drafttree.interfaces.cli.command_help import GROUPS, HEADINGS, OTHER_OPTIONS, SLOWER, describe
from drafttree.interfaces.cli.examples import EXAMPLES, UNTIMED
from drafttree.interfaces.cli.option_groups import DecoderOptions
from drafttree.interfaces.cli.results import UNFINISHED
from testing.command_line import COMMANDS, PROMPT, complaint, run

ROOT = Path(__file__).parents[3]
MAIN_COMMANDS = ("generate", "chat", "batch", "serve", "worker", "trace", "tune")
LINES = [line for lines in EXAMPLES.values() for line in lines]
RUN = ("generate", "chat", "batch", "trace", "certify")
"""Commands whose examples all run here in a few seconds; those of servers go on, and `demo` and `tune` take longer."""


def options_of(command) -> list:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def headings_of(name: str) -> list[str]:
    """The headings of options in the help of a command, in their order."""
    return re.findall(r"^(?!Usage|Arguments|Examples)(\w[\w ]*):$", run(*name.split(), "--help").stdout, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_groups_have_one_order(name):
    headings = headings_of(name)
    assert headings == [heading for heading in GROUPS if heading in headings]
    assert headings[-1] == "Help"


def test_options_have_one_order():
    positions = {name: number for number, name in enumerate(HEADINGS)}
    for name, command in COMMANDS.items():
        numbers = [positions[option.name] for option in options_of(command) if option.name in positions]
        assert numbers == sorted(numbers), name


@pytest.mark.parametrize("name", [*MAIN_COMMANDS, "certify"])
def test_target_is_the_first_option(name):
    assert options_of(COMMANDS[name])[0].opts == ["--target"]
    assert headings_of(name)[0] == "Model"


@pytest.mark.parametrize("name", [*MAIN_COMMANDS, "demo"])
def test_the_main_commands_have_no_option_without_a_group(name):
    assert OTHER_OPTIONS not in headings_of(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_shows_no_types_ranges_or_values_of_python(name):
    shown = run(*name.split(), "--help").stdout
    assert not re.findall(r"<\w+|x[<>]=|\[default|\b(None|True|False)\b|(?<![\d.])\d+\.0\b(?!\.)|list\[", shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_value_has_a_placeholder(name):
    for option in options_of(COMMANDS[name]):
        assert option.is_flag or re.fullmatch(r"[A-Z=]+|[a-z|-]+", option.metavar), option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_placeholder_does_not_become_the_name_of_its_option(name):
    """Typer 0.27 names an option after a placeholder that is its name in capitals."""
    names = [flag for option in options_of(COMMANDS[name]) for flag in option.opts]
    assert names == [flag.lower() for flag in names]


def test_defaults_and_ranges_are_told_in_words():
    options = {option.name: describe(option) for option in COMMANDS["serve"].params}
    assert options["max_batch"].endswith("At least 1. Default: 16.")
    assert options["port"].endswith("From 0 to 65535. Default: 8000.")
    assert options["target"].endswith("Default: embedded.")
    assert options["api_key"].endswith("Also read from DRAFTTREE_API_KEY.")
    written = {option.name: describe(option) for option in COMMANDS["generate"].params}
    assert written["max_new_tokens"].endswith("Default: the model's own setting, or 128.")
    assert written["temperature"].endswith("Default: the model's own setting, or 0.")
    assert written["compare"] == "Also time plain decoding and transformers."


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_help_ends_with_three_examples_and_the_page_on_speed(name):
    shown = run(name, "--help").stdout
    _, _, end = shown.partition("Examples:\n")
    lines = [line.strip() for line in end.splitlines() if line]
    assert tuple(lines[:3]) == EXAMPLES[name]
    assert lines[3:] == ([] if name in UNTIMED else [f"Slower than expected? {SLOWER}"])


def test_the_page_on_speed_exists():
    documentation = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    folder, _, page = SLOWER.rpartition("/")
    assert folder == documentation.replace("/tree/", "/blob/")
    assert (ROOT / "docs" / page).exists()


@pytest.mark.parametrize("line", LINES)
def test_examples_are_understood(line):
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("drafttree", line.split()[1])
    context = COMMANDS[name].make_context(name, arguments)
    given = {option: value for option, value in context.params.items() if option in DecoderOptions.__annotations__}
    DecoderOptions(**given).check()
    assert context.params.get("target") in (None, "embedded")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("line", [line for name in RUN for line in EXAMPLES[name]])
def test_examples_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(f'{{"prompt": "{PROMPT}"}}\n')
    _, *arguments = shlex.split(line)
    result = run(*arguments, input="Good morning\n")
    assert result.exit_code == 0, result.output
    assert result.output


@pytest.mark.slow
@pytest.mark.parametrize("line", [*EXAMPLES["demo"], *EXAMPLES["tune"]])
def test_examples_that_measure_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(f'{{"prompt": "{PROMPT}"}}\n{{"prompt": "Once upon a time"}}\n')
    _, *arguments = shlex.split(line)
    result = run(*arguments, *(["--minutes", "0.2"] if arguments[0] == "tune" else []))
    assert result.exit_code in (0, UNFINISHED), result.output
    assert result.output


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ([], "embedded"),
        (["toy"], "toy"),
        (["--target", "toy"], "toy"),
        (["toy", "--target", "toy"], "toy"),
    ],
)
def test_a_server_takes_its_target_as_name_or_option(command, arguments, target, monkeypatch):
    targets = []

    def load_served(_, name, *__):
        targets.append(name)
        raise ConfigError("not loaded")

    monkeypatch.setattr(DecoderOptions, "load_served", load_served)
    if command == "worker":
        monkeypatch.setattr(worker, "check_requirements", lambda *_: None)
        monkeypatch.setattr(worker, "_serve", lambda name, models, _, __: models.load_served(name, None))
        monkeypatch.setattr("drafttree.interfaces.dynamo.supervisor.supervise", lambda serves: serves(None))
    else:
        arguments = [*arguments, "--port", "0"]
    result = run(command, *arguments)
    assert str(result.exception) == "not loaded"
    assert targets == [target]


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_two_different_targets_are_refused_by_name(command, capsys):
    message = complaint(capsys, command, "embedded", "--target", "other")
    assert "NAME is 'embedded' and --target is 'other'; give one of them" in message
