"""What the demo is shown with, and what it says of it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import drafttree
from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import MachineMemory
from drafttree.evaluation import demo
from drafttree.evaluation.demo import DRAFTED, PLAIN, DemoTarget, judge, load_demo
from drafttree.evaluation.shapes import SHAPES, Shape
from drafttree.evaluation.side_by_side import SideBySide

OPTIONS = {"max_new_tokens": 24, "temperature": 0.5, "seed": 0}


class Sizes(list[str]):
    """The sizes that were made, and how long a pass takes for every weight."""

    speed: float = 1e-10


@pytest.fixture
def sizes(monkeypatch) -> Sizes:
    made = Sizes()

    def load_inflated(target, drafter, shape, *_):
        made.append(shape)
        return SimpleNamespace(target=shape)

    monkeypatch.setattr(demo, "load_inflated", load_inflated)
    monkeypatch.setattr(demo, "time_passes", lambda shape, *_, **__: {1: SHAPES[shape].weights * made.speed})
    monkeypatch.setattr(demo, "machine_memory", lambda: MachineMemory(64 << 30, 32 << 30))
    return made


def test_weights_are_those_of_the_layers():
    assert Shape(hidden=4, layers=3, intermediate=5, heads=2, key_value_heads=1, head_dim=2).weights == 3 * (
        4 * 4 + 4 * 4 + 2 * 4 * 2 + 3 * 4 * 5
    )


@pytest.mark.parametrize(
    ("speed", "shape"), [(1e-10, "300m"), (1e-9, "100m"), (3e-10, "100m")], ids=["fast", "slow", "between"]
)
def test_passes_take_about_as_long_as_they_should(speed, shape, sizes):
    sizes.speed = speed
    shown = load_demo("auto", "auto", "cpu", None)
    assert shown.shape == shape
    assert shown.seconds < demo.LONGEST or shown.shape == "100m"


def test_a_size_that_is_named_is_taken(sizes):
    sizes.speed = 1.0
    assert load_demo("auto", "auto", "cpu", None, "300m").shape == "300m"
    assert sizes == ["300m"]


def test_little_memory_takes_a_smaller_one_or_says_what_is_needed(sizes, monkeypatch):
    monkeypatch.setattr(demo, "machine_memory", lambda: MachineMemory(8 << 30, 2 << 30))
    assert load_demo("auto", "auto", "cpu", None).shape == "100m"
    monkeypatch.setattr(demo, "machine_memory", lambda: MachineMemory(8 << 30, 1 << 20))
    with pytest.raises(ConfigError, match=r"a demo of the size 100m needs 1\.1 GB of free memory; free some of it"):
        load_demo("auto", "auto", "cpu", None)


@pytest.fixture(scope="module")
def target() -> DemoTarget:
    return DemoTarget(drafttree.load(policy="dynatree", dtype="float32"), "300m", 0.04)


def test_the_result_in_words(target):
    race = SideBySide({PLAIN: target.decoder.plain(), DRAFTED: target.decoder}, "The old man", **OPTIONS)
    assert list(race)
    result = judge(target, race.texts(), "The old man", OPTIONS)
    passes = len(result.drafted.metrics.rounds)
    assert result.lines[:2] == [f"24 tokens in {passes} passes instead of 24", "the same text: yes"]
    assert f"{result.speedup:.2f} times as fast as plain decoding" in result.lines[2]
    told = " ".join(result.lines)
    assert ("Drafts do not pay on this machine" in told) == (result.speedup < 1 and not result.is_disturbed)
    assert ("Other work disturbed the times" in told) == result.is_disturbed
    idle, busy = (replace(result, target=replace(target, seconds=seconds)) for seconds in (1e9, 1e-9))
    assert busy.is_disturbed
    assert idle.is_disturbed == (result.speedup > 1.1 * result.drafted.metrics.mean_accepted_tokens)
    assert result.summary()["same_text"] is True
    assert result.float32 is None
    assert "at the cost of a model of 300m parameters in float32: 40 ms a pass" in target.sentence


def test_a_difference_is_told(target):
    texts = {name: target.decoder.generate("The old man", **OPTIONS) for name in (PLAIN, DRAFTED)}
    texts[DRAFTED].tokens[5] += 1
    result = judge(target, texts, "The old man", OPTIONS)
    assert result.agreement == "up to token 5, which should not be: please report it"
    assert result.summary()["same_text"] is False
