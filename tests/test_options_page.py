"""The page of options is of today, and leaves no option of the installed transformers out."""

import importlib.util
import inspect
from pathlib import Path

from transformers import GenerationConfig, GenerationMixin

from drafttree.constraints.refusals import NO_EFFECT, REFUSED
from drafttree.engine.generation_options import SERVED

SCRIPT = Path(__file__).parents[1] / "docs" / "options.py"


def test_the_page_is_what_its_command_writes():
    spec = importlib.util.spec_from_file_location("options_page", SCRIPT)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.DOCUMENT.read_text() == page.document()
    assert all(f"| `{name}` |" in page.document() for name in SERVED)


def test_every_field_and_argument_is_served_refused_or_without_effect():
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    arguments = inspect.signature(GenerationMixin.generate).parameters.keys() - {"self", "kwargs"}
    assert fields | arguments <= SERVED | REFUSED.keys() | NO_EFFECT.keys()
    assert not SERVED & (REFUSED.keys() | NO_EFFECT.keys())
    assert not REFUSED.keys() & NO_EFFECT.keys()
