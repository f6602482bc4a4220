"""Assembles a page into one file: its template with styles, scripts and data."""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from json import dumps
from typing import Any

import drafttree
from drafttree.core.requirements import check_requirements

PAGE_PARTS = "drafttree.interfaces.page_parts"
STYLES = ("base.css", "draft_tree.css")
SCRIPTS = ("elements.js", "draft_tree.js")
"""Styles and scripts of all pages. Those of a single page follow them."""


def assemble(package: str, style: str, script: str, data: Any, **values: Any) -> str:
    """Assemble the page of a package.

    Args:
        package: the package, which has a `template.html`.
        style: file name of the page's style sheet in the package.
        script: file name of the page's script in the package.
        data: the data of the script, written as JSON.
        **values: variables of the template.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    check_requirements("a page", "report", ("jinja2",))
    from jinja2 import Environment, StrictUndefined
    from jinja2.utils import htmlsafe_json_dumps

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page_fields = {
        "style": _read(STYLES, PAGE_PARTS) + _read([style], package),
        "script": _read(SCRIPTS, PAGE_PARTS) + _read([script], package),
        "data": htmlsafe_json_dumps(data, dumps=partial(dumps, separators=(",", ":"), allow_nan=False)),
        "version": drafttree.__version__,
    }
    return environment.from_string(_read(["template.html"], package)).render(**page_fields, **values)


def _read(names: Sequence[str], package: str) -> str:
    return "\n".join((files(package) / name).read_text(encoding="utf-8") for name in names)
