import math
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, model_validator

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Layer
from drafttree.policies.base import RoundOutcome, TextContext, TreePolicy, by_sequence


class DynaTree(TreePolicy):
    """Breadth by the drafter's confidence, depth by path probability, both adapted to past rounds: DynaTree v2.

    Breadth: a confident node (at least `high`) gets `min_breadth` children, an unsure one (below `low`) gets
    `max_breadth`, any other `mid_breadth`. Depth: a node of level d is expanded while its path probability reaches
    `stop_below`; from level `base_depth` on it must exceed `deep_above`. History: after each round the mean share of
    drafted levels that were accepted moves `base_depth` and `high` in proportion to its distance from `target`.
    Each of the three can be switched off; without breadth every node gets `mid_breadth` children, without depth every
    path ends at `base_depth`.
    """

    source: ClassVar[str] = "DynaTree v2, Algorithm 1 and its history rule"

    base_depth: float = Field(default=5, ge=1, le=64, description="levels drafted unless improbable (D0)")
    max_depth: int = Field(default=8, ge=1, le=64, description="levels drafted at most (D_max)")
    min_breadth: int = Field(default=1, ge=1, le=64, description="children of a confident node (B_min)")
    mid_breadth: int = Field(default=2, ge=1, le=64, description="children of any other node (B_mid)")
    max_breadth: int = Field(default=3, ge=1, le=64, description="children of an unsure node (B_max)")
    high: float = Field(default=0.9, ge=0, le=1, description="confidence of a confident node (tau_h)")
    low: float = Field(default=0.4, ge=0, le=1, description="confidence below which a node is unsure (tau_l)")
    stop_below: float = Field(default=0.1, ge=0, le=1, description="path probability to expand (rho_stop)")
    deep_above: float = Field(default=0.5, ge=0, le=1, description="path probability to go deep (rho_deep)")
    prune_below: float = Field(default=0.05, ge=0, le=1, description="path probability to expand (tau)")
    breadth: bool = Field(default=True, description="adapt the breadth")
    depth: bool = Field(default=True, description="adapt the depth")
    history: bool = Field(default=True, description="adapt base_depth and high to past rounds")
    window: int = Field(default=10, ge=1, le=10_000, description="rounds of history (W)")
    target: float = Field(default=0.7, ge=0, le=1, description="wanted share of accepted levels (a*)")
    depth_rate: float = Field(default=1.0, ge=0, le=64, description="how fast base_depth adapts (eta_D)")
    high_rate: float = Field(default=0.05, ge=0, le=1, description="how fast high adapts (eta_h)")
    level1_top1: bool = Field(default=False, description="draft only the best token on level 1, as the paper does")
    budget: int = Field(default=256, ge=1, le=4096, description="nodes of the tree at most, root included (N_max)")

    @model_validator(mode="after")
    def _check(self) -> "DynaTree":
        if self.base_depth > self.max_depth:
            raise ValueError(f"a base_depth of {self.base_depth:g} exceeds max_depth {self.max_depth}")
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} exceeds high {self.high:g}")
        return self

    def init_state(self, context: TextContext) -> "DynaTreeState":
        return DynaTreeState(self.base_depth, self.high)

    def candidates(self, depth: int) -> int:
        return max(self.min_breadth, self.mid_breadth, self.max_breadth) if self.breadth else self.mid_breadth

    def levels(self) -> int:
        return self.max_depth

    def keep(self, layer: Layer) -> Tensor:
        if self.level1_top1 and layer.depth == 1:
            return (layer.rank < 1).expand_as(layer.logprobs)
        if not self.breadth:
            return (layer.rank < self.mid_breadth).expand_as(layer.logprobs)
        high = by_sequence(layer, [state.high for state in layer.states])
        breadth = torch.full_like(layer.confidence, self.mid_breadth)
        breadth = breadth.masked_fill(layer.confidence < self.low, self.max_breadth)
        breadth = breadth.masked_fill(layer.confidence >= high, self.min_breadth)
        return layer.rank < breadth

    def expand(self, layer: Layer) -> Tensor:
        floor = max(self.prune_below, self.stop_below) if self.depth else self.prune_below
        probable = layer.path_logprobs >= _log(floor)
        deep = [layer.depth >= round(state.base_depth) for state in layer.states]
        if not any(deep):
            return probable
        deep_above = _log(self.deep_above) if self.depth else math.inf
        return probable & (
            layer.path_logprobs > by_sequence(layer, [deep_above if each else -math.inf for each in deep])
        )

    def observe(self, state: "DynaTreeState", outcome: RoundOutcome) -> "DynaTreeState":
        if not self.history or not outcome.levels:
            return state
        shares = (*state.shares, outcome.accepted / outcome.levels)[-self.window :]
        error = sum(shares) / len(shares) - self.target
        return DynaTreeState(
            base_depth=min(max(state.base_depth + self.depth_rate * error, 1), max(self.max_depth - 1, 1)),
            high=min(max(state.high - self.high_rate * error, 0), 1),
            shares=shares,
        )


@dataclass(frozen=True)
class DynaTreeState:
    """The parameters that DynaTree's history rule has adapted to one text.

    Attributes:
        base_depth: the adapted D0.
        high: the adapted tau_h.
        shares: of drafted levels that were accepted, in the last `window` rounds.
    """

    base_depth: float
    high: float
    shares: tuple[float, ...] = ()


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
