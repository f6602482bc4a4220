"""Random toy targets and drafts small enough to enumerate, and the policies and verifiers to try on them."""

from typing import ClassVar

import torch

from drafttree import DraftTree, Sampling, Verdict
from drafttree.core import Proposal
from drafttree.evaluation.pair_trials import EXACT, ToyPair, cut, toy_pair
from drafttree.exactness import TabularModel
from drafttree.policies import Chain, DynaTree, DySpec, Eagle, Fixed, OptTree, Talon, Template, TreePolicy
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal, Verifier

__all__ = ["EXACT", "ToyPair", "cut", "toy_pair"]


def constant(target: list[float], draft: list[float]) -> ToyPair:
    """A world whose rows are these probabilities after every text."""
    tables = []
    for probs in (target, draft):
        table = TabularModel(len(probs), 0, 0)
        row = table.rows[()].new_tensor(probs).log()
        table.rows = {(): row}
        tables.append(table)
    return ToyPair(*tables)


class PointMassOnSampled(PointMass):
    """The naive walk, on trees drawn without replacement."""

    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT


class PointMassOnIndependent(PointMass):
    """The naive walk, on trees whose siblings may be equal."""

    proposal: ClassVar[Proposal] = Proposal.WITH_REPLACEMENT


class PointMassOnHub(PointMass):
    """The naive walk, on trees of best tokens and one drawn."""

    proposal: ClassVar[Proposal] = Proposal.TOP_K_PLUS_SAMPLE


CHAINS: dict[str, TreePolicy] = {
    "chain-1": Chain(depth=1),
    "chain-3": Chain(depth=3),
    "chain cut by its budget": Chain(depth=3, budget=3),
}

SMALL_TREES: dict[str, TreePolicy] = {
    "siblings": Template(paths=((0,), (1,))),
    "every token": Template(paths=((0,), (1,), (2,))),
    "ragged": Template(paths=((0,), (1,), (0, 0))),
    "late branch": Template(paths=((0,), (0, 0), (0, 1))),
    "second child deeper": Template(paths=((0,), (1,), (1, 0), (1, 0, 0))),
    "eagle-sparse cut to 5": Template(tree="eagle-sparse", budget=5),
    "fixed": Fixed(depth=2, breadth=2, threshold=0.4, budget=5),
    "fixed without a gate": Fixed(depth=2, breadth=2, threshold=0.0, budget=4),
    "dynatree": DynaTree(
        base_depth=1,
        max_depth=3,
        min_breadth=1,
        mid_breadth=2,
        max_breadth=2,
        high=0.6,
        low=0.4,
        stop_below=0.2,
        deep_above=0.4,
        prune_below=0.0,
        budget=5,
    ),
    "dynatree wide when unsure": DynaTree(
        base_depth=2, max_depth=2, max_breadth=3, mid_breadth=1, high=0.7, low=0.5, stop_below=0.3, budget=6
    ),
    "talon": Talon(width=2, margin=0.5, budget=5),
    "talon narrow": Talon(width=1, margin=0.6, depth=3, budget=6),
}

LARGE_TREES: dict[str, TreePolicy] = {
    "binary-2": Template(tree="binary-2"),
    "ragged to depth 3": Template(paths=((0,), (1,), (0, 0), (0, 1), (0, 0, 0))),
    "eagle-sparse cut to 7": Template(tree="eagle-sparse", budget=7),
    "fixed with a gate": Fixed(depth=3, breadth=2, threshold=0.3, budget=7),
    "dynatree deep": DynaTree(base_depth=2, max_depth=3, high=0.6, low=0.4, stop_below=0.15, deep_above=0.3, budget=7),
    "talon cut by its budget": Talon(width=2, margin=0.3, depth=3, budget=7),
}

RERANKING: dict[str, TreePolicy] = {
    "eagle": Eagle(depth=2, top_k=2, budget=5),
    "eagle deep": Eagle(depth=3, top_k=3, budget=7),
    "opt-tree": OptTree(threshold=0.2, depth=3, budget=6),
    "dyspec": DySpec(depth=3, budget=6),
}

VARIANTS: dict[str, TreePolicy] = {
    "talon without robust levels": Talon(width=2, margin=0.5, robust=0, depth=3, budget=6),
    "talon with two robust levels": Talon(width=2, margin=0.5, robust=2, depth=2, budget=6),
    "fixed, first come": Fixed(depth=2, breadth=2, threshold=0.2, first_come=True, budget=5),
}

ON_TREES: tuple[type[Verifier], ...] = (
    PointMass,
    PointMassOnSampled,
    PointMassOnIndependent,
    PointMassOnHub,
    RRSw,
    RRS,
    Traversal,
    KSeq,
    GreedyMultiDraft,
)

PAIRS: list[tuple[str, TreePolicy, type[Verifier]]] = [
    *[(name, policy, verifier) for name, policy in CHAINS.items() for verifier in (*ON_TREES, Block)],
    *[(name, policy, verifier) for name, policy in SMALL_TREES.items() for verifier in ON_TREES],
    *[(name, policy, PointMass) for name, policy in RERANKING.items()],
    *[(name, policy, verifier) for name, policy in VARIANTS.items() for verifier in (PointMass, RRSw, Traversal)],
    ("eagle of the chosen", Eagle(depth=3, top_k=2, chosen_only=True, budget=6), PointMass),
]

LARGE_PAIRS: list[tuple[str, TreePolicy, type[Verifier]]] = [
    (name, policy, verifier) for name, policy in LARGE_TREES.items() for verifier in ON_TREES
]


class Told:
    """Noise that answers as it is told, and remembers what it was asked.

    Attributes:
        asked: the probabilities of the accept questions.
        drawn: the distributions of the draws, which all give their likeliest token.
    """

    def __init__(self, *answers: bool) -> None:
        self.answers, self.asked, self.drawn = list(answers), [], []

    def accept(self, probability) -> bool:
        self.asked.append(float(probability))
        return self.answers.pop(0)

    def draw(self, distribution) -> int:
        self.drawn.append((distribution / distribution.sum()).tolist())
        return int(distribution.argmax())


def drawn_tree(
    tokens: list[int], parents: list[int], draft: list[float], proposal: Proposal = Proposal.WITHOUT_REPLACEMENT
) -> DraftTree:
    """A tree of these nodes below the root, every node with children having the same draft row."""
    zero, row = [0.0] * (len(tokens) + 1), torch.tensor(draft, dtype=torch.float64)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    probs = dict.fromkeys(set(parents), row)
    return DraftTree([0, *tokens], [-1, *parents], zero, zero, max(depths), proposal, probs)


def judged(verifier: type[Verifier], tree: DraftTree, target: list[float], *answers: bool) -> tuple[Verdict, Told]:
    """The verdict on a tree where every target row is the same, and what was asked for it."""
    randomness = Told(*answers)
    logits = torch.tensor(target, dtype=torch.float64).log().expand(tree.size, -1)
    return verifier(Sampling(1.0)).verify(tree, logits, randomness), randomness
