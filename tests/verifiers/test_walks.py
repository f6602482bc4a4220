"""Greedy and Coupled against a walk down the tree in plain Python."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import SeededRandomness, gumbel
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

VOCAB = 5
SILENT = SeededRandomness(0, VOCAB, torch.device("cpu"))
SILENCE = [SILENT.at(0)] * 2

sizes = st.tuples(st.integers(1, 25), st.integers(1, 25))
seeds = st.integers(0, 10**6)


def random_trees(seed: int, sizes: tuple[int, ...]) -> DraftTree:
    """Random trees whose siblings differ, padded to the largest, the padding holding tempting tokens."""
    rng, width = random.Random(seed), max(sizes)
    tokens, parents, paths, deepest = [], [], [], 0
    for size in sizes:
        drawn = _random_paths(rng, size)
        places = {path: index for index, path in enumerate(drawn)}
        missing = width - len(drawn)
        deepest = max(deepest, len(drawn[-1]))
        tokens.append([path[-1] if path else 0 for path in drawn] + [rng.randrange(VOCAB) for _ in range(missing)])
        parents.append([places[path[:-1]] if path else -1 for path in drawn] + [0] * missing)
        paths.append([-float(len(path)) for path in drawn] + [-math.inf] * missing)
    path_logprobs = torch.tensor(paths)
    levels = max(deepest, 1) if width > 1 else 0
    return DraftTree(torch.tensor(tokens), torch.tensor(parents), path_logprobs, path_logprobs, levels)


def _random_paths(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    paths: set[tuple[int, ...]] = {()}
    while len(paths) < size:
        paths.add((*rng.choice(sorted(paths)), rng.randrange(VOCAB)))
    return sorted(paths, key=lambda path: (len(path), path))


def random_logits(seed: int, tree: DraftTree) -> torch.Tensor:
    """Small integers, so that ties are common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (*tree.tokens.shape, VOCAB), generator=generator).float()


def walk_down(tree: DraftTree, chosen: list[list[int]]) -> list[tuple[list[int], int]]:
    """Take the child that is the chosen token for as long as there is one."""
    paths, bonus = [], []
    for text, wanted in enumerate(chosen):
        path = [0]
        while True:
            children = [
                node
                for node in range(1, tree.size)
                if tree.parents[text, node] == path[-1]
                and tree.tokens[text, node] == wanted[path[-1]]
                and math.isfinite(tree.path_logprobs[text, node])
            ]
            if not children:
                break
            path += children
        paths.append(path)
        bonus.append(wanted[path[-1]])
    return list(zip(paths, bonus, strict=True))


def first_argmax(rows: list[list[float]]) -> list[int]:
    return [row.index(max(row)) for row in rows]


free = settings(max_examples=60, deadline=None)


@free
@given(seeds, sizes)
def test_greedy_is_the_walk_along_the_most_probable_tokens(seed, sizes):
    tree = random_trees(seed, sizes)
    logits = random_logits(seed, tree)
    chosen = [first_argmax(rows) for rows in logits.tolist()]
    assert Greedy(Sampling()).verify(tree, logits, SILENCE).host == walk_down(tree, chosen)


@free
@given(seeds, sizes, st.integers(0, 50), st.sampled_from([(1.0, 1.0), (0.7, 0.9), (2.0, 0.5)]))
def test_coupled_is_the_walk_along_the_tokens_drawn_with_the_noise_of_their_positions(seed, sizes, position, law):
    tree = random_trees(seed, sizes)
    logits = random_logits(seed, tree)
    sampling = Sampling(temperature=law[0], top_p=law[1], seed=seed)
    rows, randomness = sampling.process(logits).tolist(), {}
    chosen = []
    for text in range(2):
        chosen.append([])
        for node in range(tree.size):
            follows = position + 1 + depth_of(tree, text, node)
            if follows not in randomness:
                randomness[follows] = gumbel(seed, torch.tensor(follows), VOCAB).tolist()
            noisy = [logit + extra for logit, extra in zip(rows[text][node], randomness[follows], strict=True)]
            chosen[-1] += first_argmax([noisy])
    verifier, stream = Coupled(sampling), SeededRandomness(seed, VOCAB, torch.device("cpu"))
    assert verifier.verify(tree, logits, [stream.at(position)] * 2).host == walk_down(tree, chosen)


def depth_of(tree: DraftTree, text: int, node: int) -> int:
    up = int(tree.parents[text, node])
    return 0 if up < 0 else 1 + depth_of(tree, text, up)


def test_a_tie_goes_to_the_lowest_token():
    tree = DraftTree.rooted(torch.tensor([[0]]))
    assert Greedy(Sampling()).verify(tree, torch.zeros(1, 1, VOCAB), SILENCE[:1]).host == [([0], 0)]


def test_padding_is_never_accepted():
    tree = random_trees(1, (1, 9))
    logits = torch.zeros(2, 9, VOCAB)
    logits[0, 0, tree.tokens[0, 4]] = 1.0
    assert Greedy(Sampling()).verify(tree, logits, SILENCE).host[0][0] == [0]


def test_coupled_shows_the_drafter_the_noise_the_target_will_use():
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=8)
    logits = torch.randn(1, 3, VOCAB, generator=torch.Generator().manual_seed(1))
    randomness = [SeededRandomness(8, VOCAB, torch.device("cpu")).at(11)]
    shown = Coupled(sampling).guide(logits, 1, randomness).argmax(-1)
    for node in range(3):
        tree = DraftTree.rooted(torch.tensor([[0]]))
        verdict = Coupled(sampling).verify(tree, logits[:, node : node + 1], randomness)
        assert list(verdict.bonus) == [int(shown[0, node])]


def test_coupled_never_draws_a_token_that_sampling_excludes():
    sampling, logits = Sampling(temperature=3.0, top_k=2), torch.tensor([[[0.0, 5.0, 4.0, 1.0, 2.0]]])
    tree = DraftTree.rooted(torch.tensor([[0]]))
    drawn = {Coupled(sampling).verify(tree, logits, [SILENT.at(position)]).bonus[0] for position in range(200)}
    assert drawn == {1, 2}


def test_coupled_guides_a_drafter_with_a_smaller_vocabulary():
    guided = Coupled(Sampling(temperature=1.0)).guide(torch.zeros(1, 1, 3), 2, SILENCE[:1])
    assert torch.equal(guided[0, 0], SILENT.gumbel(2)[:3])


def test_greedy_leaves_the_drafters_logits_alone():
    logits = torch.randn(1, 2, VOCAB)
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
        base.verify(DraftTree.rooted(torch.tensor([[0]])), torch.zeros(1, 1, VOCAB), SILENCE)
