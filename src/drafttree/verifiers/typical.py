import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from drafttree.core.lazy import Tensor
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView


class LossyTypical(SamplingVerifier):
    """Accept what is not too improbable: Medusa's typical acceptance. LOSSY: the text does not follow the target.

    A node is accepted if its probability exceeds min(epsilon, alpha * exp(-entropy)). Among the longest accepted paths,
    the likeliest is taken. The bonus is the target's most probable token.
    """

    source: ClassVar[str] = "Medusa (Cai et al. 2024), typical acceptance"
    proposal: ClassVar[Proposal] = Proposal.TOP_K
    lossless: ClassVar[bool] = False

    epsilon: ClassVar[float] = 0.09
    alpha: ClassVar[float] = 0.3

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = _longest_path(view.children, self._accepted(view))
        return path, int(view.target(path[-1]).argmax())

    def _accepted(self, view: TreeView) -> dict[int, float]:
        """By accepted node, the target's log-probability of its token after its parent."""
        inner_nodes = [node for node, children in enumerate(view.children) if children]
        entropies = list[Tensor]()
        drafted_probs = dict[int, Tensor]()
        for node in inner_nodes:
            row = view.target(node)
            entropies.append(-(row * (row + 1e-5).log()).sum())
            drafted_probs |= {child: row[view.tokens[child]] for child in view.children[node]}
        numbers = view.read([*entropies, *drafted_probs.values()])
        probs = dict(zip(drafted_probs, numbers[len(inner_nodes) :], strict=True))
        accepted = dict[int, float]()
        for node, entropy in zip(inner_nodes, numbers, strict=False):
            threshold = math.log(min(self.epsilon, self.alpha * math.exp(-entropy)))
            for child in view.children[node]:
                logprob = math.log(probs[child]) if probs[child] else -math.inf
                if logprob > threshold:
                    accepted[child] = logprob
        return accepted


def _longest_path(children: Sequence[Sequence[int]], accepted: Mapping[int, float]) -> list[int]:
    """The longest path of accepted nodes, the likeliest of several.

    Args:
        children: per node, its children.
        accepted: the log-probability of every accepted node given its parent.
    """
    best_candidate: tuple[list[int], float] = ([0], 0.0)
    stack = [best_candidate]
    while stack:
        path, likelihood = stack.pop()
        best_candidate = max(
            best_candidate, (path, likelihood), key=lambda candidate: (len(candidate[0]), candidate[1])
        )
        next_nodes = [child for child in reversed(children[path[-1]]) if child in accepted]
        stack += [([*path, child], likelihood + accepted[child]) for child in next_nodes]
    return best_candidate[0]
