"""At temperature 1 a coupled text has the target's law, 5,000 draws, and is the same whatever tree it was checked in.

All seeds grow their trees in one batch, each with its own noise, and the policies do not notice.
"""

import itertools

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import one_hot

from drafttree import DraftTree, Sampling, Verdict
from drafttree.core.randomness import gumbel
from drafttree.engine import grow
from drafttree.policies import POLICIES, Chain
from drafttree.verifiers import Coupled
from drafttree.verifiers.base import walk
from testing.costs import new_states, toy_decoder
from testing.toy import Table, ToyDrafter, ToyModel, softmax

DRAWS, VOCAB, LENGTH, LEVELS = 5000, 4, 3, 3
PROMPT = [2, 1]
TARGET = Table(VOCAB, seed=5, scale=1.0)
DRAFT = TARGET.blurred(0.7)

SMALL = {
    "auto": {"depth": 3, "children": 3, "budget": 7},
    "chain": {"depth": 3},
    "fixed": {"depth": 2, "breadth": 2},
    "template": {"tree": "binary-2"},
    "dynatree": {"base_depth": 2, "max_depth": 3},
    "talon": {"width": 2, "margin": 0.2, "budget": 8},
    "eagle": {"depth": 3, "top_k": 2, "budget": 7},
    "opt-tree": {"threshold": 0.3, "depth": 3, "budget": 6},
    "dyspec": {"depth": 3, "budget": 7},
}


class ManyNoises:
    """The noise of a text per seed, `[texts, positions, vocab]`."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def at(self, texts: list[int], position: int) -> list["TextNoise"]:
        return [TextNoise(self.rows[text, position:]) for text in texts]


class TextNoise:
    """The noise of one text from a root on."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def gumbel(self, depth: int) -> Tensor:
        return self.rows[depth]


class ManyDrafts:
    """The drafter's table, read for many texts at once; see `tree_growth.DraftRows`."""

    def __init__(self, table: Tensor, last: Tensor, noise: Tensor, sampling: Sampling) -> None:
        self.table, self.noise, self.sampling, self.depth = table, noise, sampling, 0
        self.frontier = [[(int(before), int(root))] for before, root in last]

    def root(self) -> Tensor:
        return self._rows()

    def expand(self, frontiers) -> Tensor:
        self.frontier = [
            [(above[origin][1], token) for token, origin in zip(*own, strict=True)]
            for above, own in zip(self.frontier, frontiers, strict=True)
        ]
        return self._rows()

    def _rows(self) -> Tensor:
        """Guided as `Coupled` does it."""
        self.depth += 1
        texts = torch.tensor([text for text, nodes in enumerate(self.frontier) for _ in nodes])
        before, last = torch.tensor([node for nodes in self.frontier for node in nodes]).unbind(1)
        return self.sampling.process(self.table[before, last]) + self.noise[texts, self.depth]


class Hopeful(Coupled):
    """A verifier that is wrong: it accepts any child that the target finds likelier than 30 %."""

    def verify(self, tree: DraftTree, logits: Tensor, randomness) -> Verdict:
        noise = torch.stack([randomness.gumbel(1 + depth) for depth in tree.depths])
        chosen = (self.sampling.process(logits) + noise).argmax(-1)
        for node in range(1, tree.size):
            if logits[tree.parents[node]].softmax(-1)[tree.tokens[node]] > 0.3:
                chosen[tree.parents[node]] = tree.tokens[node]
        return walk(tree, one_hot(chosen, VOCAB).float())


@pytest.fixture(scope="module")
def noises() -> ManyNoises:
    positions = torch.arange(len(PROMPT) + LENGTH + LEVELS + 1)
    return ManyNoises(torch.stack([gumbel(seed, positions, VOCAB) for seed in range(DRAWS)]))


def generate(policy, verifier: Coupled, noises: ManyNoises, draws: int = DRAWS) -> list[tuple[int, ...]]:
    """The first three tokens of every text, by rounds of growing and verifying."""
    target, draft = (
        torch.tensor([[table((one, two)) for two in range(VOCAB)] for one in range(VOCAB)]) for table in (TARGET, DRAFT)
    )
    texts = [list(PROMPT) for _ in range(draws)]
    for length in range(len(PROMPT), len(PROMPT) + LENGTH):
        group = [index for index, text in enumerate(texts) if len(text) == length]
        if not group:
            continue
        last, randomness = torch.tensor([texts[index][-2:] for index in group]), noises.at(group, length - 1)
        drafted = ManyDrafts(draft, last, noises.rows[group, length - 1 :], verifier.sampling)
        roots, states = last[:, 1].tolist(), new_states(policy, len(group))
        trees = grow(policy, drafted, roots, [LEVELS] * len(group), states=states)
        for index, tree, noise in zip(group, trees, randomness, strict=True):
            before = [texts[index][-2], *(tree.tokens[parent] for parent in tree.parents[1:])]
            path, bonus = verifier.verify(tree, target[before, tree.tokens], noise)
            texts[index] += [*(tree.tokens[node] for node in path[1:]), bonus]
    return [tuple(text[len(PROMPT) :][:LENGTH]) for text in texts]


def exact_law() -> dict[tuple[int, ...], float]:
    """The probability of every continuation of three tokens, from the table."""
    law = {}
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        prefix, law[text] = list(PROMPT), 1.0
        for token in text:
            law[text] *= softmax(TARGET(prefix))[token]
            prefix.append(token)
    return law


def p_value(texts: list[tuple[int, ...]]) -> float:
    """Of a chi-square test against the exact law, rare continuations in one cell."""
    law = exact_law()
    rare = [text for text in law if law[text] * len(texts) < 5]
    cells = [text for text in law if text not in set(rare)]
    observed = [texts.count(text) for text in cells] + [sum(texts.count(text) for text in rare)]
    expected = [law[text] * len(texts) for text in cells] + [sum(law[text] for text in rare) * len(texts)]
    pairs = [(o, e) for o, e in zip(observed, expected, strict=True) if e]
    return stats.chisquare(*zip(*pairs, strict=True), sum_check=False).pvalue


def test_every_policy_is_tried_here():
    assert SMALL.keys() == POLICIES.keys()


def test_the_exact_law_sums_to_one():
    assert sum(exact_law().values()) == pytest.approx(1)


@pytest.fixture(scope="module")
def texts(noises) -> list[tuple[int, ...]]:
    return generate(Chain(depth=3), Coupled(Sampling(temperature=1.0)), noises)


def test_a_coupled_text_has_the_targets_law(texts):
    assert p_value(texts) > 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_a_coupled_text_is_the_same_with_every_policy(name, noises, texts):
    assert generate(POLICIES[name](**SMALL[name]), Coupled(Sampling(temperature=1.0)), noises, 500) == texts[:500]


@pytest.mark.parametrize("name", SMALL)
def test_a_biased_verifier_is_found_out(name, noises):
    texts = generate(POLICIES[name](**SMALL[name]), Hopeful(Sampling(temperature=1.0)), noises, 1000)
    assert p_value(texts) < 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_the_batch_of_seeds_says_what_the_decoder_says(name, noises):
    policy = POLICIES[name](**SMALL[name])
    batch = generate(policy, Coupled(Sampling(temperature=1.0)), noises, draws=12)
    decoder = toy_decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy)
    for seed, text in enumerate(batch):
        out = decoder.generate(PROMPT, max_new_tokens=LENGTH, temperature=1.0, seed=seed)
        assert tuple(out.tokens) == text
