"""The records of a request are written by their own methods alone: a class shows all that changes it."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import drafttree
from drafttree.engine.batching.seat import Seat
from drafttree.engine.drafting.text_drafting import TextDrafting
from drafttree.engine.request import Request, RequestContext
from drafttree.engine.task import Task
from drafttree.engine.written_text import WrittenText

ROOT = Path(drafttree.__file__).parent
LAB = ROOT.parents[1] / "lab" / "src"
HOLDERS = {"request", "peer", "task", "text", "drafting", "seat", "context"}
"""Names under which other code holds these records."""
FIELDS = {
    *(field.name for record in (Request, RequestContext, Task, WrittenText, TextDrafting) for field in fields(record)),
    *(name.strip("_") for name in vars(Seat(None, 0, 0))),  # pyright: ignore[reportArgumentType]
}


def written(path: Path) -> Iterator[str]:
    """The fields of these records that a file of or above the engine writes, by anything but `self`."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if "drafttree.engine" in source else ():
        is_written = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if is_written and node.attr in FIELDS and _holder(node.value) in HOLDERS:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def _holder(expression: ast.expr) -> str:
    """The last name of an expression such as `requests[-1]` or `self.request`."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Call):
        return _holder(expression.func)
    name = expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    return name.strip("_").rstrip("s").split("_")[-1]


@pytest.mark.parametrize("folder", [ROOT, LAB], ids=["library", "lab"])
def test_no_field_is_written_from_outside(folder):
    assert [line for path in sorted(folder.rglob("*.py")) for line in written(path)] == []


def test_a_field_that_is_written_from_outside_is_found(tmp_path):
    path = tmp_path / "wrong.py"
    lines = [
        "import drafttree.engine",
        "requests[-1].cache = 1",
        "self.request.text.tokens += [2]",
        "seat.turn: int = 3",
        "for self.requests[0].cache in []: del running_seat.status",
        "self.tokens = 4",
    ]
    path.write_text("\n".join(lines))
    assert len([*written(path)]) == 5
