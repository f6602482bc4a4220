"""Results are kept, and an interrupted run goes on."""

import json

import pytest

from drafttree.errors import ConfigError, InputError
from drafttree_lab.support import sweep
from drafttree_lab.support.check import Finding
from drafttree_lab.support.report import to_markdown


@pytest.fixture
def checked(monkeypatch):
    """The names that are checked, without a model; `results` decides what is found."""
    names, results = [], {}

    def check(name):
        names.append(name)
        found = results.get(name, "exact")
        if found == "interrupted":
            raise KeyboardInterrupt
        return Finding(name, found)

    monkeypatch.setattr(sweep, "check_architecture", check)
    monkeypatch.setattr(sweep, "architectures", lambda: ["gpt2", "llama", "mamba"])
    monkeypatch.setattr(sweep, "image_architectures", list)
    monkeypatch.setattr(sweep, "language_models", lambda: {"gemma3": "gemma3_text", "llava": "llama"})
    return names, results


def test_an_interrupted_run_goes_on(checked, tmp_path):
    names, results = checked
    out, seen = tmp_path / "new" / "support.jsonl", []
    results["mamba"] = "interrupted"
    with pytest.raises(KeyboardInterrupt):
        sweep.check_all(out=out)
    results["mamba"] = "refused"
    table = sweep.check_all(out=out, progress=seen.append)
    assert names == ["gpt2", "llama", "mamba", "mamba"]
    assert seen == ["gpt2", "llama", "mamba"]
    assert [(finding.name, finding.result) for finding in table.findings] == [
        ("gpt2", "exact"),
        ("llama", "exact"),
        ("mamba", "refused"),
    ]
    assert table.counts == {"exact": 2, "refused": 1}
    assert [path.name for path in out.parent.iterdir()] == ["support.jsonl"]


def test_failures_and_other_versions_are_checked_again(checked, tmp_path, monkeypatch):
    names, results = checked
    out = tmp_path / "support.jsonl"
    results["gpt2"] = "fails"
    assert not sweep.check_all(out=out).passed
    results["gpt2"] = "exact"
    assert sweep.check_all(out=out).passed
    assert names[3:] == ["gpt2"]
    monkeypatch.setattr(sweep, "VERSIONS", sweep.VERSIONS | {"transformers": "6.0.0"})
    sweep.check_all(["llama"], out)
    assert names[4:] == ["llama"]


def test_prompts_with_images_come_last_and_are_checked_by_name(checked, monkeypatch):
    names, _ = checked
    monkeypatch.setattr(sweep, "image_architectures", lambda: ["gemma3+images"])
    monkeypatch.setattr(sweep, "check_images", lambda name: names.append(name) or Finding(name, "exact"))
    assert [finding.name for finding in sweep.check_all(["gemma3+images", "llama"]).findings] == [
        "llama",
        "gemma3+images",
    ]
    sweep.check_all()
    assert names == ["llama", "gemma3+images", "gpt2", "llama", "mamba", "gemma3+images"]


def test_only_some(checked, tmp_path):
    names, _ = checked
    out = tmp_path / "support.jsonl"
    sweep.check_all(["mamba"], out)
    table = sweep.check_all(["llava", "gpt2"], out)
    assert names == ["mamba", "gpt2", "llama"]
    assert [finding.name for finding in table.findings] == ["gpt2", "llama"]
    assert len(out.read_text().splitlines()) == 3
    with pytest.raises(ConfigError, match=r"unknown architecture 'lama'; did you mean 'llama'"):
        sweep.check_all(["lama"])


@pytest.mark.parametrize("text", ["a poem\n", '{"prompt": "x"}\n', "[1]\n", "\xff"])
def test_another_file_is_left_alone(checked, tmp_path, text):
    out = tmp_path / "poem.txt"
    out.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=r"poem.txt' is not a file of results"):
        sweep.check_all(out=out)
    assert out.read_bytes() == text.encode("latin1")
    with pytest.raises(InputError, match="cannot be written"):
        sweep.check_all(out=out / "below")


def test_the_summary_is_json(checked):
    summary = json.loads(json.dumps(sweep.check_all(["gpt2"]).summary()))
    assert summary["passed"] is True
    assert summary["findings"][0]["name"] == "gpt2"
    assert summary["versions"]["torch"]


def test_the_document():
    findings = [
        Finding("a", "exact", exact=["chain", "dynatree", "talon", "template"]),
        Finding("b", "exact", "chains only", ["chain"]),
        Finding("c", "refused", "CForCausalLM cannot be verified in a tree: it has odd | layers"),
        Finding("d+images", "exact", runs_on="NativeBackend"),
    ]
    lines = to_markdown(sweep.SupportTable(findings)).splitlines()
    assert "2 exact, 1 refused." in lines
    assert "1 exact." in lines
    rows = [line for line in lines if line.startswith("| `")]
    assert rows == [
        "| `a` | exact |  |",
        "| `b` | exact (chain) | chains only |",
        "| `c` | refused | odd \\| layers |",
        "| `d` | exact |  | NativeBackend |",
    ]
