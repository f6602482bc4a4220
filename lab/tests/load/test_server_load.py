"""A server under many clients at once: nothing is lost or mixed up, and nothing stays behind."""

import os
import time
from copy import deepcopy
from itertools import pairwise

import httpx
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

import drafttree
from drafttree import Decoder
from drafttree.engine.batching.engine import IDLE_SECONDS
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.policies import Talon
from lab_helpers.server_load import LEAVING, MALFORMED, ServerLoad, asked
from lab_helpers.soak import resident_bytes
from testing.batches import TOKENIZER
from testing.held_server import wait_until
from testing.live_server import serving
from testing.toy import Table, ToyDrafter, ToyModel

REQUESTS = int(os.environ.get("SERVER_LOAD_REQUESTS", "1000"))
MINUTES = float(os.environ.get("SERVER_SOAK_MINUTES", "0.5"))
GROWTH = 24e6
"""Bytes by which memory may grow behind the first requests: rounds that metrics keep, and what allocators hold."""
REPEATED, LOADED = 30e6, 80e6
"""Bytes by which memory may grow from one load to the next, and over all of them, with a real model."""
TOKENS = 128
"""Token ids of the prompts of a real model."""
LAW = Table(len(TOKENIZER), order=1, scale=4)


@pytest.fixture
def app():
    """A toy model whose logits are the same in every batch, so that its texts have no ties to fall over."""
    model, drafter = ToyModel(LAW, LAW.vocab, context=450), ToyDrafter(LAW.blurred(1), LAW.vocab)
    tokenizer = deepcopy(TOKENIZER)  # a token for each character, and a chat template
    tokenizer.backend_tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    decoder = Decoder(model, drafter, Talon(width=4, budget=8), tokenizer=tokenizer, eos=(0,)).with_costs(TOY_COSTS)
    return create_app(decoder, ServerSettings("toy", max_batch=16))


def check(app, load: ServerLoad) -> None:
    """What must hold when all clients have gone."""
    admission, engine = app.state.serving.admission, app.state.serving.engine
    metrics = engine.metrics
    wait_until(lambda: not (admission.busy or metrics.running or metrics.waiting))
    print(f"{dict(load.statuses)}, {load.left} left; {metrics.finished} finished, {metrics.cancelled} cancelled")
    assert not load.wrong, load.wrong[0]
    assert set(load.statuses) <= {200, 400, 404, 413}
    assert metrics.failed == 0
    assert engine.memory.reserved == 0
    assert not admission.open
    assert metrics.drafter_failures == 0


@pytest.mark.slow
def test_no_text_is_lost_or_mixed_up_under_load(app):
    with serving(app) as address:
        load = ServerLoad(address, asked(60, vocab=LAW.vocab))
        load.run(requests=REQUESTS)
        check(app, load)
        nonsense = sum(count for status, count in load.statuses.items() if status != 200)
        assert load.left > LEAVING / 2 * REQUESTS
        assert nonsense > MALFORMED / 2 * REQUESTS
        assert load.left + sum(load.statuses.values()) > 0.98 * REQUESTS
        assert load.memory[-1] - load.memory[len(load.memory) // 2] < GROWTH


@pytest.mark.slow
def test_repeats_of_the_load_leave_no_memory_behind():
    """With a real model, whose rows and drafter's rows are what fills the memory."""
    decoder = drafttree.load("embedded")
    app = create_app(decoder, ServerSettings("embedded", max_batch=16))
    with serving(app) as address:
        httpx.post(f"{address}/v1/completions", json={"prompt": [1], "max_tokens": 2})
        memory = [resident_bytes()]
        for seed in range(3):
            load = ServerLoad(address, asked(60, vocab=TOKENS, seed=seed, longer=8), seed=seed)
            load.run(requests=REQUESTS)
            check(app, load)
            app.state.serving.engine.memory.prefixes.clear()  # what is kept on purpose, up to a bound
            time.sleep(3 * IDLE_SECONDS)
            memory.append(resident_bytes())
    print("behind load | requests | memory | since the load before | since the start")
    for number, (before, found) in enumerate(pairwise(memory), 1):
        since = f"{(found - before) / 1e6:+.0f} MB | {(found - memory[0]) / 1e6:+.0f} MB"
        print(f"{number} | {number * REQUESTS} | {found / 1e6:.0f} MB | {since}")
    assert memory[3] - memory[2] < REPEATED
    assert memory[3] - memory[0] < LOADED


@pytest.mark.slow
def test_a_server_stays_as_it_is_for_a_while(app):
    with serving(app) as address:
        load = ServerLoad(address, asked(60, vocab=LAW.vocab, seed=1), seed=1)
        load.run(seconds=60 * MINUTES)
        check(app, load)
        assert load.memory[-1] - load.memory[len(load.memory) // 3] < GROWTH
