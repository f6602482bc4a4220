"""A decoder as a context manager gives back what it has taken."""

import torch

import drafttree
from testing import tiny

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_loaded_model_generates_by_itself_after_the_block():
    module = tiny.build("gpt2")
    expected = module.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False)[0, len(PROMPT) :].tolist()
    with drafttree.load(module, "lookup", policy="chain") as decoder:
        assert decoder.generate(PROMPT, max_new_tokens=12, reuse_prefix=True).tokens == expected
    again = decoder.generate(PROMPT, max_new_tokens=12, reuse_prefix=True)
    assert (again.tokens, again.metrics.reused_tokens) == (expected, 0)
    decoder.close()
    assert module.generate(torch.tensor([PROMPT]), max_new_tokens=12).shape == (1, len(PROMPT) + 12)
