"""How often a drafter's best token is the target's own, and the grades that agree as often as is wanted.

A grade's temperature makes the drafter as sure of its best token, on average, as it is right. So agreement is all that
grades differ in, and a policy that reads the drafter's probabilities reads what they mean. Small models need this: the
embedded target gives its own greedy tokens half the probability that large models give theirs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drafttree.models import Model, Segment
from drafttree_lab.winner_map.graded_drafter import Grade

HALVINGS = 24
"""Steps of a bisection: the grade is then known more finely than a text tells grades apart."""
MOST_NOISE = 256.0
"""Scale of the noise beyond which no less agreement is looked for."""
SHARPEST = math.log(64)
"""Logarithm of what temperatures are divided or multiplied by, at most."""


@dataclass(frozen=True)
class KnownText:
    """What both models expect along a text of the target's own, given its true beginning at every position.

    Attributes:
        draft: `[tokens, vocab]` logits of the draft model.
        target: `[tokens, vocab]` logits of the target.
        positions: int64 `[tokens]` positions of the tokens that the logits follow.
        tokens: int64 `[tokens]` these tokens.
        wanted: int64 `[tokens]` the target's token behind each.
    """

    draft: Tensor
    target: Tensor
    positions: Tensor
    tokens: Tensor
    wanted: Tensor

    @classmethod
    def read(cls, draft: Model, target: Model, prompt: Sequence[int], written: Sequence[int]) -> "KnownText":
        """Read a text with both models, in one pass each.

        Args:
            draft: the draft model.
            target: the target.
            prompt: token ids of the prompt.
            written: token ids of what the target has written after it.
        """
        text, first = [*prompt, *written][:-1], len(prompt) - 1
        ids = torch.tensor([*text[first:], written[-1]], device=target.device)
        expected, own = (_logits(model, text)[first:] for model in (draft, target))
        return cls(expected, own, torch.arange(first, len(text), device=ids.device), ids[:-1], ids[1:])

    def graded(self, grade: Grade) -> Tensor:
        """The logits `[tokens, vocab]` of a drafter of this grade."""
        return grade.logits(self.draft, self.target, self.positions, self.tokens)


@dataclass(frozen=True)
class GradedAgreement:
    """A grade, and what it came to on the texts.

    Attributes:
        wanted: the agreement that was looked for.
        grade: the grade that comes nearest.
        reached: its agreement.
        confidence: mean probability that it gives to its best token, which its temperature brings to the agreement.
    """

    wanted: float
    grade: Grade
    reached: float
    confidence: float


def agreement(grade: Grade, texts: Sequence[KnownText]) -> float:
    """The share of positions at which the best token of a drafter of this grade is the target's own."""
    agreed = [text.graded(grade).argmax(-1) == text.wanted for text in texts]
    return torch.cat(agreed).double().mean().item()


def confidence(grade: Grade, texts: Sequence[KnownText]) -> float:
    """The mean probability that a drafter of this grade gives to its best token."""
    return torch.cat([text.graded(grade).softmax(-1).amax(-1) for text in texts]).double().mean().item()


def find_grade(wanted: float, texts: Sequence[KnownText], seed: int) -> GradedAgreement:
    """The grade whose agreement comes nearest to a wanted one: with more of the target than the draft model, or noise.

    Args:
        wanted: agreement, 0 to 1.
        texts: texts of the target on which it is counted.
        seed: seed of the noise.
    """
    plain = _find_noise(wanted, texts, seed) if agreement(Grade(), texts) > wanted else _find_weight(wanted, texts)
    reached = agreement(plain, texts)
    sharp = bisect(
        lambda sharpness: confidence(replace(plain, temperature=math.exp(-sharpness)), texts),
        reached,
        -SHARPEST,
        SHARPEST,
    )
    found = replace(plain, temperature=math.exp(-sharp))
    return GradedAgreement(wanted, found, reached, confidence(found, texts))


def _find_weight(wanted: float, texts: Sequence[KnownText]) -> Grade:
    return Grade(weight=bisect(lambda weight: agreement(Grade(weight), texts), wanted, 0.0, 1.0))


def _find_noise(wanted: float, texts: Sequence[KnownText], seed: int) -> Grade:
    def disagreement(noise: float) -> float:
        return 1 - agreement(Grade(noise=noise, seed=seed), texts)

    most = 1.0
    while disagreement(most) < 1 - wanted and most < MOST_NOISE:
        most *= 2
    return Grade(noise=bisect(disagreement, 1 - wanted, 0.0, most), seed=seed)


def bisect(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function reaches a value, between two ends; an end where it does not."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= wanted else (middle, high)
    return high


def _logits(model: Model, text: list[int]) -> Tensor:
    """Logits `[tokens, vocab]` after every token."""
    known = [min(token, model.vocab_size - 1) for token in text]
    segment = Segment.of_text(model.new_cache(len(text)), known, model.device)._replace(wanted=slice(None))
    (output,) = model.forward([segment])
    return output.logits[0]
