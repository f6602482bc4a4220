"""The house is as its documents say."""

import importlib.util
import re
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import drafttree
from drafttree.loading import find_drafter
from drafttree.policies import Chain, Talon
from drafttree_lab.experiment.round_work import count_work

ROOT = Path(__file__).parents[1]
PROMPT = "The old man looked at the sea for a long time, and then he said"


def test_the_table_of_floors_is_the_contracts():
    spec = importlib.util.spec_from_file_location("floors", ROOT / "docs" / "floors.py")
    floors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(floors)
    document = (ROOT / "docs" / "architecture.md").read_text()
    assert floors.updated(document) == document, "run python docs/floors.py"


def test_imports_keep_the_contracts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


@pytest.mark.parametrize(
    ("drafter", "policy", "operations", "calls"),
    [
        (None, Chain(depth=5), 390, 290),
        ("embedded-eagle3", Chain(depth=5), 930, 960),
        ("embedded-draft", Talon(budget=16, width=4), 665, 635),
    ],
    ids=["plain decoding", "a chain of 5", "TALON-16"],
)
def test_a_round_takes_few_operations_and_calls(decoder, drafter, policy, operations, calls):
    """Counted by `drafttree bench overhead`: those of torch, both models' passes included, and our own functions'."""
    found = find_drafter(drafter, decoder.target, decoder.tokenizer)
    pair = decoder.with_drafter(found).with_policy(policy)
    work = count_work(pair, PROMPT, max_new_tokens=48, ignore_eos=True)
    assert work.operations <= operations
    assert work.calls <= calls


def test_no_test_imports_from_another():
    for source in (ROOT / "tests").rglob("*.py"):
        assert not re.search(r"^from (\w+\.)*test_\w+ import", source.read_text(), re.MULTILINE), source
