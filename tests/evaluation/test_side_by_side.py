"""A race of decoders over one prompt: whoever has taken least time goes on, and texts are as they are alone."""

import time

import pytest

from drafttree import Decoder
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


class Slow(ToyModel):
    """Moves the clock by so many seconds in every pass."""

    def __init__(self, now: list[float], seconds: float) -> None:
        super().__init__(TARGET)
        self._now, self._seconds = now, seconds

    def score(self, segment):
        self._now[0] += self._seconds
        return super().score(segment)


def test_the_one_that_has_taken_least_time_goes_on(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    made = {"plain": Decoder(Slow(now, 3.0)), "drafted": Decoder(Slow(now, 1.0), ToyDrafter(DRAFT), Chain(depth=3))}
    race = SideBySide(made, PROMPT, max_new_tokens=12, ignore_eos=True)
    order, seconds, written = [], race.seconds, dict.fromkeys(made, 0)
    for name, chunk in race:
        writing = [each for each in made if written[each] < 12]
        assert seconds[name] == min(seconds[each] for each in writing)
        order.append(name)
        written[name] += len(chunk.tokens)
        seconds = race.seconds
    assert order[:4] == ["plain", "drafted", "drafted", "drafted"]
    assert seconds["plain"] >= 12 * 3.0
    assert sum(seconds.values()) == now[0]
