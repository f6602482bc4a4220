"""Reads prompts in parts beside the texts that are being written, so that a long one does not hold these up."""

from collections.abc import Sequence
from typing import NamedTuple

from drafttree.engine.batching.batch_costs import BatchCosts
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.request_rounds import RequestRounds
from drafttree.models import Output

LONGEST_PART = 512
"""Tokens of prompts in a pass at most."""
SHORTEST_PART = 8
"""Tokens of prompts in a pass at least, however dear they are, so that no prompt waits for ever."""
STRETCH = 1.7
"""How many times the time of a pass the parts of prompts in it may take it to. The drafter reads them too."""


class Part(NamedTuple):
    """The next tokens of a prompt."""

    served: ServedRequest
    size: int

    @property
    def begin(self) -> int:
        """Position of the first."""
        return len(self.served.request.tokens) - 1 - self.served.unread

    @property
    def tokens(self) -> list[int]:
        """Their ids."""
        return self.served.request.tokens[self.begin : self.begin + self.size]


class PromptReading:
    """Chooses and reads parts of prompts.

    Args:
        rounds: the decoder.
        costs: of passes.
    """

    def __init__(self, rounds: RequestRounds, costs: BatchCosts) -> None:
        self._rounds, self._costs = rounds, costs

    def begin(self, served: ServedRequest) -> None:
        """Give an admitted request its KV cache and what an earlier text has left of its prompt.

        Recurrent layers read a prompt by other sums than they decode with, so theirs is read whole, here.
        """
        request, rounds = served.request, self._rounds
        rounds.open(request)
        if request.cache.recurrent:
            rounds.prefill(request)
            return
        rounds.resume_prefix(request)
        served.drafts_prompt = request.draft is not None and rounds.max_levels(request) > 0

    def parts(self, reading: Sequence[ServedRequest], writing: int) -> list[Part]:
        """What to read in the next pass, the oldest request's first.

        Args:
            reading: requests whose prompt is not read, the oldest first.
            writing: rows of the pass of the requests that write.
        """
        room = LONGEST_PART
        if writing:
            room = max(self._costs.rows_within(writing, LONGEST_PART, STRETCH), SHORTEST_PART)
        found = []
        for served in reading:
            count = min(served.unread, room)
            if count:
                found.append(Part(served, count))
                room -= count
        return found

    def commit(self, part: Part, output: Output) -> None:
        """Keep the rows of a part, and let the drafter read it."""
        request = part.served.request
        if read := request.prompt_reader(part.begin):
            read(output.logits[0])
        request.cache.commit(range(part.size))
        request.metrics.prefill_passes += 1
        if request.draft and part.served.drafts_prompt:
            with self._rounds.drafting(request):
                request.draft.prefill(output.hidden, part.size)
