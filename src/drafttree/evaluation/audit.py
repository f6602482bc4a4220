"""Bets on the tokens of texts while they are written, by the rows that they were chosen from.

The place of a token among those of its row, likeliest first, is uniform if the token follows the row's distribution
(the probability integral transform, randomised within the token's own probability), and independent of all before it.
A bet is fixed by the text so far, by how many tokens its round has committed before, and by the children that a policy
selected: nothing that was drawn for the round may enter it. Correct rejection sampling is uniform over all tokens, and
not among those that were accepted, or rejected, or drafted.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from drafttree.core.randomness import SeededRandomness
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.evaluation.biased_numbers import BiasedNumbers
from drafttree.evaluation.evidence import ACCEPTANCE, BEFORE, BESIDE, BIAS, FIRST_PLACE, LATER_PLACE, Evidence
from drafttree.verifiers.base import SamplingVerifier, Verifier

TRIED = 8
"""One in so many rounds is verified again, to measure what a bias would do."""


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
        nodes = verdict.path[: turn.committed]
        tokens = request.tokens[-turn.committed :]
        # As the verifier's own rows, in its precision: another one can move the edge of a truncation.
        rows = verifier.sampling.process(logits[nodes]).double().softmax(-1)
        first_position = len(request.tokens) - turn.committed
        text_places = self._places_of(request)
        shows_numbers = _shows_numbers(verifier)
        for depth, (node, token, row) in enumerate(zip(nodes, tokens, rows, strict=True)):
            if not shows_numbers and (favoured_tokens := _favoured(tree, node, row)) is not None:
                chance = min(float(row[favoured_tokens].sum()), 1.0)
                self.evidence.bet(ACCEPTANCE, float(favoured_tokens[token]) - chance)
                self.evidence.count_acceptance(chance)
                if depth == 0 and self.evidence.first_tokens % TRIED == 1:
                    self._try_bias(verifier, tree, logits, favoured_tokens)
            outcome = 1 - 2 * self._place(row, token)
            self.evidence.count_token(possible=bool(row[token] > 0))
            self.evidence.bet(LATER_PLACE if depth and not shows_numbers else FIRST_PLACE, outcome)
            neighbour_outcome = text_places.beside.at(first_position + depth) if text_places.beside else None
            for name, reference_outcome in (
                (BEFORE, text_places.at(first_position + depth - 1)),
                (BESIDE, neighbour_outcome),
            ):
                if reference_outcome is not None:
                    self.evidence.bet(name, outcome * reference_outcome)
            text_places.outcomes.append(outcome)

    def _places_of(self, request: Request) -> TextPlaces:
        if request not in self._places:
            neighbour = self._latest._replace(beside=None) if self._latest else None  # no chain of all texts ever
            self._latest = self._places[request] = TextPlaces(request.prompt_length, [], neighbour)
        return self._places[request]

    def _place(self, row: Tensor, token: int) -> float:
        """A number in [0, 1], uniform if the token was drawn from the row; equally likely tokens share their part."""
        chance = row[token]
        likelier_mass = row.masked_fill(row <= chance, 0.0).sum()
        equal_mass = row.masked_fill(row != chance, 0.0).sum()
        return min(float(likelier_mass + self._numbers.random() * equal_mass), 1.0)

    def _try_bias(self, verifier: Verifier, tree: DraftTree, logits: Tensor, favoured: Tensor) -> None:
        """Verify the round twice again by new numbers, once with a bias, and note how the bet would have ended."""
        seed = int(self._numbers.integers(2**62))
        hits = list[bool]()
        for bias in (0.0, BIAS):
            numbers = BiasedNumbers(SeededRandomness(seed, logits.shape[-1], logits.device), bias)
            verifier_copy = type(verifier)(verifier.sampling)  # one that keeps a state must not see this
            path, bonus = verifier_copy.verify(tree, logits.clone(), numbers)
            hits.append(bool(favoured[tree.tokens[path[1]] if len(path) > 1 else bonus]))
        self.evidence.count_shift(hits[1] - hits[0])


def _favoured(tree: DraftTree, node: int, row: Tensor) -> Tensor | None:
    """Which tokens of the vocabulary acceptance favours behind a node; None where the text so far does not say it.

    Those are selected children. Of drawn ones nothing may be known, but of the root the distribution that they were
    drawn from: tokens that it prefers to the target.
    """
    if tree.proposal is Proposal.TOP_K:
        children = [tree.tokens[child] for child in tree.children[node]]
        favoured_tokens = torch.zeros_like(row, dtype=torch.bool)
        favoured_tokens[children] = True
        return favoured_tokens if children else None
    if node or not tree.children[node] or node not in tree.draft_probs:
        return None
    draft = tree.draft_probs[node].to(row)
    return torch.nn.functional.pad(draft, (0, len(row) - len(draft))) > row


def _shows_numbers(verifier: Verifier) -> bool:
    """Whether the drafter is shown the verifier's random numbers, so that trees say something about tokens to come."""
    return type(verifier).guide not in (Verifier.guide, SamplingVerifier.guide)
