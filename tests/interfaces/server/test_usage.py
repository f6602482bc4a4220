"""What a request's texts have cost so far."""

from types import SimpleNamespace

import pytest

from drafttree import Metrics
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.engine.metrics import TextRound
from drafttree.interfaces.server.texts import ALL_SAID, Text, Texts
from testing.live_server import events

ASK = {"messages": [{"role": "user", "content": "Tell me about the old house."}], "max_tokens": 24, "temperature": 0}


def turn(nodes: int) -> TextRound:
    return TextRound(1, 0, nodes, 1, 1, 0.0, 0.0, 0.0)


def texts_of(prompts: list[list[int]], *metrics: Metrics) -> Texts:
    """As many texts of each prompt, with their metrics."""
    encoded = [EncodedPrompt(prompt) for prompt in prompts]
    of_texts = [prompt for prompt in encoded for _ in range(len(metrics) // len(prompts))]
    found = zip(of_texts, metrics, strict=True)
    return Texts(encoded, [Text(prompt, SimpleNamespace(metrics=each), None, ALL_SAID()) for prompt, each in found])


def test_drafted_tokens_are_counted_once_however_often_they_are_asked_for():
    rounds = [turn(5), turn(1)]
    texts = texts_of([[1]], Metrics(rounds=rounds))
    assert [texts.usage.rejected, texts.usage.rejected] == [4, 4]
    rounds[0] = turn(100)  # a round that was counted is not looked at again
    rounds.append(turn(3))
    assert texts.usage.rejected == 6


def usage_of(prompts, texts):
    """The usage of texts, each of which has taken over so many tokens and had so many rounds."""
    metrics = [Metrics(reused_tokens=reused, rounds=[turn(1)] * rounds) for reused, rounds in texts]
    usage = texts_of(prompts, *metrics).usage
    return usage.prompt, usage.cached


def test_tokens_that_one_text_of_a_prompt_has_read_for_the_others_are_not_cached():
    prompts = [[1] * 10, [2] * 20]
    assert usage_of(prompts, [(0, 1), (9, 1), (9, 1), (19, 1), (7, 1), (19, 1)]) == (30, 0 + 7)


def test_texts_that_have_not_begun_say_nothing_of_what_was_cached():
    assert usage_of([[1] * 10], [(8, 2), (0, 0)]) == (10, 8)
    assert usage_of([[1] * 10], [(0, 0), (0, 0)]) == (10, 0)


def test_timings_have_llama_servers_names_and_the_times_of_the_longest_text():
    one = Metrics(queue_seconds=9.0, prefill_seconds=0.5, seconds=11.5, reused_tokens=6, rounds=[turn(5)])
    other = Metrics(prefill_seconds=0.25, seconds=1.25, reused_tokens=6, rounds=[turn(1)])
    texts = texts_of([[1] * 10], one, other)
    texts.all[0].generated, texts.all[1].generated, texts.all[0].accepted = 3, 1, 2
    reading = {"prompt_n": 4, "prompt_ms": 500.0, "prompt_per_token_ms": 125.0, "prompt_per_second": 8.0}
    writing = {"predicted_n": 4, "predicted_ms": 2000.0, "predicted_per_token_ms": 500.0, "predicted_per_second": 2.0}
    assert texts.timings == {"cache_n": 6, **reading, **writing, "draft_n": 4, "draft_n_accepted": 2}


def test_timings_of_plain_decoding_say_nothing_of_drafts():
    timings = texts_of([[1]], Metrics()).timings
    assert (timings["predicted_per_second"], timings["prompt_per_token_ms"]) == (0.0, 0.0)
    assert not timings.keys() & {"draft_n", "draft_n_accepted"}


@pytest.mark.parametrize(("path", "body"), [("chat/completions", ASK), ("completions", {**ASK, "prompt": "The old"})])
def test_the_last_chunk_tells_the_speed_of_all_texts(post, path, body):
    body = {name: value for name, value in body.items() if name != "messages" or "prompt" not in body}
    usage = post(path, **body, n=2).json()["usage"]
    *chunks, last = events(post(path, **body, n=2, stream=True).text)
    assert not any("timings" in chunk for chunk in chunks)
    timings = last["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
    assert timings["predicted_per_second"] == pytest.approx(1e3 * timings["predicted_n"] / timings["predicted_ms"])
