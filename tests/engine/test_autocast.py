"""In `torch.autocast` a model computes something else, so nothing is loaded or generated there, and it is said why."""

import asyncio

import pytest
import torch

import drafttree
from drafttree import Decoder, Engine
from drafttree.errors import ConfigError
from drafttree.models import TargetModel
from testing import tiny

PROMPT = [3, 1, 4, 1, 5]
LENGTH = {"max_new_tokens": 6, "ignore_eos": True}
WORDS = r"torch\.autocast\('cpu', bfloat16\) is active, .*; leave its block, or enter .*enabled=False.*dtype='bfloat16'"


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return drafttree.load(tiny.build("llama"), "lookup", "chain")


async def read(decoder: Decoder) -> None:
    async for _ in decoder.astream(PROMPT, **LENGTH):
        pass


def custom_generate(decoder: Decoder) -> None:
    ids = torch.tensor([PROMPT])
    decoder.target.module.generate(ids, max_new_tokens=4, custom_generate=drafttree.hf.generate("lookup"))


def submit(decoder: Decoder) -> None:
    with Engine(decoder) as engine:
        engine.submit(PROMPT, **LENGTH)


DOORS = {
    "load": lambda _: drafttree.load(tiny.build("llama"), "lookup"),
    "load by name": lambda _: drafttree.load("embedded", "none"),
    "wrap": lambda _: TargetModel(tiny.build("llama")),
    "generate": lambda decoder: decoder.generate(PROMPT, **LENGTH),
    "list": lambda decoder: decoder.generate([PROMPT, PROMPT], **LENGTH),
    "stream": lambda decoder: decoder.stream(PROMPT, **LENGTH),
    "astream": lambda decoder: asyncio.run(read(decoder)),
    "engine": submit,
    "costs": lambda decoder: decoder.with_drafter("suffix").costs(greedy=False),
    "custom_generate": custom_generate,
}


@pytest.mark.measured_costs
@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_closed_inside(decoder, door):
    with autocast(), pytest.raises(ConfigError, match=WORDS):
        DOORS[door](decoder)


def test_a_text_that_began_outside_does_not_go_on_inside(decoder):
    stream = decoder.stream(PROMPT, **LENGTH)
    with autocast(), pytest.raises(ConfigError, match=WORDS):
        next(stream)
    request = decoder.new_request(PROMPT, **LENGTH)
    decoder.step(request)
    with autocast(), pytest.raises(ConfigError, match=WORDS):
        decoder.step(request)


def test_where_it_is_not_active_for_the_models_device_texts_are_the_same(decoder):
    text = decoder.generate(PROMPT, **LENGTH).tokens
    with autocast(), autocast(enabled=False):
        assert decoder.generate(PROMPT, **LENGTH).tokens == text
    with torch.autocast("cuda", enabled=False):
        assert decoder.generate(PROMPT, **LENGTH).tokens == text


def test_an_engine_goes_on_whose_users_are_inside(decoder):
    """Its thread is not: a text that was submitted outside is read inside."""
    text = decoder.generate(PROMPT, **LENGTH).tokens
    with Engine(decoder) as engine:
        handle = engine.submit(PROMPT, **LENGTH)
        with autocast():
            assert handle.result(30).tokens == text
