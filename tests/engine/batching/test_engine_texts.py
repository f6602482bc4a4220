"""Texts of a batch are those that each request gives alone: every drafter, all kinds of options, in any company."""

from collections.abc import Sequence

import pytest

from drafttree import Decoder
from drafttree.drafters import Drafter
from drafttree.engine.batching import Engine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Talon, TreePolicy
from helpers.drafter_kinds import drafter_of
from testing import families, random_cases
from testing.batches import TOKENIZER, Asked, check_texts, mixed_requests, submit_from_threads

TREES = Talon(width=4, budget=16)
TINY_DRAFTERS = ["none", "near", "mixed:near", "lookup", "suffix"]
EMBEDDED_DRAFTERS = ["language model", "eagle3", "eagle3, module", "medusa", "hydra", "hydra++", "lookup", "mixed"]
EXACT_DRAFTERS = ["embedded-draft", "embedded-eagle3", "embedded-medusa", "embedded-hydra", "mixed:embedded-eagle3"]


def tiny_decoder(kind: str = "near", family: str = "llama", policy: TreePolicy = TREES) -> Decoder:
    """Random weights and a tokenizer of letters."""
    target, drafter = random_cases.target(family).target, random_cases.drafter(family, kind)
    return with_known_costs(Decoder(target, drafter, policy, tokenizer=TOKENIZER, eos=(0,)))


def embedded_decoder(drafter: Drafter | None) -> Decoder:
    return with_known_costs(random_cases.target("embedded").with_drafter(drafter).with_policy(TREES))


def with_known_costs(decoder: Decoder) -> Decoder:
    """No clock decides what is drafted, so that every run does the same."""
    return decoder.with_costs(TOY_COSTS) if decoder.drafter else decoder


def check_batch(decoder: Decoder, asked: Sequence[Asked], *, max_batch: int = 16, budget: int | None = 5) -> None:
    """The texts of requests that join at random, against each alone."""
    budget = budget if decoder.drafter else None
    with Engine(decoder, max_batch=max_batch, budget=budget) as engine:
        found = [handle.result(300) for handle in submit_from_threads(engine, asked)]
    check_texts(decoder, asked, found)
    metrics = engine.metrics
    assert (metrics.drafter_failures, metrics.failed, metrics.preempted) == (0, 0, 0)
    assert (metrics.accepted > 0) is (decoder.drafter is not None)
    assert max(turn.batch for turn in metrics.rounds) > 1


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", TINY_DRAFTERS)
def test_texts_of_a_batch_are_those_of_each_alone(kind):
    check_batch(tiny_decoder(kind), mixed_requests(18, seed=1), max_batch=6)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["eagle3", "medusa", "hydra++"])
def test_texts_of_trained_heads_are_those_of_each_alone(kind):
    check_batch(embedded_decoder(drafter_of(kind)), mixed_requests(8, seed=4, most_tokens=10), max_batch=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EMBEDDED_DRAFTERS)
def test_64_texts_of_every_drafter_are_those_of_each_alone(kind):
    check_batch(embedded_decoder(drafter_of(kind)), mixed_requests(64, seed=5, longest_prompt=700, most_tokens=40))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "gemma3", "mistral_sliding", "qwen2_moe_sliding"])
def test_texts_of_families_that_share_passes_are_those_of_each_alone(family):
    decoder = tiny_decoder("near", family)
    assert decoder.target.shares_passes
    check_batch(decoder, mixed_requests(14, seed=10), max_batch=5)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", [*families.hybrids()[:2], "falcon_h1", "gemma2", "gpt_oss"])
def test_texts_of_other_families_are_those_of_each_alone(family):
    """Recurrent layers, bounded scores and sinks."""
    if family not in families.known():
        pytest.skip("the installed transformers does not have it")
    check_batch(tiny_decoder("near", family), mixed_requests(10, seed=11, most_tokens=10), max_batch=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT_DRAFTERS)
def test_with_exact_text_texts_in_bfloat16_are_bit_for_bit_those_of_each_alone(name):
    decoder = random_cases.target("embedded exact")
    decoder = with_known_costs(decoder.with_drafter(random_cases.drafter("embedded exact", name)).with_policy(TREES))
    asked = mixed_requests(28, seed=12, longest_prompt=120)
    with Engine(decoder, max_batch=8, budget=4) as engine:
        found = [handle.result(300) for handle in submit_from_threads(engine, asked)]
    expected = [each.alone(decoder) for each in asked]
    assert [text.tokens for text in found] == [text.tokens for text in expected]
    assert [text.logprobs for text in found] == [text.logprobs for text in expected]
