"""What a verifier is: a pure function from a tree and the target's logits to a verdict.

All randomness arrives in `noise`, so a verifier can be replayed and proven. `guide` lets a verifier show its noise to
the drafter as well, which makes the drafter guess the token that will be drawn rather than the likeliest one.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from drafttree.core.devices import near
from drafttree.core.errors import ConfigError, ModelError
from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Proposal, Verdict

Choose = Callable[[Tensor, int | Tensor], Tensor]
Ask = Callable[[list[int], int], list[int]]
NO_NUMBER = -1


class Verifier:
    """Base of all verifiers.

    Args:
        sampling: the distribution the text must have.

    Attributes:
        source: the paper and the equation or algorithm number.
        proposal: how the children of the trees it is given are chosen.
        accepts: every kind of tree it is lossless for.
        lossless: whether the text follows the target's distribution.
        chains_only: whether it judges trees without branches only.

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

    def guide(self, logits: Tensor, position: int, randomness: Randomness) -> Tensor:
        """The drafter's logits `[batch, frontier, vocab]` for a position, as the policy should see them.

        Columns beyond the target's vocabulary stand for tokens that are not drafted, and pass as the others do.
        """
        return logits

    def verify(self, tree: DraftTree, logits: Tensor, position: int, randomness: Randomness) -> Verdict:
        """Judge a batch of trees.

        Args:
            tree: the draft trees.
            logits: `[batch, nodes, vocab]` of the target at every node.
            position: absolute position of the root.
            noise: the only source of randomness.
        """
        raise NotImplementedError


class TreeView:
    """One sequence's tree as a sampling verifier sees it; distributions are made when asked for.

    Attributes:
        noise: answers `accept(probability)` and `draw(distribution)`.
        tokens: per node, its token id.
        children: per node, its children in draw order.
        child: the first child of a node with a token, or None.
    """

    def __init__(self, tree: DraftTree, index: int, logits: Tensor, sampling: Sampling, randomness: Randomness) -> None:
        self.randomness = randomness
        branches = tree.branches[index]
        self.tokens, self.children, self.child = branches.tokens, branches.children, branches.child
        self._logits, self._sampling = logits, sampling
        self._draft = [row for level in tree.draft_probs or () for row in level[index]]
        self._rows: list[int] = [] if tree.draft_rows is None else tree.draft_rows[index].tolist()

    def target(self, node: int) -> Tensor:
        """`[vocab]` the target's distribution after a node, a new tensor each time.

        Raises:
            ModelError: the target's logits are no numbers.
        """
        row = self._sampling.process(self._logits[node]).softmax(-1)
        if row[0].isnan():
            raise not_numbers()
        return row

    def draft(self, node: int) -> Tensor:
        """`[vocab]` the distribution a node's first child was drawn from; 0 for tokens the drafter does not know.

        It is the tree's own row wherever the vocabularies are as large: not to be written to.
        """
        if not self._draft or self._rows[node] < 0:
            raise ConfigError("this tree does not say which distribution its children were drawn from")
        row = self._draft[self._rows[node]]
        missing = self._logits.shape[-1] - len(row)
        return pad(row, (0, missing)) if missing else row


class SamplingVerifier(Verifier):
    """Base of verifiers that draw at random and judge one sequence at a time."""

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        if sampling.greedy:
            return "draws at random; at temperature 0 use 'greedy'"
        return None

    def guide(self, logits: Tensor, position: int, randomness: Randomness) -> Tensor:
        return logits if self.proposal is Proposal.TOP_K else self.sampling.process(logits)

    def verify(self, tree: DraftTree, logits: Tensor, position: int, randomness: Randomness) -> Verdict:
        if tree.proposal not in self.accepts:
            accepted = ", ".join(sorted(self.accepts))
            raise ConfigError(f"{type(self).__name__} judges {accepted} trees, not {tree.proposal} ones")
        randomness.begin(position)
        judged = [
            self.judge(TreeView(tree, index, rows, self.sampling, randomness)) for index, rows in enumerate(logits)
        ]
        return Verdict([path for path, _ in judged], [bonus for _, bonus in judged])

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        """The accepted path and the bonus token of one sequence."""
        raise NotImplementedError


def not_numbers() -> ModelError:
    """The error for logits that say nothing."""
    broken = "its weights are damaged, or its dtype is too narrow for them"
    return ModelError(f"the target's logits are not finite (NaN, or -inf for every token); {broken}")


def normalise(mass: Tensor, otherwise: Tensor) -> Tensor:
    """Non-negative mass `[vocab]` as a distribution, in place; `otherwise` where there is none left but rounding."""
    total = float(mass.sum())
    return mass.div_(total) if total > 0 else otherwise


def ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p/q of a token; 0 where q has none of it, so that what cannot have been drawn is not accepted."""
    wanted, offered = torch.stack((p[token], q[token])).tolist()
    return wanted / offered if offered > 0 else 0.0


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What is left of p once a token drawn from q has been rejected: the positive part of p - q, normalised."""
    return normalise((p - q).clamp_min_(0), p)


def without(q: Tensor, token: int) -> Tensor:
    """q with a token's probability removed, normalised."""
    rest = q.clone()
    rest[token] = 0
    return normalise(rest, rest)


def walk(tree: DraftTree, logits: Tensor, choose: Choose) -> Verdict:
    """Follow the tokens the target chooses, from the root for as long as they are in the tree.

    On a CPU only the rows of nodes on the way are looked at, a level at a time. Elsewhere all are, so that the host
    waits for the device once.

    Args:
        tree: the draft trees; siblings differ in their tokens.
        logits: `[batch, nodes, vocab]` of the target.
        choose: what follows nodes, `[batch, nodes]` token ids, from their logits `[batch, nodes, vocab]` and their
            depth, one for all or `[batch, nodes]`.

    Raises:
        ModelError: the target's logits are no numbers.
    """
    ask = _choices_along(logits, choose) if near(logits) else _choices_everywhere(tree, logits, choose)
    branches = tree.branches
    paths, bonus = [[0] for _ in branches], [-1] * len(branches)
    depth = 0
    while min(bonus) < 0:
        tokens = ask([path[-1] for path in paths], depth)
        depth += 1
        for index, token in enumerate(tokens):
            if bonus[index] < 0:
                if token == NO_NUMBER:
                    raise not_numbers()
                child = branches[index].child(paths[index][-1], token)
                if child is None:
                    bonus[index] = token
                else:
                    paths[index].append(child)
    return Verdict(paths, bonus)


def _choices_along(logits: Tensor, choose: Choose) -> Ask:
    """What is chosen after one node of each sequence, computed when asked."""
    return lambda nodes, depth: _chosen(_rows(logits, nodes), depth, choose)[:, 0].tolist()


def _choices_everywhere(tree: DraftTree, logits: Tensor, choose: Choose) -> Ask:
    """What is chosen after one node of each sequence, computed for all nodes beforehand."""
    told = _chosen(logits, tree.depths, choose).tolist()
    return lambda nodes, depth: [chosen[node] for chosen, node in zip(told, nodes, strict=True)]


def _chosen(rows: Tensor, depth: int | Tensor, choose: Choose) -> Tensor:
    """`[batch, nodes]` the tokens chosen, or `NO_NUMBER`."""
    tokens = choose(rows, depth)
    return tokens.masked_fill(rows.gather(-1, tokens[..., None])[..., 0].isnan(), NO_NUMBER)


def _rows(logits: Tensor, nodes: list[int]) -> Tensor:
    """`[batch, 1, vocab]` one node's row of each sequence; of a lone sequence without a copy."""
    if len(nodes) == 1:
        return logits[:, nodes[0] : nodes[0] + 1]
    return logits[torch.arange(len(nodes), device=logits.device), nodes][:, None]
