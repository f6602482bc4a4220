"""Real models: small ones of the package in their place, as GGUF files."""

import hashlib
import json
import sys

import pytest
import torch

from drafttree.loading.pretrained import load_model, load_tokenizer
from drafttree.measure import reference
from drafttree.measure.method import PLAIN
from drafttree_lab.bench import real
from drafttree_lab.peers.gguf_file import write_gguf
from drafttree_lab.real_model_run import ASSISTED, LLAMA_CPP, NO_LLAMA_CPP, PROMPT_LOOKUP, TRANSFORMERS, RealModel
from testing.command_line import complaint, run

SMALL = ["--limit", 2, "--timed", 1, "--max-new-tokens", 6, "--texts", 3, "--text-tokens", 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a target and a draft model of its vocabulary."""
    path = tmp_path_factory.mktemp("models")
    for source, name in {"embedded": "target", "embedded-draft": "draft"}.items():
        module = load_model(source, torch.float32, torch.device("cpu"))
        write_gguf(module, load_tokenizer(source), path / f"{name}.gguf", "f32")
    return path


@pytest.fixture
def without_llama_cpp(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)


def measured(*options):
    result = run("bench", "real", *options, *SMALL, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


@pytest.mark.usefixtures("quick", "without_llama_cpp")
def test_every_way_has_a_row_and_writes_the_text_of_its_precision(folder):
    report = measured(folder, "--model", "target", "--model", "draft.gguf")
    assert [file["file"] for file in report["files"]] == ["draft.gguf", "target.gguf"]
    for file in report["files"]:
        assert file["sha256"] == hashlib.sha256((folder / file["file"]).read_bytes()).hexdigest()
        assert file["kinds"] == {"F32": 1.0}
    speeds = {(row["model"], row["precision"], row["method"]): row for row in report["speeds"]}
    for name in ("lookup, auto", "draft model, chain:depth=3", "lookup and draft model, auto"):
        for precision in ("as stored", "bfloat16", "int8"):
            row = speeds["target", precision, name]
            assert row["same text"] == "2/2"
            assert row["tau"] >= 1
            assert row["prompts"] == 2
    assert speeds["target", "bfloat16", TRANSFORMERS]["prompts"] == 1
    assert speeds["target", "bfloat16", PLAIN]["over transformers"]["mean"] > 0
    assert speeds["target", "bfloat16", ASSISTED]["tokens/s"] > 0
    assert speeds["target", "as stored", LLAMA_CPP]["failure"] == NO_LLAMA_CPP
    assert ("target", "as stored", TRANSFORMERS) not in speeds
    assert ("target", "int8", TRANSFORMERS) not in speeds
    assert ("draft", "bfloat16", ASSISTED) not in speeds
    assert ("draft", "bfloat16", PROMPT_LOOKUP) in speeds
    assert {(row["equal"], row["texts"]) for row in report["texts"]} == {(3, 3)}
    assert len(report["texts"]) == 3 + 9


@pytest.mark.usefixtures("quick", "without_llama_cpp")
def test_what_does_not_run_is_a_row_that_says_why(folder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no room\nfor it")

    monkeypatch.setattr(reference, "transformers_generate", fail)
    monkeypatch.setattr("drafttree.measure.transformers_generate", fail, raising=False)
    report = measured(folder, "--model", "draft", "--precision", "bfloat16", "--precision", "float32")
    speeds = {row["method"]: row for row in report["speeds"]}
    assert speeds[TRANSFORMERS]["failure"] == "RuntimeError: no room for it"
    assert speeds[PLAIN]["tokens/s"] > 0
    assert {row["failure"] for row in report["texts"]} == {"RuntimeError: no room for it"}


@pytest.mark.usefixtures("quick")
def test_a_text_that_differs_is_counted_as_such(folder, monkeypatch):
    run_of_reference = reference.transformers_generate

    def other(*arguments, **options):
        found = run_of_reference(*arguments, **options)
        return reference.ReferenceRun([*found.tokens[:-1], found.tokens[-1] + 1], found.seconds)

    monkeypatch.setattr("drafttree.measure.transformers_generate", other, raising=False)
    report = measured(folder, "--model", "draft", "--precision", "float32")
    assert {(row["equal"], row["texts"]) for row in report["texts"]} == {(0, 3)}


def test_the_draft_model_is_the_largest_of_the_vocabulary_that_is_half_as_large(folder):
    files, rest = real.find_files(folder, None)
    assert [path.stem for path in files] == ["draft", "target"]
    assert rest == []
    assert real.draft_models(files) == {files[0]: None, files[1]: files[0]}
    target, other = real.find_files(folder, ["target"])
    assert real.draft_models(target, other) == {files[1]: files[0]}


def test_files_that_are_no_models_are_left_out_and_told(folder, tmp_path, capsys):
    whole = (folder / "draft.gguf").read_bytes()
    for name, content in {"cut": whole[:5000], "notes": b"no model", "draft": whole}.items():
        (tmp_path / f"{name}.gguf").write_bytes(content)
    files, _ = real.find_files(tmp_path, None)
    assert [path.stem for path in files] == ["draft"]
    said = capsys.readouterr().err
    assert "cut.gguf is left out: " in said
    assert "notes.gguf is left out: " in said


@pytest.mark.usefixtures("quick", "without_llama_cpp")
def test_finished_texts_are_kept_for_the_same_code_alone(folder, tmp_path, monkeypatch, capsys):
    options = [folder, "--model", "draft", "--precision", "float32", "--out", tmp_path / "out"]
    first = measured(*options)
    monkeypatch.setattr(RealModel, "open", lambda model: pytest.fail("a model is opened anew"))
    assert measured(*options) == first
    monkeypatch.setattr(real, "code_digest", lambda: "other")
    assert "another command" in complaint(capsys, "bench", "real", *options, *SMALL)


def test_the_folder_may_be_named_by_the_variable(folder, monkeypatch, capsys):
    monkeypatch.setenv(real.VARIABLE, str(folder))
    assert f"{folder} has no nope.gguf; it has draft, target" in complaint(capsys, "bench", "real", "--model", "nope")


def test_another_precision_is_refused(folder, capsys):
    said = complaint(capsys, "bench", "real", folder, "--precision", "int4")
    assert "int4" in said


def test_a_folder_without_files_is_refused(tmp_path, capsys):
    assert f"{tmp_path} has no GGUF file" in complaint(capsys, "bench", "real", tmp_path)
    assert f"{tmp_path / 'x'} is missing" in complaint(capsys, "bench", "real", tmp_path / "x")
    assert f"{__file__} is a file" in complaint(capsys, "bench", "real", __file__)
