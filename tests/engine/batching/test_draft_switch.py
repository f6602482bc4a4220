import itertools

from drafttree.engine.batching.draft_switch import LONGEST_PAUSE, PROBE, SHORTEST_PAUSE, DraftSwitch


def run(switch: DraftSwitch, rounds: int, batch: int, gain: float) -> list[bool]:
    """Whether each of some rounds drafted, where a round with drafts commits `gain` times what a plain one does."""
    drafted = []
    for _ in range(rounds):
        drafts = switch.decide(batch) is None
        switch.observe(batch, gain * batch if drafts else batch, 1.0, drafted=drafts)
        drafted.append(drafts)
    return drafted


def test_the_first_round_is_plain_and_the_next_ones_draft():
    assert run(DraftSwitch(), 5, 4, 1.5) == [False, True, True, True, True]


def test_drafting_that_pays_goes_on_but_for_rare_plain_rounds():
    drafted = run(DraftSwitch(), 10 * PROBE, 4, 1.2)
    assert drafted.count(False) <= 11
    assert drafted.count(False) > 1


def test_drafting_that_loses_is_paused_and_tried_again_ever_more_seldom():
    drafted = run(DraftSwitch(), 2000, 4, 0.8)
    tried = [place for place, drafts in enumerate(drafted) if drafts]
    pauses = [after - before - 1 for before, after in itertools.pairwise(tried) if after - before > 1]
    assert pauses[0] == SHORTEST_PAUSE
    assert pauses == sorted(pauses)
    assert max(pauses) == LONGEST_PAUSE
    assert len(tried) < 0.05 * len(drafted)


def test_drafting_comes_back_when_it_pays_again():
    switch = DraftSwitch()
    run(switch, 500, 4, 0.8)
    assert run(switch, 300, 4, 1.5)[-50:].count(True) >= 49


def test_batches_of_another_size_are_judged_apart():
    switch = DraftSwitch()
    run(switch, 100, 32, 0.5)
    assert run(switch, 10, 1, 3.0)[1:] == [True] * 9
    assert "0.50 times plain decoding" in (switch.decide(32) or "")


def test_the_gain_is_the_ratio_of_tokens_by_time():
    switch = DraftSwitch()
    switch.observe(2, 2, 4.0, drafted=False)
    assert switch.gain(2) is None
    switch.observe(2, 6, 5.0, drafted=True)
    assert switch.gain(2) == (6 / 5) / (2 / 4)
    assert switch.rate(2) == 6 / 5
    assert switch.rate(64) is None
