"""Chooses the parts of prompts to read beside texts that are being written, which a long one must not hold up."""

from collections.abc import Sequence

from drafttree.engine.drafting.prices import Prices
from drafttree.engine.request import Request
from drafttree.engine.round_loop import LONGEST_PART, PromptPart

SHORTEST_PART = 8
"""Tokens of prompts in a pass at least, however dear they are, so that no prompt waits for ever."""
STRETCH = 1.7
"""How many times the time of a pass the parts of prompts in it may take it to. The drafter reads them too."""


def choose_parts(reading: Sequence[Request], writing: int, costs: Prices) -> list[PromptPart]:
    """What to read in the next pass, the oldest request's first.

    Args:
        reading: requests whose prompt is not read, the oldest first.
        writing: rows of the pass of the requests that write.
        costs: costs of passes.
    """
    room = max(costs.rows_within(writing, LONGEST_PART, STRETCH), SHORTEST_PART) if writing else LONGEST_PART
    found = []
    for request in reading:
        if count := min(request.unread, room):
            found.append(PromptPart(request, count))
            room -= count
    return found
