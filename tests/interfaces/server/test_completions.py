"""Completions: prompts of every form, echo, log-probabilities, streams, and what is refused."""

import asyncio
import json
import re
from contextlib import suppress

import pytest
import torch
from openai.types import Completion

from testing.live_server import events, strict

PROMPT = "It was the best of times"
GREEDY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
PATH = "completions"


def reply_of(post, **body) -> Completion:
    return strict(Completion, post(PATH, **{**GREEDY, **body}).json())


def test_without_a_limit_there_are_sixteen_tokens(client):
    reply = client.completions.create(model="embedded", prompt=PROMPT, logit_bias={"0": -100})
    assert reply.usage.completion_tokens == 16


def test_prompts_of_every_form_give_the_same_texts(post, decoder):
    other = "She opened the letter"
    ids = [decoder.tokenizer(text)["input_ids"] for text in (PROMPT, other)]
    one, two = (decoder.generate(text, max_new_tokens=12).text for text in (PROMPT, other))
    for prompt, texts in ((PROMPT, [one]), ([PROMPT, other], [one, two]), (ids[0], [one]), (ids, [one, two])):
        reply = reply_of(post, prompt=prompt)
        assert [choice.text for choice in reply.choices] == texts
        assert [choice.index for choice in reply.choices] == list(range(len(texts)))
        assert reply.usage.prompt_tokens == sum(map(len, ids[: len(texts)]))


def test_several_texts_of_several_prompts_are_numbered_prompt_by_prompt(client):
    options = {"model": "embedded", "max_tokens": 8, "temperature": 1}
    several = client.completions.create(prompt=[PROMPT, "She"], n=2, seed=3, **options).choices
    alone = [
        client.completions.create(prompt=prompt, seed=seed, **options).choices[0].text
        for prompt in (PROMPT, "She")
        for seed in (3, 4)
    ]
    assert [choice.text for choice in several] == alone


def test_echo_begins_with_the_prompt(post, decoder):
    alone = decoder.generate(PROMPT, max_new_tokens=12).text
    assert reply_of(post, echo=True).choices[0].text == PROMPT + alone
    ids = decoder.tokenizer(PROMPT)["input_ids"]
    assert reply_of(post, prompt=ids, echo=True).choices[0].text == PROMPT + alone


def test_an_echoed_prompt_of_token_ids_is_decoded_beside_the_event_loop(post, decoder, monkeypatch):
    on_loop, decode = [], decoder.tokenizer.decode

    def note(*given, **options):
        with suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())
        return decode(*given, **options)

    ids = decoder.tokenizer(PROMPT)["input_ids"]
    monkeypatch.setattr(decoder.tokenizer, "decode", note)
    replies = reply_of(post, prompt=ids, echo=True, n=2, max_tokens=1).choices
    assert all(each.text.startswith(PROMPT) for each in replies)
    assert not on_loop


def scores(embedded, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities of every next token, as transformers computes them."""
    with torch.no_grad():
        return embedded[0](torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_an_echoed_prompt_and_its_text_are_the_targets_own(post, embedded, decoder, stream):
    body = {**GREEDY, "echo": True, "logprobs": 2, "stream": stream}
    reply = post(PATH, **body)
    bodies = events(reply.text) if stream else [reply.json()]
    parts = [each["choices"][0]["logprobs"] for each in bodies]
    found = {name: [each for part in parts for each in part[name]] for name in parts[0]}
    tokens = decoder.tokenizer(PROMPT)["input_ids"] + decoder.generate(PROMPT, max_new_tokens=12).tokens
    rows = scores(embedded, tokens)[:-1]
    expected = rows[torch.arange(len(rows)), torch.tensor(tokens[1:])].tolist()
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None  # nothing stands before the first token
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    text = decoder.tokenizer.decode(tokens)
    assert found["tokens"] == [decoder.tokenizer.decode([token]) for token in tokens]
    assert all(text.startswith(token, at) for token, at in zip(found["tokens"], found["text_offset"], strict=True))
    for top, row, token in zip(found["top_logprobs"][1:], rows, found["tokens"][1:], strict=True):
        likeliest = {decoder.tokenizer.decode([each]) for each in row.topk(2).indices.tolist()}
        assert top.keys() == likeliest | {token}


def test_a_stream_tells_an_echoed_prompt_that_has_no_text(post, decoder):
    (special,) = decoder.tokenizer.all_special_ids
    body = {"prompt": [special], "echo": True, "logprobs": 0, "logit_bias": {str(special): -100}}
    (whole,) = post(PATH, **GREEDY | body).json()["choices"]
    held = {**body, "stop": f"{whole['text']}never written"}  # of the text nothing is known before its end
    chunks = [chunk["choices"][0]["logprobs"] for chunk in events(post(PATH, **GREEDY | held, stream=True).text)]
    assert chunks[0]["token_logprobs"] == [None]
    assert [token for chunk in chunks for token in chunk["tokens"]] == whole["logprobs"]["tokens"]


def test_a_prompt_alone_is_scored_without_any_text(post, embedded, decoder):
    reply = post(PATH, prompt=PROMPT, echo=True, max_tokens=0, logprobs=0).json()
    (choice,) = reply["choices"]
    tokens = decoder.tokenizer(PROMPT)["input_ids"]
    rows = scores(embedded, tokens)
    expected = rows[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].tolist()
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    assert reply["usage"]["completion_tokens"] == 0


def test_offsets_are_places_in_the_text_where_bytes_are_no_characters(post, decoder):
    byte = decoder.tokenizer.convert_tokens_to_ids("Ģ")  # 0x80, which continues a character
    (choice,) = reply_of(post, logit_bias={str(byte): 100}, logprobs=0, max_tokens=4).choices
    assert choice.text == decoder.tokenizer.decode([byte] * 4)
    assert choice.logprobs.text_offset == [0, 1, 2, 3]


def test_offsets_in_an_echoed_prompt_are_places_where_bytes_are_no_characters(post, decoder):
    byte = decoder.tokenizer.convert_tokens_to_ids("Ģ")
    (choice,) = post(PATH, prompt=[byte] * 4, echo=True, logprobs=0, max_tokens=0).json()["choices"]
    assert choice["text"] == decoder.tokenizer.decode([byte] * 4)
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_the_client_reads_a_form_whole_and_as_a_stream(client):
    schema = {"type": "object", "properties": {"cold": {"type": "boolean"}}, "required": ["cold"]}
    options = {"model": "embedded", "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    asked = {**options, "extra_body": {"structured_outputs": {"json": {**schema, "additionalProperties": False}}}}
    whole = client.completions.create(**asked).choices[0].text
    assert json.loads(whole).keys() == {"cold"}
    chunks = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunks) == whole
    assert len(chunks) > 1


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"choice": ["left", 'say "no"']}, 'left|say "no"'),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"json": {"enum": [1, 2]}}, "1|2"),
        ({"json": '{"const": "x"}'}, '"x"'),
        ({"json": {"type": "string", "pattern": "^[ab]{0,129}c?$"}}, '"[ab]{0,129}c?"?'),
        ({"json": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,256}$"}}, '"[A-Za-z0-9_-]{1,256}"?'),
    ],
)
def test_structured_outputs_shape_the_whole_text(post, outputs, pattern):
    assert re.fullmatch(pattern, reply_of(post, structured_outputs=outputs, max_tokens=30).choices[0].text)


@pytest.mark.parametrize("neutral", [{"best_of": 1}, {"suffix": None}, {"suffix": ""}, {"use_beam_search": False}])
def test_what_asks_for_nothing_is_accepted(post, neutral):
    assert reply_of(post, **neutral).choices[0].text == reply_of(post).choices[0].text
