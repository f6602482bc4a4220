"""Assistants of Gemma 4's kind draft what transformers drafts with them, alone and together, and change no text."""

from typing import Any

import pytest
import torch

import drafttree
from drafttree import Decoder, Engine
from drafttree.drafters import AssistantDrafter, Frontier, MixedDrafter, SuffixDrafter
from drafttree.drafters.formats import recognise
from drafttree.errors import ConfigError, ModelError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading.inspect import inspect
from drafttree.models import TargetModel
from drafttree.models.base import prefill
from drafttree.policies import POLICIES, Chain, Talon
from helpers import assistants
from helpers.refusals import told
from testing import tiny

every_kind = pytest.mark.parametrize("kind", assistants.KINDS)
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7], [8])
DEPTH = 4
EXACT = torch.float64
TOLERANCE = {"atol": 1e-5, "rtol": 0}
"""For weights in float64; the norms of Gemma 4 compute in float32."""


def decoder_of(kind: str, policy: Any = None, dtype: torch.dtype = torch.float32) -> Decoder:
    target, assistant = assistants.pair(kind, dtype)
    return Decoder(TargetModel(target), AssistantDrafter(assistant, target), policy or Talon(width=4, budget=12))


def watched(decoder: Decoder) -> list[torch.Tensor]:
    """The logits of every draft pass from now on."""
    drafter: Any = decoder.drafter
    passes, draft = [], drafter._draft
    drafter._draft = lambda *given: passes.append(draft(*given)) or passes[-1]
    return passes


@pytest.mark.few(1)
@every_kind
def test_chains_are_those_of_transformers_own_generator_in_every_round(kind):
    stock = assistants.Stock(*assistants.pair(kind, EXACT))
    decoder = decoder_of(kind, Chain(depth=DEPTH), EXACT)
    passes = watched(decoder)
    request = decoder.new_request(PROMPTS[0], max_new_tokens=12)
    rounds = 0
    while request.text.remaining > DEPTH:
        tokens = list(request.tokens)
        del passes[:]
        decoder.step(request)
        drafted, expected = stock.chain(tokens, DEPTH)
        torch.testing.assert_close(torch.cat(passes), expected, **TOLERANCE)
        assert torch.cat(passes).argmax(-1).tolist() == drafted
        rounds += 1
    assert rounds > 1


class Text:
    """A session behind some tokens, with the target's cache and hidden state of all of them but the last."""

    def __init__(self, drafter: AssistantDrafter, target: TargetModel, tokens: list[int]) -> None:
        self.tokens, cache = tokens, target.new_cache(32)
        self.session: Any = drafter.start(tokens, 32)
        self.session.read_cache(cache)
        _, hidden = prefill(target, cache, tokens[:-1], drafter.hidden_layers)
        self.session.prefill(hidden, len(tokens) - 1)


@pytest.mark.parametrize("kind", ["gemma4", "gemma4 sharing keys", "unified"])
def test_every_node_of_a_frontier_is_a_call_of_the_assistant_for_its_path_alone(kind):
    target, assistant = assistants.pair(kind, EXACT)
    stock = assistants.Stock(target, assistant)
    drafter, model = AssistantDrafter(assistant, target), TargetModel(target)
    texts = [Text(drafter, model, tiny.random_tokens(length, length)) for length in (3, 9, 2, 17)]
    sessions = [text.session for text in texts]
    roots = drafter.draft_root(sessions)
    paths = [[[]] for _ in texts]
    levels = [roots.split(1)]
    frontiers = [
        [Frontier([1, 2], [0, 0]), Frontier([3], [0]), Frontier([4, 5, 6], [0, 0, 0]), Frontier([7], [0])],
        [Frontier([8, 9, 10], [1, 0, 1]), Frontier([11, 12], [0, 0]), Frontier([13], [2]), Frontier([14], [0])],
    ]
    for level in frontiers:
        widths = [len(own.tokens) for own in level]
        levels.append(drafter.draft_level(sessions, level).split(widths))
    for level, own_frontiers in zip(levels, [None, *frontiers], strict=True):
        if own_frontiers:
            paths = [
                [[*above[origin], token] for token, origin in zip(*own, strict=True)]
                for above, own in zip(paths, own_frontiers, strict=True)
            ]
        for text, logits, own_paths in zip(texts, level, paths, strict=True):
            expected = torch.stack([stock.along(text.tokens, path) for path in own_paths])
            torch.testing.assert_close(logits, expected, **TOLERANCE)


def test_a_session_counts_one_pass_a_level_and_keeps_one_state():
    decoder = decoder_of("gemma4", Chain(depth=3))
    passes = watched(decoder)
    rounds = decoder.generate(PROMPTS[0], max_new_tokens=12).metrics.rounds
    assert [turn.draft_passes for turn in rounds] == [turn.levels for turn in rounds]
    assert len(passes) == sum(turn.levels for turn in rounds) > 0
    request = decoder.new_request(PROMPTS[0], max_new_tokens=2)
    assert request.drafting.session
    assert request.drafting.session.nbytes == 4 * tiny.SIZES["hidden_size"]


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["chain", "talon", "dynatree", "auto"])
@pytest.mark.parametrize("kind", ["gemma4 sharing keys", "ordered embeddings"])
def test_greedy_texts_are_those_of_transformers(policy, kind):
    stock = assistants.Stock(*assistants.pair(kind))
    decoder = decoder_of(kind, POLICIES[policy]()).with_costs(TOY_COSTS)
    levels = 0
    for prompt in PROMPTS:
        generation = decoder.generate(prompt, max_new_tokens=14)
        ids = stock.target.generate(torch.tensor([prompt]), max_new_tokens=14, do_sample=False, eos_token_id=None)
        assert generation.tokens == ids[0, len(prompt) :].tolist()
        levels += sum(turn.levels for turn in generation.metrics.rounds)
    assert levels


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 3}])
def test_texts_in_an_engine_are_those_written_alone(settings):
    decoder = decoder_of("gemma4 sharing keys")
    alone = [decoder.generate(prompt, max_new_tokens=12, **settings).tokens for prompt in PROMPTS]
    with Engine(decoder) as engine:
        handles = [engine.submit(prompt, max_new_tokens=12, **settings) for prompt in PROMPTS]
        found = [handle.result() for handle in handles]
    assert [generation.tokens for generation in found] == alone
    assert sum(turn.levels for generation in found for turn in generation.metrics.rounds)


def test_a_mixed_drafter_hands_the_cache_on():
    target, assistant = assistants.pair("gemma4", EXACT)
    stock = assistants.Stock(target, assistant)
    drafter = MixedDrafter(SuffixDrafter(assistants.VOCAB), AssistantDrafter(assistant, target))
    decoder = Decoder(TargetModel(target), drafter, Chain(depth=DEPTH))
    passes = watched(decoder.with_drafter(drafter.model))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1]
    request, drafting = decoder.new_request(prompt, max_new_tokens=24), []
    session: Any = request.drafting.session
    while not request.text.finish_reason:
        tokens, whole = list(request.tokens), request.text.remaining > DEPTH
        del passes[:]
        decoder.step(request)
        drafting.append(bool(passes))
        if passes and whole:
            torch.testing.assert_close(torch.cat(passes), stock.chain(tokens, DEPTH)[1], **TOLERANCE)
    assert session.passes
    assert {*drafting} == {True, False}
    assert request.tokens[len(prompt) :] == decoder.plain().generate(prompt, max_new_tokens=24).tokens


def test_a_text_that_rests_drafts_from_what_it_has_become(monkeypatch):
    stock = assistants.Stock(*assistants.pair("gemma4", EXACT))
    decoder = decoder_of("gemma4", Chain(depth=DEPTH), EXACT)
    passes = watched(decoder)
    request = decoder.new_request(PROMPTS[0], max_new_tokens=20)
    decoder.loop.read_prompt(request)
    with monkeypatch.context() as resting:
        resting.setattr(request.drafting.controller, "reason", lambda batch: "it rests")
        for _ in range(4):  # rounds that draft nothing, of which a session is told when it drafts again
            decoder.loop.step([request])
    assert not passes
    tokens = list(request.tokens)
    assert len(tokens) == len(PROMPTS[0]) + 4
    decoder.loop.step([request])
    torch.testing.assert_close(torch.cat(passes), stock.chain(tokens, DEPTH)[1], **TOLERANCE)


def test_a_conversation_goes_on_from_kept_rows():
    stock = assistants.Stock(*assistants.pair("gemma4", EXACT))
    decoder = decoder_of("gemma4", Chain(depth=DEPTH), EXACT)
    first = decoder.generate(PROMPTS[0], max_new_tokens=8, reuse_prefix=True)
    prompt = [*PROMPTS[0], *first.tokens, 11, 12]
    passes = watched(decoder)
    again = decoder.generate(prompt, max_new_tokens=10, reuse_prefix=True)
    kept = len(PROMPTS[0]) + len(first.tokens) - 1
    assert again.metrics.reused_tokens == kept - 1  # the last row is computed again for its hidden state
    assert again.tokens == decoder.plain().generate(prompt, max_new_tokens=10).tokens
    torch.testing.assert_close(torch.cat(passes[:DEPTH]), stock.chain(prompt, DEPTH)[1], **TOLERANCE)


def test_with_a_lossy_window_the_text_is_that_of_the_windowed_target():
    target, assistant = assistants.pair("gemma4")
    decoder = drafttree.load(target, assistant, policy=Talon(width=4, budget=12), lossy_window=8)
    generation = decoder.generate(PROMPTS[0], max_new_tokens=24)
    assert generation.tokens == decoder.plain().generate(PROMPTS[0], max_new_tokens=24).tokens
    assert sum(turn.levels for turn in generation.metrics.rounds)


@pytest.mark.few(1)
@every_kind
def test_folders_and_loaded_models_are_one_drafter(kind, tmp_path):
    target, assistant = assistants.pair(kind)
    assistant.save_pretrained(tmp_path)
    assert recognise(tmp_path) == "assistant"
    of_folder = drafttree.load(target, str(tmp_path), policy=Chain(depth=DEPTH))
    assert isinstance(of_folder.drafter, AssistantDrafter)
    of_object = drafttree.load(target, assistant, policy=Chain(depth=DEPTH))
    found = [watched(decoder) for decoder in (of_folder, of_object)]
    for decoder in (of_folder, of_object):
        decoder.generate(PROMPTS[0], max_new_tokens=6)
    # weights of a folder lie input-major, so their products are added up in another order
    torch.testing.assert_close(torch.cat(found[0]), torch.cat(found[1]), atol=1e-4, rtol=0)


def test_inspect_describes_a_folder(tmp_path):
    assistants.assistant_of("gemma4").save_pretrained(tmp_path)
    found = inspect(str(tmp_path))
    assert (found.kind, found.problems) == ("assistant", ())
    assert found.fits["hidden size"] == tiny.SIZES["hidden_size"]
    assert found.fits["vocabulary"] == assistants.VOCAB


def test_inside_transformers_generate_it_drafts_and_is_given_back():
    target, assistant = assistants.pair("gemma4")
    stock = assistants.Stock(target, assistant)
    ids = torch.tensor([PROMPTS[0]])
    before = assistant.config.get_text_config()._attn_implementation
    custom = drafttree.hf.generate(drafter=assistant, policy="talon")
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
    found = target.generate(ids, custom_generate=custom, **options)
    assert found.tolist() == stock.target.generate(ids, **options).tolist()
    assert assistant.config.get_text_config()._attn_implementation == before != "drafttree"


def test_targets_that_do_not_fit_are_refused():
    target, assistant = assistants.pair("gemma4")
    message = told(ModelError, AssistantDrafter, assistant, tiny.build("llama"))
    assert "reads keys and values that LlamaForCausalLM (llama) does not share; use it with the Gemma 4" in message
    message = told(ModelError, AssistantDrafter, assistants.assistant_of("gemma4", backbone_hidden_size=16), target)
    assert "made for a target with a hidden size of 16, this target's is 32" in message
    message = told(ModelError, AssistantDrafter, assistants.assistant_of("gemma4", vocab_size=48), target)
    assert "made for a target with a vocabulary of 48, this target's is 96" in message
    message = told(ModelError, AssistantDrafter, assistants.assistant_of("gemma4", head_dim=16), target)
    assert "layer of sliding_attention with keys of (heads, width) of (2, 16), this target's is (2, 8)" in message
    message = told(ModelError, AssistantDrafter, assistants.assistant_of("gemma4", num_key_value_heads=1), target)
    assert "(heads, width) of (1, 8), this target's is (2, 8)" in message
    message = told(ModelError, AssistantDrafter, assistant.to(torch.bfloat16), target)
    assert "the assistant is bfloat16 on cpu and its target float32 on cpu; load both alike" in message


def test_an_assistant_is_no_target(tmp_path):
    assistant = assistants.assistant_of("gemma4")
    assistant.save_pretrained(tmp_path)
    assert "and the model it is made for as the target" in told(ModelError, drafttree.load, str(tmp_path), "lookup")
    message = told(ModelError, drafttree.load, assistant, "lookup")
    assert message.startswith("Gemma4AssistantForCausalLM is a drafter (an assistant), not a model; give it as the ")


def test_a_session_without_a_cache_says_who_has_to_give_it():
    target, assistant = assistants.pair("gemma4")
    session = AssistantDrafter(assistant, target).start([1, 2], 8)
    assert "must hand on read_cache" in told(ConfigError, session.root)
