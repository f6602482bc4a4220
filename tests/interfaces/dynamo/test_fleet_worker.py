"""The worker as Dynamo's runtime calls it; without Dynamo over stand-ins of its classes."""

import asyncio

import pytest

from drafttree.errors import ConfigError
from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
from testing.dynamo import Context, request, written

PROMPT = "Once upon a time"
SAMPLED = {"temperature": 1.0, "seed": 11}


SETTINGS = FleetSettings("embedded", "mine", "file", "dynamo", max_batch=4, max_kv_tokens=4096)


@pytest.fixture
def worker(fleet_worker, decoder):
    worker = fleet_worker.FleetWorker(decoder, SETTINGS, lambda _: None)
    yield worker
    worker.close()


@pytest.fixture
def plain(fleet_worker, decoder):
    """A worker that sends one token after the other."""
    worker = fleet_worker.FleetWorker(decoder.plain(), SETTINGS, lambda _: None)
    yield worker
    worker.close()


@pytest.fixture
def prompt(decoder):
    return decoder.tokenizer(PROMPT)["input_ids"]


@pytest.mark.few(1)
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "sampled"])
def test_a_text_is_the_decoders(worker, decoder, prompt, sampling):
    text = written(worker, request(prompt, max_tokens=24, **sampling))
    alone = decoder.plain().generate(PROMPT, max_new_tokens=24, **sampling)
    assert (text.tokens, text.text) == (alone.tokens, alone.text)
    assert [chunk.get("finish_reason") for chunk in text.chunks][-1] == alone.finish_reason == "length"
    assert not any("completion_usage" in chunk for chunk in text.chunks)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "sampled"])
def test_a_text_goes_on_elsewhere_as_if_it_had_stayed(worker, prompt, sampling):
    whole = written(worker, request(prompt, max_tokens=24, **sampling))
    begun = written(worker, request(prompt, max_tokens=24, **sampling), chunks=3)
    left = 24 - len(begun.tokens)
    rest = written(worker, request(prompt + begun.tokens, max_tokens=left, **sampling))
    assert begun.tokens + rest.tokens == whole.tokens
    assert begun.text + rest.text == whole.text


def test_a_text_that_moves_where_a_stop_string_has_begun_stops_there_too(plain, decoder, prompt):
    whole = written(plain, request(prompt, max_tokens=24, temperature=0.0))
    first, second = (decoder.tokenizer.decode([token]) for token in whole.tokens[6:8])
    asked = {"stop": [first[-1] + second[:1]], "temperature": 0.0}
    expected = written(plain, request(prompt, max_tokens=24, **asked))
    assert expected.chunks[-1]["finish_reason"] == "stop"
    for chunks in range(1, len(expected.chunks)):
        begun = written(plain, request(prompt, max_tokens=24, **asked), chunks=chunks)
        rest = written(plain, request(prompt + begun.tokens, max_tokens=24 - len(begun.tokens), **asked))
        assert begun.text + rest.text == expected.text
        assert begun.tokens + rest.tokens == expected.tokens


def test_logprobs_come_with_every_token(worker, decoder, prompt):
    text = written(worker, request(prompt, max_tokens=6, temperature=0.0, output={"logprobs": 2}))
    alone = decoder.generate(PROMPT, max_new_tokens=6, temperature=0.0, logprobs=2)
    sent = [value for chunk in text.chunks for value in chunk["log_probs"]]
    assert sent == pytest.approx(alone.logprobs, abs=1e-4)
    ranked = [{entry["token_id"] for entry in best} for chunk in text.chunks for best in chunk["top_logprobs"]]
    assert ranked == [set(best) for best in alone.top_logprobs]


def test_an_aborted_request_frees_its_place(worker, prompt):
    async def abandon():
        chunks = worker.generate(request(prompt, max_tokens=1500), Context())
        await anext(chunks)
        await worker.abort(Context())
        while worker._engine.metrics.cancelled == 0:
            await asyncio.sleep(0.01)
        await worker.abort(Context())  # of what is gone already

    asyncio.run(asyncio.wait_for(abandon(), 30))
    assert (worker._engine.memory.reserved, worker._engine.metrics.running) == (0, 0)
    assert not worker._handles


def test_a_request_whose_client_has_gone_before_it_ran_is_not_written(worker, prompt):
    async def read():
        return [chunk async for chunk in worker.generate(request(prompt, max_tokens=1500), Context(stopped=True))]

    assert asyncio.run(read())[-1]["finish_reason"] == "cancelled"


def test_a_request_that_comes_again_replaces_its_former_self(worker, prompt):
    async def ask_twice():
        first = worker.generate(request(prompt, max_tokens=1500), Context())
        await anext(first)
        again = [chunk async for chunk in worker.generate(request(prompt, max_tokens=4), Context())]
        return [chunk async for chunk in first][-1]["finish_reason"], again[-1]["finish_reason"]

    assert asyncio.run(ask_twice()) == ("cancelled", "length")


@pytest.mark.parametrize(
    ("tokens", "options", "told"),
    [
        ([1], {"n": 2}, "n=2"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([10**6], {}, "outside the vocabulary"),
        ([], {}, "empty"),
        ([1], {"max_tokens": 10**6}, "context"),
    ],
)
def test_what_cannot_be_served_is_an_invalid_argument(fleet_worker, worker, tokens, options, told):
    with pytest.raises(fleet_worker.InvalidArgument, match=told):
        written(worker, request(tokens, **{"max_tokens": 4, **options}))
    assert not worker._handles


def test_a_worker_that_has_closed_lets_another_one_go_on(fleet_worker, worker, prompt):
    asyncio.run(worker.cleanup())
    with pytest.raises(fleet_worker.EngineShutdown):
        written(worker, request(prompt, max_tokens=4))


def test_texts_are_finished_before_a_worker_ends(worker, prompt):
    async def end_in_the_middle():
        chunks = worker.generate(request(prompt, max_tokens=40), Context())
        tokens = (await anext(chunks))["token_ids"]
        ending = asyncio.create_task(worker.cleanup())
        rest = [chunk async for chunk in chunks]
        await ending
        return len(tokens) + sum(len(chunk["token_ids"]) for chunk in rest), rest[-1]["finish_reason"]

    assert asyncio.run(end_in_the_middle()) == (40, "length")


def test_the_use_of_the_kv_cache_is_published(worker, prompt):
    published = []

    class Publisher:
        def publish(self, rank, snapshot):
            published.append((rank, snapshot))

    async def serve():
        told = await worker.start(17)
        worker.attach_snapshot_publisher(Publisher())
        while not published:
            await asyncio.sleep(0.05)
        await worker.cleanup()
        return told

    told = asyncio.run(asyncio.wait_for(serve(), 30))
    assert told.served_model_name == "mine"
    assert published[0][0] == 0


def test_what_the_engine_counts_is_among_the_metrics(fleet_worker, worker, prompt, monkeypatch):
    registries = []
    monkeypatch.setattr(fleet_worker, "register_engine_registry", lambda _, registry: registries.append(registry))
    asyncio.run(worker.register_prometheus(object()))
    written(worker, request(prompt, max_tokens=6, temperature=0.0))
    assert registries[0].get_sample_value("drafttree:generation_tokens_total", {"model_name": "mine"}) == 6


def test_a_worker_is_not_made_from_arguments_of_its_own(fleet_worker):
    with pytest.raises(ConfigError, match="drafttree worker"):
        asyncio.run(fleet_worker.FleetWorker.from_args([]))
