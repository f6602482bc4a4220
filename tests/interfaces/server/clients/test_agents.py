"""OpenAI's agents SDK, as it is."""

import asyncio
import json
from typing import Literal

import openai
import pytest

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.client_questions import QUESTION, City, package
from helpers.dialects import InTurns, tokenizer_of
from testing.live_server import serving
from testing.toy import ToyDrafter, ToyModel

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


def called(name: str, **arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


TEXT = "def double(x):\n    return 2 * x\n"
TURNS = [
    "<think>\nWhat is there?\n</think>\n\nI look first." + called("read_file", path="double.py"),
    called("write_file", path="double.py", text=TEXT) + "\n" + called("read_file", path="double.py"),
    "It doubles now.",
    "<think>\nA copy.\n</think>\n\n" + called("read_file", path="double.py"),
    called("write_file", path="copy.py", text=TEXT),
    called("read_file", path="copy.py"),
    "<think>\nBoth are alike.\n</think>\n\nThere is a copy.",
]
"""What the model says and calls in a session: two questions, the first with a call of a file that is not there."""


@pytest.fixture
def programmer():
    """The address of a server of a model that edits a file."""
    tokenizer = tokenizer_of("qwen3")
    law = InTurns(tokenizer, TURNS)
    model, drafter = ToyModel(law, law.vocab, context=20_000), ToyDrafter(law, law.vocab)
    decoder = Decoder(model, drafter, tokenizer=tokenizer, eos=[law.eos]).with_costs(TOY_COSTS)
    with serving(create_app(decoder, ServerSettings("toy"))) as address:
        yield address


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def test_an_agent_edits_files_through_a_session(agents, programmer, api, streamed, tmp_path):
    asked: list[str] = []

    @agents.function_tool
    def read_file(path: str) -> str:
        """Read a file."""
        asked.append(f"read {path}")
        found = tmp_path / path
        return InTurns.MARK + (found.read_text() if found.exists() else "there is no such file")

    @agents.function_tool
    def write_file(path: str, text: str) -> str:
        """Write a file."""
        asked.append(f"write {path}")
        (tmp_path / path).write_text(text)
        return (InTurns.MARK if path == "copy.py" else "") + "written"  # the other's turn has one more result

    async def session() -> list:
        memory, results = agents.SQLiteSession("one"), []
        async with openai.AsyncOpenAI(base_url=f"{programmer}/v1", api_key="none", max_retries=0) as client:
            model = getattr(agents, api)(model="toy", openai_client=client)
            greedy = agents.ModelSettings(temperature=0, include_usage=True)
            tools = [read_file, write_file]
            agent = agents.Agent("programmer", instructions="Edit.", model=model, model_settings=greedy, tools=tools)
            for question in ("Make it double.", f"{InTurns.MARK} Now copy it."):
                if streamed:
                    results.append(agents.Runner.run_streamed(agent, question, session=memory))
                    async for _ in results[-1].stream_events():
                        pass
                else:
                    results.append(await agents.Runner.run(agent, question, session=memory))
        return results

    results = asyncio.run(session())
    assert [each.final_output.strip() for each in results] == ["It doubles now.", "There is a copy."]
    assert asked[0] == "read double.py"
    assert sorted(asked[1:3]) == ["read double.py", "write double.py"]  # calls of one turn run side by side
    assert asked[3:] == ["read double.py", "write copy.py", "read copy.py"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(["double.py", "copy.py"], TEXT)
    assert [each.context_wrapper.usage.requests for each in results] == [3, 4]
