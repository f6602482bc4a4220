"""A drafter with a chosen agreement with its target, anywhere between noise and the target itself.

A grade's temperature calibrates the drafter: the mean probability of its best token is the share at which it is right.
So grades differ in agreement alone, and policies that read the drafter's probabilities can rely on them. Small models
need this: the embedded target gives its own greedy tokens half the probability that large models give theirs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import derived_seed, gumbel
from drafttree.drafters.base import HiddenStates, Session, ShownBySize
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.models import Model, Segment

CALIBRATED = "calibrated"
CONFIDENCES = {"overconfident": 0.4, CALIBRATED: 1.0, "underconfident": 2.0}
"""Factors of a grade's temperature; they change how sure a drafter is, but not its best tokens."""
HALVINGS = 24
"""Steps of a bisection; after so many, a text no longer distinguishes the two grades."""
MAX_NOISE = 256.0
"""Largest scale of the noise."""
MAX_SHARPNESS = math.log(64)
"""Largest sharpness, minus the logarithm of a temperature; the smallest is its negative."""


@dataclass(frozen=True)
class Grade:
    """How near a drafter is to the target; without weight and noise, it is the unchanged draft model.

    Attributes:
        weight: share of the target's logits in the drafter's, 0 to 1.
        noise: scale of the Gumbel noise on the drafter's logits. At scale s, its best token is distributed like a token
            drawn at temperature s.
        temperature: divides the logits last; it changes how sure the drafter is, but not its best tokens.
        seed: seed of the noise.
    """

    weight: float = 0.0
    noise: float = 0.0
    temperature: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in asdict(self).items())

    @classmethod
    def parse(cls, text: str) -> "Grade":
        """The grade of a text that `str` made, which has six digits of each number."""
        numbers = dict(assignment.split("=") for assignment in text.split(","))
        return cls(seed=int(numbers.pop("seed")), **{name: float(value) for name, value in numbers.items()})

    def logits(self, draft: Tensor, target: Tensor | None, positions: Tensor, tokens: Tensor) -> Tensor:
        """The graded logits `[nodes, vocab]`, in the smaller of the two vocabularies.

        Args:
            draft: `[nodes, vocab]` logits of the draft model.
            target: `[nodes, vocab]` logits of the target; may be None if the weight is 0.
            positions: int64 `[nodes]` positions of the nodes that the logits follow.
            tokens: int64 `[nodes]` token ids of these nodes. The noise depends on seed, position and token alone.
        """
        mixed_logits = draft
        if self.weight and target is not None:
            vocab = min(draft.shape[-1], target.shape[-1])
            mixed_logits = torch.lerp(draft[:, :vocab].float(), target[:, :vocab].float(), self.weight)
        if self.noise:
            vocab = mixed_logits.shape[-1]
            noise_keys = positions * vocab + tokens
            mixed_logits = mixed_logits + self.noise * gumbel(
                derived_seed(self.seed, "graded drafter"), noise_keys, vocab
            )
        return mixed_logits / self.temperature


class GradedDrafter(ShownBySize):
    """Drafts with the logits of a draft model, mixed with the target's logits or with noise.

    It runs the target on every level, so its time means nothing. It counts one pass per level, like any drafter.

    Args:
        draft: drafts with the draft model.
        target: drafts with the target itself.
        grade: how near to the target it is.

    Raises:
        ConfigError: the grade is out of range.
    """

    def __init__(self, draft: LanguageModelDrafter, target: LanguageModelDrafter, grade: Grade) -> None:
        if not 0 <= grade.weight <= 1 or grade.noise < 0 or grade.temperature <= 0:
            raise ConfigError(f"{grade}: weight lies between 0 and 1, noise is 0 or more, temperature above 0")
        self.draft = draft
        self.target = target
        self.grade = grade
        self.vocab_size = min(draft.vocab_size, target.vocab_size)
        self.context = min(
            (drafter.context for drafter in (draft, target) if drafter.context is not None), default=None
        )
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = draft.nbytes

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request with a session of the draft model, and one of the target if it has a weight."""
        target = self.target.start(prompt, capacity) if self.grade.weight else None
        return GradedSession(self.grade, self.draft.start(prompt, capacity), target, prompt)


class GradedSession(Session):
    """The sessions of both models for one request.

    Args:
        grade: how their logits are mixed.
        draft: session of the draft model.
        target: session of the target; None if it has no weight.
        prompt: token ids of the prompt.
    """

    def __init__(self, grade: Grade, draft: Session, target: Session | None, prompt: Sequence[int]) -> None:
        self._grade = grade
        self._draft = draft
        self._target = target
        self._sessions = [draft, *([target] if target else [])]
        self._last = prompt[-1]
        self._root = len(prompt) - 1
        self._level = 0

    @property
    def passes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._draft.passes

    @property
    def seconds(self) -> float:
        return sum(map(attrgetter("seconds"), self._sessions))

    @property
    def nbytes(self) -> int:
        return sum(map(attrgetter("nbytes"), self._sessions))

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        for session in self._sessions:
            session.prefill(hidden_states, tokens)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        for session in self._sessions:
            session.commit(tokens, hidden_states)
        self._last = tokens[-1]
        self._root += len(tokens)

    def draft_root(self) -> Tensor:
        self._level = 0
        draft, target = self._draft.draft_root(), self._target.draft_root() if self._target else None
        return self._graded(draft, target, torch.tensor([[self._last]], device=draft.device))

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        self._level += 1
        target = self._target.draft_level(tokens, origins) if self._target else None
        return self._graded(self._draft.draft_level(tokens, origins), target, tokens)

    def _graded(self, draft: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
        positions = torch.full_like(tokens[0], self._root + self._level)
        return self._grade.logits(draft[0], None if target is None else target[0], positions, tokens[0])[None]


@dataclass(frozen=True)
class KnownText:
    """The logits of both models along a text that the target wrote.

    Attributes:
        draft: `[tokens, vocab]` logits of the draft model.
        target: `[tokens, vocab]` logits of the target.
        positions: int64 `[tokens]` positions of the tokens that the logits follow.
        tokens: int64 `[tokens]` these tokens.
        wanted: int64 `[tokens]` the target's likeliest token after each of them.
        temperature: temperature of the text.
    """

    draft: Tensor
    target: Tensor
    positions: Tensor
    tokens: Tensor
    wanted: Tensor
    temperature: float = 0.0

    @classmethod
    def read(
        cls, draft: Model, target: Model, prompt: Sequence[int], text_ids: Sequence[int], temperature: float = 0.0
    ) -> "KnownText":
        """Read a text with both models, in one pass each.

        Args:
            draft: the draft model.
            target: the target.
            prompt: token ids of the prompt.
            text_ids: token ids of the text that the target wrote after it.
            temperature: temperature of the text.
        """
        text = [*prompt, *text_ids][:-1]
        start = len(prompt) - 1
        ids = torch.tensor([*text[start:], text_ids[-1]], device=target.device)
        draft_logits = _read_logits(draft, text)[start:]
        target_logits = _read_logits(target, text)[start:]
        positions = torch.arange(start, len(text), device=ids.device)
        likeliest = target_logits.argmax(-1)
        return cls(draft_logits, target_logits, positions, ids[:-1], likeliest if temperature else ids[1:], temperature)

    def graded(self, grade: Grade) -> Tensor:
        """The logits `[tokens, vocab]` of a drafter of this grade."""
        return grade.logits(self.draft, self.target, self.positions, self.tokens)

    def rightness(self, grade: Grade) -> Tensor:
        """The probability `[tokens]` that the target writes the best token of a drafter of this grade."""
        best_tokens = self.graded(grade).argmax(-1)
        if not self.temperature:
            return (best_tokens == self.wanted).double()
        return (self.target.float() / self.temperature).softmax(-1).gather(-1, best_tokens[:, None])[:, 0].double()


def _read_logits(model: Model, tokens: Sequence[int]) -> Tensor:
    """The logits `[tokens, vocab]` after each token of a text; ids beyond the vocabulary are read as its last one."""
    known_tokens = [min(token, model.vocab_size - 1) for token in tokens]
    segment = Segment.of_text(model.new_cache(len(tokens)), known_tokens)._replace(wanted=slice(None))
    (output,) = model.forward([segment])
    return output.logits[0]


@dataclass(frozen=True)
class GradedAgreement:
    """A grade with its agreement and confidence on some texts.

    Attributes:
        wanted: the agreement that was aimed at.
        grade: the grade that comes nearest.
        reached: its agreement.
        confidence: mean probability of its best token. The temperature is chosen so that this is the mean probability
            that the target writes this token; in greedy texts, that is the agreement.
    """

    wanted: float
    grade: Grade
    reached: float
    confidence: float


def agreement(grade: Grade, texts: Sequence[KnownText]) -> float:
    """The share of positions at which the best token of a drafter of this grade is the target's."""
    agreed = [text.graded(grade).argmax(-1) == text.wanted for text in texts]
    return torch.cat(agreed).double().mean().item()


def confidence(grade: Grade, texts: Sequence[KnownText]) -> float:
    """The mean probability that a drafter of this grade gives to its best token."""
    return torch.cat([text.graded(grade).softmax(-1).amax(-1) for text in texts]).double().mean().item()


def find_grade(aimed_agreement: float, texts: Sequence[KnownText], seed: int) -> GradedAgreement:
    """The grade whose agreement comes nearest to a given one, by mixing in the target's logits, or noise.

    Args:
        aimed_agreement: the agreement to reach, 0 to 1.
        texts: texts of the target on which agreement is measured.
        seed: seed of the noise.
    """
    if agreement(Grade(), texts) > aimed_agreement:

        def disagreement(noise: float) -> float:
            return 1 - agreement(Grade(noise=noise, seed=seed), texts)

        noise_bound = 1.0
        while disagreement(noise_bound) < 1 - aimed_agreement and noise_bound < MAX_NOISE:
            noise_bound *= 2
        plain = Grade(noise=bisect(disagreement, 1 - aimed_agreement, 0.0, noise_bound), seed=seed)
    else:
        plain = Grade(weight=bisect(lambda weight: agreement(Grade(weight), texts), aimed_agreement, 0.0, 1.0))
    reached_agreement = agreement(plain, texts)

    def of_sharpness(sharpness: float) -> Grade:
        return replace(plain, temperature=math.exp(-sharpness))

    right = torch.cat([text.rightness(plain) for text in texts]).mean().item()
    sharp = bisect(lambda sharpness: confidence(of_sharpness(sharpness), texts), right, -MAX_SHARPNESS, MAX_SHARPNESS)
    return GradedAgreement(
        aimed_agreement, of_sharpness(sharp), reached_agreement, confidence(of_sharpness(sharp), texts)
    )


def bisect(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """The point between `low` and `high` at which a rising function reaches a value; the nearer end if it does not."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) >= value else (middle, high)
    return high
