"""Costs that no clock decides, so that tests of texts and trees are the same on every machine."""

import sys
from collections.abc import Iterator

import pytest

from drafttree.engine.drafting import measure
from drafttree.engine.drafting.prices import KeptCosts
from drafttree.evaluation.toy_models import TOY_COSTS


@pytest.fixture(autouse=True)
def fixed_costs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is measured where `auto` asks for costs, and nothing learned of rounds, but in tests of just that."""
    if request.node.get_closest_marker("measured_costs"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "measure_costs", lambda *_: KeptCosts(TOY_COSTS, 1.5))
        patch.setattr(measure, "is_current", lambda kept, target: True)
        patch.setattr(measure, "FEWEST", sys.maxsize)
        yield
