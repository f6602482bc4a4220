"""Files of cost curves: one for all drafters or one each, and the file's name in every complaint."""

import json

import pytest

from drafttree.core.cost_curve import parse_cost_curve
from drafttree.errors import InputError
from drafttree.evaluation.curve_file import read_cost_curves

LATER = {"1": 0.1, "8": 0.2}
CURVE = {
    "target": {"1": 1.0, "8": 1.5},
    "draft": [{"first": 0.1, "later": LATER}],
    "overhead": 0.1,
    "plain_overhead": 0.05,
}


@pytest.fixture
def write(tmp_path):
    def write(value):
        path = tmp_path / "curve.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_one_curve_holds_for_all_drafters(write):
    assert read_cost_curves(write(CURVE), ["a", "b"]) == dict.fromkeys("ab", parse_cost_curve(CURVE))


def test_curves_by_drafter(write):
    other = {**CURVE, "overhead": 0.7}
    found = read_cost_curves(write({"a": CURVE, "b": other, "c": CURVE}), ["a", "b"])
    assert {name: curve.overhead for name, curve in found.items()} == {"a": 0.1, "b": 0.7}


def test_what_generate_prints_as_json_holds_a_curve(write):
    assert read_cost_curves(write({"text": "...", "costs": CURVE}), ["a"]) == {"a": parse_cost_curve(CURVE)}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "is not a JSON object"),
        ({**CURVE, "target": {"1": 1.0, "64": 2.0}}, "gap between 1 and 64; measure 8 too"),
        ({**CURVE, "target": {"1": 1.0, "4": 0.8}}, "falls from 1 at 1 to 0.8 at 4; a larger pass is no cheaper"),
        ({"a": CURVE}, "no cost curve of b; it has a"),
        ({"a": CURVE, "b": 3}, "is not a JSON object"),
    ],
)
def test_a_bad_file_is_named(write, value, said):
    path = write(value)
    with pytest.raises(InputError, match=said) as error:
        read_cost_curves(path, ["a", "b"])
    assert str(error.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.json: cannot be read"):
        read_cost_curves(tmp_path / "nowhere.json", ["a"])
