"""Requests made from the server's own OpenAPI description, right and wrong ones: it fails at none of them.

Some have a schema, which the description knows as any object, and some begin alike.
"""

import os
import time
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.errors import ANTHROPIC, AnthropicErrorReply, ErrorReply
from drafttree.interfaces.server.serving import ServerSettings
from testing.batches import TOKENIZER
from testing.held_server import wait_until
from testing.live_server import serving
from testing.toy import Table, ToyModel

MINUTES = float(os.environ.get("SERVER_FUZZ_MINUTES", "1"))
LAW = Table(len(TOKENIZER), order=1)
EXAMPLES = 20
BEGINNING = "a b c d e f g h"
SCHEMAS: list[Any] = [
    {},
    {"type": "integer", "minimum": 3, "maximum": 10**400},
    {"enum": [7, 123, True]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    {"type": "string", "pattern": "^[a-z]{0,200}$"},
    {"type": "string", "pattern": "^a{0,4294967297}$"},
    {"properties": {"a" * 40: {}}, "patternProperties": {"^(a+)+$": {}}},
    {"type": "object", "properties": {f"name {place}": {} for place in range(60)}},
    {"anyOf": [{"type": "boolean"}, {"not": {}}]},
    {"$ref": "#/$defs/none"},
]
FORMS = {
    "/v1/chat/completions": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    },
    "/v1/completions": lambda schema: {"structured_outputs": {"json": schema}},
    "/v1/responses": lambda schema: {"text": {"format": {"type": "json_schema", "name": "form", "schema": schema}}},
    "/v1/messages": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
}
"""How the routes are asked for a form."""
asked: set[str] = set()
"""Paths that this process has sent requests to."""
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/models/{model}",
    "/health",
    "/ready",
    "/metrics",
]


@pytest.fixture(scope="module")
def schema():
    """The description of a server whose texts are short, since its context is."""
    tokenizer = deepcopy(TOKENIZER)
    tokenizer.chat_template = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    decoder = Decoder(ToyModel(LAW, LAW.vocab, context=40), tokenizer=tokenizer, eos=(0,))
    app = create_app(decoder, ServerSettings("toy", max_batch=4, max_queue=4))
    with serving(app) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")
        wait_until(lambda: not app.state.serving.admission.busy)
        assert app.state.serving.engine.metrics.finished > 0 or not asked & {*FORMS}


TEXTS = {"prompt", "messages", "input"}


def begun(text: Any) -> Any:
    """A prompt or a conversation that begins as others do; what is neither as it is."""
    if isinstance(text, str):
        return f"{BEGINNING} {text}"
    if isinstance(text, list) and all(isinstance(each, int) for each in text):
        return [*range(1, 9), *text]
    if isinstance(text, list) and all(isinstance(each, dict) for each in text):
        return [{"role": "user", "content": BEGINNING}, *text]
    return text


def send_random_requests(operation, number: int) -> None:
    """Send some requests to one path."""
    asked.add(operation.path)

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(operation.as_strategy(), st.none() | st.sampled_from(SCHEMAS), st.booleans())
    def send(case, schema, begins_alike) -> None:
        if isinstance(case.body, dict):
            if schema is not None and operation.path in FORMS:
                case.body = {**case.body, **FORMS[operation.path](schema)}
            if begins_alike:
                case.body = {**case.body, **{name: begun(case.body[name]) for name in TEXTS & case.body.keys()}}
        response = case.call(timeout=60)
        case.validate_response(response, checks=[not_a_server_error, status_code_conformance])
        if response.status_code != 200:
            form = AnthropicErrorReply if operation.path.startswith(ANTHROPIC) else ErrorReply
            form.model_validate_json(response.content, strict=True)

    send()


def test_every_path_is_described(schema):
    assert {result.ok().path for result in schema.get_all_operations()} == {*PATHS}


@pytest.mark.few(2)
@pytest.mark.parametrize("path", PATHS)
def test_no_request_makes_the_server_fail(schema, path):
    for operation in (result.ok() for result in schema.get_all_operations()):
        if operation.path == path:
            send_random_requests(operation, 0)


@pytest.mark.slow
def test_no_request_makes_the_server_fail_in_a_while(schema):
    operations = [result.ok() for result in schema.get_all_operations() if result.ok().method == "post"]
    ends, number = time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < ends:
        number += 1
        for operation in operations:
            send_random_requests(operation, number)
    print(f"{number * EXAMPLES * len(operations)} requests")
