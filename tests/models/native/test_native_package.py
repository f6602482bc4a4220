"""Which package drafttree-native is used: one that has the version of the calls, and loads."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafttree.models.native import kernels

PACKAGE = Path(__file__).parents[3] / "native" / "drafttree_native" / "__init__.py"


def test_the_package_here_has_the_version_that_is_called():
    """Otherwise every test that needs the package would be skipped."""
    versions = {}
    for statement in ast.parse(PACKAGE.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            versions[statement.targets[0].id] = statement.value
    assert ast.literal_eval(versions["CALLS"]) == kernels.CALLS


@pytest.mark.parametrize(("later", "said"), [(-1, "a newer one"), (1, "an older one")])
def test_a_package_of_another_version_is_named_and_left_alone(monkeypatch, caplog, later, said):
    """Nothing but its version is read: it may have none of the functions, or others by their names."""
    package = SimpleNamespace(CALLS=kernels.CALLS + later)
    monkeypatch.setattr(kernels.importlib, "import_module", lambda name: package)
    assert kernels.find_native() is None
    assert f"this drafttree needs {said} of drafttree-native; reinstall both" in caplog.text


def test_a_package_that_does_not_load_is_told(monkeypatch, caplog):
    def broken(name):
        raise ImportError("GLIBC_2.99 not found")

    monkeypatch.setattr(kernels.importlib, "import_module", broken)
    assert kernels.find_native() is None
    assert "drafttree-native does not load (GLIBC_2.99 not found), so passes run on torch" in caplog.text
