"""A code-editing set: each prompt asks to rename a symbol in a file of this project and to repeat the file.

The files are those of 23 November 2026: prompts that changed with every commit would make no two runs comparable.
"""

from importlib.resources import as_file, files

from drafttree.evaluation.prompts import Example, read_examples


def code_edits() -> list[Example]:
    """The prompts, with the edited files as references."""
    with as_file(files("drafttree_lab.bench") / "data" / "code_edits.jsonl.gz") as path:
        return read_examples(path)
