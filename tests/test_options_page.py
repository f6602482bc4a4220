"""The page of options is of today, and leaves no option of the installed transformers out."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from transformers import GenerationConfig, GenerationMixin

from drafttree.constraints.refusals import NO_EFFECT, REFUSED
from drafttree.engine.generation_options import SERVED

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(("name", "entries"), [("options", SERVED), ("methods", {"talon", "rrsw", "lookup"})])
def test_a_page_is_what_its_command_writes(name, entries):
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.DOCUMENT.read_text() == page.document()
    assert all(re.search(rf"^(\| `|### ){entry}\b", page.document(), re.MULTILINE) for entry in entries)


def test_every_field_and_argument_is_served_refused_or_without_effect():
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    arguments = inspect.signature(GenerationMixin.generate).parameters.keys() - {"self", "kwargs"}
    assert fields | arguments <= SERVED | REFUSED.keys() | NO_EFFECT.keys()
    assert not SERVED & (REFUSED.keys() | NO_EFFECT.keys())
    assert not REFUSED.keys() & NO_EFFECT.keys()
