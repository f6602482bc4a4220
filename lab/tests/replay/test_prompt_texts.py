"""The prompts of the papers' sets: found in a folder or among those that ship."""

import gzip
import json

import pytest

from drafttree.core.errors import InputError
from drafttree_lab.replay.prompt_texts import read_prompt_texts


def test_some_sets_ship_and_the_others_are_told():
    found = read_prompt_texts(["talon"], None, 2)
    assert len(found.texts["talon", "HumanEval"]) == 2
    assert "do not ship" in found.missing["talon", "GSM8K"]
    assert "--data" in found.missing["talon", "GSM8K"]
    assert not set(found.texts) & set(found.missing)


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
    with pytest.raises(InputError, match=r"--data '.*nowhere' is no folder"):
        read_prompt_texts(["talon"], tmp_path / "nowhere", 1)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "gsm8k.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(InputError, match=r"gsm8k.jsonl.*line 2"):
        read_prompt_texts(["talon"], tmp_path, 1)
