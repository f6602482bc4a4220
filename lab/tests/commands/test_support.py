"""`drafttree support`: a table of architectures."""

import json

import pytest

from drafttree.models.attention.tree_attention import TreePlan
from drafttree_lab.support import check
from testing.command_line import complaint, run


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(check, "POLICIES", {"template": "template:tree=binary-2"})
    monkeypatch.setattr(check, "PROMPT_LENGTHS", (21,))
    monkeypatch.setattr(check, "MIN_BRANCHING", 1)


def test_the_table(tmp_path):
    out = tmp_path / "results.jsonl"
    result = run("support", "--only", "qwen3", "--only", "rwkv", "--only", "gemma4_assistant", "--out", out)
    assert result.exit_code == 0
    assert "| `qwen3` | exact |  |" in result.stdout
    assert "| `rwkv` | refused | recurrent layers (rwkv) that " in result.stdout
    assert "| `gemma4_assistant` | not built |" in result.stdout
    assert len(out.read_text().splitlines()) == 3


def test_a_failure_exits_with_1(monkeypatch):
    mask = TreePlan.mask
    monkeypatch.setattr(TreePlan, "mask", lambda self, *given: 1 / 0 if self._cache.length > 30 else mask(self, *given))
    result = run("support", "--only", "mixtral", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["counts"] == {"fails": 1}
    assert report["findings"][0]["reason"] == "ZeroDivisionError: division by zero"


def test_a_misspelt_name(capsys):
    assert "unknown architecture 'qwen33'; did you mean 'qwen3'?" in complaint(capsys, "support", "--only", "qwen33")
