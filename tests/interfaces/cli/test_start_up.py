"""What needs no model starts without torch and transformers, which take seconds to import."""

import os
import subprocess
import sys

import pytest
import typer

from drafttree.interfaces import cli

PROBE = """
import sys
{statement}
heavy = {{"torch", "transformers", "numpy", "scipy", "huggingface_hub"}} & set(sys.modules)
assert not heavy, heavy
"""
MAIN = """
from drafttree.interfaces.cli import main
try:
    main({arguments})
except SystemExit as stopped:
    assert stopped.code == {code}, stopped.code
"""


def commands(command, names=()):
    """The names of every command and group below one, itself included."""
    yield list(names)
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, [*names, name])


def without_torch(statement, **environment):
    """What a fresh process prints, which must not have imported anything heavy."""
    command = [sys.executable, "-c", PROBE.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done


def run_without_torch(*arguments, code=0):
    return without_torch(MAIN.format(arguments=list(arguments), code=code))


@pytest.mark.parametrize("names", commands(typer.main.get_command(cli.app)), ids=" ".join)
def test_help(names):
    assert "--help" in run_without_torch(*names, "-h").stdout


@pytest.mark.parametrize(("command", "shown"), [("--version", "."), ("policies", "talon"), ("verifiers", "coupled")])
def test_lists(command, shown):
    assert shown in run_without_torch(command).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "a", "--policy", "talom"],
        ["generate", "a", "--policy", "nowhere.json"],
        ["generate", "a", "--verifier", "greddy"],
        ["generate", "a", "--temperature", "-1"],
        ["generate", ""],
        ["trace", "a", "--live"],
        ["trace", "a", "-o", "nowhere/trace.html"],
        ["certify"],
        ["certify", "--prompts", "nowhere.txt"],
        ["bench", "policies", "--policies", "talon:budget=none"],
        ["tune", "--minutes", "0"],
        ["tune", "--save", "tuned.yaml"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_mistakes_in_the_arguments(arguments):
    assert "drafttree: error: " in run_without_torch(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("generate --policy t", {"talon", "template"}),
        ("generate --verifier tr", {"traversal"}),
        ("certify --policies dy", {"dyspec", "dynatree"}),
        ("bench policies --poli", {"--policies", "--policy"}),
        ("ben", {"bench"}),
    ],
)
def test_the_shell_completes_names(words, expected):
    completing = {"_DRAFTTREE_COMPLETE": "complete_bash", "COMP_WORDS": f"drafttree {words}"}
    done = without_torch(MAIN.format(arguments=[], code=0), **completing, COMP_CWORD=str(len(words.split())))
    assert set(done.stdout.split()) == expected


def test_the_package_and_its_methods():
    without_torch(
        "import drafttree\n"
        "assert set(drafttree.__all__) <= set(dir(drafttree))\n"
        "drafttree.Layer, drafttree.Sampling(), drafttree.errors.ConfigError\n"
        "drafttree.policies.Talon(budget=20), drafttree.verifiers.Coupled\n"
    )


def test_a_name_that_does_not_exist_is_an_attribute_error():
    without_torch(
        "import drafttree\n"
        "try: drafttree.Decodr\n"
        "except AttributeError as error: assert 'Decodr' in str(error)\n"
        "else: raise AssertionError\n"
    )
