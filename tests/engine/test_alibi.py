"""Texts of models with ALiBi are those of transformers, alone and in company."""

from copy import deepcopy

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.models import TargetModel
from drafttree.policies import Talon
from testing import families, tiny
from testing.costs import toy_decoder

PROMPTS = [tiny.random_tokens(length, length) for length in (1, 6, 13)]
LENGTH = 24


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_texts_are_those_of_transformers(name):
    module = tiny.from_config(families.config(name))
    reference, draft = deepcopy(module), deepcopy(module)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(1.02)
    target = TargetModel(module)
    decoder = toy_decoder(target, LanguageModelDrafter(TargetModel(draft)), Talon(budget=12))
    greedy = [
        reference.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]
    drawn = [
        Decoder(target).generate(prompt, max_new_tokens=LENGTH, temperature=1.0, seed=5).tokens for prompt in PROMPTS
    ]
    for expected, options in ((greedy, {}), (drawn, {"temperature": 1.0, "seed": 5})):
        alone = [decoder.generate(prompt, max_new_tokens=LENGTH, **options) for prompt in PROMPTS]
        company = decoder.generate(PROMPTS, max_new_tokens=LENGTH, **options)
        assert [text.tokens for text in alone] == [text.tokens for text in company] == expected
    assert len(alone[-1].metrics.rounds) < LENGTH  # drafts are accepted
