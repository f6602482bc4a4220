"""`tune` races draft temperatures among the best ways, and recommends one that was confirmed; speeds are given."""

import pytest

from drafttree import Decoder
from drafttree.errors import ConfigError
from drafttree.evaluation.tune import DRAFT_TEMPERATURES, command_options, python_lines, tune
from drafttree.evaluation.tune.recommendation import TemperatureGain
from drafttree.measure.interval import Interval
from drafttree.measure.run_store import RunStore
from drafttree.verifiers import RRS, LossyTypical

PROMPTS = [list(range(1, 5 + extra)) for extra in range(9)]
POLICIES = ["auto", "chain:depth=2", "talon"]


def tried(written) -> set[tuple[str, float]]:
    """Drafters and draft temperatures, of policies that branch."""
    return {
        (decoder.drafter.name, decoder.defaults.get("draft_temperature", 1.0))
        for decoder, _, _ in written
        if decoder.drafter and decoder.policy.branches
    }


def test_a_draft_temperature_that_pays_is_recommended_and_told(toy, toy_drafters, speeds):
    seconds, _ = speeds
    seconds |= {("good", "talon"): 0.5, ("good", "talon", 0.6): 0.4, ("bad", "auto"): 0.7}
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES)
    assert (found.best.policy, found.best.draft_temperature) == ("talon", 0.6)
    assert str(found.best) == "good with talon at draft temperature 0.6"
    assert found.decoder.defaults["draft_temperature"] == 0.6
    gain = found.temperature_gain
    assert gain.confirmed
    assert gain.pays
    # 16 texts of prompts of 6, 9 and 12 tokens, which the choice has not seen; 10 tokens each
    texts = (6, 5, 5)
    ours, theirs = (
        [(10 * count, count * each) for count, each in zip(texts, seconds, strict=True)]
        for seconds in ([0.46, 0.49, 0.52], [0.56, 0.59, 0.62])
    )
    wanted = Interval.of_speeds_by_jackknife(ours, theirs)
    assert (gain.ratio.mean, gain.ratio.low) == pytest.approx((wanted.mean, wanted.low))
    assert gain.sentence == (
        f"Draft temperature 0.6 is {wanted.mean:.2f} times as fast as 1.0 "
        f"(95 % interval {wanted.low:.2f} to {wanted.high:.2f})."
    )
    plain = 6 * 1.06 + 5 * 1.09 + 5 * 1.12
    assert found.gain.mean == pytest.approx(plain / sum(seconds for _, seconds in ours) - 1)
    assert found.summary()["draft temperature"]["draft_temperature"] == 0.6
    assert not found.missing


def test_only_the_best_two_ways_go_on_to_other_draft_temperatures(toy, toy_drafters, speeds):
    seconds, written = speeds
    seconds |= {("good", "talon"): 0.5, ("good", "auto"): 0.7}
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES)
    assert tried(written) == {("bad", 1.0), *(("good", value) for value in (1.0, *DRAFT_TEMPERATURES))}
    warm = {way.policy for way in found.ways if way.draft_temperature != 1}
    assert warm == {"talon", "auto"}


def test_one_that_does_not_pay_is_told_and_1_is_kept(toy, toy_drafters, speeds):
    seconds, _ = speeds
    seconds |= {("good", "talon"): 0.5, ("good", "talon", 0.8): 0.55}
    seconds |= {("good", "talon", 0.6): 0.9, ("good", "talon", 1.25): 0.9}
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES)
    assert (found.best.policy, found.best.draft_temperature) == ("talon", 1.0)
    assert found.temperature_gain.draft_temperature == 0.8
    assert not found.temperature_gain.pays
    assert found.temperature_gain.sentence.endswith("; not confirmed), so 1.0 is kept.")


def test_one_that_won_the_race_by_chance_is_not_recommended(toy, toy_drafters, speeds):
    """Faster on the prompts of the race, slower on one of those that confirm."""
    seconds, written = speeds
    seconds |= {("good", "talon"): 0.5, ("good", "talon", 0.6): 0.49}
    for value in (0.8, 1.25):
        seconds["good", "talon", value] = 0.9
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, progress=lambda _: slow_down(seconds, written))
    assert found.temperature_gain.confirmed
    assert not found.temperature_gain.pays
    assert found.temperature_gain.sentence.endswith("), so 1.0 is kept.")
    assert (found.best.policy, found.best.draft_temperature) == ("talon", 1.0)
    assert (found.ways[0].policy, found.ways[0].draft_temperature) == ("talon", 1.0)
    assert found.speculates
    assert found.confirmed


def slow_down(seconds, written) -> None:
    """Once a prompt of 6 tokens, which is held out, was written at all, nothing is gained any more."""
    if any(len(prompt) == 6 for _, prompt, _ in written):
        seconds["good", "talon", 0.6] = 0.5


def test_a_greedy_chain_is_not_raced_as_it_drafts_the_same(toy, toy_drafters, speeds):
    _, written = speeds
    found = tune(toy, toy_drafters, PROMPTS, policies=["chain:depth=2", "chain:depth=3"])
    assert found.temperature_gain is None
    assert not any("draft_temperature" in decoder.defaults for decoder, _, _ in written)
    drawn = tune(toy, toy_drafters, PROMPTS, policies=["chain:depth=2", "chain:depth=3"], temperature=1.0)
    assert drawn.temperature_gain is not None


@pytest.mark.parametrize(("verifier", "races"), [(RRS, True), (LossyTypical, False)])
def test_a_lossy_verifier_whose_texts_depend_on_the_drafts_races_none(verifier, races, toy, toy_drafters, speeds):
    found = tune(toy.with_verifier(verifier), toy_drafters, PROMPTS, policies=["talon"], temperature=1.0)
    assert (found.temperature_gain is not None) == races


def test_none_are_raced_where_none_are_named(toy, toy_drafters, speeds):
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, draft_temperatures=())
    assert found.temperature_gain is None
    assert not found.missing


def test_short_time_says_that_draft_temperatures_were_not_tried(toy, toy_drafters, speeds):
    speeds[0]["good", "talon"] = 0.5
    found = tune(toy, {"good": toy_drafters["good"]}, PROMPTS, policies=["talon"], minutes=0.32)
    assert found.missing[0] == "3 of 3 ways at other draft temperatures were not tried"
    assert found.best.draft_temperature == 1


def test_what_was_run_is_not_run_again(toy, toy_drafters, speeds, tmp_path):
    seconds, written = speeds
    seconds |= {("good", "talon"): 0.5, ("good", "talon", 0.6): 0.4}
    first = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, store=RunStore(tmp_path / "runs"))
    count = len(written)
    again = tune(toy, toy_drafters, PROMPTS, policies=POLICIES, store=RunStore(tmp_path / "runs"))
    assert len(written) == count
    assert again.summary() == first.summary()


def test_the_recommendation_carries_it(toy, toy_drafters, speeds):
    speeds[0].update({("good", "talon"): 0.5, ("good", "talon", 0.6): 0.4})
    found = tune(toy, toy_drafters, PROMPTS, policies=POLICIES)
    lines = python_lines(found, "their/model", None, "auto", "float32")
    assert lines[2] == 'print(decoder.generate("Once upon a time", draft_temperature=0.6).text)'
    assert command_options(found, None, "auto") == "--drafter good --policy talon --draft-temperature 0.6"
    assert command_options(found, None, "rrs") == (
        "--drafter good --policy talon --verifier rrs --draft-temperature 0.6"
    )


@pytest.mark.parametrize("wrong", [{"draft_temperature": 0.6}, {"draft_temperatures": [0.6, 1.0]}])
def test_a_draft_temperature_of_all_texts_and_1_are_refused(wrong, toy, toy_drafters, speeds):
    with pytest.raises(ConfigError, match=r"draft_temperatures instead of|always included"):
        tune(toy, toy_drafters, PROMPTS, policies=["talon"], **wrong)


def test_ways_that_differ_are_named_and_a_single_text_has_no_interval():
    gain = TemperatureGain(1.25, "a with talon", "b with auto", Interval(1.1), confirmed=False)
    assert gain.sentence == (
        "a with talon at draft temperature 1.25 is 1.10 times as fast as b with auto at 1.0 (one text; not confirmed), "
        "so 1.0 is kept."
    )


def test_a_decoder_with_other_defaults_keeps_its_own(toy):
    warm: Decoder = toy.with_defaults(draft_temperature=0.6).with_defaults(top_p=0.9)
    assert dict(warm.defaults) == {"draft_temperature": 0.6, "top_p": 0.9}
    assert not toy.defaults
