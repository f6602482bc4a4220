"""What the batches of a decoder have shown, which a later engine of the same decoder begins with."""

from dataclasses import dataclass, field

from drafttree.engine.batching.draft_switch import PLAIN_ROUNDS, DraftSwitch
from drafttree.engine.batching.level_limit import LevelLimit
from drafttree.engine.costs.round_costs import RoundCosts
from drafttree.policies.calibration import SurvivalCalibration

Kind = tuple[bool, int]
"""Of drafts: whether the text is greedy, and which model of the drafter drafted."""


@dataclass
class BatchState:
    """Costs of packed rounds, and what was accepted in them.

    Attributes:
        costs: costs of passes and rounds.
        switch: whether drafting pays, by batch size.
        limits: limits of levels, for drawn trees.
        calibrations: how often nodes are accepted, over all requests.
    """

    costs: RoundCosts
    switch: DraftSwitch = field(init=False)
    limits: LevelLimit = field(default_factory=LevelLimit)
    calibrations: dict[Kind, SurvivalCalibration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rounds = 1 if self.costs.frozen else PLAIN_ROUNDS
        self.switch = DraftSwitch(lambda batch: self.costs.round(batch, batch), rounds)

    def calibration(self, kind: Kind) -> SurvivalCalibration:
        """How often nodes of a kind of drafts are accepted."""
        return self.calibrations.setdefault(kind, SurvivalCalibration.empty())
