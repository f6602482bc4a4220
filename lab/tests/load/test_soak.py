"""An engine under random requests for a while: no text is mixed up, nothing is left behind. `make soak` runs longer."""

import logging
import os
import threading

import pytest

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Talon
from lab_helpers.soak import Soak
from testing import random_cases
from testing.batches import TOKENIZER, mixed_requests

MINUTES = float(os.environ.get("SOAK_MINUTES", "1"))
GROWTH = 12e6
"""Bytes by which memory may grow behind the warm-up: rounds that metrics keep, and what the allocator holds."""


@pytest.mark.slow
def test_an_engine_lives_through_random_requests(caplog):
    caplog.set_level(logging.ERROR, "drafttree")  # records that pytest keeps would hold the requests that fail
    target, drafter = random_cases.target("llama").target, random_cases.drafter("llama", "mixed:near")
    decoder = Decoder(target, drafter, Talon(width=4, budget=16), tokenizer=TOKENIZER, eos=(0,)).with_costs(TOY_COSTS)
    others = {*threading.enumerate()}
    soak = Soak(decoder, mixed_requests(200, seed=0), seconds=60 * MINUTES)
    engine = soak.run(max_batch=5, max_kv_tokens=300)
    metrics, (warm, *later) = engine.metrics, soak.memory[len(soak.memory) // 4 :]
    growth = later[-1] - warm
    print(f"memory {growth / 1e6:+.1f} MB since it was warm; {metrics.drafted} drafted, {metrics.accepted} accepted")
    assert not soak.wrong, soak.wrong[0]
    assert metrics.finished + metrics.cancelled + metrics.failed == soak.handles > 100 * MINUTES
    assert (metrics.cancelled, metrics.failed) == (soak.cancelled, soak.failed)
    assert soak.cancelled > 0.02 * soak.handles
    assert metrics.tokens == soak.tokens
    assert (metrics.running, metrics.waiting, metrics.preempted) == (0, 0, 0)
    assert engine.memory.reserved == 0
    assert growth < GROWTH
    assert {*threading.enumerate()} <= others
