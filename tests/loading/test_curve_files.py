"""Files of cost curves are read, or refused in a line that names the file and the fault."""

import json

import pytest

from drafttree.core.errors import InputError
from drafttree.loading import read_cost_curve

CURVE = {
    "target": {"1": 1.0, "8": 1.5, "64": 4.0},
    "draft": [{"first": 0.1, "later": {"1": 0.2, "8": 0.3}}],
    "overhead": 0.05,
    "plain_overhead": 0.02,
}


def test_a_curve_file_is_read(tmp_path):
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(CURVE))
    curve = read_cost_curve(path)
    assert curve.to_json() == CURVE
    assert curve.round(8, (1, 8)) == pytest.approx(1.5 + 0.05 + 0.1 + 0.3)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no JSON object"),
        (json.dumps({**CURVE, "target": {"1": 1.0, "64": 4.0}}), "'target' has a gap between 1 and 64; measure 8 too"),
        (json.dumps({**CURVE, "target": {"8": 1.0}}), "begins at 8; measure 1 too"),
        (json.dumps({"target": {"1": 1.0}}), "lacks draft, overhead, plain_overhead"),
        ("\xff", "not UTF-8 text (byte 0)"),
    ],
)
def test_what_is_no_curve_is_refused_by_the_name_of_its_file(content, fault, tmp_path):
    path = tmp_path / "curve.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as refused:
        read_cost_curve(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert fault in str(refused.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"curve\.json: cannot be read"):
        read_cost_curve(tmp_path / "curve.json")
