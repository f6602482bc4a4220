import pytest

from drafttree.engine.batching.draft_switch import LOSS, PROBE, DraftSwitch


def run(switch: DraftSwitch, rounds: int, batch: int, gain: float) -> list[bool]:
    """Whether each of some rounds drafted, where a round with drafts commits `gain` times what a plain one does."""
    drafted = []
    for _ in range(rounds):
        drafts = switch.decide(batch) is None
        switch.observe(batch, gain * batch if drafts else batch, 1.0, drafted=drafts)
        drafted.append(drafts)
    return drafted


def test_the_first_rounds_are_plain_and_the_next_ones_draft():
    assert run(DraftSwitch(lambda batch: 1.0), 6, 4, 1.5) == [False, False, False, True, True, True]


def test_drafting_that_pays_goes_on_but_for_rare_plain_rounds():
    drafted = run(DraftSwitch(lambda batch: 1.0), 10 * PROBE, 4, 1.2)
    assert drafted.count(False) <= 16
    assert drafted.count(False) > 1


@pytest.mark.parametrize("gain", [0.5, 0.8, 0.95])
def test_trying_drafts_that_lose_takes_a_small_share_of_all_time(gain):
    drafted = run(DraftSwitch(lambda batch: 1.0), 4000, 4, gain)
    assert 0 < drafted.count(True) * (1 - gain) < 1.6 * LOSS * len(drafted)


def test_drafts_that_nearly_pay_are_tried_more_often_than_those_that_lose_much():
    nearly, never = (run(DraftSwitch(lambda batch: 1.0), 4000, 4, gain).count(True) for gain in (0.95, 0.6))
    assert nearly > 3 * never


def test_drafting_comes_back_when_it_pays_again():
    switch = DraftSwitch(lambda batch: 1.0)
    run(switch, 500, 4, 0.8)
    assert run(switch, 300, 4, 1.5)[-50:].count(True) >= 49


def test_batches_of_another_size_are_judged_apart():
    switch = DraftSwitch(lambda batch: 1.0)
    run(switch, 100, 32, 0.5)
    assert run(switch, 10, 1, 3.0)[3:] == [True] * 7
    assert "0.50 times plain decoding" in (switch.decide(32) or "")


def test_the_gain_is_the_ratio_of_tokens_by_time():
    switch = DraftSwitch(lambda batch: 4.0)
    switch.observe(2, 2, 4.0, drafted=False)
    assert switch.gain(2) is None
    switch.observe(2, 6, 5.0, drafted=True)
    assert switch.gain(2) == pytest.approx((6 / 5) / (2 / 4))
    assert switch.rate(2) == 6 / 5
    assert switch.rate(64) == 64 / 4


def test_what_a_round_took_once_decides_only_how_soon_drafts_are_tried_again():
    pauses = []
    for spent in (None, 9.0):
        switch = DraftSwitch(lambda batch: 1.0)
        run(switch, 3, 16, 0.9)
        while switch.decide(16) is None:
            switch.observe(16, 0.9 * 16, 1.0, drafted=True, spent=spent)
        assert switch.gain(16) == pytest.approx(0.9)
        pauses.append(run(switch, 2000, 16, 0.9).index(True))
    assert 10 * pauses[0] < pauses[1]
