"""The rank of every accepted node among its siblings."""

import pytest

from drafttree import Decoder
from drafttree.engine.round_loop import RoundClock, text_round_of
from drafttree.policies import Fixed
from helpers.trees import tree_of
from testing.small_trees import DRAFT, PROMPT, TARGET
from testing.toy import ToyDrafter, ToyModel

TREE = tree_of([0, 0, 0, 1, 1, 3], [0.5, 0.3, 0.2, 0.6, 0.4, 1.0])


@pytest.mark.parametrize(
    ("committed", "path", "ranks"),
    [(3, [0, 1, 5], (1, 2)), (3, [0, 3, 6], (3, 1)), (1, [0, 3, 6], (3,)), (1, [0], ())],
)
def test_ranks_are_places_among_siblings_down_to_where_the_text_ends(committed, path, ranks):
    clock = RoundClock()
    for part in ("draft", "masks", "target", "verify", "commit", "text"):
        clock.lap(part)
    request = Decoder(ToyModel(TARGET)).new_request(PROMPT)
    turn = text_round_of(request, TREE, path, committed, clock, collapsed=False)
    assert (turn.accepted, turn.ranks) == (len(ranks), ranks)


def test_a_texts_ranks_are_those_of_its_tokens_by_the_drafters_law():
    generation = Decoder(ToyModel(TARGET), ToyDrafter(DRAFT), Fixed(depth=3, breadth=3, threshold=0.0)).generate(
        PROMPT, max_new_tokens=40
    )
    text, found, place = PROMPT + generation.tokens, [], len(PROMPT)
    for turn in generation.metrics.rounds:
        rows = [DRAFT(text[:position]) for position in range(place, place + turn.accepted)]
        logits = [row[text[position]] for position, row in enumerate(rows, start=place)]
        found.append(tuple(sum(other >= own for other in row) for own, row in zip(logits, rows, strict=True)))
        place += turn.committed
    assert [turn.ranks for turn in generation.metrics.rounds] == found
    assert any(rank > 1 for ranks in found for rank in ranks)
