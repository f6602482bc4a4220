"""The counter-based noise against SplitMix64 on Python integers, and whether it looks random."""

import gc
import hashlib
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from drafttree.core import Proposal, SeededRandomness
from drafttree.core.randomness import RUN, SPAN, derived_seed, gumbel, uniform
from drafttree.core.vocab_ops import draw
from helpers.splitmix import plain_uniform, splitmix

seeds = st.integers(-(2**63), 2**63 - 1)


def test_the_reference_is_splitmix64_as_published():
    assert splitmix(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(max_examples=40)
@given(seeds, st.integers(0, 2**40), st.integers(1, 20))
def test_uniform_is_splitmix64_of_seed_and_position(seed, position, count):
    numbers = uniform(seed, torch.tensor([position, position + 1]), count)
    assert numbers.dtype == torch.float64
    assert numbers.tolist() == [plain_uniform(seed, position, count), plain_uniform(seed, position + 1, count)]


@settings(max_examples=20)
@given(seeds, st.integers(1, 30), st.integers(0, 30))
def test_a_longer_stream_begins_with_the_shorter_one(seed, short, more):
    positions = torch.arange(5)
    assert torch.equal(uniform(seed, positions, short + more)[:, :short], uniform(seed, positions, short))


def test_uniform_never_reaches_zero_or_one():
    numbers = uniform(0, torch.arange(1000), 2000)
    assert 0 < numbers.min() < 1e-5
    assert 1 - 1e-5 < numbers.max() < 1
    assert gumbel(0, torch.arange(1000), 2000).isfinite().all()


def test_the_extreme_integers_stay_inside_the_interval(monkeypatch):
    monkeypatch.setattr("drafttree.core.randomness._splitmix", lambda bits: torch.full_like(bits, -1))
    assert uniform(0, torch.tensor([0]), 1).item() < 1
    monkeypatch.setattr("drafttree.core.randomness._splitmix", torch.zeros_like)
    assert uniform(0, torch.tensor([0]), 1).item() > 0


def test_uniform_is_uniform():
    assert stats.kstest(uniform(5, torch.arange(200), 100).flatten().numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_neighbouring_numbers_are_not_correlated(axis):
    if axis == "seed":
        numbers = torch.stack([uniform(seed, torch.arange(20), 20).flatten() for seed in range(50)])
    else:
        numbers = uniform(9, torch.arange(140), 140)
        numbers = numbers.T if axis == "token" else numbers
    first, second = numbers[:-1].flatten(), numbers[1:].flatten()
    assert abs(torch.corrcoef(torch.stack((first, second)))[0, 1]) < 4 / math.sqrt(len(first))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=12))
def test_noise_is_the_same_whatever_was_asked_before(asked):
    randomness = SeededRandomness(4, 7, torch.device("cpu"))
    for position, begun in asked:
        if begun:
            randomness.at(position)
        assert torch.equal(randomness.gumbel(position), gumbel(4, torch.tensor(position), 7))


@pytest.mark.parametrize("vocab", [7, 2**18])
def test_noise_the_text_has_passed_is_forgotten(vocab):
    randomness = SeededRandomness(4, vocab, torch.device("cpu"))
    for root in range(0, 3 * SPAN, SPAN // 2):
        randomness.at(root)
        for position in range(root + 1, root + 4):
            randomness.gumbel(position)
    assert len(randomness._gumbel) <= (2 * SPAN if vocab == 7 else 3)


def test_a_round_that_was_asked_is_freed_at_once():
    """Its numbers belong to the text, which would else wait for the garbage collector."""
    made = SeededRandomness(4, 7, torch.device("cpu")).at(5)
    made.accept(0.5)
    made.draw(torch.ones(7))
    round_ = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert round_() is None
    finally:
        gc.enable()


def test_noise_is_the_same_in_blocks_of_any_size(monkeypatch):
    whole = SeededRandomness(4, 7, torch.device("cpu"))
    monkeypatch.setattr("drafttree.core.randomness.BLOCK", 20)
    small = SeededRandomness(4, 7, torch.device("cpu"))
    assert all(torch.equal(small.gumbel(position), whole.gumbel(position)) for position in range(30))


def answers(randomness: SeededRandomness, position: int) -> tuple[list[bool], list[int]]:
    """What the streams of a round say."""
    turn = randomness.at(position)
    return [turn.accept(0.5) for _ in range(40)], [turn.draw(torch.ones(1000)) for _ in range(5)]


def test_the_streams_of_a_round_depend_on_its_seed_and_position_alone():
    randomness = SeededRandomness(4, 1000, torch.device("cpu"))
    first = answers(randomness, 7)
    elsewhere = answers(randomness, 8)
    randomness.at(7).children(torch.ones(1, 1000), torch.tensor([2]), 2, Proposal.WITHOUT_REPLACEMENT, 1)
    assert answers(randomness, 7) == first == answers(SeededRandomness(4, 1000, torch.device("cpu")), 7)
    other = answers(SeededRandomness(5, 1000, torch.device("cpu")), 7)
    for one, two in ((first, elsewhere), (first, other)):
        assert one[0] != two[0]
        assert one[1] != two[1]


def test_the_streams_of_a_round_do_not_shift_each_other():
    """How many decisions are taken before the bonus token does not matter to it."""
    randomness = SeededRandomness(4, 1000, torch.device("cpu"))
    bonus = randomness.at(7).draw(torch.ones(1000))
    turn = randomness.at(7)
    assert [turn.accept(0.5), turn.draw(torch.ones(1000))][1] == bonus


def test_a_stream_needs_all_bits_of_its_seed():
    """torch's generator on a CPU keeps 32 of them."""
    assert answers(SeededRandomness(2**32 + 4, 1000, torch.device("cpu")), 7) != answers(
        SeededRandomness(4, 1000, torch.device("cpu")), 7
    )
    first, other = (uniform(derived_seed(seed, "draft/1"), torch.tensor(7), 20) for seed in (3, 3 + 2**32))
    assert not (first == other).any()


def test_a_stream_is_counter_based_and_so_the_same_on_every_device():
    key = int.from_bytes(hashlib.blake2b(b"-5/draft/2", digest_size=8).digest(), signed=True)
    assert uniform(derived_seed(-5, "draft/2"), torch.tensor(11), 9).tolist() == plain_uniform(key, 11, 9)


@pytest.mark.cuda
def test_a_stream_on_a_gpu_is_that_of_the_cpu():
    made = [uniform(derived_seed(-5, "draft/2"), torch.tensor(11, device=name), 1000).cpu() for name in ("cpu", "cuda")]
    assert torch.equal(*made)


def test_children_are_drawn_from_the_stream_of_their_round_and_level():
    """However many are asked for, and whatever was asked before."""
    randomness, weights = SeededRandomness(4, 1000, torch.device("cpu")), torch.ones(1, 1000)
    for position, count in ((70, 3), (71, 20), (70, 20), (3, 1)):
        turn = randomness.at(position)
        tokens, _ = turn.children(weights, torch.tensor([count]), count, Proposal.WITH_REPLACEMENT, 2)
        shares = uniform(derived_seed(4, "draft/2"), torch.tensor(position), count)
        assert tokens[0].tolist() == [int(draw(weights[0], share)) for share in shares]


@pytest.mark.parametrize("proposal", [Proposal.WITHOUT_REPLACEMENT, Proposal.WITH_REPLACEMENT])
def test_children_do_not_depend_on_how_many_are_drawn_beside_them(proposal):
    """A device that is not asked how many children there are at most draws more, and the same."""
    weights, counts = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0, 3])
    few, many = (
        SeededRandomness(4, 50, torch.device("cpu")).at(7).children(weights.clone(), counts, most, proposal, 1)[0]
        for most in (3, 8)
    )
    for node, count in enumerate(counts.tolist()):
        assert few[node, :count].tolist() == many[node, :count].tolist()


def test_more_decisions_than_a_run_of_numbers_look_random():
    randomness = SeededRandomness(4, 1000, torch.device("cpu"))
    turn = randomness.at(7)
    taken = [turn.accept(0.3) for _ in range(4000)]
    assert taken[:RUN] != taken[RUN : 2 * RUN]
    assert abs(sum(taken) / 4000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 4000)


def test_seeds_and_positions_differ():
    rows = torch.cat([gumbel(seed, torch.arange(3), 4) for seed in (0, 1, -1)])
    assert len(rows.unique(dim=0)) == 9


def test_nothing_is_copied_to_the_device_for_the_noise(monkeypatch):
    """A copy of the seed would make the host wait for a GPU at every position."""
    positions = torch.arange(3)
    expected = uniform(-(2**62) + 5, positions, 7)
    monkeypatch.setattr(torch, "tensor", None)
    monkeypatch.setattr(torch.Tensor, "to", None)
    assert torch.equal(uniform(-(2**62) + 5, positions, 7), expected)


@pytest.mark.parametrize(("device", "span"), [("cpu", 1), ("cuda", 27)])
def test_a_large_vocabulary_has_the_noise_of_many_positions_made_at_once_on_a_gpu(device, span):
    assert SeededRandomness(0, 152_064, torch.device(device))._span == span
