"""`output_scores` and `output_logits` through `custom_generate` are stock `generate`'s."""

import pytest
import torch

from drafttree.interfaces import transformers_generate as hf
from helpers.stock_generate import padded
from testing import tiny

PROMPT = torch.tensor([tiny.random_tokens(6, 3)])
ROWS = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 20}


def check(stock, ours):
    assert torch.equal(stock.sequences, ours.sequences)
    for name in ("scores", "logits"):
        expected, found = getattr(stock, name), getattr(ours, name)
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4, "renormalize_logits": True}], ids=str)
def test_rows_are_those_of_stock_generate(target, draft, options):
    stock = target.generate(PROMPT, **ROWS, **options)
    check(stock, target.generate(PROMPT, custom_generate=hf.generate(draft), **ROWS, **options))


def test_a_batch_has_a_row_per_text(target, draft):
    inputs = padded(4, 7)
    stock = target.generate(**inputs, pad_token_id=0, **ROWS)
    check(stock, target.generate(**inputs, pad_token_id=0, custom_generate=hf.generate(draft), **ROWS))


@pytest.mark.parametrize("renormalize", [False, True])
def test_sampled_scores_are_the_distribution_the_tokens_were_drawn_from(target, draft, renormalize):
    options = {"do_sample": True, "temperature": 0.7, "top_k": 5, "renormalize_logits": renormalize}
    out = target.generate(PROMPT, custom_generate=hf.generate(draft), **ROWS, **options)
    # Stock scores of the same tokens: one step at a time after each beginning of the text.
    for step in (0, 7, 19):
        prefix = out.sequences[:, : PROMPT.shape[1] + step]
        stock = target.generate(prefix, **(ROWS | {"max_new_tokens": 1}), **options)
        torch.testing.assert_close(stock.scores[0], out.scores[step], atol=1e-4, rtol=1e-4)


def test_rows_are_only_kept_where_they_are_asked_for(target, draft):
    options = {"max_new_tokens": 4, "return_dict_in_generate": True, "custom_generate": hf.generate(draft)}
    out = target.generate(PROMPT, output_logits=True, **options)
    assert out.scores is None
    assert len(out.logits) == 4
    assert target.generate(PROMPT, **options).logits is None


def test_time_ends_every_text_of_a_batch(target, draft):
    inputs = padded(4, 6)
    out = target.generate(**inputs, max_time=0.0, max_new_tokens=9, custom_generate=hf.generate(draft), pad_token_id=0)
    assert torch.equal(out, target.generate(**inputs, max_time=0.0, max_new_tokens=9, pad_token_id=0))
