"""Where the drafts of a text become useless, one warning says from which token on, and what to do."""

import re
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from fastapi.testclient import TestClient
from transformers import GPT2Config, MistralConfig

import drafttree
from drafttree import Decoder
from drafttree.drafters.base import Session
from drafttree.engine.batching import Engine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.policies import Auto, Chain, TreePolicy
from testing import tiny
from testing.batches import TOKENIZER
from testing.toy import Table, ToyDrafter, ToyModel

VOCAB = len(TOKENIZER)
LAW = Table(VOCAB, order=1, seed=3, scale=3.0)
NEAR, WRONG = LAW.blurred(1.0), Table(VOCAB, order=1, seed=9, scale=3.0)
SAMPLED = {"temperature": 0.8, "seed": 1}
"""Greedy texts of models so small repeat themselves soon, and then prove nothing."""
ADVICE = (
    "the text may be longer than those the drafter was trained on, or in a language it does not know; use another "
    "drafter for such texts, or none (speculate=False)"
)
COLLAPSED = re.compile(
    rf"from token (\d+) of a text on, \d+ of \d+ rounds accepted a drafted token; before, .*: {re.escape(ADVICE)}"
)


def toy(broken_from: int | None = None, policy: TreePolicy | None = None) -> Decoder:
    """A decoder whose drafter drafts at random from a position on."""

    def law(prefix):
        return (NEAR if broken_from is None or len(prefix) < broken_from else WRONG)(prefix)

    drafter = ToyDrafter(law, VOCAB)
    return Decoder(ToyModel(LAW, VOCAB), drafter, policy, tokenizer=TOKENIZER).with_costs(TOY_COSTS)


def told(caplog) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


def test_a_line_tells_where_and_how_much_and_what_to_do(caplog):
    text = toy(broken_from=150).generate([1, 2], max_new_tokens=300, **SAMPLED)
    before = "from token 150 of a text on, 3 of 32 rounds accepted a drafted token; before, it was 37 of 52"
    assert told(caplog) == [f"{before}: {ADVICE}"]
    assert text.tokens == toy().generate([1, 2], max_new_tokens=300, **SAMPLED).tokens
    assert text.metrics.collapsed_texts == text.metrics.summary()["collapsed_texts"] == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", [Chain(depth=2), Auto()], ids=["chain", "auto"])
def test_each_text_that_collapses_is_told_once_and_no_other(policy, caplog):
    decoder = toy(150, policy)
    for _ in range(2):
        text = decoder.generate([1, 2], max_new_tokens=400, **SAMPLED)
        (line,) = told(caplog)
        assert (found := COLLAPSED.fullmatch(line)), line
        assert int(found[1]) > 130
        assert text.metrics.collapsed_texts == 1
    for temperature in (0, 0.5, 1.0, 1.5):
        text = toy(policy=policy).generate([1, 2], max_new_tokens=300, temperature=temperature, seed=1)
        assert (text.metrics.collapsed_texts, told(caplog)) == (0, [])


def untrained(module, length: int):
    """A copy of a model whose positions from a length on were never trained."""
    module = deepcopy(module)
    with torch.no_grad():
        rows = module.transformer.wpe.weight[length:]
        rows.copy_(10 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)))
    return module


def test_a_drafter_beyond_its_trained_length(caplog):
    target = tiny.from_config(GPT2Config(**{**tiny.SIZES, "max_position_embeddings": 200}, tie_word_embeddings=False))
    target.lm_head.weight.data *= 4
    for draft, count in ((untrained(target, 100), 1), (deepcopy(target), 0)):
        decoder = drafttree.load(target, draft, policy=Chain(depth=2))
        told(caplog)
        text = decoder.generate([1, 2], max_new_tokens=180, **SAMPLED)
        assert text.metrics.collapsed_texts == len(lines := told(caplog)) == count
        assert [COLLAPSED.fullmatch(line)[1] for line in lines] == ["101"] * count


def test_a_window_is_no_end_of_the_drafts(caplog):
    sizes = {**tiny.GROUPED, "max_position_embeddings": 300}
    target = tiny.from_config(MistralConfig(**sizes, sliding_window=48))
    draft = deepcopy(target)
    draft.lm_head.weight.data += 0.02 * torch.randn(draft.lm_head.weight.shape)
    decoder = drafttree.load(target, draft, policy=Chain(depth=2))
    told(caplog)
    text = decoder.generate([1, 2], max_new_tokens=290, **SAMPLED)
    assert text.metrics.mean_accepted_tokens > 1.3
    assert (text.metrics.collapsed_texts, told(caplog)) == (0, [])


def test_the_end_of_a_drafters_context_is_told(caplog):
    target, draft = (tiny.from_config(GPT2Config(**{**tiny.SIZES, "max_position_embeddings": n})) for n in (128, 24))
    decoder = drafttree.load(target, draft, policy=Chain(depth=2))
    text = decoder.generate([1, 2], max_new_tokens=60)
    line = (
        "a text has reached the drafter's context of 24 tokens, and nothing is drafted for its rest: use a drafter "
        "with a longer context, or lookup"
    )
    assert (text.metrics.collapsed_texts, told(caplog)) == (1, [line])
    for options in ({"max_new_tokens": 22}, {"max_new_tokens": 60, "speculate": False}):
        assert (decoder.generate([1, 2], **options).metrics.collapsed_texts, told(caplog)) == (0, [])


def test_so_it_is_of_a_session_of_ones_own_that_tells_what_it_expects(caplog):
    class Telling(Session):
        expected_accepted = 1.0

        def draft_root(self):
            return torch.zeros(1, 1, tiny.VOCAB)

        def draft_level(self, tokens, origins):
            return torch.zeros(1, tokens.shape[1], tiny.VOCAB)

    drafter = SimpleNamespace(vocab_size=tiny.VOCAB, context=20, levels=None, hidden_layers=(), nbytes=0)
    drafter.start = lambda prompt, capacity: Telling(drafter, torch.device("cpu"))
    decoder = drafttree.load(tiny.build("llama"), drafter, policy=Chain(depth=2))
    text = decoder.generate([1, 2], max_new_tokens=30)
    (line,) = told(caplog)
    assert "the drafter's context of 20 tokens" in line
    assert text.metrics.collapsed_texts == 1


def test_an_engine_and_its_server_count_such_texts(caplog):
    with Engine(toy(150)) as engine:
        handles = [engine.submit([1, token], max_new_tokens=300, **SAMPLED) for token in (2, 3)]
        assert [handle.result().metrics.collapsed_texts for handle in handles] == [1, 1]
        assert engine.metrics.collapsed_texts == len(told(caplog)) == 2
    with TestClient(create_app(toy(150), ServerSettings("m"))) as client:
        client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 300, **SAMPLED})
        assert 'drafttree:collapsed_texts_total{model_name="m"} 1.0' in client.get("/metrics").text
