"""Chooses the parts of prompts to read beside texts that are being written, which a long one must not hold up."""

from collections.abc import Sequence

from drafttree.engine.drafting.prices import Prices
from drafttree.engine.request import Request
from drafttree.engine.round_loop import LONGEST_PART, PromptPart

SHORTEST_PART = 8
"""Tokens of prompts in a pass at least, however dear they are, so that no prompt waits for ever."""
STRETCH = 2.0
"""A round with parts may take this many plain ones, however long those are."""


def choose_parts(reading: Sequence[Request], writing: int, prices: Prices, max_token_gap: float) -> list[PromptPart]:
    """What to read in the next pass, the oldest request's first.

    Args:
        reading: requests whose prompt is not read, the oldest first.
        writing: requests that write; each has a row of the pass.
        prices: costs of passes, in seconds.
        max_token_gap: seconds that the round may take.
    """
    room = LONGEST_PART
    if writing:
        longest = max(max_token_gap, STRETCH * prices.round(writing, writing))
        room = max(prices.rows_within(writing, LONGEST_PART, longest), SHORTEST_PART)
    found = []
    for request in reading:
        if count := min(request.unread, room):
            found.append(PromptPart(request, count))
            room -= count
    return found
