"""Messages and tools as chat templates see them."""

import pytest

from drafttree.interfaces.server.chat_routes import read_prompt
from drafttree.interfaces.server.protocol.requests import ChatRequest
from drafttree.interfaces.server.tool_calls import call_text

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
]


class Templated:
    """A tokenizer that shows what its template is given."""

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def apply_chat_template(self, messages, **variables):
        self.messages, self.variables = messages, variables
        return {"input_ids": [1]}


def seen(template: str, **body) -> Templated:
    tokenizer = Templated(template)
    read_prompt(ChatRequest.model_validate({"messages": MESSAGES, **body}), tokenizer)
    return tokenizer


def test_a_template_that_knows_calls_is_given_tools_and_parsed_arguments():
    found = seen("{{ tools }} <tool_call> developer", tools=[TOOL])
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
    assert call == call_text("f", '{"a": 1}')
    assert result == "<tool_response>\n7\n</tool_response>"


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ tools }} <tool_call>"])
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
