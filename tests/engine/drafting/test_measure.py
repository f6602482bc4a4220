"""Known costs come out of a measurement, by a clock that only the models move."""

import pytest

from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine import round_loop
from drafttree.engine.drafting.measure import LONGEST_WAIT, READ, is_current, time_passes
from drafttree.engine.drafting.prices import KeptCosts
from drafttree.errors import ConfigError
from drafttree.policies import Auto, Chain
from drafttree.verifiers import Coupled
from helpers.timed import FakeClock, TimedDrafter, TimedModel
from testing import tiny
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyModel

pytestmark = pytest.mark.measured_costs
PASSES = Costs((1, 2, 4, 8, 16, 32, 64), (1e-3, 1.1e-3, 1.2e-3, 1.6e-3, 2e-3, 3e-3, 5e-3))
KNOWN = CostCurve(
    target=PASSES,
    draft=(DraftCosts(5e-4, Costs((1, 8), (2e-4, 9e-4))), DraftCosts(1e-4, Costs((1, 8), (0.0, 0.0)))),
    overhead=3e-4,
    plain_overhead=0.0,
)


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    return FakeClock(monkeypatch)


def timed(clock: FakeClock, curve: CostCurve = KNOWN, **options) -> Decoder:
    return Decoder(TimedModel(TARGET, clock, curve, **options), TimedDrafter(DRAFT, clock, curve), Auto())


def assert_same(found: CostCurve, known: CostCurve) -> None:
    assert found.target.sizes == known.target.sizes
    assert found.target.costs == pytest.approx(known.target.costs)
    assert [each.first for each in found.draft] == pytest.approx([each.first for each in known.draft])
    for each, other in zip(found.draft, known.draft, strict=True):
        assert each.later.sizes == other.later.sizes
        assert each.later.costs == pytest.approx(other.later.costs, abs=1e-12)
    assert (found.overhead, found.plain_overhead) == pytest.approx((known.overhead, known.plain_overhead), abs=1e-12)


def test_known_costs_come_out(clock):
    one = CostCurve(PASSES, KNOWN.draft[:1], KNOWN.overhead, 0.0)
    assert_same(timed(clock).costs(), one)


def test_what_every_round_takes_is_overhead_of_plain_rounds_too(clock, monkeypatch):
    check = round_loop.check_verdict

    def slow(*arguments):
        clock.now += 2e-4
        return check(*arguments)

    monkeypatch.setattr(round_loop, "check_verdict", slow)
    found = timed(clock).costs()
    assert (found.overhead, found.plain_overhead) == pytest.approx((5e-4, 2e-4))


def test_each_model_of_a_drafter_is_measured_apart(clock):
    both = TimedDrafter(DRAFT, clock, KNOWN)
    both.sources = (both, TimedDrafter(DRAFT, clock, KNOWN, source=1))
    assert_same(Decoder(TimedModel(TARGET, clock, KNOWN), both, Auto()).costs(), KNOWN)


SLOW = CostCurve(
    target=Costs((1, 8, 64), (0.2, 0.3, 1.1)),
    draft=(DraftCosts(0.05, Costs((1, 8), (0.05, 0.08))),),
    overhead=0.0,
    plain_overhead=0.0,
)


def slower(by: float) -> CostCurve:
    """`SLOW`, slower by a factor."""
    (draft,) = SLOW.draft
    return CostCurve(
        Costs(SLOW.target.sizes, tuple(by * cost for cost in SLOW.target.costs)),
        (DraftCosts(by * draft.first, Costs((1, 8), tuple(by * cost for cost in draft.later.costs))),),
        overhead=0.0,
        plain_overhead=0.0,
    )


def with_bytes(clock: FakeClock, curve: CostCurve, share: float) -> Decoder:
    """A decoder whose drafter has this share of its target's bytes."""
    made = timed(clock, curve)
    made.target.nbytes, made.drafter.nbytes = 1000, round(1000 * share)
    return made


@pytest.mark.parametrize("by", [0.01, 0.1, 0.5, 1.0, 2.0])
def test_a_text_waits_no_longer_than_it_may(clock, by):
    curve = slower(by)
    costs = with_bytes(clock, curve, 0.25).costs()
    assert clock.now <= LONGEST_WAIT
    assert costs.target.at(1) == pytest.approx(curve.target.at(1))
    assert costs.target.at(8) == pytest.approx(curve.target.at(8), rel=0.05)  # the slowest is guessed
    assert costs.draft[0].first == pytest.approx(curve.draft[0].first, rel=0.01)


def test_bytes_stand_for_rounds_that_there_is_no_time_for(clock, caplog):
    caplog.set_level("INFO", "drafttree")
    costs = with_bytes(clock, slower(2.0), 0.1).costs()
    assert costs.draft[0].first == pytest.approx(0.1 * costs.target.at(1))
    assert costs.draft[0].later.at(8) == pytest.approx(0.1 * costs.target.at(8))
    assert [each.message for each in caplog.records if "estimated from the size of the weights" in each.message]


def test_a_few_rounds_mend_what_bytes_say(clock):
    """There is time for rounds of several levels and for no others."""
    curve = slower(0.4)
    costs = with_bytes(clock, curve, 0.5).costs()
    assert costs.draft[0].first == pytest.approx(curve.draft[0].first, rel=0.01)


def test_of_a_very_slow_model_one_pass_is_timed(clock):
    costs = with_bytes(clock, slower(10.0), 0.25).costs()
    assert clock.now == pytest.approx(2.0)
    assert costs.target.at(1) == pytest.approx(2.0)
    assert costs.target.at(16) > costs.target.at(1)


@pytest.mark.parametrize("context", [6, 12, 40, 100])
def test_a_short_context_bounds_what_is_measured(clock, context):
    found = timed(clock, context=context).costs()
    assert found.target.sizes[0] == 1
    assert max(found.target.sizes) <= context
    if context > 6:  # where there is room for rounds that draft
        assert found.draft[0].first == pytest.approx(KNOWN.draft[0].first)


def test_a_drafter_of_a_short_context_is_measured_within_it(clock):
    short = TimedDrafter(DRAFT, clock, KNOWN, context=24)
    found = Decoder(TimedModel(TARGET, clock, KNOWN), short, Auto()).costs()
    assert found.draft[0].first == pytest.approx(KNOWN.draft[0].first)
    assert found.draft[0].later.at(1) == pytest.approx(KNOWN.draft[0].later.at(1))


def test_costs_are_measured_once_and_shared_by_the_forms_of_a_decoder(clock):
    made = timed(clock)
    costs, before = made.costs(), clock.now
    assert made.with_policy(Auto(budget=9)).costs() is costs
    assert clock.now == before
    assert made.generate([1], max_new_tokens=8).costs is costs
    assert made.with_drafter(TimedDrafter(DRAFT, clock, KNOWN)).costs() is not costs


def test_rounds_that_sample_are_measured_apart(clock, monkeypatch):
    verify = Coupled.verify

    def slow(*arguments):
        clock.now += 2e-4
        return verify(*arguments)

    monkeypatch.setattr(Coupled, "verify", slow)
    made = timed(clock)
    assert made.costs().overhead == pytest.approx(KNOWN.overhead)
    assert made.costs(greedy=False).overhead == pytest.approx(KNOWN.overhead + 2e-4)
    assert made.generate([1], max_new_tokens=4, temperature=1.0, seed=1).costs is made.costs(greedy=False)


@pytest.mark.parametrize(("slower", "current"), [(1.1, True), (1.3, False), (0.8, False)])
def test_a_few_passes_tell_whether_costs_still_hold(clock, slower, current):
    """The costs of a machine as a whole do not matter, those of eight nodes against those of one do."""
    passes = Costs((1, 2, 4, 8, 16), (2e-3, 2e-3, 2.5e-3, 3.2e-3 * slower, 5e-3))
    now = CostCurve(passes, KNOWN.draft, 0.0, 0.0)
    kept = KeptCosts(KNOWN, PASSES.at(8) / PASSES.at(1))
    assert is_current(kept, TimedModel(TARGET, clock, now)) is current


def test_a_policy_that_weighs_nothing_measures_nothing(clock):
    made = timed(clock).with_policy(Chain())
    out = made.generate([1], max_new_tokens=8)
    assert out.costs is None
    assert not made.learned.measured


def test_without_a_drafter_there_are_no_costs():
    with pytest.raises(ConfigError, match="without a drafter there are no costs to weigh; name a drafter"):
        _ = Decoder(ToyModel(TARGET), None, Auto()).costs()


def test_costs_of_a_very_slow_model_are_kept_without_a_look(clock):
    kept = KeptCosts(slower(10.0), 1.0)
    assert is_current(kept, TimedModel(TARGET, clock, SLOW))
    assert clock.now == 0.0


def test_passes_are_timed_behind_rows_that_are_copies_where_the_context_is_long(monkeypatch):
    model, _ = tiny.wrap(tiny.build("llama"))
    passes, forward = [], model.forward

    def watch(segments, **options):
        (segment,) = segments
        rows = segment.cache.buffers[0][..., : segment.cache.length, :] if segment.cache.length else None
        passes.append((segment.nodes, segment.cache.length, rows is None or bool((rows != 0).any(-1).all())))
        return forward(segments, **options)

    monkeypatch.setattr(model, "forward", watch)
    context = 2 * READ + 7
    assert set(time_passes(model, (1, 4), context, 1)) == {1, 4}
    assert passes == [(READ, 0, True), *[(1, context, True), (4, context, True)] * 2]
