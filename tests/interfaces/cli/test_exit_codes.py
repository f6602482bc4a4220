"""Exit codes: each command ends with those that the docs and the help list."""

import json
import re
from pathlib import Path

import pytest

from drafttree.interfaces import cli
from drafttree.interfaces.cli import decoders
from drafttree.interfaces.cli.results import EXIT_CODES
from testing.command_line import COMMANDS, PROMPT, run

STABILITY = Path(__file__).parents[3] / "docs" / "stability.md"
SHORT = ["--max-new-tokens", 4]
REACHED = {
    0: ["verifiers"],
    1: ["batch", "{folder}/prompts.jsonl", "{folder}/texts.jsonl", *SHORT],
    2: ["certify"],
    3: ["certify", "--exact", "--policies", "chain", "--verifiers", "rrsw", "--minutes", 1e-9],
    130: ["generate", PROMPT],
}
"""By exit code, a command that ends with it."""


def code_of(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code


def placed(arguments, folder):
    return [part.format(folder=folder) if isinstance(part, str) else part for part in arguments]


@pytest.fixture
def folder(tmp_path, prompts):
    lines = [json.dumps({"prompt": prompt}) for prompt in (PROMPT, "")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return prompts.parent


def test_the_docs_and_the_help_list_the_same_codes():
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", STABILITY.read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    shown = " ".join(run("--help").stdout.split())
    assert all(f"{code} {meaning}" in shown for code, meaning in EXIT_CODES.items())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", EXIT_CODES)
def test_each_code_is_reached(code, folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    if code == 130:
        monkeypatch.setattr(decoders, "load", interrupt)
    assert code_of(*placed(REACHED[code], folder)) == code


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_of_any_command_is_2(command):
    assert code_of(*command.split(), "--no-such-option") == 2
