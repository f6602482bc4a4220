"""`tune` on a toy target: the choice, its confirmation, and what it says where it cannot tell."""

import pytest

from drafttree.errors import ConfigError, InputError, ModelError
from drafttree.evaluation.tune import GRID, tune, tuning
from drafttree.loading import parse_policies
from drafttree.measure.run_store import RunStore
from drafttree.verifiers import RRS

PROMPTS = [list(range(1, 5 + extra)) for extra in range(9)]
POLICIES = ["auto", "chain:depth=2", "talon"]


def test_the_grid_is_of_policies_that_exist():
    assert len(parse_policies(GRID)) == len(GRID)


def test_the_fastest_pair_is_recommended_and_confirmed_on_prompts_apart(toy, toy_drafters, speeds):
    seconds, written = speeds
    seconds["good", "chain:depth=2"] = 0.5
    seconds["bad", "talon"] = 0.7
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, max_new_tokens=10)
    assert (found.best.drafter, found.best.policy) == ("good", "chain:depth=2")
    assert found.speculates
    assert found.confirmed
    assert found.apart
    assert not found.missing
    assert {(way.drafter, way.policy) for way in found.ways} == {(d, p) for d in toy_drafters for p in POLICIES}
    held = {tuple(prompt) for prompt in PROMPTS[2::3]}
    of_winner = [(prompt, options) for decoder, prompt, options in written if decoder is found.decoder]
    assert held <= {prompt for prompt, _ in of_winner}
    losers = {prompt for decoder, prompt, _ in written if decoder.drafter and decoder is not found.decoder}
    assert not held & losers
    assert all(options["seed"] == 0 for _, options in of_winner)
    # 16 texts of prompts of 6, 9 and 12 tokens: 1.06, 1.09 and 1.12 seconds against 0.56, 0.59 and 0.62
    plain, own = 6 * 1.06 + 5 * 1.09 + 5 * 1.12, 6 * 0.56 + 5 * 0.59 + 5 * 0.62
    assert found.gain.mean == pytest.approx(plain / own - 1)
    assert 0 < found.gain.margin < 0.2


def test_the_expected_gain_is_that_of_the_law_with_the_measured_curve(toy, toy_drafters, speeds):
    speeds[0]["good", "chain:depth=2"] = 0.5
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, max_new_tokens=10)
    # two tokens a round; a round is a pass over 3 nodes, two draft passes and the rest, a plain round 1.0 + 0.1
    assert found.expected == pytest.approx(2 * 1.1 / (1.1 + 0.1 + 0.1 + 0.2))
    assert found.speedup.law.tau == 2
    assert found.speedup.law.delta == 2
    assert found.speedup.limit.factor == "acceptance"


def test_where_nothing_beats_plain_decoding_it_says_not_to_speculate(toy, toy_drafters, speeds):
    speeds[0]["good", "talon"] = 1.0
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES)
    assert not found.speculates
    assert (found.best.drafter, found.best.policy) == ("good", "talon")
    assert found.summary()["speculate"] is False


def test_with_few_prompts_the_choice_is_confirmed_on_the_same(toy, toy_drafters, speeds):
    speeds[0]["good", "talon"] = 0.5
    found = tune(toy, toy_drafters, PROMPTS[:2], policies=POLICIES)
    assert found.speculates
    assert found.confirmed
    assert not found.apart


def test_too_short_a_time_says_what_is_missing(toy, toy_drafters, speeds):
    speeds[0]["good", "auto"] = 0.5
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, minutes=0.12)
    assert found.missing == [
        "5 of 6 ways were not tried",
        "the choice rests on fewer than 2 texts of each",
        "the gain was not confirmed after the choice",
    ]
    assert not found.speculates
    assert found.summary()["gain"]["margin"] is None


def test_no_time_at_all_leaves_plain_decoding_alone(toy, toy_drafters, speeds):
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, minutes=0.001)
    assert found.best is None
    assert not found.speculates
    assert found.missing == ["none of 6 ways was tried"]
    assert "law" not in found.summary()


def test_ctrl_c_in_the_race_ends_it_with_what_is_known(toy, toy_drafters, speeds):
    def stop(way: str) -> None:
        if len(speeds[1]) == 30:
            raise KeyboardInterrupt

    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, progress=stop, store=RunStore(partial=True))
    assert found.interrupted
    assert found.ways
    assert found.missing


@pytest.mark.parametrize("minutes", [0, -1, float("inf"), float("nan"), "5"])
def test_minutes_that_are_none(minutes, toy, toy_drafters):
    with pytest.raises(ConfigError, match="minutes is"):
        tune(toy, toy_drafters, PROMPTS, minutes=minutes)


def test_short_prompts_are_left_out_and_refused_where_there_are_no_others(toy, toy_drafters, speeds):
    assert tune(toy, toy_drafters, [[1, 2], *PROMPTS], policies=POLICIES).too_short == 1
    with pytest.raises(InputError, match="no prompt has 4 tokens or more, the longest has 2; give longer ones"):
        tune(toy, toy_drafters, [[1, 2], [3]])


def test_a_drafter_that_cannot_draft_is_left_out(toy, toy_drafters, speeds, monkeypatch):
    usual = tuning.measure_costs

    def measure(decoder, *, greedy):
        failed = decoder.drafter is toy_drafters["bad"]
        return tuning.MeasuredCosts(None, 0.1, "it has another vocabulary") if failed else usual(decoder, greedy=greedy)

    monkeypatch.setattr(tuning, "measure_costs", measure)
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, left_out={"gone": "its folder does not exist"})
    assert found.left_out == {"gone": "its folder does not exist", "bad": "it has another vocabulary"}
    assert {way.drafter for way in found.ways} == {"good"}
    with pytest.raises(
        ModelError, match=r"no drafter can be used .*gone: its folder does not exist; bad: it has another"
    ):
        tune(toy, {"bad": toy_drafters["bad"]}, PROMPTS, left_out={"gone": "its folder does not exist"})


def test_policies_that_the_verifier_does_not_admit_are_skipped(toy, toy_drafters, speeds):
    sampled = toy.with_verifier(RRS)
    found = tune(sampled, toy_drafters, PROMPTS, policies=["eagle", "talon"], temperature=1.0)
    assert {way.policy for way in found.ways} == {"talon"}
    with pytest.raises(ConfigError, match="none of the policies is lossless with RRS"):
        tune(sampled, toy_drafters, PROMPTS, policies=["eagle"])


def test_what_was_run_is_not_run_again_and_counts_its_time(toy, toy_drafters, speeds, tmp_path):
    seconds, written = speeds
    seconds["good", "talon"] = 0.5
    first = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, minutes=1, store=RunStore(tmp_path / "runs"))
    count = len(written)
    again = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, minutes=1, store=RunStore(tmp_path / "runs"))
    assert len(written) == count
    assert again.summary() == first.summary()


def test_an_interruption_keeps_what_is_finished(toy, toy_drafters, speeds, monkeypatch):
    usual, texts = tuning.time_text, []

    def time_text(*arguments):
        texts.append(arguments)
        if len(texts) == 9:
            raise KeyboardInterrupt
        return usual(*arguments)

    monkeypatch.setattr(tuning, "time_text", time_text)
    store = RunStore(partial=True)
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, store=store)
    assert store.interrupted
    assert len(found.ways) == 3
    assert not found.confirmed
