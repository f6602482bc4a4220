"""A row of a paper's table as it is run: a method of drafttree, or one of those that papers compare with."""

from dataclasses import dataclass

from drafttree.measure.method import Method


@dataclass(frozen=True)
class ReplayMethod(Method):
    """A drafter, a tree policy and a verifier, or what a paper compares with them.

    Attributes:
        assisted: whether the drafter assists transformers' own `generate` at its defaults; the policy is not used.
        lossy_window: latest tokens that the target attends to, beside the first four (StreamingLLM); None for all.
    """

    assisted: bool = False
    lossy_window: int | None = None

    @property
    def learns(self) -> bool:
        """Whether a text depends on those before it."""
        return self.drafter is not None and self.policy.remembers and not self.assisted

    @property
    def spec(self) -> str:
        if self.assisted:
            return f"{self.drafter}|transformers assisted"
        window = f", lossy_window={self.lossy_window}" if self.lossy_window else ""
        return super().spec + window
