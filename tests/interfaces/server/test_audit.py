"""A server that looks for evidence against the law of its own texts, and tells what it has found."""

import logging

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.policies import Chain
from drafttree.verifiers import LossyTypical, RRSw
from testing.batches import TOKENIZER
from testing.held_server import COMPLETIONS
from testing.toy import Table, ToyDrafter, ToyModel

LAW = Table(len(TOKENIZER), order=1, scale=2)
ASKED = {"prompt": [1, 2], "max_tokens": 60, "temperature": 1, "ignore_eos": True}


def serve(verifier, **settings):
    model, drafter = ToyModel(LAW, LAW.vocab), ToyDrafter(LAW.blurred(0.5), LAW.vocab)
    decoder = Decoder(model, drafter, Chain(depth=2), verifier, tokenizer=TOKENIZER).with_costs(TOY_COSTS)
    return TestClient(create_app(decoder, ServerSettings("toy", **settings)))


def metric(client, name) -> float | None:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"drafttree:{name}{{")]
    return float(lines[0].rpartition(" ")[2]) if lines else None


def ask(client, **changes):
    reply = client.post(COMPLETIONS, json=ASKED | changes)
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["completion_tokens"]


def test_texts_that_are_drawn_are_looked_at():
    with serve(RRSw, audit=True) as client:
        tokens = ask(client) + ask(client, n=2)
        ask(client, seed=3)  # may be asked for again, with the same numbers
        assert metric(client, "audit_tokens_total") == tokens == 180
        assert metric(client, "audit_e_value_log10") == pytest.approx(0, abs=1.5)
        assert metric(client, "lossy") == 0


def test_greedy_texts_are_no_evidence():
    with serve(None, audit=True) as client:
        ask(client, temperature=0)
        assert metric(client, "audit_tokens_total") == metric(client, "audit_impossible_tokens_total") == 0
        assert metric(client, "audit_e_value_log10") == pytest.approx(0)
        assert ask(client) == metric(client, "audit_tokens_total")


def test_without_the_option_nothing_is_looked_at():
    with serve(RRSw) as client:
        ask(client)
        assert metric(client, "audit_tokens_total") is None


def test_a_wrong_law_is_told_once_in_the_log_and_in_the_metrics(caplog):
    with caplog.at_level(logging.ERROR, "drafttree"), serve(LossyTypical, audit=True) as client:
        for _ in range(6):
            ask(client, max_tokens=200)
        assert (metric(client, "audit_e_value_log10") or 0) > 6
        assert metric(client, "lossy") == 1
        assert 'reason="the verifier lossy-typical does not follow' in client.get("/metrics").text
    lines = [
        record.getMessage() for record in caplog.records if "do not follow the target's distribution" in record.msg
    ]
    assert len(lines) == 1
    assert "NOT lossless: the verifier lossy-typical" in lines[0]
