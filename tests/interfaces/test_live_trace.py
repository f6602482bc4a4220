"""Trees in the terminal: they grow a level at a time, and are coloured when they are judged."""

import pytest
from rich.console import Console

from drafttree.evaluation.trace import Tracer
from drafttree.interfaces import live_trace
from drafttree.policies import Chain
from helpers.traces import ROOT, hand_decoder, hand_trace, prefers


def printed(picture, **options) -> str:
    console = Console(width=100, **options)
    with console.capture() as capture:
        console.print(picture)
    return capture.get()


def test_a_tree_grows_a_level_at_a_time_and_ends_with_the_verdict():
    first, second, judged = map(printed, live_trace.frames(hand_trace().rounds[0], rows=10))
    assert "the" in first
    assert "cat" not in first
    assert "cat  draft 0.75" in second
    assert "sea" not in second
    assert "sea  draft 0.12  target 0.25" in judged
    assert "1 accepted; Candidates dropped: 7 by the policy" in judged


def test_a_verdict_is_coloured():
    *_, judged = live_trace.frames(hand_trace().rounds[0], rows=10)
    shown = printed(judged, force_terminal=True, color_system="standard")
    assert "\x1b[1;32mthe" in shown
    assert "\x1b[31mcat" in shown
    assert "\x1b[1;33msea" in shown


def test_where_rows_are_few_the_accepted_path_and_the_likeliest_nodes_are_shown():
    turn = hand_trace().rounds[0]
    assert live_trace.most_probable(turn, 4) == [0, 1, 2, 3]
    assert live_trace.most_probable(turn, 3) == [0, 1, 3]
    assert live_trace.most_probable(turn, 1) == [0, 1]
    *_, judged = live_trace.frames(turn, rows=3)
    assert "1 more nodes" in printed(judged)


def test_a_round_without_drafts_shows_the_bonus_token_alone():
    (judged,) = live_trace.frames(hand_trace().rounds[1], rows=10)
    assert "was" in printed(judged)


@pytest.mark.usefixtures("capsys")
def test_a_live_text_is_written_to_its_end(monkeypatch):
    pauses = []
    monkeypatch.setattr(live_trace.time, "sleep", pauses.append)
    tracer = Tracer(hand_decoder(Chain(depth=2), prefers(0, 0)), [ROOT], max_new_tokens=6)
    live_trace.show_live(tracer, pace=1.0)
    assert tracer.request.text.finish_reason == "length"
    assert len(tracer.rounds) == 2
    assert sum(pauses) == pytest.approx(2.0)
