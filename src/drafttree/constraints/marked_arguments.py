"""Grammars of arguments that stand between marks, as Qwen3-Coder and GLM write them.

xgrammar allows white space between a mark and a value. Who reads the text could not tell it from white space of the
value, so what stands there is fixed here.
"""

import json
import re
from typing import Any

from drafttree.constraints.xgrammar_library import library_message, load_xgrammar
from drafttree.core.errors import ConfigError

EDGES = {"qwen_xml": ('">"', '"</parameter>"', r'"\n"'), "glm_xml": ('"<arg_value>"', '"</arg_value>"', '""')}
"""By xgrammar's name of a style: the marks before and after a value, and what stands between them and it."""
WHITE_SPACE = re.compile(r'^(\w+) ::= \(""\s\|\s\(\[ \\n\\r\\t\]\)\)$', re.MULTILINE)
"""A rule of one character of white space, or none."""


def marked_arguments(part: dict[str, Any]) -> str:
    """The EBNF grammar of the arguments of a schema.

    Args:
        part: the part of a structural tag, of type `json_schema` and with one of the styles above.

    Raises:
        ConfigError: xgrammar cannot read the schema, or is not installed.
    """
    before, after, edge = EDGES[part["style"]]
    tag = {"type": "structural_tag", "format": {**part, "max_whitespace_cnt": 1}}
    try:
        text = str(load_xgrammar().Grammar.from_structural_tag(json.dumps(tag)))
    except RuntimeError as error:
        raise ConfigError(f"invalid JSON schema: {library_message(error)}") from None
    at_edges = {*re.findall(rf"{before} (\w+)", text), *re.findall(rf"(\w+) {after}", text)}
    return WHITE_SPACE.sub(lambda rule: f"{rule[1]} ::= ({edge})" if rule[1] in at_edges else rule[0], text)
