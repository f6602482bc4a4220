"""Names of a decoder's parts are those that users give, without sizes, devices or folders of the machine."""

import shutil
from pathlib import Path

import pytest

import drafttree
from drafttree.drafters import SuffixDrafter
from drafttree.loading import zoo
from drafttree.loading.names import PartNames, drafter_name, model_name, target_name
from testing.toy import ToyModel

VOCAB = 4


def names_of(*parts: str, **options: str) -> PartNames:
    return PartNames.of(drafttree.load("embedded", *parts, dtype="float32", **options))


def test_parts_have_the_names_that_load_takes():
    named = names_of("mixed:embedded-eagle3", "talon:budget=24", verifier="traversal")
    assert named == ("embedded", "mixed:embedded-eagle3", "talon:budget=24", "traversal", "float32")


def test_what_is_chosen_has_the_name_of_the_choice():
    assert names_of() == ("embedded", "mixed:embedded-eagle3", "auto", "auto", "float32")


def test_without_a_drafter_there_is_no_name_of_one():
    assert names_of("none").drafter == "none"


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["embedded-draft", "embedded-mtp", "suffix", "mixed:embedded-medusa"])
def test_every_kind_of_drafter_keeps_its_name(drafter):
    assert names_of(drafter).drafter == drafter


@pytest.mark.parametrize("mixed", ["", "mixed:"])
def test_a_folder_is_named_by_its_last_part(tmp_path, mixed):
    shutil.copytree(zoo.folder("embedded-draft"), tmp_path / "own-draft")
    shutil.copy(zoo.folder("embedded") / "tokenizer.json", tmp_path / "own-draft")
    assert names_of(f"{mixed}{tmp_path / 'own-draft'}").drafter == f"{mixed}own-draft"


def test_a_snapshot_of_the_hub_is_named_by_its_repository(tmp_path):
    folder = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    assert model_name(folder) == "Qwen/Qwen3-8B"
    assert model_name(str(folder)) == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "lookup", "mypackage.Guesser:width=3"])
def test_what_is_no_folder_is_its_own_name(name):
    assert model_name(name) == name


def test_a_folder_that_is_named_from_within_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    assert model_name(Path()) == "own"


def test_what_was_loaded_from_nowhere_is_named_by_its_class():
    assert target_name(ToyModel(lambda prefix: [0.0] * VOCAB, VOCAB)) == "ToyModel"
    assert drafter_name(SuffixDrafter(VOCAB)) == "SuffixDrafter"
