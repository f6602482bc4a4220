"""Draft trees that are grown at a context without changing it, and judged as a whole or by their upper levels."""

from dataclasses import replace
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from drafttree.core.tree import DraftTree
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.controller import as_written
from drafttree.engine.request import Request
from drafttree.policies.base import TextContext, TreePolicy
from drafttree.verifiers import Coupled, PointMass, RRSw, Traversal, Verifier
from drafttree.verifiers.base import TreeView, ratio, residual, without
from drafttree.verifiers.traversal import ChainNode

COLUMNS = ("tokens", "parents", "path_logprobs", "scores")
"""The fields of a draft tree with a column per node."""


def grower_of(verifier: type[Verifier]) -> type[Verifier]:
    """The verifier that trees are grown for if this one judges them; `Traversal` judges those of `RRSw`."""
    return RRSw if verifier is Traversal else verifier


class JudgedTree:
    """A tree grown at a context for a verifier.

    Args:
        decoder: the decoder whose target and drafter to use.
        request: the context.
        policy: how the tree grows.
        grower: the verifier that it is grown for.

    Attributes:
        tree: the draft tree.
        logits: `[nodes, vocab]` logits of the target; set by `score_trees`.
    """

    logits: Tensor

    def __init__(self, decoder: Decoder, request: Request, policy: TreePolicy, grower: type[Verifier]) -> None:
        verifier = grower(request.task.verifier.sampling)
        policy = policy.form_for(verifier.proposal, chain=verifier.chains_only) or policy
        task = replace(request.task, policy=policy, verifier=verifier)
        state = policy.init_state(TextContext())
        drafting = replace(request.drafting, task=task, state=state, controller=as_written())
        drafted_request = Request(task, request.text, drafting, request.metrics)
        if request.root_output:
            drafted_request.keep_root_output(request.root_output)
        self._sampling = verifier.sampling
        self._randomness = request.task.randomness.at(len(request.tokens) - 1)
        (self.tree,) = decoder.loop.trees.draft([drafted_request]).trees
        self._depths = self.tree.depths

    def accepted(self, verifier: type[Verifier], levels: int) -> float:
        """Tokens that a verifier accepts of the upper levels: the expectation if known, else the count in a round."""
        if verifier is RRSw:
            return self._sum(self._rejecting, levels)
        if verifier is PointMass:
            return self._sum(self._walking, levels)
        if verifier is Traversal:
            return self._sum(self._traversing, levels)
        if verifier is Coupled:
            return min(self._coupled, levels)
        return self._count(verifier, levels)

    @cached_property
    def _rejecting(self) -> list[float]:
        return reach_by_rejection(self._view)

    @cached_property
    def _walking(self) -> list[float]:
        return reach_by_walking(self._view)

    @cached_property
    def _traversing(self) -> list[float]:
        return reach_by_traversal(self._view)

    @cached_property
    def _coupled(self) -> int:
        return self._count(Coupled, self.tree.levels)

    def _sum(self, reach: list[float], levels: int) -> float:
        """The sum of a value per node over the drafted nodes of the upper levels."""
        return sum(value for value, depth in zip(reach, self._depths, strict=True) if 0 < depth <= levels)

    @property
    def _view(self) -> TreeView:
        return TreeView(self.tree, self.logits, self._sampling, self._randomness)

    def _count(self, verifier: type[Verifier], levels: int) -> int:
        """The number of tokens that a verifier accepts of the upper levels in this round."""
        tree = self._upper(levels)
        verdict = verifier(self._sampling).verify(tree, self.logits[: tree.size], self._randomness)
        return len(verdict.path) - 1

    def _upper(self, levels: int) -> DraftTree:
        """The upper levels as a tree; nodes are in breadth-first order, so they are its first nodes."""
        if levels >= self.tree.levels:
            return self.tree
        size = sum(depth <= levels for depth in self._depths)
        probs = {node: row for node, row in self.tree.draft_probs.items() if self._depths[node] < levels}
        columns = {name: getattr(self.tree, name)[:size] for name in COLUMNS}
        return replace(self.tree, **columns, draft_probs=probs, levels=levels)


@torch.inference_mode()
def score_trees(decoder: Decoder, request: Request, grown: list[JudgedTree]) -> None:
    """Score trees with the same root in one target pass, and give each its logits."""
    (output,) = decoder.loop.score([request], [_together(list(map(attrgetter("tree"), grown)))])
    logits = output.logits[0]
    request.cache.commit([])
    start = 1
    for judged_tree in grown:
        end = start + judged_tree.tree.size - 1
        judged_tree.logits = torch.cat((logits[:1], logits[start:end]))
        start = end


def _together(trees: list[DraftTree]) -> DraftTree:
    """One tree with the nodes of all these below a common root, tree after tree."""
    tokens = [trees[0].tokens[0]]
    parents = [-1]
    for tree in trees:
        parents += [parent + len(tokens) - 1 if parent else 0 for parent in tree.parents[1:]]
        tokens += tree.tokens[1:]
    zeros = [0.0] * len(tokens)
    return DraftTree(tokens, parents, zeros, zeros, max(map(attrgetter("levels"), trees)))


def reach_by_rejection(view: TreeView) -> list[float]:
    """The probability of each node that `RRSw` accepts it, given the tree."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if not children or not reach[node]:
            continue
        p = view.target(node)
        q = view.draft(node)
        remaining_mass = reach[node]
        for child in children:
            token = view.tokens[child]
            reach[child] = remaining_mass * min(float(ratio(p, q, token)), 1.0)
            remaining_mass -= reach[child]
            p = residual(p, q)
            q = without(q, token)
    return reach


def reach_by_walking(view: TreeView) -> list[float]:
    """The probability of each node that `PointMass` accepts it, given the tree; siblings must differ."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if children:
            row = view.target(node)[[view.tokens[child] for child in children]].tolist()
            for child, probability in zip(children, row, strict=True):
                reach[child] = reach[node] * probability
    return reach


def reach_by_traversal(view: TreeView) -> list[float]:
    """The probability of each node that `Traversal` accepts it or a node below it.

    Given are the tokens up to the node and of the siblings before them. Once nothing before it is accepted, that is the
    node's first rate, whatever is drawn below. So deeper tokens add no noise, and on a chain no node's probability is
    below that of `RRSw`.
    """
    first_rates = [torch.ones(())] * len(view.tokens)
    for node, children in enumerate(view.children):
        parent = ChainNode(view, node, first_rates[node])
        for child in children:
            parent.children.pop(0)
            first_rates[child] = parent.child(child).rate
            if parent.children:
                parent.reject(view.tokens[child])
    rates = view.read(first_rates)
    reach = [1.0] * len(rates)
    nothing_before = [1.0] * len(rates)
    for node, children in enumerate(view.children):
        remaining_mass = nothing_before[node]
        for child in children:
            nothing_before[child] = remaining_mass
            reach[child] = remaining_mass * rates[child]
            remaining_mass -= reach[child]
    return reach
