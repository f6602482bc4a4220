"""A table of rows: columns that are asked for and have figures, and the same rows as JSON."""

import json

import numpy as np

from drafttree.interfaces.console import make_console
from drafttree.measure import Interval, to_json, to_table

ROWS = [{"way": "x", "speed": 1.234, "R": Interval(1.5, 1.0, 2.0), "lacks": None}, {"way": "y", "speed": np.float64(2)}]


def test_a_column_without_a_figure_is_left_out(capsys):
    make_console().print(to_table("title", ROWS, {"way": "", "speed": ".1f", "R": ".2f", "lacks": ".1f", "none": ""}))
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert (title.strip(), head.split()) == ("title", ["way", "speed", "R"])
    assert (first.split(), second.split()) == (["x", "1.2", "1.50", "[1.00,", "2.00]"], ["y", "2.0"])


def test_json_has_plain_numbers():
    found = json.loads(json.dumps(to_json({1: ROWS})))
    assert found["1"][0]["R"] == {"mean": 1.5, "low": 1.0, "high": 2.0}
    assert found["1"][1]["speed"] == 2.0
