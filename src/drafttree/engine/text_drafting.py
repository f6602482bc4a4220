"""How one text is drafted for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.drafters.base import DraftSession
from drafttree.engine.out_of_memory import is_out_of_memory
from drafttree.policies.base import TextContext


@dataclass
class TextDrafting:
    """The drafter's session of a text and what its policy knows.

    Attributes:
        wanted: whether anything is drafted for the text.
        temperature: divides the drafter's logits.
        session: the session of the drafter; None for plain decoding, before `RoundLoop.open` and after the drafter has
            failed.
        reads_prompt: whether the drafter reads the prompt too.
        context: what the policy was told when the text began.
        state: what the policy has learned of the text.
        on_failure: told of an error of the drafter, behind which the text goes on without drafts; None to raise it.
    """

    wanted: bool = True
    temperature: float = 1.0
    session: DraftSession | None = None
    reads_prompt: bool = False
    context: TextContext | None = None
    state: Any = None
    on_failure: Callable[[Exception], None] | None = None
    _counted: tuple[float, int] = (0.0, 0)

    @property
    def costs(self) -> CostCurve | None:
        """The cost curve that the policy uses, None for one that needs none."""
        return self.context.costs if self.context else None

    def close(self) -> None:
        """Give the session's memory back."""
        self.session, self._counted = None, (0.0, 0)

    def read_costs(self) -> tuple[float, int]:
        """Seconds and passes of the drafter that were not read yet."""
        if self.session is None:
            return 0.0, 0
        seconds, passes = self._counted
        self._counted = self.session.seconds, self.session.passes
        return self._counted[0] - seconds, self._counted[1] - passes

    @contextmanager
    def failing_softly(self) -> Iterator[None]:
        """Let an error of the drafter end the drafts and not the text, if somebody is to be told of it."""
        try:
            yield
        except Exception as error:
            if self.on_failure is None or is_out_of_memory(error) or isinstance(error, DraftTreeError):
                raise
            self.session = None
            self.on_failure(error)
