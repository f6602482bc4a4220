"""A stop string that is a special token ends the text at that token, where transformers' own `generate` ends it."""

import pytest
import torch
from tokenizers import AddedToken
from transformers import LlamaConfig

import drafttree
from drafttree.errors import ConfigError
from testing import tiny
from testing.tokenizers import byte_level

TOKENIZER = byte_level("this is so it is", 270, "<|end|>")
TOKENIZER.add_tokens([AddedToken("<|turn|>", special=True)], special_tokens=True)
TOKENIZER.add_tokens([AddedToken("<call>", special=False)])
TURN = TOKENIZER.convert_tokens_to_ids("<|turn|>")
ASKED = TOKENIZER("it is <call>so<|turn|> this is<|end|> it is")["input_ids"]
"""It has what is recited, so that drafts go on beyond a stop token."""


class Recite:
    """A logits processor that has a model say the prompt again."""

    def __call__(self, input_ids, scores):
        wanted = torch.full_like(scores, -1000.0)
        wanted[:, ASKED[input_ids.shape[1] % len(ASKED)]] = 0.0
        return wanted


def model():
    return tiny.from_config(LlamaConfig(**{**tiny.GROUPED, "vocab_size": len(TOKENIZER)}))


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(model(), "lookup", tokenizer=TOKENIZER)


def generate(decoder, **options):
    return decoder.generate(ASKED, max_new_tokens=len(ASKED), logits_processor=[Recite()], **options)


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ("<|turn|>", "it is <call>so"),
        (["never", "<|end|>"], "it is <call>so this is"),
        (["<|end|>", "<|turn|>"], "it is <call>so"),
        ([" this", "<|end|>"], "it is <call>so"),
        (["<|turn|>", "is "], "it "),
        ("<call>", "it is "),
    ],
)
def test_the_text_ends_where_transformers_ends_it(decoder, stop, shown):
    options = {"max_new_tokens": len(ASKED), "logits_processor": [Recite()], "stop_strings": stop}
    stock = model().generate(torch.tensor([ASKED]), tokenizer=TOKENIZER, do_sample=False, **options)
    out = generate(decoder, stop=stop)
    assert out.tokens == stock[0, len(ASKED) :].tolist()
    assert (out.text, out.finish_reason) == (shown, "stop")
    assert any(out.drafted)
    *_, last = decoder.stream(ASKED, **options)
    assert last.stopped_by in stop


def test_it_is_told_though_it_is_an_eos_token_too_and_ends_texts_that_ignore_those(decoder):
    for options in ({"eos_token_id": TURN}, {"ignore_eos": True}, {"spelled_tokens": [TURN]}, {"min_new_tokens": 11}):
        *_, last = decoder.stream(ASKED, max_new_tokens=30, logits_processor=[Recite()], stop="<|turn|>", **options)
        assert last.stopped_by == "<|turn|>"
        assert generate(decoder, stop="<|turn|>", **options).text == "it is <call>so"


def test_a_special_token_among_other_text_is_refused_where_no_text_has_it(decoder):
    with pytest.raises(ConfigError) as error:
        generate(decoder, stop=["is", "<|turn|> this"])
    assert str(error.value) == (
        "the stop string '<|turn|> this' contains the special token '<|turn|>', which never appears in a text; "
        "give '<|turn|>' alone, or the text beside it"
    )
    assert generate(decoder, stop="<|turn|> this", spelled_tokens=[TURN]).text == "it is <call>so"
