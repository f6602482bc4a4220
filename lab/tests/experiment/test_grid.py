"""The grid: every policy at its defaults but `auto`, and no setting twice."""

from drafttree.loading import parse_policies
from drafttree.policies import POLICIES
from drafttree_lab.experiment.auto import DYNATREE, GRID, TALON


def test_every_policy_is_there_at_its_defaults_and_no_setting_twice():
    settings = parse_policies(GRID)
    assert len(settings) == len(GRID) == 24
    assert POLICIES.keys() - settings.keys() == {"auto"}
    assert "auto" not in {spec.partition(":")[0] for spec in settings}
    assert {TALON, DYNATREE} <= settings.keys()
