"""Greedy and Coupled against a walk down the tree in plain Python."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree import DraftTree, Sampling
from drafttree.core import SeededRandomness
from drafttree.core.randomness import gumbel
from drafttree.errors import ConfigError
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

VOCAB = 5
SILENT = SeededRandomness(0, VOCAB, torch.device("cpu"))
SILENCE = SILENT.at(0)

sizes = st.integers(1, 25)
seeds = st.integers(0, 10**6)


def random_tree(seed: int, size: int) -> DraftTree:
    """A random tree whose siblings differ."""
    paths = _random_paths(random.Random(seed), size)
    places = {path: index for index, path in enumerate(paths)}
    tokens = [path[-1] if path else 0 for path in paths]
    parents = [places[path[:-1]] if path else -1 for path in paths]
    logprobs = [-float(len(path)) for path in paths]
    return DraftTree(tokens, parents, logprobs, logprobs, len(paths[-1]))


def _random_paths(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    paths: set[tuple[int, ...]] = {()}
    while len(paths) < size:
        paths.add((*rng.choice(sorted(paths)), rng.randrange(VOCAB)))
    return sorted(paths, key=lambda path: (len(path), path))


def random_logits(seed: int, tree: DraftTree) -> torch.Tensor:
    """Small integers, so that ties are common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (tree.size, VOCAB), generator=generator).float()


def walk_down(tree: DraftTree, chosen: list[int]) -> tuple[list[int], int]:
    """Take the child that is the chosen token for as long as there is one."""
    path = [0]
    while below := [
        node for node in range(1, tree.size) if tree.parents[node] == path[-1] and tree.tokens[node] == chosen[path[-1]]
    ]:
        path += below
    return path, chosen[path[-1]]


def first_argmax(rows: list[list[float]]) -> list[int]:
    return [row.index(max(row)) for row in rows]


free = settings(max_examples=120)


@free
@given(seeds, sizes)
def test_greedy_is_the_walk_along_the_most_probable_tokens(seed, size):
    tree = random_tree(seed, size)
    logits = random_logits(seed, tree)
    assert Greedy(Sampling()).verify(tree, logits, SILENCE) == walk_down(tree, first_argmax(logits.tolist()))


@free
@given(seeds, sizes, st.integers(0, 50), st.sampled_from([(1.0, 1.0), (0.7, 0.9), (2.0, 0.5)]))
def test_coupled_is_the_walk_along_the_tokens_drawn_with_the_noise_of_their_positions(seed, size, position, law):
    tree = random_tree(seed, size)
    logits = random_logits(seed, tree)
    sampling = Sampling(temperature=law[0], top_p=law[1], seed=seed)
    rows, randomness, chosen = sampling.process(logits).tolist(), {}, []
    for node in range(tree.size):
        follows = position + 1 + depth_of(tree, node)
        if follows not in randomness:
            randomness[follows] = gumbel(seed, torch.tensor(follows), VOCAB).tolist()
        chosen += first_argmax([[a + b for a, b in zip(rows[node], randomness[follows], strict=True)]])
    stream = SeededRandomness(seed, VOCAB, torch.device("cpu"))
    assert Coupled(sampling).verify(tree, logits, stream.at(position)) == walk_down(tree, chosen)


def depth_of(tree: DraftTree, node: int) -> int:
    return 1 + depth_of(tree, tree.parents[node]) if node else 0


def test_a_tie_goes_to_the_lowest_token():
    tree = DraftTree.rooted(0)
    assert Greedy(Sampling()).verify(tree, torch.zeros(1, VOCAB), SILENCE) == ([0], 0)


def test_coupled_shows_the_drafter_the_noise_the_target_will_use():
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=8)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    randomness = SeededRandomness(8, VOCAB, torch.device("cpu")).at(11)
    shown = Coupled(sampling).guide(logits, 1, randomness).argmax(-1)
    for node in range(3):
        tree = DraftTree.rooted(0)
        verdict = Coupled(sampling).verify(tree, logits[node : node + 1], randomness)
        assert verdict.bonus == int(shown[node])


def test_coupled_never_draws_a_token_that_sampling_excludes():
    sampling, logits = Sampling(temperature=3.0, top_k=2), torch.tensor([[0.0, 5.0, 4.0, 1.0, 2.0]])
    tree = DraftTree.rooted(0)
    drawn = {Coupled(sampling).verify(tree, logits, SILENT.at(position)).bonus for position in range(200)}
    assert drawn == {1, 2}


def test_coupled_guides_a_drafter_with_a_smaller_vocabulary():
    guided = Coupled(Sampling(temperature=1.0)).guide(torch.zeros(1, 3), 2, SILENCE)
    assert torch.equal(guided[0], SILENT.gumbel(2)[:3])


def test_greedy_leaves_the_drafters_logits_alone():
    logits = torch.randn(2, VOCAB)
    assert Greedy(Sampling()).guide(logits, 5, SILENCE) is logits


@pytest.mark.parametrize(
    ("verifier", "temperature", "other"), [(Greedy, 0.8, "use 'coupled'"), (Coupled, 0.0, "use 'greedy'")]
)
def test_a_verifier_refuses_what_it_cannot_serve_and_names_the_one_that_can(verifier, temperature, other):
    with pytest.raises(ConfigError, match=other) as error:
        verifier(Sampling(temperature=temperature))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())
def test_every_verifier_names_its_source(verifier):
    assert verifier.source


def test_the_base_verifier_serves_anything_and_judges_nothing():
    base = Verifier(Sampling(0.3))
    with pytest.raises(NotImplementedError):
        base.verify(DraftTree.rooted(0), torch.zeros(1, VOCAB), SILENCE)
