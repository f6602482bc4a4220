"""Records what a request's policy and verifier are given and what they answer, while a round runs.

Both are replaced by wrappers that pass every question on, so the loop and the growth of trees know nothing of it, and a
text without a trace pays nothing. Tensors are only kept here; they are read after the round, outside its clock.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, GrowingTree, Layer, Verdict
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.request import Request
from drafttree.engine.tree_growth import Limits
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass
class RecordedLevel:
    """What was decided on one level of a growing tree.

    Attributes:
        logits: the drafter's logits `[frontier, columns]`, before the verifier adds its randomness.
        guided: these logits as the policy sees them.
        layer: the candidates by probability.
        keep: what the policy keeps, a bool that broadcasts to the candidates.
        joined: what the policy was asked to expand: the candidates, or the drawn children.
        expand: what the policy expands, a bool that broadcasts to what joined; None for all.
        stopped: whether the policy ended the tree behind this level; None for not.
        drafted_from: of the nodes that joined, in order, the places of those that were expanded; None where the
            controller left that to the policy.
    """

    logits: Tensor
    guided: Tensor
    layer: Layer | None = None
    keep: Array | None = None
    joined: Layer | None = None
    expand: Array | None = None
    stopped: bool | None = None
    drafted_from: set[int] | None = None

    @property
    def decided(self) -> tuple[Layer, Array]:
        """The candidates and which of them the policy kept, once it was asked."""
        assert self.layer is not None
        assert self.keep is not None
        return self.layer, self.keep

    @property
    def expanded(self) -> list[list[bool]] | None:
        """Per frontier node, which of what joined behind it the policy expands; None for all of it."""
        if self.joined is None or self.expand is None:
            return None
        return np.broadcast_to(self.expand, self.joined.logprobs.shape).tolist()


@dataclass
class RecordedRound:
    """A round as it was recorded.

    Attributes:
        levels: levels of the growing tree; empty if nothing was drafted.
        tree: the tree that was verified.
        logits: the target's logits `[nodes, vocab]`, constraints included.
        verdict: the verdict of the verifier.
    """

    levels: list[RecordedLevel] = field(default_factory=list)
    tree: DraftTree | None = None
    logits: Tensor | None = None
    verdict: Verdict | None = None

    @property
    def judged(self) -> tuple[DraftTree, Tensor, Verdict]:
        """The tree, the target's logits and the verdict, once the verifier was asked."""
        assert self.tree is not None
        assert self.logits is not None
        assert self.verdict is not None
        return self.tree, self.logits, self.verdict


@contextmanager
def recording(request: Request) -> Iterator[RecordedRound]:
    """Record the round of a request that runs inside the block."""
    policy, verifier, controller = request.policy, request.verifier, request.drafting.controller
    record = RecordedRound()
    request.policy = cast(TreePolicy, _RecordingPolicy(policy, record))
    request.verifier = cast(Verifier, _RecordingVerifier(verifier, record))
    request.drafting.controller = cast(Controller, _RecordingController(controller, record))
    try:
        yield record
    finally:
        request.policy, request.verifier, request.drafting.controller = policy, verifier, controller


class _RecordingPolicy:
    """A policy that notes its answers in the level under way; a verifier's `guide` begins every level."""

    def __init__(self, policy: TreePolicy, record: RecordedRound) -> None:
        self._policy, self._record = policy, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def keep(self, layer: Layer) -> Array:
        level = self._record.levels[-1]
        level.layer, level.keep = layer, self._policy.keep(layer)
        return level.keep

    def expand(self, layer: Layer) -> Array | None:
        level = self._record.levels[-1]
        level.joined, level.expand = layer, self._policy.expand(layer)
        return level.expand

    def stop(self, tree: DraftTree, frontier: Array) -> bool | None:
        self._record.levels[-1].stopped = self._policy.stop(tree, frontier)
        return self._record.levels[-1].stopped


class _RecordingController:
    """A controller whose limits note which nodes are expanded."""

    def __init__(self, controller: Controller, record: RecordedRound) -> None:
        self._controller, self._record = controller, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def limits(self, *arguments: Any) -> Limits | None:
        limits = self._controller.limits(*arguments)
        return limits and cast(Limits, _RecordingLimits(limits, self._record))


class _RecordingLimits:
    """Limits that note their answers in the level under way."""

    def __init__(self, limits: Limits, record: RecordedRound) -> None:
        self._limits, self._record = limits, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, name)

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]]:
        found = self._limits.expand(texts, depth)
        self._record.levels[-1].drafted_from = {node - texts[0].first for node in found[0]}
        return found


class _RecordingVerifier:
    """A verifier that notes the drafter's logits of every level, and what it was given to judge."""

    def __init__(self, verifier: Verifier, record: RecordedRound) -> None:
        self._verifier, self._record = verifier, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._verifier, name)

    def guide(self, logits: Tensor, depth: int, randomness: Randomness) -> Tensor:
        guided = self._verifier.guide(logits, depth, randomness)
        copies = logits.clone(), guided.clone()  # a drafter may use their memory again for its next pass
        self._record.levels.append(RecordedLevel(*copies))
        return guided

    def verify(self, tree: DraftTree, logits: Tensor, randomness: Randomness) -> Verdict:
        verdict = self._verifier.verify(tree, logits, randomness)
        self._record.tree, self._record.logits, self._record.verdict = tree, logits, verdict
        return verdict
