"""A task: what is asked of a text."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from drafttree.core.randomness import Randomness
from drafttree.engine.generation import Fidelity
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass(frozen=True, eq=False)
class Task:
    """What is asked of a text. Nothing of it changes while the text is written.

    Attributes:
        prompt: token ids of the prompt.
        limit: the most tokens of prompt and text together.
        eos: token ids that end the text.
        capacity: the most rows of the KV cache that it needs.
        policy: the tree policy, in its form for the verifier.
        verifier: the verifier, with the sampling of this text.
        randomness: the randomness of this text.
        fidelity: whether the text follows the target's distribution.
        speculate: whether anything is drafted for it.
        draft_temperature: divides the drafter's logits.
        reuse_prefix: whether it may continue from rows of other texts, and shares and keeps its own.
        cache_salt: beginnings of texts are shared only by requests with an equal salt. If the salt is the group,
            nothing is kept after a text.
        group: texts of equal groups together get the share of an engine's batch that one text would get.
    """

    prompt: tuple[int, ...]
    limit: int
    eos: frozenset[int]
    capacity: int
    policy: TreePolicy
    verifier: Verifier
    randomness: Randomness
    fidelity: Fidelity
    speculate: bool = True
    draft_temperature: float = 1.0
    reuse_prefix: bool = False
    cache_salt: Hashable | None = None
    group: Hashable = field(default_factory=object)

    @property
    def kept_after_end(self) -> bool:
        """Whether the rows of the finished text are kept for later ones."""
        return self.reuse_prefix and not (self.cache_salt is not None and self.cache_salt is self.group)

    def draft_kind(self, source: int) -> tuple[bool, int]:
        """The kind of its drafts by one of the drafter's models: whether the text is greedy, and the model's index."""
        return self.verifier.sampling.greedy, source
