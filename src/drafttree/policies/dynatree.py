import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field, model_validator

from drafttree.core.lazy import Array, np
from drafttree.core.tree import Layer
from drafttree.policies.base import RoundOutcome, TextContext, TreePolicy, creation_scores

FEWEST_TEXTS = 5
"""Number of texts after which the authors' code begins to adapt, unless the window is shorter."""
DEAD_BAND = 0.1
"""The authors' code changes nothing while the mean share is within this distance of the wanted one."""
DEEP_STEP = 0.05
"""Step by which the authors' code moves rho_deep."""
DEPTH_FLOOR, HIGH_RANGE, DEEP_RANGE = 2, (0.5, 0.95), (0.3, 0.8)
"""Bounds of what the authors' code adapts: D0, tau_h and rho_deep."""


@dataclass(frozen=True)
class DynaTreeState:
    """The parameters that DynaTree's history rule has adapted.

    Attributes:
        base_depth: the adapted D0.
        high: the adapted tau_h.
        deep_above: rho_deep, adapted only between texts.
        shares: the shares that were accepted in the last `window` rounds, or in the last `window` texts.
        tokens: tokens committed by the rounds of this text that drafted; counted only with `per_prompt`.
        rounds: number of these rounds; counted only with `per_prompt`.
    """

    base_depth: float
    high: float
    deep_above: float
    shares: tuple[float, ...] = ()
    tokens: int = 0
    rounds: int = 0


class DynaTree(TreePolicy):
    """Breadth by the drafter's confidence, depth by path probability, both adapted to past rounds: DynaTree v2.

    Breadth: a confident node (at least `high`) gets `min_breadth` children, an unsure one (below `low`) gets
    `max_breadth`, any other `mid_breadth`. Depth: a node of level d is expanded while its path probability reaches
    `stop_below`; from level `base_depth` on it must exceed `deep_above`. History: after each round, `base_depth` and
    `high` move in proportion to the distance between `target` and the mean share of drafted levels that were accepted.
    Each of the three can be switched off. Without breadth, every node gets `mid_breadth` children; without depth, every
    path ends at `base_depth`.

    The paper's share is the "fraction of drafted tokens committed": `token_share=True`. A tree with branches keeps that
    share low however good the drafter is. So the default is the share of levels, all of which can be accepted.

    Level 1 holds the children of the last committed token. The paper's Algorithm 1 drafts a root of its own instead,
    the drafter's best token, and counts its depth as 0. `level1_top1=True`, `base_depth` D0 + 1, `max_depth` D_max + 1
    and `budget` N_max + 1 grow its tree. The preset `paper` is this tree with D0 = 5, D_max = 8 and N_max = 256. The
    authors' code counts that root as level 1: its tree has `base_depth` D0, `max_depth` D_max and `budget` N_max + 1.

    If a level exceeds the budget, its most probable candidates are kept; `first_come=True` keeps the first ones, as
    paper and code do. `per_prompt=True` is the authors' history rule: `base_depth`, `high` and `deep_above` change only
    between texts. They move by one step (`depth_rate`, `high_rate` and 0.05) if the mean share of the last `window`
    texts is more than 0.1 from `target`. The share of a text is its tokens per round, bonus included, over
    `base_depth` + 2. It can reach 1, so the parameters mostly move one way. With verifiers whose draws depend on the
    drafts, every text begins with the given parameters, so that a seed repeats it.
    """

    source: ClassVar[str] = "DynaTree v2, Algorithm 1 and its history rule"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"base_depth": 6, "max_depth": 9, "level1_top1": True, "first_come": True, "budget": 257}
    }

    base_depth: float = Field(
        default=5, ge=1, le=64, description="levels that are always drafted, unless the path is improbable (D0)"
    )
    max_depth: int = Field(default=8, ge=1, le=64, description="maximum number of drafted levels (D_max)")
    min_breadth: int = Field(default=1, ge=1, le=64, description="children of a confident node (B_min)")
    mid_breadth: int = Field(default=2, ge=1, le=64, description="children of any other node (B_mid)")
    max_breadth: int = Field(default=3, ge=1, le=64, description="children of an unsure node (B_max)")
    high: float = Field(default=0.9, ge=0, le=1, description="confidence from which a node is confident (tau_h)")
    low: float = Field(default=0.4, ge=0, le=1, description="confidence below which a node is unsure (tau_l)")
    stop_below: float = Field(
        default=0.1, ge=0, le=1, description="path probability below which a node is not expanded (rho_stop)"
    )
    deep_above: float = Field(
        default=0.5, ge=0, le=1, description="path probability above which levels beyond D0 are drafted (rho_deep)"
    )
    prune_below: float = Field(default=0.05, ge=0, le=1, description="the same, also with depth=false (tau)")
    breadth: bool = Field(default=True, description="adapt the breadth")
    depth: bool = Field(default=True, description="adapt the depth")
    history: bool = Field(default=True, description="adapt base_depth and high to past rounds")
    per_prompt: bool = Field(default=False, description="adapt between texts, by the authors' rule")
    window: int = Field(default=10, ge=1, le=10_000, description="past rounds that count; with per_prompt, texts (W)")
    target: float = Field(default=0.7, ge=0, le=1, description="wanted share of drafted levels that are accepted (a*)")
    token_share: bool = Field(
        default=False, description="let target be a share of drafted tokens, not of levels, as the paper says"
    )
    depth_rate: float = Field(default=1.0, ge=0, le=64, description="how fast base_depth adapts (eta_D)")
    high_rate: float = Field(default=0.05, ge=0, le=1, description="how fast high adapts (eta_h)")
    level1_top1: bool = Field(default=False, description="draft only the best token on level 1, as the paper does")
    first_come: bool = Field(default=False, description="spend the budget in order of creation, as the paper does")
    budget: int = Field(default=256, ge=1, le=4096, description="maximum number of nodes, root included (N_max)")

    @model_validator(mode="after")
    def _check(self) -> "DynaTree":
        if self.base_depth > self.max_depth:
            raise ValueError(f"a base_depth of {self.base_depth:g} exceeds max_depth {self.max_depth}")
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} exceeds high {self.high:g}")
        if self.token_share and self.per_prompt:
            raise ValueError("per_prompt computes the share as the authors' code does; leave token_share out")
        return self

    @property
    def remembers(self) -> bool:
        return self.history and self.per_prompt

    def init_state(self, context: TextContext) -> DynaTreeState:
        if not self.remembers or context.learned is None:
            return DynaTreeState(self.base_depth, self.high, self.deep_above)
        learned_state: DynaTreeState = context.learned  # from here on: the authors' rule, between two texts
        if not learned_state.rounds:
            return learned_state
        share = learned_state.tokens / (learned_state.rounds * (self.base_depth + 2))
        state = replace(learned_state, shares=(*learned_state.shares, share)[-self.window :], tokens=0, rounds=0)
        error = self._error(state.shares)
        if len(state.shares) < min(FEWEST_TEXTS, self.window) or abs(error) <= DEAD_BAND:
            return state
        step = math.copysign(1, error)
        return replace(
            state,
            base_depth=_clip(state.base_depth + step * self.depth_rate, DEPTH_FLOOR, max(self.max_depth - 1, 1)),
            high=_clip(state.high - step * self.high_rate, *HIGH_RANGE),
            deep_above=_clip(state.deep_above - step * DEEP_STEP, *DEEP_RANGE),
        )

    def candidates(self, depth: int) -> int:
        return max(self.min_breadth, self.mid_breadth, self.max_breadth) if self.breadth else self.mid_breadth

    def levels(self) -> int:
        return self.max_depth

    def keep(self, layer: Layer) -> Array:
        if self.level1_top1 and layer.depth == 1:
            return layer.rank < 1
        if not self.breadth:
            return layer.rank < self.mid_breadth
        breadths = [
            self.min_breadth if sure >= layer.state.high else self.max_breadth if sure < self.low else self.mid_breadth
            for sure in layer.confidence[:, 0].tolist()
        ]
        return layer.rank < np.array(breadths)[:, None]

    def score(self, layer: Layer) -> Array:
        return creation_scores(layer) if self.first_come else layer.path_logprobs

    def expand(self, layer: Layer) -> Array:
        floor = max(self.prune_below, self.stop_below) if self.depth else self.prune_below
        probable = layer.path_logprobs >= _log(floor)
        if layer.depth < round(layer.state.base_depth):
            return probable
        return probable & (layer.path_logprobs > (_log(layer.state.deep_above) if self.depth else math.inf))

    def observe(self, state: DynaTreeState, outcome: RoundOutcome) -> DynaTreeState:
        if not self.history or not outcome.levels:
            return state
        if self.per_prompt:
            return replace(state, tokens=state.tokens + len(outcome.path), rounds=state.rounds + 1)
        drafted = outcome.tree.size - 1 if self.token_share else outcome.levels
        shares = (*state.shares, outcome.accepted / drafted)[-self.window :]
        error = self._error(shares)
        return replace(  # by the paper's rule, in proportion to the error
            state,
            shares=shares,
            base_depth=_clip(state.base_depth + self.depth_rate * error, 1, max(self.max_depth - 1, 1)),
            high=_clip(state.high - self.high_rate * error, 0, 1),
        )

    def _error(self, shares: tuple[float, ...]) -> float:
        return sum(shares) / len(shares) - self.target


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
