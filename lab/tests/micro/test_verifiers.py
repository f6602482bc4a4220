"""The benchmark of verifiers: what it times is what the decoder does, and its figures hang together."""

import json

import pytest
import torch
from typer.testing import CliRunner

from drafttree import Sampling
from drafttree.core import SeededRandomness
from drafttree.errors import ConfigError
from drafttree.interfaces import cli
from drafttree.verifiers import VERIFIERS
from drafttree_lab.micro.verifiers import _SyntheticLogits, bench_verifiers

CPU = torch.device("cpu")


def test_every_verifier_is_timed_for_every_size():
    result = bench_verifiers(nodes=(4, 9), vocabs=(40, 200), hidden=8, repeats=1)
    assert [(row.vocab, row.nodes, row.verifier) for row in result.rows] == [
        (vocab, nodes, name) for vocab in (40, 200) for nodes in (4, 9) for name in VERIFIERS
    ]
    for row in result.rows:
        assert min(row.verify, row.growing, row.logits) > 0
        assert row.share == pytest.approx(row.verify / (row.verify + row.logits))
        assert 0 <= row.accepted < row.nodes
    assert result.summary()["rows"][3]["share"] == result.rows[3].share


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("nodes", [2, 16, 37])
def test_the_trees_have_the_size_asked_for(name, nodes):
    synthetic = _SyntheticLogits(nodes, 60, CPU)
    judge = VERIFIERS[name](Sampling(0.0 if name == "greedy" else 1.0))
    tree = synthetic.tree(judge, SeededRandomness(1, 60, CPU).at(3))
    assert tree.size == nodes
    assert tree.levels == (nodes - 1 if judge.chains_only else nodes.bit_length() - 1)
    assert tree.proposal is judge.proposal


def test_the_command_prints_a_table_or_json():
    options = ["--nodes", "4,8", "--vocab", "50", "--hidden", "4", "--repeats", "1", "--verifiers", "rrsw,greedy"]
    result = CliRunner().invoke(cli.app, ["bench", "verifiers", *options])
    assert result.exit_code == 0
    assert "rrsw" in result.stdout.splitlines()[3]
    report = json.loads(CliRunner().invoke(cli.app, ["bench", "verifiers", *options, "--json"]).stdout)
    assert [row["verifier"] for row in report["rows"]] == ["rrsw", "greedy"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--nodes", "16,x"], "--nodes"), (["--vocab", "1"], "--vocab"), (["--verifiers", "rssw"], "rrsw")],
)
def test_bad_input_is_named(options, message):
    result = CliRunner().invoke(cli.app, ["bench", "verifiers", *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
