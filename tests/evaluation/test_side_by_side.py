"""A race of decoders over one prompt: whoever has taken least time goes on, and texts are as they are alone."""

import pytest

from drafttree import Decoder
from drafttree.evaluation import side_by_side
from drafttree.evaluation.side_by_side import SideBySide
from drafttree.policies import Chain
from testing.small_trees import DRAFT, PROMPT, TARGET
from testing.toy import ToyDrafter, ToyModel


def decoders() -> dict[str, Decoder]:
    made = Decoder(ToyModel(TARGET), ToyDrafter(DRAFT), Chain(depth=3))
    return {"plain": made.plain(), "drafted": made}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_each_decoder_alone(temperature):
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 3}
    race = SideBySide(decoders(), PROMPT, **options)
    chunks = list(race)
    for name, decoder in decoders().items():
        alone = decoder.generate(PROMPT, **options)
        assert race.texts()[name].tokens == alone.tokens
        assert [token for own, chunk in chunks if own == name for token in chunk.tokens] == alone.tokens


def test_the_one_that_has_taken_least_time_goes_on(monkeypatch):
    """A round takes three seconds of one and one of the other, by a clock that each round moves."""
    now, made = [0.0], decoders()
    monkeypatch.setattr(side_by_side.time, "perf_counter", lambda: now[0])
    race = SideBySide(made, PROMPT, max_new_tokens=12, ignore_eos=True)
    costs = {"plain": 3.0, "drafted": 1.0}
    for name, stream in dict(race._streams).items():
        race._streams[name] = slowed(stream, costs[name], now)
    order = [name for name, _ in race]
    assert order[:5] == ["plain", "drafted", "drafted", "drafted", "plain"]
    assert race.seconds["plain"] == pytest.approx(12 * 3.0)


def slowed(stream, seconds: float, now: list[float]):
    for chunk in stream:
        now[0] += seconds
        yield chunk
