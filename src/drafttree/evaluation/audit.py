"""Bets on the tokens of texts while they are written, by the rows that they were chosen from.

The place of a token among those of its row, likeliest first, is uniform if the token follows the row's distribution
(the probability integral transform, randomised within the token's own probability), and independent of all before it.
A bet is fixed by the text so far, by how many tokens its round has committed before, and by the children that a policy
selected: nothing that was drawn for the round may enter it. Correct rejection sampling is uniform over all tokens, and
not among those that were accepted, or rejected, or drafted.
"""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.evaluation.evidence import ACCEPTANCE, BEFORE, BESIDE, BIASES, FIRST_PLACE, LATER_PLACE, Evidence
from drafttree.verifiers.base import SamplingVerifier, Verifier

LEAST = 1e-6
"""The probability below which tokens do not count for the power of bets."""


class TextPlaces(NamedTuple):
    """Of one text, the outcomes `1 - 2 * place` of its tokens, and those of the text that began before it."""

    begin: int
    outcomes: list[float]
    beside: "TextPlaces | None"

    def at(self, position: int) -> float | None:
        """The outcome at a position of the text, None if there is none."""
        index = position - self.begin
        return self.outcomes[index] if 0 <= index < len(self.outcomes) else None


class Audit:
    """Sees the rounds of texts (`RoundObserver`) and gathers evidence that their tokens do not follow the target's law.

    Texts at temperature 0 draw nothing and are no evidence. A text must use other random numbers than every text before
    it, so each seed counts once: which texts it is given is for the caller to decide.

    Args:
        seed: of the numbers that randomise places; None for the system's. They are not those of texts.

    Attributes:
        evidence: what was found so far.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.evidence = Evidence()
        self._numbers = np.random.default_rng(seed)
        self._places = WeakKeyDictionary[Request, TextPlaces]()
        self._latest: TextPlaces | None = None

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        """See `RoundObserver`: the tree that is verified is seen with its verdict."""

    def settled(self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        """Settle the bets on a round's tokens; see `RoundObserver`."""
        verifier = request.verifier
        if verifier.sampling.greedy:
            return
        nodes, tokens = verdict.path[: turn.committed], request.tokens[-turn.committed :]
        # As the verifier's own rows, in its precision: another one can move the edge of a truncation.
        rows = verifier.sampling.process(logits[nodes]).double().softmax(-1)
        first_position, places = len(request.tokens) - turn.committed, self._places_of(request)
        shows_numbers = _shows_numbers(verifier)
        for depth, (node, token, row) in enumerate(zip(nodes, tokens, rows, strict=True)):
            if not shows_numbers:
                self._bet_on_acceptance(tree, node, token, row)
            outcome = 1 - 2 * self._place(row, token)
            self.evidence.tokens += 1
            self.evidence.bet(LATER_PLACE if depth and not shows_numbers else FIRST_PLACE, outcome)
            beside = places.beside.at(first_position + depth) if places.beside else None
            for name, other in ((BEFORE, places.at(first_position + depth - 1)), (BESIDE, beside)):
                if other is not None:
                    self.evidence.bet(name, outcome * other)
            places.outcomes.append(outcome)

    def _places_of(self, request: Request) -> TextPlaces:
        if request not in self._places:
            beside = self._latest._replace(beside=None) if self._latest else None  # no chain of all texts ever
            self._latest = self._places[request] = TextPlaces(request.prompt_length, [], beside)
        return self._places[request]

    def _place(self, row: Tensor, token: int) -> float:
        """A number in [0, 1], uniform if the token was drawn from the row; equally likely tokens share their part."""
        chance = row[token]
        likelier = row.masked_fill(row <= chance, 0.0).sum()
        equal = row.masked_fill(row != chance, 0.0).sum()
        if not chance > 0:
            self.evidence.impossible += 1
            return 1.0
        return min(float(likelier + self._numbers.random() * equal), 1.0)

    def _bet_on_acceptance(self, tree: DraftTree, node: int, token: int, row: Tensor) -> None:
        """Bet that the token is one that acceptance favours, where the text so far says which those are."""
        if tree.proposal is Proposal.TOP_K:
            favoured = sorted({tree.tokens[child] for child in tree.children[node]})
            if favoured:
                chance = min(float(row[favoured].sum()), 1.0)
                self.evidence.bet(ACCEPTANCE, (token in favoured) - chance)
                self.evidence.count_power(chance, np.minimum(BIASES * chance, 1 - chance).tolist())
        elif node == 0 and node in tree.draft_probs and tree.children[node]:
            draft = tree.draft_probs[node].to(row)
            draft = torch.nn.functional.pad(draft, (0, len(row) - len(draft)))
            favours = draft > row
            chance = min(float(row[favours].sum()), 1.0)
            self.evidence.bet(ACCEPTANCE, float(favours[token]) - chance)
            self.evidence.count_power(chance, _shifts(row[favours], draft[favours]))


def _shows_numbers(verifier: Verifier) -> bool:
    """Whether the drafter is shown the verifier's random numbers, so that trees say something about tokens to come."""
    return type(verifier).guide not in (Verifier.guide, SamplingVerifier.guide)


def _shifts(target: Tensor, draft: Tensor) -> Sequence[float]:
    """Per `BIASES`, how much likelier a token becomes that the draft favours, if it is accepted so much more often.

    A drafted token is accepted with min(1, p / q), times 1 + bias: it is committed with min(q, (1 + bias) p).
    """
    counts = target > LEAST
    target, excess = target[counts], (draft - target)[counts]
    biases = torch.from_numpy(BIASES).to(target)
    return torch.minimum(excess, biases[:, None] * target).sum(-1).tolist()
