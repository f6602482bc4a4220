"""The benchmark of verifiers: what it times is what the decoder does, and its figures hang together."""

import json

import pytest
import torch

from drafttree import Sampling
from drafttree.core import SeededRandomness
from drafttree.verifiers import VERIFIERS
from drafttree_lab.bench.micro import _SyntheticLogits, time_verifiers
from testing.command_line import complaint, run

CPU = torch.device("cpu")


def test_every_verifier_is_timed_for_every_size():
    result = time_verifiers([*VERIFIERS], nodes=(4, 9), vocabs=(40, 200), hidden_size=8, repeats=1)
    assert {(row["vocab"], row["nodes"], row["verifier"]) for row in result} == {
        (vocab, nodes, name) for vocab in (40, 200) for nodes in (4, 9) for name in VERIFIERS
    }
    for row in result:
        assert min(row["verify"], row["growing"], row["logits"]) > 0
        assert row["share"] == pytest.approx(row["verify"] / (row["verify"] + row["logits"]))
        assert 0 <= row["accepted"] < row["nodes"]


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("nodes", [2, 16, 37])
def test_the_trees_have_the_size_asked_for(name, nodes):
    synthetic = _SyntheticLogits(nodes, 60, CPU)
    judge = VERIFIERS[name](Sampling(0.0 if name == "greedy" else 1.0))
    tree = synthetic.tree(judge, SeededRandomness(1, 60, CPU).at(3))
    assert tree.size == nodes
    assert tree.levels == (nodes - 1 if judge.chains_only else nodes.bit_length() - 1)
    assert tree.proposal is judge.proposal


SMALL = ["--vocab", "30", "--trees", 2, "--repeats", 1, "--hidden", 4, "--nodes", "4,8"]


def test_the_command_prints_tables_or_json(tmp_path):
    options = [*SMALL, "--verifiers", "rrsw,greedy", "--policies", "talon:budget=8;chain", "--alpha", "0.7,5"]
    shown = run("bench", "micro", *options).stdout
    assert "vocabulary 30; hidden 4" in shown
    assert "vocabulary 30, alpha 5;" in shown
    options += ["--out", tmp_path / "out", "--json"]
    first, again = (json.loads(run("bench", "micro", *options).stdout) for _ in range(2))
    assert first == again
    assert {(row["verifier"], row["nodes"]) for row in first["verifiers"]} == {
        (name, size) for name in ("rrsw", "greedy") for size in (4, 8)
    }
    assert all(row["per_level"] == row["seconds"] / row["levels"] for row in first["growth"])


def test_either_part_may_be_left_out():
    found = json.loads(run("bench", "micro", *SMALL, "--verifiers", "none", "--policies", "chain", "--json").stdout)
    assert (found["verifiers"], len(found["growth"])) == ([], 3)
    found = json.loads(run("bench", "micro", *SMALL, "--verifiers", "rrsw", "--policies", "none", "--json").stdout)
    assert (len(found["verifiers"]), found["growth"]) == (2, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "16,x"], "--nodes"),
        (["--vocab", "1"], "--vocab"),
        (["--verifiers", "rssw"], "rrsw"),
        (["--alpha", "0.7,x"], "--alpha is '0.7,x'; give numbers above 0"),
        (["--alpha", "inf"], "--alpha is 'inf'"),
        (["--policies", "talom"], "did you mean 'talon'"),
    ],
)
def test_mistakes_are_said_in_one_line(capsys, options, said):
    assert said in complaint(capsys, "bench", "micro", *options)
