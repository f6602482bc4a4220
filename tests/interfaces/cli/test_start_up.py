"""What needs no model starts without torch and transformers, which take seconds to import."""

import json
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest
import typer

from drafttree.interfaces import cli

PROBE = """
import contextlib, io, json, os, sys
from unittest import mock

def heavy():
    return sorted({"torch", "transformers", "numpy", "scipy", "huggingface_hub"} & set(sys.modules))

def run(arguments, environment):
    from drafttree.interfaces.cli import main
    out, err, code = io.StringIO(), io.StringIO(), 0
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stopped:
            code = stopped.code
    return out.getvalue(), err.getvalue(), code, heavy()
"""
RUN = "print(json.dumps([run(*each) for each in json.load(sys.stdin)]))"
LISTS = {"--version": ".", "drafters": "embedded-eagle3", "policies": "talon", "verifiers": "coupled"}
MISTAKES = [
    "generate a --policy talom",
    "generate a --policy nowhere.json",
    "generate a --verifier greddy",
    "generate a --temperature -1",
    "generate ''",
    "trace a --live",
    "trace a -o nowhere/trace.html",
    "certify",
    "certify --prompts nowhere.txt",
    "bench methods --policies talon:budget=none",
    "tune --minutes 0",
    "tune --save tuned.yaml",
    "nonsense",
]
COMPLETIONS = {
    "generate --policy t": {"talon", "template"},
    "generate --verifier tr": {"traversal"},
    "certify --policies dy": {"dyspec", "dynatree"},
    "bench methods --poli": {"--policies", "--policy"},
    "ben": {"bench"},
}


class Run(NamedTuple):
    """What a command printed, its exit code, and the heavy modules that were imported by then."""

    stdout: str
    stderr: str
    code: int
    heavy: list[str]


def commands(command, names=()):
    """The names of every command and group below one, itself included."""
    yield list(names)
    for name in getattr(command, "list_commands", lambda _: ())(None):
        yield from commands(command.get_command(None, name), [*names, name])


def in_fresh_process(statement: str, given: object = None) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", PROBE + statement]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def completing(words: str) -> dict[str, str]:
    """The environment in which a shell asks for completions."""
    found = {"_DRAFTTREE_COMPLETE": "complete_bash", "COMP_WORDS": f"drafttree {words}"}
    return found | {"COMP_CWORD": str(len(words.split()))}


HELPS = [" ".join(names) for names in commands(typer.main.get_command(cli.app))]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """All commands in one fresh process: what one of them imports is there for those behind it."""
    asked = [(f"{names} -h".strip(), {}) for names in HELPS] + [(words, {}) for words in (*LISTS, *MISTAKES)]
    asked += [("", completing(words)) for words in COMPLETIONS]
    keys = [words for words, environment in asked if not environment] + [f"<tab> {words}" for words in COMPLETIONS]
    found = json.loads(in_fresh_process(RUN, [(shlex.split(words), environment) for words, environment in asked]))
    return {key: Run(*each) for key, each in zip(keys, found, strict=True)}


@pytest.mark.few(2)
@pytest.mark.parametrize("names", HELPS)
def test_help(names, runs):
    done = runs[f"{names} -h".strip()]
    assert "--help" in done.stdout
    assert (done.code, done.heavy) == (0, [])


@pytest.mark.parametrize("command", LISTS)
def test_lists(command, runs):
    assert LISTS[command] in runs[command].stdout
    assert (runs[command].code, runs[command].heavy) == (0, [])


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_in_the_arguments(arguments, runs):
    done = runs[arguments]
    assert "drafttree: error: " in done.stderr
    assert (done.code, done.heavy) == (2, [])


@pytest.mark.parametrize("words", COMPLETIONS)
def test_the_shell_completes_names(words, runs):
    done = runs[f"<tab> {words}"]
    assert set(done.stdout.split()) == COMPLETIONS[words]
    assert (done.code, done.heavy) == (0, [])


def test_the_package_and_its_methods():
    in_fresh_process(
        "import drafttree\n"
        "assert set(drafttree.__all__) <= set(dir(drafttree))\n"
        "drafttree.Layer, drafttree.Sampling(), drafttree.errors.ConfigError\n"
        "drafttree.policies.Talon(budget=20), drafttree.verifiers.Coupled\n"
        "try: drafttree.Decodr\n"
        "except AttributeError as error: assert 'Decodr' in str(error)\n"
        "else: raise AssertionError\n"
        "assert not heavy(), heavy()\n"
    )
