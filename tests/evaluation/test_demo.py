"""What the demo is shown with, and what it says of it."""

import pytest

import drafttree
from drafttree.core.machine_memory import MachineMemory
from drafttree.errors import ConfigError
from drafttree.evaluation import compare, demo
from drafttree.evaluation.demo import DRAFTED, PLAIN, DemoTarget, judge, load_demo
from drafttree.measure.reference import Difference
from drafttree.measure.shapes import Shape
from drafttree.models.native import kernels
from testing.command_line import COMMANDS
from testing.given_times import give_times

OPTIONS = {"max_new_tokens": 24, "temperature": 0.5, "seed": 0}


def test_weights_are_those_of_the_layers():
    assert Shape(hidden=4, layers=3, intermediate=5, heads=2, key_value_heads=1, head_dim=2).weights == 3 * (
        4 * 4 + 4 * 4 + 2 * 4 * 2 + 3 * 4 * 5
    )


def test_too_little_memory_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(demo, "load_inflated", lambda *_: "decoder")
    monkeypatch.setattr(demo, "machine_memory", lambda: MachineMemory(8 << 30, 2 << 30))
    assert load_demo("auto", "float32", "cpu", None).shape == "100m"
    with pytest.raises(ConfigError, match=r"a demo of the size 300m needs 3\.5 GB of free memory; free some of it"):
        load_demo("auto", "float32", "cpu", None, "300m")
    monkeypatch.setattr(demo, "machine_memory", lambda: MachineMemory(8 << 30, 1 << 20))
    with pytest.raises(ConfigError, match=r"a demo of the size 100m needs 1\.1 GB of free memory; free some of it"):
        load_demo("auto", "float32", "cpu", None)


@pytest.fixture(scope="module")
def decoders():
    """Decoders on torch, whose texts may differ by ties in bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "native", None)
        return {dtype: drafttree.load(policy="dynatree", dtype=dtype) for dtype in ("float32", "bfloat16")}


def texts(decoder):
    ways = {PLAIN: decoder.plain(), DRAFTED: decoder}
    return {name: each.generate("The old man", **OPTIONS) for name, each in ways.items()}


def test_where_drafts_do_not_pay_it_says_so(decoders, monkeypatch):
    give_times(monkeypatch, lambda drafts, rows: 4.0 if drafts else 1.0)
    result = judge(DemoTarget(decoders["float32"], "300m"), texts(decoders["float32"]), "The old man", OPTIONS)
    assert result.summary()["speedup"] < 1
    assert (
        "Drafting does not pay on this machine: a pass over several tokens costs too much more than one over one "
        "token." in result.lines
    )
    assert result.summary()["same_text"] is True
    assert result.float32 is None


@pytest.mark.parametrize(
    ("dtype", "rounding", "line"),
    [
        (
            "bfloat16",
            0.05,
            "Texts differ from token 5 on: bfloat16 rounding broke a tie between two equally likely tokens. "
            "--dtype float32 gives identical text.",
        ),
        ("float32", 0.0, "Texts differ from token 5 on, which should never happen: please report it."),
    ],
)
def test_a_difference_is_told(decoders, monkeypatch, dtype, rounding, line):
    monkeypatch.setattr(compare, "find_difference", lambda *_, **__: Difference(5, 1, 2, 0.1, rounding))
    target = DemoTarget(decoders[dtype], "300m")
    result = judge(target, texts(decoders[dtype]), "The old man", OPTIONS)
    assert line in result.lines
    assert result.summary()["same_text"] is False
    assert ("except where rounding breaks a tie" in target.sentence) == (dtype == "bfloat16")


def repeated(text: str, length: int) -> int:
    """How many sequences of so many words stood in a text before."""
    words = text.lower().split()
    sequences = [tuple(words[first : first + length]) for first in range(len(words) - length + 1)]
    return len(sequences) - len(set(sequences))


def test_sequences_that_recur_are_counted():
    assert repeated("the ship and the ship and the sea", 3) == 2
    assert repeated("the ship and the sea", 3) == 0


def test_the_text_of_the_demo_does_not_loop():
    defaults = {parameter.name: parameter.default for parameter in COMMANDS["demo"].params}
    options = {name: defaults[name] for name in ("max_new_tokens", "temperature", "seed")}
    text = drafttree.load(drafter="none", dtype="float32").generate(defaults["prompt"], **options).text
    assert len(text.split()) > 70
    assert repeated(text, 3) <= 2
    assert repeated(text, 4) == 0
