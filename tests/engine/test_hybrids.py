"""Texts of models with recurrent layers are those of transformers, over chains and trees."""

from copy import deepcopy

import pytest
import torch
from transformers import Cache

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.models import TargetModel
from drafttree.policies import Chain, DynaTree, Talon
from testing import families, tiny
from testing.costs import toy_decoder

pytestmark = pytest.mark.skipif(not hasattr(Cache, "get_conv_state"), reason="recurrent layers share no cache here")
POLICIES = {"plain": None, "chain": Chain(depth=4), "dynatree": DynaTree(), "talon": Talon(budget=12)}


def models(name: str):
    module = tiny.from_config(families.config(name))
    draft = deepcopy(module)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(1.02)
    return deepcopy(module), TargetModel(module), LanguageModelDrafter(TargetModel(draft))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", families.hybrids())
def test_texts_are_those_of_transformers(name):
    reference, target, drafter = models(name)
    for length in (1, 2, 13):
        prompt = tiny.random_tokens(length, length)
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, length:].tolist()
        for policy in POLICIES.values() if length > 2 else [POLICIES["talon"]]:
            decoder = Decoder(target, drafter if policy else None, policy)
            generation = decoder.generate(prompt, max_new_tokens=24)
            assert generation.tokens == expected
            assert policy is None or len(generation.metrics.rounds) < 20  # drafts are accepted


@pytest.mark.few(1)
@pytest.mark.parametrize("name", families.hybrids())
def test_drawn_texts_in_company_are_those_of_plain_decoding(name):
    _, target, drafter = models(name)
    prompts = [tiny.random_tokens(length, length) for length in (1, 6, 13)]
    drawn = {"max_new_tokens": 16, "temperature": 1.0, "seed": 5}
    expected = [Decoder(target).generate(prompt, **drawn).tokens for prompt in prompts]
    texts = toy_decoder(target, drafter, Talon(budget=12)).generate(prompts, **drawn)
    assert [text.tokens for text in texts] == expected


def test_the_prompt_is_read_as_generate_reads_it():
    """Nemotron-H bounds its time steps when it reads several tokens, and not when it decodes."""
    config = families.config("nemotron_h")
    config.time_step_min = 0.6
    module = tiny.from_config(config)
    prompt = tiny.random_tokens(9, 2)
    expected = deepcopy(module).generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, 9:].tolist()
    assert Decoder(TargetModel(module)).generate(prompt, max_new_tokens=20).tokens == expected


def test_logprobs_of_a_prompt_are_those_of_transformers():
    reference, target, drafter = models(families.hybrids()[0])
    prompt = tiny.random_tokens(9, 2)
    rows = reference(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    found = Decoder(target, drafter).generate(prompt, max_new_tokens=4, prompt_logprobs=True).prompt_logprobs
    assert found == pytest.approx(rows[torch.arange(8), torch.tensor(prompt[1:])].tolist(), abs=1e-3)
