"""Figures of a trace that was made by hand."""

import pytest

from drafttree.evaluation.trace import PHASES, AcceptanceCell
from helpers.traces import hand_trace


def test_acceptance_counts_the_nodes_whose_parent_was_accepted():
    assert hand_trace().acceptance == [
        AcceptanceCell(depth=1, rank=0, drafted=1, judged=1, accepted=1),
        AcceptanceCell(depth=1, rank=1, drafted=1, judged=1, accepted=0),
        AcceptanceCell(depth=2, rank=0, drafted=1, judged=1, accepted=0),
    ]


def test_time_and_cuts_are_summed_over_rounds():
    found = hand_trace()
    assert found.seconds == pytest.approx(dict.fromkeys(PHASES, 0.003))
    assert found.cut == {"keep": 7}


def test_the_rejected_draft_is_the_likeliest_continuation_of_the_path():
    first, second = hand_trace().rounds
    assert first.rejected == [3]
    assert second.rejected == []
