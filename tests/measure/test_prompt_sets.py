"""The prompts that ship."""

from drafttree.measure.prompt_sets import shipped_prompts, shipped_sets


def test_the_shipped_prompts_are_openings():
    prompts = shipped_prompts()
    assert len(prompts) >= 6
    assert all(prompts)


def test_the_shipped_sets_are_of_three_kinds():
    books, chat, code = shipped_sets(excerpt=None)
    assert min(map(len, (books, chat, code))) > 10
    assert all("def " in example.prompt for example in code)
