"""The prompts of the map: every file once, in turn, those that do not loop first."""

from drafttree_lab.replay.paper_files import read_paper
from drafttree_lab.winner_map.winner_map import MAX_PROMPT_TOKENS, choose_prompts, read_map_prompts

SETS = {("a", "x"): [[1, 1], [1, 2], [1, 3]], ("b", "y"): [[2, 1], [2, 2], [1, 1]]}


def test_every_file_is_read_once():
    places = [*read_map_prompts(2).texts]
    files = [read_paper(paper).sets[name].file for paper, name in places]
    assert len(files) == len(set(files))
    assert {"prompts/mt_bench", "prompts/humaneval", "books/test"} <= set(files)


def test_sets_take_turns():
    sets = {("a", "x"): [[1, 1], [1, 2], [1, 3]], ("b", "y"): [[2, 1], [2, 2]]}
    found = choose_prompts(sets, 4, 0, lambda _: False)
    assert [ids[0] for ids in found] == [1, 2, 1, 2]
    assert len({tuple(ids) for ids in found}) == 4
    assert found == choose_prompts(sets, 4, 0, lambda _: False)


def test_looping_texts_fill_up_what_is_missing():
    asked = []
    found = choose_prompts(SETS, 4, 0, lambda ids: asked.append(ids) or ids[1] == 1)
    assert sorted(ids[1] for ids in found[:3]) == [2, 2, 3]
    assert found[3][1] == 1
    assert len(asked) == len({tuple(ids) for ids in asked}) == 5


def test_no_more_texts_are_asked_for_than_are_needed():
    asked = []
    choose_prompts(SETS, 2, 0, lambda ids: asked.append(ids) and False)
    assert len(asked) == 2


def test_long_prompts_are_cut():
    (found,) = choose_prompts({("a", "x"): [[5] * 1000]}, 1, 0, lambda _: False)
    assert found == [5] * MAX_PROMPT_TOKENS
