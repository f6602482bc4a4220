"""A verifier is a pure function from a tree, the target's logits and the round's randomness to a verdict.

Since all randomness is handed in, a verifier can be run again with scripted answers, and so be proven exactly. With
`guide`, a verifier shows its randomness to the drafter too. Then the drafter proposes the token that will be drawn
rather than the likeliest one.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import index
from typing import Any, ClassVar, cast

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError, ModelError
from drafttree.core.lazy import Tensor, torch
from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.core.vocab_ops import NOT_A_NUMBER


class Verifier:
    """Base of all verifiers.

    Args:
        sampling: the distribution the text must have.

    Attributes:
        source: the paper and the equation or algorithm number.
        proposal: how the children in its trees are chosen.
        accepts: every kind of tree for which it is lossless.
        lossless: whether the text follows the target's distribution.
        chains_only: whether it judges only trees without branches.

    Raises:
        ConfigError: this verifier does not serve that sampling.
    """

    source: ClassVar[str]
    proposal: ClassVar[Proposal] = Proposal.TOP_K
    accepts: ClassVar[frozenset[Proposal]]
    lossless: ClassVar[bool] = True
    chains_only: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "accepts" not in vars(cls):
            cls.accepts = frozenset({cls.proposal})

    def __init__(self, sampling: Sampling) -> None:
        if reason := self.refuses(sampling):
            raise ConfigError(f"verifier {type(self).__name__} {reason}")
        self.sampling = sampling

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        """Why this verifier cannot serve a sampling, and what to do instead; None if it can."""
        return None

    @property
    def guides(self) -> bool:
        """Whether `guide` may change logits."""
        return type(self).guide is not Verifier.guide

    def guide(self, logits: Tensor, depth: int, randomness: Randomness) -> Tensor:
        """Change the drafter's logits `[frontier, vocab]` of a level before the policy sees them.

        Columns beyond the target's vocabulary belong to tokens that are not drafted. They are not changed.
        """
        return logits

    def guide_candidates(self, candidates: Candidates, depth: int, randomness: Randomness) -> Candidates | None:
        """Do the same for a drafter that proposes few tokens; None if `guide` needs all columns."""
        return None if self.guides else candidates

    def verify(self, tree: DraftTree, logits: Tensor, randomness: Randomness) -> Verdict:
        """Judge a tree.

        Args:
            tree: the draft tree.
            logits: `[nodes, vocab]` of the target at every node; they may be overwritten.
            randomness: the round's random numbers, the only ones it may use.
        """
        raise NotImplementedError


class TreeView:
    """A tree as a sampling verifier sees it; distributions are made when asked for.

    Attributes:
        randomness: the round's random numbers.
        tokens: per node, its token id.
        children: per node, its children in draw order.
        child: maps a node and a token to the node's first child with that token, or to None.
    """

    def __init__(self, tree: DraftTree, logits: Tensor, sampling: Sampling, randomness: Randomness) -> None:
        self.randomness = randomness
        self.tokens = tree.tokens
        self.children = [[*siblings] for siblings in tree.children]
        self.child = tree.child
        self._logits = logits
        self._sampling = sampling
        self._draft = tree.draft_probs

    def target(self, node: int) -> Tensor:
        """`[vocab]` the target's distribution after a node, a new tensor each time."""
        return self._sampling.process(self._logits[node]).softmax(-1)

    def draft(self, node: int) -> Tensor:
        """`[vocab]` the distribution a node's first child was drawn from; 0 for tokens the drafter does not know.

        Do not write to it: if both vocabularies have the same size, it is the tree's own row.

        Raises:
            ConfigError: the tree does not say which distribution that was.
        """
        if node not in self._draft:
            raise ConfigError("this tree does not say which distribution its children were drawn from")
        row = self._draft[node]
        missing_columns = self._logits.shape[-1] - len(row)
        return torch.nn.functional.pad(row, (0, missing_columns)) if missing_columns else row

    def draw(self, distribution: Tensor) -> int:
        """A token of a distribution `[vocab]`.

        Raises:
            ModelError: the distribution is NaN, since the target's logits are.
        """
        if distribution[0].isnan():
            raise not_numbers()
        return self.randomness.draw(distribution)

    def read(self, probabilities: Sequence[Tensor]) -> list[float]:
        """Probabilities on the device as numbers on the host, in one copy.

        Raises:
            ModelError: one of them is NaN, since the target's logits are.
        """
        numbers = torch.stack(list(probabilities)).tolist() if probabilities else []
        if any(map(math.isnan, numbers)):
            raise not_numbers()
        return numbers


class SamplingVerifier(Verifier):
    """Base of verifiers that draw at random."""

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        return refuse_greedy(sampling)

    @property
    def guides(self) -> bool:
        return type(self).guide is not SamplingVerifier.guide or self.proposal is not Proposal.TOP_K

    def guide(self, logits: Tensor, depth: int, randomness: Randomness) -> Tensor:
        return logits if self.proposal is Proposal.TOP_K else self.sampling.process(logits)

    def verify(self, tree: DraftTree, logits: Tensor, randomness: Randomness) -> Verdict:
        if tree.proposal not in self.accepts:
            accepted = ", ".join(sorted(self.accepts))
            raise ConfigError(f"{type(self).__name__} judges {accepted} trees, not {tree.proposal} ones")
        judged = self.judge(TreeView(tree, logits, self.sampling, randomness))
        try:
            return Verdict(*judged)
        except TypeError:
            raise _no_verdict(self, judged) from None

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        """The accepted path and the bonus token."""
        raise NotImplementedError


def refuse_greedy(sampling: Sampling) -> str | None:
    """Why a verifier that draws at random cannot serve a sampling, None if it can."""
    return "draws at random; at temperature 0 use 'greedy'" if sampling.greedy else None


def check_verdict(verifier: Verifier, tree: DraftTree, verdict: object, vocab: int) -> Verdict:
    """Check the verdict of a verifier, which may be a user's; the result is a new list and plain numbers.

    Raises:
        ConfigError: the verdict is not a pair, its path does not lead down from the root, or its bonus is not a token.
    """
    name = type(verifier).__name__
    try:
        nodes, token = cast(Any, verdict)
        path = [*map(index, nodes)]
        bonus = index(token)
    except (TypeError, ValueError):
        raise _no_verdict(verifier, verdict) from None
    if path[:1] != [0] or any(child not in tree.children[node] for node, child in pairwise(path)):
        raise ConfigError(f"{name} accepts the nodes {path}, which do not form a path from the root")
    if not 0 <= bonus < vocab:
        raise ConfigError(f"{name} gives the bonus token {bonus}; the vocabulary has {vocab}")
    return Verdict(path, bonus)


def _no_verdict(verifier: Verifier, returned_value: object) -> ConfigError:
    expectation = "a verdict is the accepted nodes, from the root's 0 down, and the bonus token"
    return ConfigError(f"{type(verifier).__name__} returns {returned_value!r}; {expectation}")


def not_numbers() -> ModelError:
    """The error for target logits that are NaN, or -inf for every token."""
    cause = "its weights are damaged, or its dtype is too narrow for them"
    return ModelError(f"the target's logits are not finite (NaN, or -inf for every token); {cause}")


def normalise(mass: Tensor, fallback: Tensor) -> Tensor:
    """Non-negative mass `[vocab]` as a distribution; `fallback` if rounding has left none."""
    total = mass.sum()
    return torch.where(total > 0, mass / total, fallback)


def ratio(p: Tensor, q: Tensor, token: int) -> Tensor:
    """p/q of a token, a number on the device; 0 where q is 0, since such a token cannot have been drawn."""
    draft_prob = q[token]
    return torch.where(draft_prob > 0, p[token] / draft_prob, 0.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The target's distribution after a token drawn from q was rejected: the positive part of p - q, normalised."""
    return normalise((p - q).clamp_min_(0), p)


def without(q: Tensor, token: int) -> Tensor:
    """q with a token's probability removed, normalised."""
    remainder = q.clone()
    remainder[token] = 0
    return normalise(remainder, remainder)


def walk(tree: DraftTree, best_token: Callable[[int], int]) -> Verdict:
    """Walk down from the root while the best token after a node is among its children.

    Args:
        tree: the draft tree, whose siblings have different tokens.
        best_token: maps a node to the best token after it, `NOT_A_NUMBER` if its logits are NaN.

    Raises:
        ModelError: the target's logits of a node on the path are NaN.
    """
    path = [0]
    while (child := tree.child(path[-1], token := best_token(path[-1]))) is not None:
        path.append(child)
    if token == NOT_A_NUMBER:
        raise not_numbers()
    return Verdict(path, token)
