"""Refusals of what the processes of a sharded target could not decide alike."""

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.errors import ConfigError
from drafttree.policies import Auto
from drafttree.verifiers import RRS, Coupled, Greedy, Traversal
from testing.toy import Table, ToyDrafter, ToyModel

TABLE = Table(6, seed=1)


@pytest.fixture
def decoder():
    """A decoder of a target that says that it is sharded."""
    target = ToyModel(TABLE)
    target.tensor_parallel_size = 2
    return Decoder(target, ToyDrafter(TABLE))


@pytest.mark.parametrize("verifier", [RRS, Traversal])
def test_verifiers_that_weigh_the_drafters_probabilities_are_refused(decoder, verifier):
    with pytest.raises(ConfigError, match=f"{verifier.__name__} cannot verify .* use 'greedy' or 'coupled'"):
        decoder.with_verifier(verifier)


@pytest.mark.parametrize("verifier", [Greedy, Coupled, None])
def test_verifiers_that_go_by_the_targets_logits_alone_are_served(decoder, verifier):
    assert decoder.with_verifier(verifier).verifier is verifier


def test_time_is_not_measured(decoder):
    with pytest.raises(ConfigError, match="costs, which the policy auto weighs, are measured by a clock"):
        decoder.with_policy(Auto()).generate([1, 2], max_new_tokens=2)


def test_no_text_ends_by_a_clock(decoder):
    with pytest.raises(ConfigError, match="max_time ends a text by a clock"):
        decoder.generate([1, 2], max_time=1.0)


def test_many_requests_at_once_are_refused(decoder):
    with pytest.raises(ConfigError, match="many requests at once are budgeted by a clock"):
        Engine(decoder)
    with pytest.raises(ConfigError, match="many requests at once are budgeted by a clock"):
        decoder.generate([[1, 2], [3]], max_new_tokens=2)
