"""The prompts of the papers' sets: found in a folder or among those that ship."""

import gzip
import json
import re

import pytest

from drafttree.errors import InputError
from drafttree_lab.replay.inputs import read_prompt_texts
from drafttree_lab.replay.paper_files import paper_names, read_paper, use_papers

SETS = {(paper, name): each for paper in paper_names() for name, each in read_paper(paper).sets.items()}


def test_every_set_has_prompts_but_those_that_say_why_none_ship():
    found = read_prompt_texts(paper_names(), None, 10)
    withheld = {place for place, each in SETS.items() if each.withheld}
    assert set(found.missing) == withheld
    assert set(found.texts) == set(SETS) - withheld
    assert all(len(texts) == 10 for texts in found.texts.values())
    assert found.missing["talon", "Alpaca"] == (
        "these prompts do not ship (CC-BY-NC-4.0); give a folder that has them with --data"
    )
    assert not re.search("do not ship [^(]", " ".join(found.missing.values()))


def test_a_set_of_which_a_part_ships_says_of_which():
    found = read_prompt_texts(["traversal"], None, 16)
    note = "only prompts of MT-Bench and GSM8K ship; give a folder that has all with --data"
    assert found.notes == {("traversal", "Spec-Bench"): note}
    kinds = {each.category.partition("/")[0] for each in found.texts["traversal", "Spec-Bench"]}
    assert kinds == {"mt_bench", "math_reasoning"}


def test_fewer_prompts_than_asked_for_are_told():
    found = read_prompt_texts(["dynatree-v2"], None, 15)
    assert found.notes == {("dynatree-v2", "PG-19"): "14 prompts ship, fewer than --limit 15"}


def test_prompts_that_do_not_ship_are_read_from_a_folder_whatever_their_licence(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "alpaca.jsonl").write_text('{"prompt": "a"}\n')
    found = read_prompt_texts(["talon"], tmp_path, 3)
    assert [each.prompt for each in found.texts["talon", "Alpaca"]] == ["a"]
    assert not found.notes


def test_a_set_has_the_prompts_of_its_category_alone():
    found = read_prompt_texts(["talon"], None, 3).texts
    categories = {name: {each.category for each in found["talon", name]} for name in ("writing", "reasoning")}
    assert categories == {"writing": {"writing"}, "reasoning": {"reasoning"}}


def test_files_of_a_folder_are_read_packed_or_not(tmp_path):
    (tmp_path / "prompts").mkdir()
    with gzip.open(tmp_path / "prompts" / "gsm8k.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps({'prompt': str(number)})}\n" for number in range(4))
    (tmp_path / "prompts" / "qa.txt").write_text("why?\n")
    found = read_prompt_texts(["talon"], tmp_path, 2)
    assert [each.prompt for each in found.texts["talon", "GSM8K"]] == ["0", "2"]
    assert len(found.texts["talon", "QA"]) == 1
    assert found.missing["talon", "HumanEval"] == f"prompts/humaneval is not in {tmp_path}"


def test_a_folder_that_is_none_and_a_bad_line_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--data '.*nowhere' is not a folder"):
        read_prompt_texts(["talon"], tmp_path / "nowhere", 1)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "gsm8k.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(InputError, match=r"gsm8k.jsonl.*line 2"):
        read_prompt_texts(["talon"], tmp_path, 1)


def test_prompts_of_one_document_are_a_cluster(tmp_path):
    (tmp_path / "books").mkdir()
    lines = [json.dumps({"text": f"{number} says so", "title": "ab"[number // 2]}) for number in range(3)]
    lines.append(json.dumps({"text": "nobody knows"}))
    (tmp_path / "books" / "test.jsonl").write_text("\n".join(lines))
    found = read_prompt_texts(["dynatree-v2"], tmp_path, 4)
    digests = {("dynatree-v2", "PG-19"): ["x", "y", "z", "w"]}
    assert found.clusters(digests) == {"x": "a", "y": "a", "z": "b"}


def test_prompts_of_a_paper_from_outside_lie_beside_it_in_the_given_folder_or_among_those_that_ship(tmp_path):
    text = """
title = "Mine"
source = "a note"
models.large = { draft_pass = {}, line = 1, source = "a guess" }
roles = {}
methods.AR = {}
results = {}
[sets]
own = { file = "own.txt" }
chat = { file = "prompts/mt_bench" }
none = { file = "none" }
"""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.toml").write_text(text)
    (tmp_path / "mine" / "own.txt").write_text("a\n")
    (tmp_path / "data" / "prompts").mkdir(parents=True)
    (tmp_path / "data" / "prompts" / "mt_bench.txt").write_text("b\n")
    use_papers([tmp_path / "mine" / "mine.toml"])
    found = read_prompt_texts(["mine"], None, 2)
    assert [each.prompt for each in found.texts["mine", "own"]] == ["a"]
    assert len(found.texts["mine", "chat"]) == 2
    assert found.missing == {("mine", "none"): f"none is not in {tmp_path / 'mine'}, nor among the samples that ship"}
    assert not found.notes
    given = read_prompt_texts(["mine"], tmp_path / "data", 2)
    assert [each.prompt for name in ("own", "chat") for each in given.texts["mine", name]] == ["a", "b"]
    assert given.missing == {("mine", "none"): f"none is not in {tmp_path / 'data'} or {tmp_path / 'mine'}"}
    use_papers([])
