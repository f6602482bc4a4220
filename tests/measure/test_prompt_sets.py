"""Prompt sets: the shipped ones, those of a folder, and what is said where there are none."""

import json

import pytest

from drafttree.errors import ConfigError, InputError
from drafttree.measure.prompt_sets import read_prompt_sets


def test_shipped_sets_lack_the_summaries():
    found = read_prompt_sets(["books", "chat", "code", "summaries"], None, 4)
    assert {name: len(prompts) for name, prompts in found.items()} == {"books": 4, "chat": 4, "code": 4}
    assert all("def " in example.prompt for example in found["code"])


def test_a_folders_sets_are_evenly_spaced(tmp_path):
    (tmp_path / "prompts").mkdir()
    lines = [json.dumps({"prompt": f"prompt {number}"}) for number in range(10)]
    (tmp_path / "prompts/cnn_dm.jsonl").write_text("\n".join(lines))
    found = read_prompt_sets(["summaries"], tmp_path, 2)
    assert [example.prompt for example in found["summaries"]] == ["prompt 0", "prompt 5"]


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        (["book"], ConfigError, "unknown prompt set 'book'; did you mean 'books'"),
        (["chat"], InputError, r"no prompts/mt_bench.jsonl \(or .jsonl.gz\) for the set 'chat'"),
    ],
)
def test_unknown_sets_and_missing_files_are_named(tmp_path, names, error, said):
    with pytest.raises(error, match=said):
        read_prompt_sets(names, tmp_path, 2)


def test_sets_that_do_not_ship_need_a_folder():
    with pytest.raises(InputError, match="summaries: no such prompts ship; name a folder with --data"):
        read_prompt_sets(["summaries"], None, 2)
