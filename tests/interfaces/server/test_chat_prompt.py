"""Messages and tools as chat templates see them."""

import re

import pytest
from fastapi.testclient import TestClient

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.dialect.arguments import written_arguments
from drafttree.interfaces.server.dialect.families import CALLS, HERMES, THINKING
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.request import ChatRequest
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import TEMPLATES, knowing, tokenizer_of
from testing.tokenizers import chat_words

FAMILIES = {
    "qwen3": ("qwen3", "hermes"),
    "qwq": ("qwen3", "hermes"),
    "qwen3-coder": ("qwen3", "qwen3_coder"),
    "llama3": (None, "llama3_json"),
    "mistral": ("mistral", "mistral"),
    "mistral-7b": (None, "mistral_list"),
    "gpt-oss": ("openai_gptoss", "openai"),
    "deepseek-r1": ("qwen3", "deepseek_v3"),
    "deepseek-v3.1": ("qwen3", "deepseek_v31"),
    "glm-4.5": ("qwen3", "glm45"),
    "glm-4.7": ("qwen3", "glm47"),
}
PROMPT_ENDS = [
    ("qwen3", {None: "perhaps", "high": "perhaps", "none": "no"}),
    ("qwq", {None: "begun"}),
    ("llama3", {None: "no"}),
    ("gpt-oss", {None: "perhaps", "low": "perhaps"}),
    ("deepseek-r1", {None: "begun"}),
    ("deepseek-v3.1", {None: "no", "low": "begun", "none": "no"}),
    ("glm-4.5", {None: "perhaps", "none": "no"}),
    ("glm-4.7", {None: "begun", "none": "no"}),
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
]


class Templated:
    """What a template is given at last, and a tokenizer that has it."""

    def __init__(self, template: str) -> None:
        self.tokenizer = chat_words(template)
        apply = self.tokenizer.apply_chat_template

        def spy(messages, **variables):
            self.messages, self.variables = messages, variables
            return apply(messages, **variables)

        self.tokenizer.apply_chat_template = spy


def seen(template: str, tool_parser: str = "auto", **body) -> Templated:
    found = Templated(template)
    request = ChatRequest.model_validate({"messages": MESSAGES, **body})
    read_prompt(request, found.tokenizer, Dialect.of(found.tokenizer, tool_parser))
    return found


def test_a_template_that_knows_calls_is_given_tools_and_parsed_arguments():
    found = seen("{{ tools }} {{ messages }} <tool_call> developer", tools=[TOOL])
    assert found.variables["tools"] == [TOOL]
    assert [message["role"] for message in found.messages] == ["developer", "user", "assistant", "tool"]
    assert found.messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert found.messages[3] == {"role": "tool", "tool_call_id": "call_1", "content": "7"}


def test_another_template_sees_tools_calls_and_results_as_text():
    found = seen("{{ messages }}", tools=[TOOL])
    assert "tools" not in found.variables
    assert [message["role"] for message in found.messages] == ["system", "user", "assistant", "user"]
    system, _, call, result = (message["content"] for message in found.messages)
    assert system.startswith("Be brief.\n\n")
    assert '{"name": "f", "parameters": {"type": "object"}}' in system
    assert call == HERMES.text([("f", '{"a": 1}')])
    assert result == "<tool_response>\n7\n</tool_response>"


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ tools }} {{ messages }} <tool_call>"])
def test_tools_that_may_not_be_called_are_not_told(template):
    found = seen(template, tools=[TOOL], tool_choice="none")
    assert found.messages[0] == {"role": "system", "content": "Be brief."}
    assert not found.variables.get("tools")


def test_without_a_system_message_tools_are_told_in_one():
    found = seen("{{ messages }}", tools=[TOOL], messages=MESSAGES[1:2])
    assert [message["role"] for message in found.messages] == ["system", "user"]


def test_variables_reach_the_template():
    found = seen("{{ messages }}", chat_template_kwargs={"enable_thinking": False})
    assert found.variables["enable_thinking"] is False


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_the_template_of_a_family_tells_its_dialect(family):
    tokenizer = tokenizer_of(family)
    dialect = Dialect.of(tokenizer)
    thinking, calls = FAMILIES[family]
    assert (dialect.thinking, dialect.calls) == (thinking and THINKING[thinking], CALLS[calls])
    assert dialect.native is dialect.calls


def rendered(family: str, **body) -> str:
    tokenizer = tokenizer_of(family)
    request = ChatRequest.model_validate({"messages": MESSAGES, **body})
    return tokenizer.decode(read_prompt(request, tokenizer, Dialect.of(tokenizer)).tokens)


@pytest.mark.parametrize("family", sorted(TEMPLATES.keys() - {"mistral-7b", "glm-4.7"}))
def test_the_template_of_a_family_shows_calls_in_its_form(family):
    tokenizer = tokenizer_of(family)
    form = Dialect.of(tokenizer).calls
    assert form
    shown = form.text([("f", written_arguments(form.arguments, '{"a": 1}'))])
    text = rendered(family, messages=[MESSAGES[1], MESSAGES[2], MESSAGES[1]], tools=[TOOL])
    if family == "gpt-oss":
        shown = ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}'
    assert shown in text


@pytest.mark.parametrize(("family", "end"), PROMPT_ENDS)
def test_the_template_says_whether_thinking_has_begun(family, end):
    tokenizer = tokenizer_of(family)
    for switch, expected in end.items():
        request = ChatRequest.model_validate({"messages": MESSAGES[1:2], "reasoning_effort": switch})
        dialect = Dialect.of(tokenizer)
        assert dialect.thinks(tokenizer, read_prompt(request, tokenizer, dialect).tokens) == expected


def test_effort_is_handed_to_the_template():
    assert "Reasoning: high" in rendered("gpt-oss", reasoning_effort="high")
    assert "Reasoning: low" in rendered(
        "gpt-oss", reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}
    )


@pytest.mark.parametrize(("family", "effort"), [("qwq", "high"), ("qwq", "none"), ("llama3", "low")])
def test_effort_is_refused_where_no_template_knows_it(family, effort):
    with pytest.raises(
        ServerError, match=f"reasoning_effort is '{effort}', but the model's chat template does not support it"
    ):
        rendered(family, reasoning_effort=effort)


def test_a_model_that_does_not_think_may_be_asked_not_to():
    assert rendered("llama3", reasoning_effort="none") == rendered("llama3")


def test_mistrals_templates_get_short_ids():
    text = rendered("mistral", messages=[MESSAGES[1], MESSAGES[2], {**MESSAGES[3]}, MESSAGES[1]])
    (shown,) = re.findall(r"\[TOOL_RESULTS\](\w+)\[TOOL_CONTENT\]7", text)
    assert re.fullmatch("[a-z0-9]{9}", shown)


def test_what_was_thought_is_handed_on_under_the_templates_own_name():
    thought = {**MESSAGES[2], "reasoning_content": "I ask f."}
    text = rendered("gpt-oss", messages=[MESSAGES[1], thought, MESSAGES[3]])
    assert "<|channel|>analysis<|message|>I ask f.<|end|>" in text


def test_gpt_oss_is_handed_what_was_said_or_thought_before_a_call():
    thought = {**MESSAGES[2], "reasoning_content": "I ask f.", "content": "I look."}
    text = rendered("gpt-oss", messages=[MESSAGES[1], thought, MESSAGES[3]])
    assert "I look." in text
    assert "I ask f." not in text


def test_a_form_that_is_named_is_told_in_the_system_message():
    found = seen("{{ messages }}", tool_parser="glm47", tools=[TOOL])
    assert (
        "<tool_call>NAME<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value></tool_call>"
        in found.messages[0]["content"]
    )
    assert found.messages[2]["content"] == "<tool_call>f<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"


TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "So."),
        ({"stop": "o", "response_format": {"type": "text"}}, "S"),
        ({"tools": [TOOL]}, "So."),
        ({"structured_outputs": {"regex": "So.\nuser: x"}}, "So.\nuser: x"),
        ({"structured_outputs": {"regex": "So.\nuser: x"}, "stop": "r"}, "So.\nuse"),
    ],
)
def test_what_ends_a_turn_does_not_cut_a_form(body, text):
    decoder = knowing("So.\nuser: x", "llama3")
    decoder.tokenizer.chat_template = TURNS
    with TestClient(create_app(decoder, ServerSettings("m"))) as client:
        asked = {"messages": MESSAGES[1:2], "temperature": 0, "max_tokens": 40, **body}
        (choice,) = client.post("/v1/chat/completions", json=asked).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
