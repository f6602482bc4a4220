"""Asks grammars about texts byte by byte."""

import functools
import random

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from drafttree.errors import ConfigError

END, VOCAB = 256, 257


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are bytes, and then the end of a text."""
    model = WordLevel({**{f"<0x{byte:02X}>": byte for byte in range(256)}, "</s>": END}, unk_token="</s>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="</s>")


def begun(grammar, text: str | bytes = ""):
    """The state of a grammar behind a text, None if the grammar forbids it."""
    state = grammar.new_state(byte_tokenizer(), VOCAB, (END,))
    try:
        for byte in text.encode() if isinstance(text, str) else text:
            state.commit(byte)
    except ConfigError:
        return None
    return state


def allowed(state) -> list[int]:
    """The bytes that may come next, and `END` where the text may end."""
    return state.restrict([()], torch.zeros(1, VOCAB))[0].isfinite().nonzero().flatten().tolist()


def accepts(grammar, text: str) -> bool:
    """Whether a text conforms to a grammar as a whole."""
    state = begun(grammar, text)
    return state is not None and END in allowed(state)


def conforming(grammar, texts) -> list[bool]:
    """Whether each of some texts conforms to a grammar as a whole; asks llguidance alone, so that many take no time."""
    first, conform = _byte_matcher(grammar), []
    for text in texts:
        matcher, spelled = first.deep_copy(), [*text.encode()]
        conform.append(matcher.try_consume_tokens(spelled) == len(spelled) and matcher.is_accepting())
    return conform


def forced(grammar) -> bytes:
    """The text that a grammar leaves alone possible at its beginning."""
    return _byte_matcher(grammar).compute_ff_bytes()


def _byte_matcher(grammar):
    import llguidance

    return llguidance.LLMatcher(_library_tokenizer(), grammar.text, log_level=0)


@functools.cache
def _library_tokenizer():
    import llguidance

    return llguidance.LLTokenizer("byte")


def written(grammar, draw: random.Random, most: int = 400) -> str:
    """A text drawn byte by byte from those that a grammar allows, its end as soon as it may be after some bytes."""
    state, text = grammar.new_state(byte_tokenizer(), VOCAB, (END,)), bytearray()
    while True:
        may = allowed(state)
        assert may, f"no end after {bytes(text)!r}"
        if END in may and (len(may) == 1 or len(text) > most or draw.random() < 0.3):
            return text.decode()
        closing = [each for each in may if each in set(b'"}]')]
        letters = [each for each in may if 32 <= each < 127]
        choices = closing if closing and draw.random() < min(0.3 + len(text) / most, 0.95) else letters or may
        if draw.random() < 0.1:
            choices = may
        byte = draw.choice([each for each in choices if each != END])
        state.commit(byte)
        text.append(byte)
