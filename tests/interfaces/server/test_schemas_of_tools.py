"""Schemas of several tools: an error names the tool and the place in its schema; keywords that are null are none."""

import httpx
import pytest

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import knowing
from testing.live_server import serving

ASKED = [{"role": "user", "content": "Hello"}]
CLOCK = {"type": "object", "properties": {"zone": {"type": "string"}}}


@pytest.fixture(scope="module", params=["qwen3", "qwen3-coder"])
def post(request):
    """Posts a request with two tools to each route; the status and what it says is wrong."""
    with serving(create_app(knowing("Hi.", request.param), ServerSettings("toy"))) as address:

        def post(route: str, schema: dict):
            named = [("clock", CLOCK), ("place", schema)]
            tools = {
                "chat/completions": [
                    {"type": "function", "function": {"name": name, "parameters": each}} for name, each in named
                ],
                "responses": [{"type": "function", "name": name, "parameters": each} for name, each in named],
                "messages": [{"name": name, "input_schema": each} for name, each in named],
            }[route]
            said = {"input": ASKED} if route == "responses" else {"messages": ASKED, "max_tokens": 4}
            reply = httpx.post(f"{address}/v1/{route}", json={**said, "tools": tools}, timeout=60)
            return reply.status_code, reply.json().get("error", {}).get("message") if reply.status_code != 200 else None

        yield post


def with_x(**schema: object) -> dict:
    return {"type": "object", "properties": {"x": {"type": "object", "properties": {"y": schema}}}}


WRONG = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3, "maximum": 1}]}
PLACE = "invalid JSON schema: Invalid range: minimum greater than maximum at #/properties/x/properties/y/anyOf/1"


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_an_error_of_xgrammars_names_the_tool_and_the_place(post, route):
    assert post(route, with_x(**WRONG)) == (400, f"tool 'place': {PLACE}")


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"not": {}}, "'not'"),
        ({"type": "string", "minLength": -1}, "'minLength' of -1, which is below 0,"),
        ({"type": "string", "maxLength": -1}, "'maxLength' of -1, which is below 0,"),
        ({"type": "array", "minItems": -1}, "'minItems' of -1, which is below 0,"),
    ],
)
def test_what_would_not_be_enforced_is_told_with_its_tool(post, schema, what):
    what = f"{what} at #/properties/x/properties/y is not enforced by xgrammar; leave it out"
    assert post("chat/completions", with_x(**schema)) == (400, f"tool 'place': invalid JSON schema: {what}")


def test_a_reference_to_nothing_is_told_with_its_place(post):
    status, said = post("chat/completions", with_x(type="array", items={"$ref": "#/$defs/nothing"}))
    assert (status, said) == (
        400,
        "tool 'place': invalid JSON schema: Cannot find field $defs in #/$defs/nothing at "
        "#/properties/x/properties/y/items",
    )


def test_a_schema_of_no_object_is_told_with_its_tool(post):
    status, said = post("chat/completions", {"type": "array"})
    what = "tool 'place': the schema allows array; the arguments of a function are an object"
    assert (status, said) == (400, f"tools.1.function.parameters: {what}")


NULL = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "minLength": None, "pattern": None, "format": None, "enum": None, "description": None},
        "b": {"anyOf": [{"type": "null", "items": None}, {"type": "array", "items": {"$ref": "#/$defs/c"}}]},
        "d": {"const": None, "default": None},
    },
    "required": None,
    "additionalProperties": None,
    "$defs": {"c": {"type": "integer", "minimum": None, "$ref": None}},
    "not": None,
}


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_keywords_that_are_null_are_left_out(post, route):
    assert post(route, NULL) == (200, None)
