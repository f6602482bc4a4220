"""Costs at which R is told."""

import pytest

from drafttree.core.errors import ConfigError
from drafttree_lab.replay.cost_model import CostModel


def test_costs_are_named_or_given():
    assert CostModel.parse("published").source == "published"
    assert CostModel.parse("measured").source == "measured"
    given = CostModel.parse("c=0.08, v=1.2")
    assert (given.c, given.v) == (0.08, 1.2)


@pytest.mark.parametrize("text", ["", "c=0.1", "v=1,c=0.1", "c=-1,v=1", "mine"])
def test_other_costs_are_refused(text):
    with pytest.raises(ConfigError, match=r"--cost is .*; give \"published\", \"measured\" or such as"):
        CostModel.parse(text)
