"""A task: the prompt, limits, methods and options of one text."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from drafttree.core.randomness import Randomness
from drafttree.engine.generation import Fidelity
from drafttree.images.prompt_images import PromptImages
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass(frozen=True, eq=False)
class Task:
    """The prompt, limits, methods and options of one text. They never change.

    Attributes:
        prompt: token ids of the prompt.
        limit: maximum number of tokens of prompt and text together.
        eos: token ids that end the text.
        capacity: maximum number of rows of the KV cache that the text needs.
        policy: the tree policy, in its form for the verifier.
        verifier: the verifier, with the sampling of this text.
        randomness: the randomness of this text.
        fidelity: whether the text follows the target's distribution.
        speculate: whether tokens are drafted.
        draft_temperature: divides the drafter's logits.
        reuse_prefix: whether the text may copy KV rows of other texts, and they may copy its rows.
        cache_salt: only texts with an equal salt copy rows of each other. If the salt is the group itself, the rows are
            dropped when the text ends.
        group: all texts of an equal group together get the share of an engine's batch that one text would get.
        images: the images of the prompt; None if it has none.
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
    images: PromptImages | None = None

    @property
    def kept_after_end(self) -> bool:
        """Whether the rows of the finished text are kept for later texts."""
        return self.reuse_prefix and not (self.cache_salt is not None and self.cache_salt is self.group)

    def draft_kind(self, source: int) -> tuple[bool, int]:
        """The key of acceptance counts: whether the text is greedy, and the index of the drafter's model."""
        return self.verifier.sampling.greedy, source
