"""Bets on the tokens of texts while they are written, by the distributions that they were chosen from.

A token's place in its distribution, likeliest tokens first, is uniform if the token follows the distribution. It is
also independent of all earlier tokens. (This is the probability integral transform, randomised within the token's own
probability.) A bet may depend on the text so far, on how many tokens its round has committed, and on the children that
a policy selected. It must not depend on anything drawn for the round: with correct rejection sampling, places are
uniform over all tokens, but not over the accepted, the rejected or the drafted ones alone.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from drafttree.core.randomness import SeededRandomness
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request
from drafttree.evaluation.biased_numbers import BiasedNumbers
from drafttree.evaluation.evidence import ACCEPTANCE, BEFORE, BESIDE, BIAS, FIRST_PLACE, LATER_PLACE, Evidence
from drafttree.verifiers.base import SamplingVerifier, Verifier

TRIED = 8
"""One in this many bets on the first token of a round is repeated with a bias, to measure its effect."""


class TextPlaces(NamedTuple):
    """The places of a text's tokens.

    Attributes:
        begin: the position of the first token after the prompt.
        outcomes: per token, `1 - 2 * place`, in [-1, 1].
        beside: the places of the text that began before this one; None if there was none.
    """

    begin: int
    outcomes: list[float]
    beside: "TextPlaces | None"

    def at(self, position: int) -> float | None:
        """The outcome at a position of the text; None if there is none."""
        index = position - self.begin
        return self.outcomes[index] if 0 <= index < len(self.outcomes) else None


class Audit:
    """Sees the rounds of texts (`RoundObserver`) and gathers evidence that their tokens do not follow the target's law.

    Texts at temperature 0 draw nothing and are not evidence. The caller must give it only texts with different random
    numbers, so each seed at most once.

    Args:
        seed: the seed of the numbers that randomise places, which texts do not use; None for one of the system.

    Attributes:
        evidence: the evidence so far.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.evidence = Evidence()
        self._numbers = np.random.default_rng(seed)
        self._places = WeakKeyDictionary[Request, TextPlaces]()
        self._latest: TextPlaces | None = None

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        """Do nothing; `settled` sees the tree that was verified."""

    def settled(
        self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        """Settle the bets on a round's tokens; see `RoundObserver`."""
        verifier = request.task.verifier
        if verifier.sampling.greedy:
            return
        nodes = verdict.path[: text_round.committed]
        tokens = request.tokens[-text_round.committed :]
        # as the verifier computes them, in its precision: another precision can move the edge of a truncation
        rows = verifier.sampling.process(logits[nodes]).double().softmax(-1)
        text_places = self._places_of(request)
        shows_numbers = _shows_numbers(verifier)
        for depth, (node, token, row) in enumerate(zip(nodes, tokens, rows, strict=True)):
            if not shows_numbers and (favoured_tokens := _favoured(tree, node, row)) is not None:
                self._bet_on_acceptance(row, token, favoured_tokens)
                if depth == 0 and self.evidence.first_tokens % TRIED == 1:
                    self._try_bias(verifier, tree, logits, favoured_tokens)
            outcome = 1 - 2 * self._place(row, token)
            self.evidence.count_token(possible=bool(row[token] > 0))
            self.evidence.bet(LATER_PLACE if depth and not shows_numbers else FIRST_PLACE, outcome)
            self._bet_on_likeness(text_places, len(request.tokens) - text_round.committed + depth, outcome)
            text_places.outcomes.append(outcome)

    def _bet_on_acceptance(self, row: Tensor, token: int, favoured: Tensor) -> None:
        """Bet that the token is a favoured one, at the odds of the favoured tokens' probability in its row."""
        chance = min(float(row[favoured].sum()), 1.0)
        self.evidence.bet(ACCEPTANCE, float(favoured[token]) - chance)
        self.evidence.count_acceptance(chance)

    def _bet_on_likeness(self, text_places: TextPlaces, position: int, outcome: float) -> None:
        """Bet that the outcome at a position is like that of the token before, and like that of the text beside."""
        neighbour_outcome = text_places.beside.at(position) if text_places.beside else None
        for name, reference_outcome in ((BEFORE, text_places.at(position - 1)), (BESIDE, neighbour_outcome)):
            if reference_outcome is not None:
                self.evidence.bet(name, outcome * reference_outcome)

    def _places_of(self, request: Request) -> TextPlaces:
        if request not in self._places:
            # without its own neighbour, so that the texts do not form an endless chain
            neighbour = self._latest._replace(beside=None) if self._latest else None
            self._latest = self._places[request] = TextPlaces(len(request.task.prompt), [], neighbour)
        return self._places[request]

    def _place(self, row: Tensor, token: int) -> float:
        """The place of a token in its row, in [0, 1]; it is random among equally likely tokens."""
        chance = row[token]
        likelier_mass = row.masked_fill(row <= chance, 0.0).sum()
        equal_mass = row.masked_fill(row != chance, 0.0).sum()
        return min(float(likelier_mass + self._numbers.random() * equal_mass), 1.0)

    def _try_bias(self, verifier: Verifier, tree: DraftTree, logits: Tensor, favoured: Tensor) -> None:
        """Verify the round again, without and with a bias, and count how much the bias raises the bet's outcome."""
        seed = int(self._numbers.integers(2**62))
        hits = list[bool]()
        for bias in (0.0, BIAS):
            numbers = BiasedNumbers(SeededRandomness(seed, logits.shape[-1], logits.device), bias)
            verifier_copy = type(verifier)(verifier.sampling)  # its state must not change
            path, bonus = verifier_copy.verify(tree, logits.clone(), numbers)
            hits.append(bool(favoured[tree.tokens[path[1]] if len(path) > 1 else bonus]))
        self.evidence.count_shift(hits[1] - hits[0])


def _favoured(tree: DraftTree, node: int, row: Tensor) -> Tensor | None:
    """Bool `[vocab]`: which tokens acceptance favours after a node; None if that is not known before drawing.

    Selected children are favoured. A bet must not know drawn children, but it may know the distribution that the root's
    children are drawn from: then the tokens are favoured that are likelier there than in the target's row.
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
    """Whether the drafter is shown the verifier's random numbers; then the tree depends on the tokens to come."""
    return type(verifier).guide not in (Verifier.guide, SamplingVerifier.guide)
