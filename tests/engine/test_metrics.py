"""Figures worked out by hand."""

import math
import sys
from pathlib import Path

import pytest

import drafttree
from drafttree import Metrics, SpeedupLaw
from drafttree.engine.metrics import TextRound, peak_memory
from drafttree.evaluation.compare import compare

PACKAGE = Path(drafttree.__file__).parent


def turn(committed, accepted, nodes, levels, draft_seconds=0.5, target_seconds=2.0, seconds=3.0) -> TextRound:
    return TextRound(committed, accepted, nodes, levels, levels, draft_seconds, target_seconds, seconds)


def first() -> Metrics:
    rounds = [turn(4, 3, 7, 3), turn(1, 0, 7, 3, target_seconds=4.0, seconds=5.0), turn(2, 1, 5, 1, seconds=2.5)]
    return Metrics(rounds, prefill_passes=1, prefill_seconds=1.0, seconds=12.0, first_token_seconds=[4.0])


def second() -> Metrics:
    rounds = [turn(1, 0, 1, 0, draft_seconds=0.0)]
    return Metrics(rounds, prefill_passes=2, prefill_seconds=2.0, seconds=5.0, first_token_seconds=[5.0])


def test_counts_per_round():
    metrics = first()
    assert metrics.tokens == 7
    assert metrics.mean_accepted_tokens == pytest.approx(7 / 3)
    assert metrics.mean_path_length == pytest.approx(4 / 3)
    assert metrics.draft_efficiency == pytest.approx(7 / 3)
    assert metrics.mean_nodes == pytest.approx(19 / 3)
    assert metrics.mean_levels == pytest.approx(7 / 3)


def test_what_comes_before_the_first_round_is_the_prompts_time():
    metrics = Metrics()
    for seconds in (4.0, 3.5):
        metrics.record(turn(2, 1, 3, 1, seconds=3.0), seconds)
    assert (metrics.prefill_seconds, metrics.seconds) == (1.0, 7.5)
    assert metrics.decoding_tokens_per_second == pytest.approx(4 / 6.5)


def test_acceptance_is_of_drafted_tokens_alone():
    assert first().acceptance_rate == pytest.approx(4 / 16)


def test_level_acceptance_is_of_the_longest_paths_there_could_have_been():
    assert first().level_acceptance == pytest.approx(4 / 7)


def test_acceptance_by_depth_is_of_the_rounds_that_drafted_that_level():
    assert first().acceptance_by_depth == pytest.approx([2 / 3, 1 / 2, 1 / 2])


def test_times():
    metrics = first()
    assert metrics.tokens_per_second == pytest.approx(7 / 12)
    assert metrics.decoding_tokens_per_second == pytest.approx(7 / 11)
    assert metrics.time_to_first_token == 4.0
    assert metrics.time_per_output_token == pytest.approx(8 / 6)
    assert metrics.target_pass == pytest.approx(8 / 3)
    assert metrics.draft_pass == pytest.approx(1.5 / 7)
    assert metrics.overhead == pytest.approx((0.5 + 0.5 + 0.0) / 3)


def test_a_total_adds_up_its_parts():
    total = Metrics.total([first(), second()])
    assert (total.tokens, len(total.rounds), total.prefill_passes, total.seconds) == (8, 4, 3, 17.0)
    assert total.time_to_first_token == 4.5
    assert total.prefill_seconds == 3.0
    assert total.time_per_output_token == pytest.approx(8 / 6)
    assert first().rounds == total.rounds[:3]


def test_nothing_generated_gives_zeros_and_no_errors():
    summary = Metrics().summary()
    assert summary.pop("peak_memory_bytes") > 0
    assert summary.pop("acceptance_by_depth") == []
    assert set(summary.values()) == {0}


def test_a_summary_has_every_figure_under_its_name():
    summary = first().summary()
    for name in summary.keys() - {"rounds", "peak_memory_bytes"}:
        assert summary[name] == getattr(first(), name)
    assert summary["rounds"] == 3


def test_the_law_of_speed():
    plain = Metrics([turn(1, 0, 1, 0, 0.0, 1.0, 1.0)] * 8, seconds=8.0, first_token_seconds=[1.0])
    law = SpeedupLaw.of(first(), plain)
    assert law.tau == pytest.approx(7 / 3)
    assert law.v == pytest.approx((2 + 4 + 2) / 3)
    assert law.c == pytest.approx(1.5 / 7)
    assert law.delta == pytest.approx(7 / 3)
    assert law.h == pytest.approx(1 / 3)
    assert law.measured == pytest.approx(7 / 12)
    assert law.decoding == pytest.approx(7 / 11)
    assert law.predicted == pytest.approx((7 / 3) / (8 / 3 + (1.5 / 7) * (7 / 3) + 1 / 3))


def test_the_law_is_exact_where_rounds_are_all_the_time_there_is():
    rounds = [turn(3, 2, 4, 2, 0.5, 2.0, 3.0)] * 10
    fast = Metrics(rounds, seconds=30.0, first_token_seconds=[3.0])
    plain = Metrics([turn(1, 0, 1, 0, 0.0, 1.5, 2.0)] * 30, seconds=60.0, first_token_seconds=[2.0])
    law = SpeedupLaw.of(fast, plain)
    assert law.h0 == pytest.approx(1 / 3)
    assert law.predicted == pytest.approx(law.measured)
    assert SpeedupLaw.of(plain, plain).predicted == pytest.approx(1)
    assert math.isfinite(law.predicted)


def test_peak_memory_is_that_of_a_process_with_torch_in_it():
    assert 50e6 < peak_memory() < 1e12


def test_where_the_standard_library_has_no_resource_module_no_peak_is_told(monkeypatch):
    """As on Windows; no other module imports it."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() == 0
    sources = {source for source in PACKAGE.rglob("*.py") if "import resource" in source.read_text()}
    assert sources == {PACKAGE / "engine" / "metrics.py"}


def test_tau_is_the_one_that_is_shown():
    decoder = drafttree.load(dtype="float32", policy="chain:depth=2")
    tau = decoder.generate("It was the best of", max_new_tokens=16).metrics.tau
    shown = compare(decoder, "It was the best of", repeats=1, max_new_tokens=16).summary()["law"]
    assert tau == shown["tau"] > 1
