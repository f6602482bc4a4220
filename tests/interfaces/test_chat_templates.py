"""What messages say arrives in the prompt, whichever form of content a chat template wants, or is refused.

The prompts are those of transformers' own `apply_chat_template`, given messages in the form of the template. A text
tells its prompt: the model's law is another one after every other text.
"""

import json
import random
import string

import httpx
import pytest

from drafttree import Decoder
from drafttree.errors import InputError
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.command_line import run
from testing.command_line_fixtures import embedded, quick
from testing.live_server import serving
from testing.tokenizers import byte_level
from testing.toy import ToyModel, argmax

__all__ = ["embedded", "quick"]
TOKENIZER = byte_level("a small text of no family", 280, "<|end|>")
LETTERS = [TOKENIZER.convert_tokens_to_ids(letter) for letter in string.ascii_letters]
BEGIN, END = "<|im_start|>{{ message.role }}\n", "<|im_end|>\n"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALLS = "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
WALK = "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
FIRST = "{{ message.content[0].text }}"


def template(content: str, told: str = "") -> str:
    return f"{told}{{% for message in messages %}}{BEGIN}{content}{CALLS}{END}{{% endfor %}}{ANSWER}"


TOLD = "{% if tools %}{{ tools | tojson }}{% endif %}"
PARTS = template(WALK)
EITHER = template(f"{{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{WALK}{{% endif %}}")
MIXED = template(f"{{% if message.role == 'system' %}}{{{{ 'S: ' + message.content }}}}{{% else %}}{WALK}{{% endif %}}")
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": {"zone": "x"}}}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def text(role: str, *texts: str) -> dict:
    return {"role": role, "content": "\n".join(texts)}


def parts(role: str, *texts: str) -> dict:
    return {"role": role, "content": [{"type": "text", "text": each} for each in texts]}


def one_part(role: str, *texts: str) -> dict:
    return parts(role, "\n".join(texts))


def mixed(role: str, *texts: str) -> dict:
    return text(role, *texts) if role == "system" else parts(role, *texts)


FORMS = {
    "parts": (PARTS, parts),
    "either": (EITHER, text),
    "mixed": (MIXED, mixed),
    "first": (template(FIRST), one_part),
}
SAID = [("system", "Be kind."), ("user", "What is", "the time?"), ("assistant", "Noon."), ("user", "And now?")]


def law(prefix) -> list[float]:
    chosen = random.Random(str(list(prefix))).choice(LETTERS)
    return [1.0 if token == chosen else 0.0 for token in range(len(TOKENIZER))]


def decoder(chat_template: str) -> Decoder:
    TOKENIZER.chat_template = chat_template
    return Decoder(ToyModel(law, len(TOKENIZER)), tokenizer=TOKENIZER, eos=[TOKENIZER.eos_token_id])


def answer_to(messages: list[dict]) -> str:
    prompt = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    written: list[int] = []
    while len(written) < 12:
        written.append(argmax(law([*prompt, *written])))
    return TOKENIZER.decode(written)


@pytest.fixture(params=FORMS)
def wanted(request):
    """A chat template, and what makes messages in the form that it wants."""
    return FORMS[request.param]


@pytest.mark.parametrize("given", [text, parts])
def test_a_decoder_gives_a_template_the_form_that_it_wants(wanted, given):
    made = decoder(wanted[0])
    right = (
        [wanted[1](*turn) for turn in SAID]
        if given is parts
        else [wanted[1](turn[0], "\n".join(turn[1:])) for turn in SAID]
    )
    assert made.generate([given(*turn) for turn in SAID], max_new_tokens=12).text == answer_to(right)


def test_the_servers_routes_give_a_template_the_form_that_it_wants(wanted):
    right, options = [wanted[1](*turn) for turn in SAID], {"temperature": 0}
    given = [parts(*turn) for turn in SAID]
    items = [
        {
            "role": role,
            "content": [{"type": f"{'out' if role == 'assistant' else 'in'}put_text", "text": each} for each in texts],
        }
        for role, *texts in SAID
    ]
    blocks = {"system": given[0]["content"], "messages": given[1:]}
    with serving(create_app(decoder(wanted[0]), ServerSettings("toy"))) as address:

        def post(path: str, **body):
            reply = httpx.post(f"{address}/v1/{path}", json={**options, **body})
            assert reply.status_code == 200, reply.text
            return reply.json()

        chat = post("chat/completions", messages=given, max_tokens=12)
        response = post("responses", input=items, max_output_tokens=12)
        message = post("messages", **blocks, max_tokens=12)
    expected = answer_to(right)
    assert chat["choices"][0]["message"]["content"] == expected
    assert response["output"][0]["content"][0]["text"] == expected
    assert message["content"][0]["text"] == expected


def test_calls_and_results_of_tools_arrive_where_a_template_wants_parts():
    call = {**CALL, "function": {**CALL["function"], "arguments": '{"zone": "x"}'}}
    messages = [parts("user", "What is the time?"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({**parts("tool", "It is", " noon."), "tool_call_id": "c1"})
    with serving(create_app(decoder(template(WALK, TOLD)), ServerSettings("toy"))) as address:
        found = httpx.post(f"{address}/tokenize", json={"messages": messages, "tools": [TOOL]}).json()["tokens"]
    right = [messages[0], {**parts("assistant", ""), "tool_calls": [CALL]}, messages[2]]
    assert found == TOKENIZER.apply_chat_template(right, tools=[TOOL], add_generation_prompt=True)["input_ids"]


@pytest.mark.usefixtures("quick")
def test_the_commands_give_a_template_the_form_that_it_wants(embedded, tmp_path, monkeypatch):
    monkeypatch.setattr(embedded.tokenizer, "chat_template", PARTS)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"messages": [parts(*turn) for turn in SAID]}))
    assert run("batch", source, out, "--max-new-tokens", 12).exit_code == 0
    apply = embedded.tokenizer.apply_chat_template
    prompt = apply([parts(*turn) for turn in SAID], add_generation_prompt=True)["input_ids"]
    assert json.loads(out.read_text())["text"] == embedded.generate(prompt, max_new_tokens=12).text
    (tmp_path / "parts.jinja").write_text(PARTS)
    options = ("--chat-template", tmp_path / "parts.jinja", "--max-new-tokens", 12, "--temperature", 0)
    result = run("chat", *options, input="What is the time?\n")
    prompt = apply([parts("user", "What is the time?")], add_generation_prompt=True)["input_ids"]
    assert result.stdout == f"{embedded.generate(prompt, max_new_tokens=12, temperature=0).text}\n"


def test_an_answer_that_ends_in_plain_text_ends_there_in_parts_too():
    turns = "{% for message in messages %}{{ message.role }}: WALK{{ '\\n' }}{% endfor %}assistant: ".replace(
        "WALK", WALK
    )
    text_of_user = TOKENIZER("Noon.\nuser: What?")["input_ids"]
    begins = len(TOKENIZER("user: Hello\nassistant: ")["input_ids"])

    def by_heart(prefix) -> list[float]:
        due = text_of_user[min(len(prefix) - begins, len(text_of_user) - 1)]
        return [1.0 if token == due else 0.0 for token in range(len(TOKENIZER))]

    TOKENIZER.chat_template = turns
    made = Decoder(ToyModel(by_heart, len(TOKENIZER)), tokenizer=TOKENIZER, eos=[TOKENIZER.eos_token_id])
    with serving(create_app(made, ServerSettings("toy"))) as address:
        body = {"messages": [text("user", "Hello")], "max_tokens": 40, "temperature": 0}
        reply = httpx.post(f"{address}/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["message"]["content"] == "Noon."


NO_SYSTEM = template("{% if message.role != 'system' %}{{ message.content }}{% endif %}")
NO_CALLS = template("{{ message.content }}").replace(CALLS, "")


@pytest.mark.parametrize(
    ("chat_template", "messages", "complaint"),
    [
        (
            template("{{ message.text }}"),
            [text("user", "Hello")],
            "the chat template leaves out what message 1 says, as it does for all messages of the role 'user'; use "
            "another chat template or role",
        ),
        (
            NO_SYSTEM,
            [text("system", "Be kind."), text("user", "Hello")],
            "the chat template leaves out what message 1 says, as it does for all messages of the role 'system'; "
            "use another chat template or role",
        ),
        (
            NO_CALLS,
            [text("user", "Hello"), {**text("assistant"), "tool_calls": [CALL]}, text("tool", "Noon.")],
            "the chat template leaves out the tool calls of message 2; give them as its content",
        ),
        (
            PARTS,
            [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}],
            "message 1 has an image, and the target reads no images; send text alone",
        ),
    ],
)
def test_words_that_do_not_arrive_are_refused(chat_template, messages, complaint):
    made = decoder(chat_template)
    with pytest.raises(InputError) as refused:
        made.generate(messages, max_new_tokens=1)
    assert str(refused.value) == complaint


FIRST_SYSTEM = template("{% if message.role != 'system' or loop.first %}{{ message.content }}{% endif %}", TOLD)
LAST_SYSTEM = (
    "{% set found = namespace(system='') %}{% for message in messages %}{% if message.role == 'system' %}"
    "{% set found.system = message.content %}{% endif %}{% endfor %}{{ found.system }}"
) + NO_SYSTEM
FIRST_CALL = template("{{ message.content }}", TOLD).replace(
    "message.tool_calls or []", "(message.tool_calls or [])[:1]"
)
CALL_OR_WORDS = template("{{ message.content }}", TOLD).replace(
    CALLS, f"{{% if not message.content %}}{CALLS}{{% endif %}}"
)
ALTERNATES = template("{{ message.content }}") + (
    "{% for message in messages %}{% if not loop.first and message.role == loop.previtem.role %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% endfor %}"
)
ONE_PLACE = "since it shows the role 'system' in one place only; put all of that into the first message"
SENT = [{**CALL, "id": name, "function": {"name": "clock", "arguments": "{}"}} for name in ("c1", "c2")]
RESULTS = [{**text("tool", "Noon."), "tool_call_id": call["id"]} for call in SENT]
ASKED = text("user", "What is the time?")
LATE = [ASKED, text("assistant", "Noon."), text("system", "Be kind."), ASKED]


@pytest.mark.parametrize(
    ("chat_template", "messages", "complaint"),
    [
        (FIRST_SYSTEM, LATE, f"the chat template leaves out what message 3 says, {ONE_PLACE}"),
        (
            LAST_SYSTEM,
            [text("system", "Be kind."), text("system", "Be brief."), ASKED],
            f"the chat template leaves out what message 1 says, {ONE_PLACE}",
        ),
        (
            FIRST_CALL,
            [ASKED, {**text("assistant"), "tool_calls": SENT}, *RESULTS],
            "the chat template leaves out tool call 2 of message 2; give each call, with its result behind it, in a "
            "message of its own",
        ),
        (
            CALL_OR_WORDS,
            [ASKED, {**text("assistant", "I look."), "tool_calls": SENT[:1]}, RESULTS[0]],
            "the chat template leaves out the tool calls of message 2; give them as its content",
        ),
        (
            ALTERNATES,
            [ASKED, {**text("assistant"), "tool_calls": SENT}, *RESULTS],
            "the chat template refuses message 4 (role 'user') with an error of its own: Roles must alternate.",
        ),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('No system role.') }}{% endif %}" + PARTS,
            [ASKED],
            "the chat template refuses the message that describes the tools (role 'system') with an error of its own: "
            "No system role.",
        ),
    ],
)
def test_the_server_names_the_client_s_message_that_is_left_out_or_refused(chat_template, messages, complaint):
    with serving(create_app(decoder(chat_template), ServerSettings("toy"))) as address:
        reply = httpx.post(f"{address}/v1/chat/completions", json={"messages": messages, "tools": [TOOL]})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, f"messages: {complaint}")


@pytest.mark.parametrize(
    ("chat_template", "messages"),
    [
        (template("{{ message.content }}", TOLD), LATE),
        (template("{{ message.content }}", TOLD), [ASKED, {**text("assistant"), "tool_calls": SENT}, *RESULTS]),
        (CALL_OR_WORDS, [ASKED, {**text("assistant"), "tool_calls": SENT}, *RESULTS]),
    ],
)
def test_messages_of_the_system_and_calls_that_are_all_shown_are_taken(chat_template, messages):
    with serving(create_app(decoder(chat_template), ServerSettings("toy"))) as address:
        found = httpx.post(f"{address}/tokenize", json={"messages": messages, "tools": [TOOL]}).json()["tokens"]
    calls = [{**call, "function": {"name": "clock", "arguments": {}}} for call in SENT]
    right = [{**each, "tool_calls": calls} if "tool_calls" in each else each for each in messages]
    assert found == TOKENIZER.apply_chat_template(right, tools=[TOOL], add_generation_prompt=True)["input_ids"]
