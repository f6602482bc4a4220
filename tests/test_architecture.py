"""The house is as its documents say."""

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_the_table_of_floors_is_the_contracts():
    spec = importlib.util.spec_from_file_location("floors", ROOT / "docs" / "floors.py")
    floors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(floors)
    document = (ROOT / "docs" / "architecture.md").read_text()
    assert floors.updated(document) == document, "run python docs/floors.py"


def test_functions_are_short_and_files_fit_on_a_few_screens():
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef)
    )
    assert lengths[len(lengths) // 2] <= 6
    assert lengths[len(lengths) * 9 // 10] <= 18
    assert {source.name for source in SOURCES if len(source.read_text().splitlines()) > 400} == set()


def test_no_test_imports_from_another():
    for source in (ROOT / "tests").rglob("*.py"):
        modules = {node.module for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not {module for module in modules if module and module.split(".")[-1].startswith("test_")}, source
