"""Who observes a request sees its rounds as they were, and a text that is not speculated on is the same text."""

import asyncio
from dataclasses import dataclass, field

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.errors import ConfigError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Talon
from testing import random_cases

PROMPT = [3, 1, 4, 1, 5]
OPTIONS = {"max_new_tokens": 24, "ignore_eos": True}


@dataclass
class Seen:
    """What an observer was shown."""

    grown: list = field(default_factory=list)
    reasons: list = field(default_factory=list)
    trees: list = field(default_factory=list)
    shapes: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)
    turns: list = field(default_factory=list)

    def drafted(self, request, grown, reason):
        self.grown.append(grown)
        self.reasons.append(reason)

    def settled(self, request, tree, logits, verdict, turn):
        self.trees.append(tree)
        self.shapes.append(tuple(logits.shape))
        self.verdicts.append(verdict)
        self.turns.append(turn)


@pytest.fixture(scope="module")
def decoder():
    target, drafter = random_cases.target("llama").target, random_cases.drafter("llama", "near")
    return Decoder(target, drafter, Talon(width=4, budget=16)).with_costs(TOY_COSTS)


@pytest.fixture(scope="module")
def observed(decoder):
    """A text and what was seen of it, with four drafted nodes a round."""
    seen = Seen()
    with Engine(decoder, budget=4) as engine:
        found = engine.submit(PROMPT, observer=seen, **OPTIONS).result(300)
    return found, seen


def test_the_paths_and_bonus_tokens_that_are_seen_are_the_text(observed):
    found, seen = observed
    tokens = []
    for tree, verdict in zip(seen.trees, seen.verdicts, strict=True):
        path, bonus = verdict
        tokens += [*(tree.tokens[node] for node in path[1:]), bonus]
    assert tokens[: len(found.tokens)] == found.tokens
    assert seen.turns == found.metrics.rounds


def test_the_target_is_seen_at_every_node_of_the_tree(observed):
    _, seen = observed
    assert seen.shapes == [(tree.size, 97) for tree in seen.trees]


def test_trees_are_seen_before_and_after_the_budget_cuts_them(observed):
    _, seen = observed
    assert max(tree.size for tree in seen.trees) == 5
    assert max(tree.size for tree in seen.grown) == 16
    for grown, tree in zip(seen.grown, seen.trees, strict=True):
        assert set(tree.paths()) <= set(grown.paths())


def test_why_nothing_is_drafted_is_seen(decoder):
    seen = Seen()
    with Engine(decoder.plain()) as engine:
        engine.submit(PROMPT, observer=seen, **OPTIONS).result(300)
    assert set(seen.reasons) == {"there is no drafter"}
    assert {tree.size for tree in seen.grown} == {1}


async def _of_astream(decoder, observer):
    return [token async for chunk in decoder.astream(PROMPT, observer=observer, **OPTIONS) for token in chunk.tokens]


WAYS = {
    "generate": lambda decoder, observer: decoder.generate(PROMPT, observer=observer, **OPTIONS).tokens,
    "a list": lambda decoder, observer: decoder.generate([PROMPT], observer=observer, **OPTIONS)[0].tokens,
    "stream": lambda decoder, observer: [
        token for chunk in decoder.stream(PROMPT, observer=observer, **OPTIONS) for token in chunk.tokens
    ],
    "astream": lambda decoder, observer: asyncio.run(_of_astream(decoder, observer)),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_observer_can_be_given_wherever_a_text_is(decoder, way):
    seen = Seen()
    tokens = WAYS[way](decoder, seen)
    assert sum(turn.committed for turn in seen.turns) == len(tokens)
    assert len(seen.grown) == len(seen.turns)
    assert max(tree.size for tree in seen.trees) > 1
    with pytest.raises(ConfigError, match="observer is 3; it must have the methods drafted and settled"):
        WAYS[way](decoder, 3)


def test_generate_writes_plainly_too_where_it_is_asked_to(decoder):
    plain = decoder.generate(PROMPT, speculate=False, **OPTIONS)
    assert plain.tokens == decoder.generate(PROMPT, **OPTIONS).tokens
    assert len(plain.metrics.rounds) == len(plain.tokens)


def test_speculate_is_true_or_false(decoder):
    with pytest.raises(ConfigError, match="speculate is 'off'"):
        decoder.generate(PROMPT, speculate="off")
