"""The examples of docs/writing.md run as they stand, and work by name from the folder they are saved in."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drafttree.interfaces import cli

TEXT = (Path(__file__).parents[1] / "docs" / "writing.md").read_text()
EXAMPLES = dict(re.findall(r"Save this\s+as `(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = re.findall(r"^    drafttree (.*)$", TEXT, re.MULTILINE)


@pytest.fixture(autouse=True)
def saved(tmp_path, monkeypatch):
    """The examples in the working folder, from which modules are imported."""
    for name, code in EXAMPLES.items():
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])


def test_there_is_an_example_of_each():
    assert [*EXAMPLES] == ["widest.py", "walk.py", "drawn.py", "bigram.py"]
    assert len(COMMANDS) == 4


@pytest.mark.few(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, capsys):
    runpy.run_path(name, run_name="__main__")
    printed = capsys.readouterr().out.strip()
    assert printed or name == "drawn.py"
    if name == "walk.py":
        assert float(printed.split()[2].rstrip(";")) < 1e-12


@pytest.mark.few(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command):
    options = ["--models", "1"] if "--exact" in command else ["--max-new-tokens", "8", "--dtype", "float32"]
    result = CliRunner().invoke(cli.app, [*shlex.split(command), *options])
    assert result.exit_code == 0, result.exception
    if "--exact" in command:
        verifier = command.rpartition(" ")[2]
        assert f"widest.Widest:budget=5,depth=2,width=2  {verifier}" in result.stdout
        assert "exact by enumeration" in result.stdout
    else:
        assert "tokens per target pass" in result.stderr
