"""A drafter whose agreement with the target can be chosen, between noise and the target itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import derived_seed, gumbel
from drafttree.drafters.base import HiddenStates, Session, ShownBySize
from drafttree.drafters.language_model import LanguageModelDrafter


@dataclass(frozen=True)
class Grade:
    """How near a drafter is to the target; without weight and noise it is the draft model as it is.

    Attributes:
        weight: share of the target's logits in the drafter's, 0 to 1.
        noise: scale of Gumbel noise that is added to the drafter's logits. At scale s its best token is one drawn at
            temperature s.
        temperature: divides the logits in the end: it decides how sure the drafter is, and none of its best tokens.
        seed: seed of the noise.
    """

    weight: float = 0.0
    noise: float = 0.0
    temperature: float = 1.0
    seed: int = 0

    def logits(self, draft: Tensor, target: Tensor | None, positions: Tensor, tokens: Tensor) -> Tensor:
        """The graded logits `[nodes, vocab]`, in the smaller of the two vocabularies.

        Args:
            draft: `[nodes, vocab]` logits of the draft model.
            target: those of the target; None is enough without a weight.
            positions: int64 `[nodes]` positions of the nodes that the logits follow.
            tokens: int64 `[nodes]` their token ids. The noise is a function of seed, position and token alone.
        """
        mixed = draft
        if self.weight and target is not None:
            vocab = min(draft.shape[-1], target.shape[-1])
            mixed = torch.lerp(draft[:, :vocab].float(), target[:, :vocab].float(), self.weight)
        if self.noise:
            vocab = mixed.shape[-1]
            places = positions * vocab + tokens
            mixed = mixed + self.noise * gumbel(derived_seed(self.seed, "graded drafter"), places, vocab)
        return mixed / self.temperature


class GradedDrafter(ShownBySize):
    """Drafts with the logits of a draft model, mixed with those of the target or with noise, more or less sure.

    It asks the target on every level, so its time says nothing. What it counts is one pass a level, like any drafter.

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
        self.draft, self.target, self.grade = draft, target, grade
        self.vocab_size = min(draft.vocab_size, target.vocab_size)
        self.context = min((each.context for each in (draft, target) if each.context is not None), default=None)
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = draft.nbytes

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request with a session of the draft model, and one of the target where it has a weight."""
        target = self.target.start(prompt, capacity) if self.grade.weight else None
        return GradedSession(self.grade, self.draft.start(prompt, capacity), target, prompt)


class GradedSession(Session):
    """The sessions of both models for one request.

    Args:
        grade: how their logits are mixed.
        draft: session of the draft model.
        target: session of the target; None where it has no weight.
        prompt: token ids of the prompt.
    """

    def __init__(self, grade: Grade, draft: Session, target: Session | None, prompt: Sequence[int]) -> None:
        self._grade, self._draft, self._target = grade, draft, target
        self._last, self._root, self._level = prompt[-1], len(prompt) - 1, 0

    @property
    def passes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._draft.passes

    @property
    def seconds(self) -> float:
        return sum(session.seconds for session in self._sessions)

    @property
    def nbytes(self) -> int:
        return sum(session.nbytes for session in self._sessions)

    @property
    def _sessions(self) -> list[Session]:
        return [self._draft, *([self._target] if self._target else [])]

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        for session in self._sessions:
            session.prefill(hidden_states, tokens)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        for session in self._sessions:
            session.commit(tokens, hidden_states)
        self._last, self._root = tokens[-1], self._root + len(tokens)

    def root(self) -> Tensor:
        self._level = 0
        draft, target = self._draft.root(), self._target.root() if self._target else None
        return self._graded(draft, target, torch.tensor([[self._last]], device=draft.device))

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        self._level += 1
        target = self._target.expand(tokens, origins) if self._target else None
        return self._graded(self._draft.expand(tokens, origins), target, tokens)

    def _graded(self, draft: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
        positions = torch.full_like(tokens[0], self._root + self._level)
        return self._grade.logits(draft[0], None if target is None else target[0], positions, tokens[0])[None]
