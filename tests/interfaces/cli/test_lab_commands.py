"""The commands of the lab: found where it is installed, named with what installs it elsewhere."""

from importlib.metadata import EntryPoint

import pytest

from drafttree.interfaces.cli import lab_commands
from drafttree.interfaces.cli.lab_commands import LAB_COMMANDS
from testing.command_line import complaint, run


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_without_the_lab_a_command_says_how_to_install_it(name, monkeypatch, capsys):
    monkeypatch.setattr(lab_commands, "entry_points", lambda **_: ())
    assert "pip install ./lab" in complaint(capsys, name, "some", "--option", "1")
    assert "pip install ./lab" in " ".join(run(name, "--help").output.split())


def test_a_lab_that_cannot_be_imported_is_said(monkeypatch, capsys):
    broken = EntryPoint("bench", "nowhere_to_be_found:app", "drafttree.commands")
    monkeypatch.setattr(lab_commands, "entry_points", lambda **_: (broken,))
    assert "No module named 'nowhere_to_be_found'" in complaint(capsys, "bench", "law")


def test_with_the_lab_they_are_commands_like_others():
    assert "methods" in run("bench", "--help").output
    assert "--minutes" in run("replay", "--help").output
