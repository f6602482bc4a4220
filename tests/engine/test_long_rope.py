"""Texts of Phi models that outgrow the original context, where LongRoPE's other frequencies begin."""

import pytest
import torch
from transformers import Phi3Config, PhimoeConfig, PreTrainedModel

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter, PromptLookupDrafter
from drafttree.models import TargetModel
from drafttree.policies import Chain, Talon
from testing import tiny
from testing.costs import toy_decoder

ORIGINAL = 24
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 4.0, 9.0, 16.0]}
ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": ORIGINAL, **FACTORS}
SIZES = {**tiny.GROUPED, "pad_token_id": 0, "original_max_position_embeddings": ORIGINAL}
CONFIGS = {
    "phi3": lambda: Phi3Config(**SIZES, rope_parameters=ROPE),
    "phimoe": lambda: PhimoeConfig(
        **SIZES, num_local_experts=4, rope_parameters={**ROPE, "long_mscale": 1.2, "short_mscale": 1.1}
    ),
}


@torch.inference_mode()
def whole_passes(module: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The greedy text of passes over all of it; `generate` of transformers 5.17 forgets the text at the crossing."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(module(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.few(4)
@pytest.mark.parametrize("policy", [None, Chain(depth=5), Talon(budget=12)])
@pytest.mark.parametrize("prompt_length", [ORIGINAL - 9, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, ORIGINAL + 7])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_is_that_of_whole_passes(name, prompt_length, policy):
    target, reference = tiny.wrap(tiny.from_config(CONFIGS[name]()))
    draft = TargetModel(tiny.from_config(CONFIGS[name](), seed=0))
    with torch.no_grad():
        for parameter in draft.module.parameters():
            parameter.mul_(1.01)
    decoder = Decoder(target, LanguageModelDrafter(draft) if policy else None, policy)
    prompt = tiny.random_tokens(prompt_length, 5)
    assert decoder.generate(prompt, max_new_tokens=20).tokens == whole_passes(reference, prompt, 20)


@pytest.mark.parametrize("prompt_length", range(ORIGINAL - 6, ORIGINAL + 1))
def test_a_drafter_without_a_context_of_its_own_drafts_up_to_the_crossing(prompt_length):
    target, reference = tiny.wrap(tiny.from_config(CONFIGS["phi3"]()))
    decoder = Decoder(target, PromptLookupDrafter(tiny.VOCAB, max_ngram=1), Chain(depth=5))
    prompt = [*range(1, 7)] * 5
    text = decoder.generate(prompt[:prompt_length], max_new_tokens=12)
    assert text.tokens == whole_passes(reference, prompt[:prompt_length], 12)
    assert text.metrics.rounds[0].levels == min(5, ORIGINAL - prompt_length)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_texts_of_a_batch_cross_each_at_its_own_place(name):
    target, reference = tiny.wrap(tiny.from_config(CONFIGS[name]()))
    draft = TargetModel(tiny.from_config(CONFIGS[name](), seed=0))
    decoder = toy_decoder(target, LanguageModelDrafter(draft), Talon(budget=12))
    prompts = [tiny.random_tokens(length, 5) for length in (4, ORIGINAL - 9, ORIGINAL - 1, ORIGINAL, ORIGINAL + 7)]
    texts = decoder.generate(prompts, max_new_tokens=20)
    assert [text.tokens for text in texts] == [whole_passes(reference, prompt, 20) for prompt in prompts]


def test_a_draft_model_is_used_within_its_original_context_only():
    model = TargetModel(tiny.from_config(CONFIGS["phi3"]()))
    assert (model.context, model.rope_switch, LanguageModelDrafter(model).context) == (64, ORIGINAL, ORIGINAL)


@pytest.mark.parametrize(("first", "second"), [(10, ORIGINAL + 8), (ORIGINAL + 8, 10), (ORIGINAL - 4, ORIGINAL - 6)])
def test_kept_rows_of_other_frequencies_are_not_taken_over(first, second):
    target, reference = tiny.wrap(tiny.from_config(CONFIGS["phi3"]()))
    decoder, tokens = Decoder(target), tiny.random_tokens(ORIGINAL + 8, 5)
    decoder.generate(tokens[:first], max_new_tokens=8, reuse_prefix=True)
    generation = decoder.generate(tokens[:second], max_new_tokens=8, reuse_prefix=True)
    assert generation.tokens == whole_passes(reference, tokens[:second], 8)
    assert generation.metrics.reused_tokens == 0
