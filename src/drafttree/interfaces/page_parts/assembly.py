"""Puts styles, scripts and data into the template of a page, which needs nothing else then."""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from json import dumps
from typing import Any

import drafttree
from drafttree.core.requirements import check_requirements

OWN = "drafttree.interfaces.page_parts"
STYLES, SCRIPTS = ("base.css", "draft_tree.css"), ("elements.js", "draft_tree.js")
"""What every page begins with."""


def assemble(package: str, style: str, script: str, data: Any, **values: Any) -> str:
    """The page of a package that has a `template.html`.

    Args:
        package: the package that has the template.
        style: the style sheet of the page, a file of the package.
        script: the script of the page, a file of the package.
        data: what the script reads; it becomes JSON.
        **values: what the template shows, by name.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    check_requirements("a page", "report", ("jinja2",))
    from jinja2 import Environment, StrictUndefined
    from jinja2.utils import htmlsafe_json_dumps

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page_fields = {
        "style": _read(STYLES, OWN) + _read([style], package),
        "script": _read(SCRIPTS, OWN) + _read([script], package),
        "data": htmlsafe_json_dumps(data, dumps=partial(dumps, separators=(",", ":"), allow_nan=False)),
        "version": drafttree.__version__,
    }
    return environment.from_string(_read(["template.html"], package)).render(**page_fields, **values)


def _read(names: Sequence[str], package: str) -> str:
    return "\n".join((files(package) / name).read_text(encoding="utf-8") for name in names)
