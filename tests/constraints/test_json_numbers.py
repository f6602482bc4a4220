"""Numbers between bounds; exact decimals are the judge, and jsonschema."""

import json
from decimal import Decimal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints import grammar
from drafttree.errors import ConfigError
from testing.grammars import conforming

pytest.importorskip("llguidance")

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
VALUES = st.sampled_from([0, -0.0, 1, -1, 0.5, -0.5, 1.5, 10, 99, 0.05, 10.25, 1e-7, 123456, -0.001]) | st.integers(
    -130, 130
)
DECIMALS = st.tuples(st.integers(-30_000, 30_000), st.integers(0, 3)).map(
    lambda parts: Decimal(parts[0]).scaleb(-parts[1])
)
STEPS = [Decimal(step) for step in ("0", "1", "-1", "0.1", "-0.1", "0.001", "-0.001", "9", "10")]


@st.composite
def bounded(draw) -> tuple[dict, list[str]]:
    """A schema of numbers, and numbers near its bounds and elsewhere."""
    bounds = draw(st.dictionaries(st.sampled_from([*LOWER, *UPPER]), VALUES | DECIMALS.map(float), min_size=1))
    numbers = [Decimal(repr(bound)) + step for bound in bounds.values() for step in STEPS]
    numbers += draw(st.lists(DECIMALS, max_size=6))
    texts = [form for number in numbers for form in forms(f"{number:f}")]
    return {"type": draw(st.sampled_from(["integer", "number"])), **bounds}, [*texts, "0", "-0", "-0.0", "0.00"]


def forms(text: str) -> list[str]:
    """A number with more and with fewer digits."""
    return [text, f"{text}0", text.rstrip("0").rstrip(".")] if "." in text else [text, f"{text}.0"]


def judged(schema: dict, text: str) -> bool:
    number, exact = Decimal(text), {keyword: Decimal(repr(schema[keyword])) for keyword in schema if keyword != "type"}
    fits = number >= exact.get("minimum", number) and number <= exact.get("maximum", number)
    fits = fits and all(number > exact[keyword] for keyword in ["exclusiveMinimum"] if keyword in exact)
    fits = fits and all(number < exact[keyword] for keyword in ["exclusiveMaximum"] if keyword in exact)
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) == fits or schema["type"] == "integer"
    return fits and not (schema["type"] == "integer" and "." in text)


def check_bounds(schema: dict, texts: list[str]) -> None:
    """Zero has a sign only beside negative numbers, and a number that is left alone has one form."""
    fitting = [text for text in texts if judged(schema, text)]
    try:
        conform = dict(zip(texts, conforming(grammar.json_schema(schema), texts), strict=True))
    except ConfigError:
        assert not fitting
        return
    alone = "minimum" in schema and schema["minimum"] == schema.get("maximum")
    for text, conforms in conform.items():
        usual = f"{(Decimal(text) + 0).normalize():f}" if alone or not Decimal(text) else text
        assert conforms == (text in fitting) or (text in fitting and text != usual), text


REPORTED = [
    (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        ["0.5", "0.50", "0.001"],
        ["0", "0.0", "-0", "0.51", "1"],
    ),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}, ["1.5", "1.0001"], ["1", "1.0", "1.00", "1.501"]),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.01"], ["0", "-0", "-0.0", "0.1"]),
    ({"type": "number", "exclusiveMinimum": -2, "maximum": -1.5}, ["-1.5", "-1.99"], ["-2", "-2.0", "-1.4", "-0"]),
    ({"type": "number", "exclusiveMaximum": 0}, ["-0.1", "-5"], ["0", "-0", "-0.00"]),
    ({"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.5"], ["0", "0.0"]),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}, ["0.1"], ["0", "0.0"]),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": False, "maximum": 0.5}, ["0", "0.1"], ["-0.1"]),
    ({"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5}, ["1"], ["0", "-0", "2", "1.0"]),
    ({"type": "integer", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5}, ["0"], ["1", "-1"]),
    ({"type": "integer", "multipleOf": 5, "exclusiveMinimum": 5, "maximum": 20}, ["10", "20"], ["5", "0", "25", "12"]),
    (
        {"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 0, "maximum": 0.5},
        ["0.25", "0.50"],
        ["0", "0.00", "0.3"],
    ),
    ({"type": "number", "multipleOf": 0.5, "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5"], ["0", "-0", "-0.0"]),
    ({"type": "integer", "multipleOf": 2.5, "exclusiveMinimum": 0, "maximum": 10}, ["5", "10"], ["0", "2.5", "7"]),
    ({"enum": [1, 2, 3], "exclusiveMinimum": 1, "maximum": 2.5}, ["2"], ["1", "3"]),
    ({"type": "number", "exclusiveMinimum": 1e-7, "maximum": 1e-6}, ["0.000001", "0.0000005"], ["0.0000001", "0"]),
    ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 2}, [str(2**53 + 1), str(2**53 + 2)], [str(2**53)]),
    ({"type": "number"}, ["-0", "1e5", "1.5E-3", "0.10"], ["01", "1.", ".5", "+1", "1e", "--1"]),
]


@pytest.mark.parametrize(("schema", "good", "wrong"), REPORTED, ids=[json.dumps(schema) for schema, _, _ in REPORTED])
def test_bounds_beside_others_are_kept(schema, good, wrong):
    made = grammar.json_schema(schema)
    assert conforming(made, good) == [True] * len(good)
    assert conforming(made, wrong) == [False] * len(wrong)


@given(bounded())
@settings(max_examples=60)
def test_numbers_between_bounds_are_written_and_no_others(case):
    check_bounds(*case)


@pytest.mark.slow
@given(bounded())
@settings(max_examples=5_000)
def test_numbers_between_any_bounds_are_written_and_no_others(case):
    """`test_numbers_between_bounds_are_written_and_no_others` is the quick one."""
    check_bounds(*case)
