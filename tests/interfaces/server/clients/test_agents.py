"""OpenAI's agents SDK, as it is."""

import asyncio
from typing import Literal

import openai
import pytest

from helpers.client_questions import QUESTION, City, package

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def agents():
    """OpenAI's agents SDK."""
    found = package("agents")
    found.set_tracing_disabled(True)
    return found


@pytest.fixture
def run(agents, address):
    """Runs an agent of the served model: what came out, and the types of its streams' events."""

    async def result_of(streamed: bool, settings: dict, options: dict):
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            model = agents.OpenAIResponsesModel(model="embedded", openai_client=client)
            greedy = agents.ModelSettings(temperature=0, **settings)
            agent = agents.Agent(name="one", model=model, model_settings=greedy, **options)
            if not streamed:
                return await agents.Runner.run(agent, QUESTION), []
            result = agents.Runner.run_streamed(agent, QUESTION)
            kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
            return result, kinds

    return lambda streamed, settings, **options: asyncio.run(result_of(streamed, settings, options))


STOP = {"extra_body": {"stop": ["."]}}
"""Ends the model's texts, since a response that is cut short is an error to an agent."""


def test_an_agent_answers_and_streams(run):
    settings = {"max_tokens": 60, **STOP}
    whole, _ = run(False, settings, instructions="Be brief.")
    stream, kinds = run(True, settings, instructions="Be brief.")
    assert whole.final_output == stream.final_output
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_calls_its_tool_and_goes_on_with_what_it_returned(agents, run, streamed):
    asked = []

    @agents.function_tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """Weather now."""
        asked.append(city)
        return "4 degrees"

    settings = {"max_tokens": 120, "tool_choice": "required", "parallel_tool_calls": False, **STOP}
    result, _ = run(streamed, settings, tools=[get_weather])
    assert asked in (["Paris"], ["Rome"])
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_answers_in_a_form(run, streamed):
    result, _ = run(streamed, {"max_tokens": 60}, output_type=City)
    assert isinstance(result.final_output, City)
