"""Schemas of several tools: an error names the tool and the place in its schema; keywords that are null are none."""

from collections import Counter

import httpx
import pytest

from drafttree.constraints import schema_comparison
from drafttree.constraints.schema_comparison import SchemaComparison
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import knowing
from testing.live_server import serving

ASKED = [{"role": "user", "content": "Hello"}]
CLOCK = {"type": "object", "properties": {"zone": {"type": "string"}}}


@pytest.fixture(scope="module", params=["qwen3", "qwen3-coder"])
def post(request):
    """Posts a request with two tools to each route; the status, what it says is wrong, and its warning."""
    with serving(create_app(knowing("Hi.", request.param), ServerSettings("toy"))) as address:

        def post(route: str, schema: dict, *, strict: bool = False):
            field = "input_schema" if route == "messages" else "parameters"
            tools = [{"name": "clock", field: CLOCK}, {"name": "place", field: schema, "strict": strict}]
            if route == "chat/completions":
                tools = [{"type": "function", "function": tool} for tool in tools]
            if route == "responses":
                tools = [{"type": "function", **tool} for tool in tools]
            said = {"input": ASKED} if route == "responses" else {"messages": ASKED, "max_tokens": 4}
            reply = httpx.post(f"{address}/v1/{route}", json={**said, "tools": tools}, timeout=60)
            return reply.status_code, (reply.json().get("error") or {}).get("message"), reply.headers.get("warning")

        yield post


def with_x(**schema: object) -> dict:
    return {"type": "object", "properties": {"x": {"type": "object", "properties": {"y": schema}}}}


WRONG = {"anyOf": [{"type": "string"}, {"type": "string", "pattern": "a$b"}]}
PLACE = "invalid JSON schema: lookarounds not supported yet; End in regex /a$b/ at #/properties/x/properties/y/anyOf/1"


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_an_error_names_the_place_of_the_schema_and_that_in_it(post, route):
    field = {"chat/completions": "function.parameters", "responses": "parameters", "messages": "input_schema"}[route]
    assert post(route, with_x(**WRONG), strict=True) == (400, f"tools.1.{field}: {PLACE}", None)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "schema",
    [
        with_x(**WRONG),
        with_x(**{"if": {"const": 1}, "then": {"type": "string"}}),
        with_x(enum=["x" * 40_000]),
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}},
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_what_cannot_be_enforced_is_told_where_nobody_insists(post, route, schema):
    assert post(route, schema) == (200, None, '299 drafttree "not enforced: schemas of tools"')
    assert post(route, schema, strict=True)[0] == 400


def chained(links: int) -> dict:
    """A schema behind so many references."""
    return {
        "$ref": "#/$defs/0",
        "$defs": {**{str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(links)}, str(links): CLOCK},
    }


@pytest.mark.few(7)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": ["object", "null"], "properties": {"x": {"type": "string"}}},
        {"anyOf": [CLOCK, {"type": "null"}]},
        chained(20),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "responses"])
def test_a_schema_that_allows_objects_among_others_is_one_of_objects_unless_it_is_strict(post, route, schema):
    assert post(route, schema)[:2] == (200, None)
    assert "; the arguments of a function are an object" in post(route, schema, strict=True)[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("route", ["chat/completions", "responses"])
def test_a_schema_whose_members_refer_to_each_other_is_looked_at_for_a_moment(post, monkeypatch, route):
    members = [{"$ref": f"#/{number}"} for number in range(30)]
    dense = {"anyOf": members, **{str(number): {"anyOf": members} for number in range(30)}}
    asked = Counter[int]()
    look = SchemaComparison.possible_types

    def count(self, *how):
        asked[id(self)] += 1
        return look(self, *how)

    monkeypatch.setattr(SchemaComparison, "possible_types", count)
    monkeypatch.setattr(schema_comparison, "MAX_STEPS", 20_000)
    assert post(route, dense) == (200, None, '299 drafttree "not enforced: schemas of tools"')
    assert "takes more than 1000 steps; use fewer members" in post(route, dense, strict=True)[1]
    assert max(asked.values()) <= 20_001


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
    assert post(route, NULL) == (200, None, None)
