"""`load` finds each source once, reads its config.json once, and verifies and packs each model once."""

import builtins
import io
from collections import Counter
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

import drafttree
from drafttree.loading import folders, zoo
from drafttree.measure.reference import transformers_model
from drafttree.models.native.packed_model import PackedModel
from testing import tiny
from testing.tokenizers import words


@pytest.fixture
def counted(monkeypatch):
    """How often each file was opened and each name resolved, and how many passes of modules and packs there were."""
    counts = Counter()

    def count(owner, name, key_of):
        original = getattr(owner, name)

        def counting(*arguments, **options):
            counts[key_of(*arguments)] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    for owner in (builtins, io):
        count(owner, "open", lambda path, *_: ("file", str(path)))
    count(folders, "_name_or_folder", lambda source, *_: ("name", str(source)))
    count(LlamaForCausalLM, "forward", lambda *_: "passes")
    count(PackedModel, "__init__", lambda *_: "packs")
    return counts


def configs(counts):
    """How often config.json was opened, by folder."""
    paths = {Path(key[1]): count for key, count in counts.items() if key[0] == "file"}
    return {path.parent.name: count for path, count in paths.items() if path.name == "config.json"}


def names(counts):
    return {key[1]: count for key, count in counts.items() if key[0] == "name"}


def test_the_default_load_does_everything_once(counted):
    decoder = drafttree.load("embedded", "mixed:embedded-eagle3", "talon")
    assert configs(counted) == {"target": 1, "eagle3": 1}
    assert names(counted) == {"embedded": 1, "embedded-eagle3": 1}
    by_name = counted["passes"], counted["packs"] - 1  # the head's
    module = LlamaForCausalLM.from_pretrained(zoo.folder("embedded"), dtype=transformers_model(decoder).dtype)
    counted.clear()
    drafttree.load(module, "none", "talon", tokenizer=decoder.tokenizer)
    assert (counted["passes"], counted["packs"]) == by_name


@pytest.mark.parametrize("drafter", [*zoo.HEADS, "auto", "lookup", "none"])
def test_the_files_of_every_drafter_are_found_and_read_once(drafter, counted):
    drafttree.load("embedded", drafter, "chain")
    head = {"auto": "embedded-eagle3", "lookup": None, "none": None}.get(drafter, drafter)
    assert configs(counted) == {"target": 1} | ({zoo.HEADS[head]: 1} if head else {})
    assert names(counted) == {"embedded": 1} | ({head: 1} if head else {})


@pytest.mark.parametrize("drafter", ["{}", "mixed:{}"])
def test_the_files_of_a_draft_model_are_found_and_read_once(drafter, counted, tmp_path):
    for name in ("target", "draft"):
        tiny.build("llama").save_pretrained(tmp_path / name)
        words("a", "b", "c").save_pretrained(tmp_path / name)
    counted.clear()
    drafttree.load(tmp_path / "target", drafter.format(tmp_path / "draft"), "chain", dtype="float32")
    assert configs(counted) == {"target": 1, "draft": 1}
    assert names(counted) == {str(tmp_path / name): 1 for name in ("target", "draft")}
