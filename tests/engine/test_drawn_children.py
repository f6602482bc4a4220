"""Children drawn with real noise have the law they are told to have, and texts of the real decoder the target's."""

import itertools
import math

import pytest
import torch
from scipy import stats

from drafttree import Decoder, DraftTree, Sampling
from drafttree.core import Proposal, SeededRandomness
from drafttree.core import randomness as noises
from drafttree.core.randomness import uniform
from drafttree.engine import grow
from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.engine.drafting.tree_growth import MIN_LOGPROB
from drafttree.exactness import ScriptedRandom, outcomes
from drafttree.policies import Chain, Template
from drafttree.verifiers import RRS, Block, Coupled, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal, Verifier
from helpers.statistics import DRAFT, LENGTH, PROMPT, RAGGED, SMALL_P, TARGET, VOCAB, p_value, texts_law
from testing.toy import ToyDraft, ToyDrafter, ToyModel, softmax

CPU = torch.device("cpu")
DRAWN = [Proposal.WITHOUT_REPLACEMENT, Proposal.WITH_REPLACEMENT, Proposal.TOP_K_PLUS_SAMPLE]
ROWS = torch.tensor(
    [[0.4, 0.3, 0.2, 0.1, 0.0], [0.1, 0.0, 0.6, 0.0, 0.3], [0.2, 0.2, 0.2, 0.2, 0.2], [0.01, 0.02, 0.9, 0.03, 0.04]]
)
COUNTS = [2, 3, 2, 1]


def drawn(proposal: Proposal, draws: int, seed: int = 0, depth: int = 1, counts=COUNTS) -> list[list[tuple[int, ...]]]:
    """Per draw and node the tuple of its children; every draw is a round of its own."""
    randomness = SeededRandomness(seed, 5, torch.device("cpu"))
    tokens = [
        randomness.at(position).children(ROWS.clone(), torch.tensor(counts), max(counts), proposal, depth)[0].tolist()
        for position in range(draws)
    ]
    return [[tuple(row[:count]) for row, count in zip(rows, counts, strict=True)] for rows in tokens]


def exact_children(row: torch.Tensor, count: int, proposal: Proposal) -> dict[tuple[int, ...], float]:
    """The law of a node's children, enumerated."""

    def draw(randomness: ScriptedRandom) -> tuple[int, ...]:
        tokens, _ = randomness.children(row.double()[None], torch.tensor([count]), count, proposal, 1)
        return tuple(tokens[0, :count].tolist())

    law: dict[tuple[int, ...], float] = {}
    for weight, children in outcomes(draw):
        law[children] = law.get(children, 0.0) + weight
    return law


@pytest.mark.few(1)
@pytest.mark.parametrize("proposal", DRAWN)
def test_children_have_the_law_of_their_proposal(proposal):
    rounds = drawn(proposal, 4000)
    for node, count in enumerate(COUNTS):
        law = exact_children(ROWS[node], count, proposal)
        assert sum(law.values()) == pytest.approx(1)
        assert p_value([tokens[node] for tokens in rounds], law) > SMALL_P, node


@pytest.mark.few(1)
@pytest.mark.parametrize("proposal", DRAWN)
def test_an_impossible_token_is_never_drawn(proposal):
    counts = [4 if proposal is Proposal.WITHOUT_REPLACEMENT else 2, 3, 5, 1]
    for tokens in drawn(proposal, 1500, seed=1, counts=counts):
        assert all(ROWS[node, token] > 0 for node, children in enumerate(tokens) for token in children)


@pytest.mark.parametrize("proposal", [Proposal.WITHOUT_REPLACEMENT, Proposal.TOP_K_PLUS_SAMPLE])
def test_siblings_differ(proposal):
    assert all(len(set(children)) == len(children) for tokens in drawn(proposal, 300) for children in tokens)


def test_all_but_the_last_of_a_hub_are_the_best_and_the_row_is_of_the_rest():
    randomness = SeededRandomness(0, 5, torch.device("cpu")).at(7)
    counts = torch.tensor([3, 2, 1, 0])
    tokens, probs = randomness.children(ROWS.clone(), counts, 3, Proposal.TOP_K_PLUS_SAMPLE, 1)
    assert tokens[0, :2].tolist() == [0, 1]
    assert tokens[1, 0] == 2
    expected = [[0, 0, 2 / 3, 1 / 3, 0], [0.25, 0, 0, 0, 0.75], ROWS[2].tolist(), ROWS[3].tolist()]
    assert probs.tolist() == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("proposal", DRAWN)
def test_replay_and_real_noise_tell_the_same_distributions(proposal):
    counts = torch.tensor(COUNTS)
    _, told = SeededRandomness(0, 5, torch.device("cpu")).at(0).children(ROWS.clone(), counts, 3, proposal, 1)
    _, replayed = ScriptedRandom([]).children(ROWS.clone(), counts, 3, proposal, 1)
    assert torch.allclose(told, replayed, atol=1e-6)


def same_share(pairs: list[tuple]) -> float:
    """p-value of independence of the first children of two places."""
    table = torch.zeros(5, 5)
    for first, second in pairs:
        table[first[0], second[0]] += 1
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    return stats.chi2_contingency(table.numpy()).pvalue


@pytest.mark.few(1)
@pytest.mark.parametrize("proposal", [Proposal.WITHOUT_REPLACEMENT, Proposal.WITH_REPLACEMENT])
def test_nodes_levels_rounds_and_seeds_are_independent(proposal):
    rounds, deeper, other = (drawn(proposal, 2000, seed, depth) for seed, depth in ((0, 1), (0, 2), (1, 1)))
    assert same_share([(tokens[0], tokens[2]) for tokens in rounds]) > SMALL_P
    assert same_share([(one[0], two[0]) for one, two in zip(rounds, deeper, strict=True)]) > SMALL_P
    assert same_share([(one[0], two[0]) for one, two in zip(rounds, other, strict=True)]) > SMALL_P
    assert same_share([(one[0], two[0]) for one, two in itertools.pairwise(rounds)]) > SMALL_P


def sampled_tree(logits: list[float], policy, seed: int = 0) -> DraftTree:
    """A tree drawn for RRSw with the same draft row everywhere."""
    drafter = ToyDrafter(lambda prefix: logits, len(logits))
    randomness = SeededRandomness(seed, len(logits), CPU).at(4)
    adjustment = LogitsAdjustment(RRSw(Sampling(1.0)), randomness)
    draft = AdjustedDraft([drafter.start([1], 9)], [adjustment], CPU)
    drawn = {"proposal": Proposal.WITHOUT_REPLACEMENT, "randomness": [randomness]}
    (tree,) = grow(policy, draft, [1], [5], states=[None], **drawn)
    return tree


def test_tokens_whose_probability_float32_would_lose_are_not_drawn():
    tree = sampled_tree([0.0, -30.0, MIN_LOGPROB - 1, MIN_LOGPROB - 200], Template(tree="binary-1"))
    assert sorted(tree.tokens[1:]) == [0, 1]
    assert sampled_tree([0.0, MIN_LOGPROB - 1, MIN_LOGPROB - 200], Template(tree="binary-1")).tokens == (1, 0)


def test_a_tree_tells_the_row_of_every_node_that_has_children():
    tree = sampled_tree([1.0, 0.5, 0.0, -1.0], Template(tree="binary-2", budget=6))
    assert tree.proposal is Proposal.WITHOUT_REPLACEMENT
    assert tree.size == 6
    row = softmax([1.0, 0.5, 0.0, -1.0])
    for parent in set(tree.parents[1:]):
        assert tree.draft_probs[parent].tolist() == pytest.approx(row)
    assert tree.node_logprobs[1:] == pytest.approx([math.log(row[token]) for token in tree.tokens[1:]])


def batch_of(seeds: list[int], positions: list[int]) -> list[list[int]]:
    """The tokens of sampled trees of equal texts, each with its own seed and position."""
    sessions = [ToyDraft([lambda prefix: [0.0] * 6], [[1]], torch.float32) for _ in seeds]
    places = zip(seeds, positions, strict=True)
    randomness = [SeededRandomness(seed, 6, CPU).at(position) for seed, position in places]
    draft = AdjustedDraft(sessions, [LogitsAdjustment(RRSw(Sampling(1.0)), own) for own in randomness], CPU)
    drawn, count = {"proposal": Proposal.WITHOUT_REPLACEMENT, "randomness": randomness}, len(seeds)
    trees = grow(Template(tree="binary-3"), draft, [1] * count, [3] * count, states=[None] * count, **drawn)
    return [tree.tokens for tree in trees]


def test_equal_texts_of_a_batch_draw_the_children_of_their_own_seed_and_position():
    first, moved, other, same = batch_of([3, 3, 4, 3], [5, 6, 5, 5])
    assert first == same
    assert first != moved
    assert first != other
    assert [moved] == batch_of([3], [6])
    assert [other] == batch_of([4], [5])


def test_a_tree_of_the_root_alone_is_signed_too():
    assert sampled_tree([0.0, 1.0], Chain(budget=1)).proposal is Proposal.WITHOUT_REPLACEMENT


THROUGH = [
    (Coupled, RAGGED),
    (PointMass, RAGGED),
    (RRSw, RAGGED),
    (RRS, RAGGED),
    (Traversal, RAGGED),
    (Block, Chain(depth=2)),
    (KSeq, RAGGED),
    (GreedyMultiDraft, RAGGED),
]
NAMES = [verifier.__name__ for verifier, _ in THROUGH]


def texts(verifier: type[Verifier], policy, draws: int, length: int = LENGTH) -> list[tuple[int, ...]]:
    decoder = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy, verifier)
    options = {"max_new_tokens": length, "temperature": 1.0}
    return [tuple(decoder.generate(PROMPT, seed=seed, **options).tokens) for seed in range(draws)]


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [Coupled, RRSw, RRS, GreedyMultiDraft])
def test_texts_of_the_decoder_have_the_targets_law(verifier):
    """One verifier of each proposal; the slow test below has all of them."""
    assert p_value(texts(verifier, RAGGED, 600), texts_law()) > SMALL_P


@pytest.mark.slow
@pytest.mark.parametrize(("verifier", "policy"), THROUGH, ids=NAMES)
def test_many_texts_of_the_decoder_have_the_targets_law(verifier, policy):
    assert p_value(texts(verifier, policy, 20_000), texts_law()) > SMALL_P


@pytest.mark.slow
def test_draft_noise_used_again_in_the_next_round_is_found_out(monkeypatch):
    """With the same noise every round, a token that was drawn before is likelier to be drawn again."""
    monkeypatch.setattr(noises, "uniform", lambda seed, positions, size: uniform(seed, 0 * positions, size))
    assert p_value(texts(RRSw, Chain(depth=1), 600), texts_law()) < SMALL_P


def long_texts(verifier: type[Verifier], policy, seeds) -> list[list[int]]:
    decoder = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy, verifier)
    return [decoder.generate(PROMPT, max_new_tokens=30, temperature=1.0, seed=seed).tokens for seed in seeds]


@pytest.mark.few(4)
@pytest.mark.parametrize(("verifier", "policy"), THROUGH, ids=NAMES)
def test_a_text_does_not_notice_what_else_is_generated(verifier, policy):
    decoder = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy, verifier)
    sequences = [decoder.new_request(PROMPT, max_new_tokens=30, temperature=1.0, seed=seed) for seed in (3, 4, 3)]
    going = True
    while going:
        going = [sequence for sequence in sequences if not sequence.finish_reason]
        for sequence in going:
            torch.rand(5)
            decoder.step(sequence)
    assert [sequence.tokens[len(PROMPT) :] for sequence in sequences] == long_texts(verifier, policy, (3, 4, 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [RRSw, Traversal, KSeq, GreedyMultiDraft])
def test_a_drafter_with_a_smaller_vocabulary_drafts_for_every_verifier(verifier):
    drafter = ToyDrafter(lambda prefix: DRAFT([min(token, 5) for token in prefix])[:6], 6)
    decoder = Decoder(ToyModel(TARGET, VOCAB), drafter, RAGGED, verifier)
    found = [decoder.generate(PROMPT, max_new_tokens=12, temperature=1.0, seed=seed) for seed in range(20)]
    tokens = {token for generation in found for token in generation.tokens}
    assert max(tokens) > 5
    assert sum(generation.metrics.rounds[0].accepted for generation in found) > 0


@pytest.mark.parametrize("verifier", [RRSw, Traversal, KSeq, GreedyMultiDraft])
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_low_temperatures_neither_fail_nor_leave_the_target(verifier, temperature):
    decoder = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), RAGGED, verifier)
    greedy = Decoder(ToyModel(TARGET, VOCAB)).generate(PROMPT, max_new_tokens=10).tokens
    cold = [decoder.generate(PROMPT, max_new_tokens=10, temperature=temperature, seed=s).tokens for s in range(10)]
    assert all(len(text) == 10 for text in cold)
    assert sum(text == greedy for text in cold) >= (9 if temperature == 0.01 else 1)
