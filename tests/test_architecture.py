"""The house is as its documents say."""

import ast
import importlib.util
import inspect
import logging.config
import re
import textwrap
from pathlib import Path

from importlinter.cli import lint_imports

from drafttree.engine.round_loop import RoundLoop

ROOT = Path(__file__).parents[1]


def test_the_table_of_floors_is_the_contracts():
    spec = importlib.util.spec_from_file_location("floors", ROOT / "docs" / "floors.py")
    floors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(floors)
    document = (ROOT / "docs" / "architecture.md").read_text()
    assert floors.updated(document) == document, "run python docs/floors.py"


def test_the_round_is_printed_as_it_is():
    document = (ROOT / "docs" / "architecture.md").read_text()
    printed = re.search(r"with one target pass:\n\n((?: {8}.*\n)+)", document)
    source = textwrap.dedent(inspect.getsource(RoundLoop.step))
    (step,), (shown,) = ast.parse(source).body, ast.parse(f"def step():\n{printed[1]}").body
    assert [*map(ast.unparse, step.body[1:])] == [*map(ast.unparse, shown.body)]


def test_imports_keep_the_contracts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(logging.config, "dictConfig", lambda _: None)  # it would silence all loggers that there are
    assert lint_imports(no_cache=True) == 0, capsys.readouterr().out


def test_no_test_imports_from_another():
    for source in (ROOT / "tests").rglob("*.py"):
        assert not re.search(r"^from (\w+\.)*test_\w+ import", source.read_text(), re.MULTILINE), source
