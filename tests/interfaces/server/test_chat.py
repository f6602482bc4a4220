"""Chat completions: replies, streams, log-probabilities, and what is refused."""

import json

import openai
import pytest
import torch
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from testing.live_server import events, strict

HELLO = [{"role": "user", "content": "Tell me about the old house."}]
GREEDY = {"messages": HELLO, "temperature": 0, "max_tokens": 24}
PATH = "chat/completions"


def say(content: object, role: str = "user") -> dict:
    return {"role": role, "content": content}


def text_of(client, **body) -> str:
    return client.chat.completions.create(model="embedded", **{**GREEDY, **body}).choices[0].message.content


def chunks_of(post, **body) -> list[ChatCompletionChunk]:
    reply = post(PATH, **{**GREEDY, **body}, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [strict(ChatCompletionChunk, event) for event in events(reply.text)]


def joined(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_continuous_usage_grows_with_the_text(post):
    assert all(chunk.usage is None for chunk in chunks_of(post))
    chunks = chunks_of(post, stream_options={"continuous_usage_stats": True})
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 24)


def test_several_answers_of_a_seed_differ_and_repeat(client, post):
    options = {"temperature": 1, "max_tokens": 16}
    several = client.chat.completions.create(model="embedded", messages=HELLO, n=3, seed=7, **options)
    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 3
    assert texts == [text_of(client, seed=7 + place, **options) for place in range(3)]
    streamed = chunks_of(post, n=3, seed=7, **options)
    for place, text in enumerate(texts):
        assert joined([chunk for chunk in streamed if chunk.choices[0].index == place]) == text


def test_the_last_seed_wraps_around(client):
    options = {"temperature": 1, "max_tokens": 12}
    several = client.chat.completions.create(model="embedded", messages=HELLO, n=2, seed=2**63 - 1, **options)
    assert several.choices[1].message.content == text_of(client, seed=-(2**63), **options)


def test_without_a_temperature_texts_are_sampled_and_differ(client):
    options = {"model": "embedded", "messages": HELLO, "max_tokens": 16}
    replies = [client.chat.completions.create(**options) for _ in range(3)]
    assert len({reply.choices[0].message.content for reply in replies}) > 1


def test_log_probabilities_are_the_targets_own(post, embedded, decoder):
    """Whatever the temperature, penalties and biases of the text they belong to."""
    module, tokenizer = embedded
    options = {"temperature": 0.7, "seed": 3, "presence_penalty": 1.0, "logprobs": True, "top_logprobs": 2}
    reply = strict(ChatCompletion, post(PATH, **{**GREEDY, **options}).json())
    content = reply.choices[0].logprobs.content
    prompt = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True)["input_ids"]
    written = decoder.generate(prompt, max_new_tokens=24, temperature=0.7, seed=3, presence_penalty=1.0, stop="\nUser:")
    rows = module(torch.tensor([prompt + written.tokens])).logits[0, len(prompt) - 1 :].detach().log_softmax(-1)
    for token, id_, row in zip(content, written.tokens, rows, strict=False):
        assert token.logprob == pytest.approx(float(row[id_]), abs=1e-3)
        assert [each.logprob for each in token.top_logprobs] == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)
        assert token.bytes == list(tokenizer.decode([id_]).encode())
    assert "".join(token.token for token in content) == reply.choices[0].message.content


def test_a_conversation_goes_on_from_where_it_was(client):
    first = client.chat.completions.create(model="embedded", **GREEDY).choices[0].message
    follow_up = [*HELLO, first, {"role": "user", "content": "And the garden?"}]
    usage = client.chat.completions.create(model="embedded", messages=follow_up, max_tokens=4).usage
    assert usage.prompt_tokens_details.cached_tokens > len(["Tell", "me", "about", "the", "old", "house."])


@pytest.mark.parametrize("end", [{}, {"add_generation_prompt": False}])
def test_the_last_message_goes_on_where_the_request_says_so(client, decoder, end):
    said = [*HELLO, say("The old house stands by the", "assistant")]
    rendered = decoder.tokenizer.apply_chat_template(said, tokenize=False, continue_final_message=True)
    assert rendered.endswith("stands by the")
    goes_on = decoder.generate(rendered, max_new_tokens=24, stop="\nUser:").text
    assert text_of(client, messages=said, extra_body={"continue_final_message": True, **end}) == goes_on
    assert goes_on != text_of(client)


def test_no_answer_begins_where_the_request_says_so(client, decoder):
    rendered = decoder.tokenizer.apply_chat_template(HELLO, tokenize=False)
    ended = decoder.generate(rendered, max_new_tokens=24, stop="\nUser:").text
    assert text_of(client, extra_body={"add_generation_prompt": False}) == ended
    assert ended != text_of(client) == text_of(client, extra_body={"add_generation_prompt": True})


def test_parts_of_text_and_the_developers_role_are_read_as_their_plain_forms(client):
    plain = [{"role": "system", "content": "Be brief.\nBe kind."}, *HELLO]
    parts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    newer = [{"role": "developer", "content": parts}, *HELLO]
    assert text_of(client, messages=newer) == text_of(client, messages=plain)


@pytest.mark.parametrize("bias", [100, -100])
def test_a_bias_forces_or_bans_a_token(client, decoder, bias):
    (token,) = decoder.tokenizer(" the")["input_ids"]
    text = text_of(client, logit_bias={str(token): bias}, max_tokens=6)
    assert text == " the" * 6 if bias > 0 else " the" not in text


def test_vllms_parameters_reach_the_engine(client, decoder):
    (token,) = decoder.tokenizer(" the")["input_ids"]
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.3, "min_tokens": 3, "stop_token_ids": [token]}
    found = text_of(client, temperature=1, extra_body=extra)
    alone = decoder.generate(
        HELLO, max_new_tokens=24, stop="\nUser:", repetition_penalty=1.3, min_new_tokens=3, eos_token_id=[0, token]
    )
    assert found == alone.text


def test_the_older_name_of_the_limit_is_known(client):
    reply = client.chat.completions.create(model="embedded", messages=HELLO, max_completion_tokens=3, temperature=0)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (3, "length")


def test_a_text_may_be_as_long_as_the_context_by_default(client):
    bias = {"0": -100}
    long = [{"role": "user", "content": "word " * 2020}]
    usage = client.chat.completions.create(model="embedded", messages=long, logit_bias=bias, temperature=0).usage
    assert 2040 < usage.total_tokens <= 2048


BOOKKEEPING = {
    "metadata": {"run": "7"},
    "store": True,
    "user": "u",
    "verbosity": "low",
    "service_tier": "flex",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
}


@pytest.mark.parametrize("stream", [False, True])
def test_bookkeeping_changes_no_text_and_is_told_in_a_header(post, stream):
    reply = post(PATH, **GREEDY, **BOOKKEEPING, stream=stream)
    assert reply.headers["warning"] == f'299 drafttree "without effect: {", ".join(sorted(BOOKKEEPING))}"'
    text = joined([strict(ChatCompletionChunk, event) for event in events(reply.text)]) if stream else reply.json()
    plain = joined(chunks_of(post)) if stream else post(PATH, **GREEDY).json()
    assert text == plain if stream else text["choices"] == plain["choices"]


def test_what_asks_for_nothing_is_not_told(post):
    nothing = {"metadata": None, "store": False, "stop": "", "kv_transfer_params": None, "parallel_tool_calls": True}
    reply = post(PATH, **GREEDY, **nothing)
    assert reply.status_code == 200
    assert "warning" not in reply.headers


def test_bookkeeping_inside_messages_is_accepted_where_replies_are_sent_back(post):
    cached = {"cache_control": {"type": "ephemeral"}}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    told = [
        {"role": "user", "content": [{"type": "text", "text": "Look.", **cached}]},
        {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c", "content": "A house.", **cached},
    ]
    plain = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "A house."},
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    first = post(PATH, **GREEDY | {"messages": told, "tools": [{**tools[0], **cached}], "tool_choice": "none"})
    second = post(PATH, **GREEDY | {"messages": plain, "tools": tools, "tool_choice": "none"})
    assert first.headers["warning"] == '299 drafttree "without effect: cache_control, index, reasoning_content"'
    assert first.json()["choices"] == second.json()["choices"]


@pytest.mark.usefixtures("broken")
def test_an_error_inside_a_stream_is_its_last_event(post, client):
    reply = post(PATH, **GREEDY, stream=True)
    last = json.loads(reply.text.strip().rpartition("data: ")[2])
    assert (reply.status_code, last["error"]["type"]) == (200, "invalid_request_error")
    stream = client.chat.completions.create(model="embedded", **GREEDY, stream=True)
    with pytest.raises(openai.APIError, match="the pass is refused"):
        list(stream)
