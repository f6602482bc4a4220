"""A text is refused by its characters only where no tokenizer could make it short enough."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from drafttree.errors import ContextError
from drafttree.text.chat import render_chat
from drafttree.text.prompt import encode
from drafttree.text.prompt_length import check_characters, longest_token
from testing.tokenizers import CHAT_TEMPLATE, byte_level, pieces, words

WRITTEN = "the end of the enchanted end, a\n\n\n\n\n        b " * 40
MARK = "<|stop|>"


def with_steps(made: PreTrainedTokenizerFast, *steps: normalizers.Normalizer) -> PreTrainedTokenizerFast:
    made.backend_tokenizer.normalizer = normalizers.Sequence([*steps])
    return made


def with_mark() -> PreTrainedTokenizerFast:
    """A tokenizer whose special token takes the whitespace on both sides."""
    made = byte_level(WRITTEN, 300)
    made.add_special_tokens({"additional_special_tokens": [AddedToken(MARK, lstrip=True, rstrip=True)]})
    return made


def letters(**options) -> PreTrainedTokenizerFast:
    """A tokenizer of two letters and a token for all others."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"?": 0, "a": 1, "b": 2}, [], **options)))


BOUNDED = {
    "bytes": byte_level(WRITTEN, 400),
    "pieces": pieces(WRITTEN, 400),
    "prepended": with_steps(pieces(WRITTEN, 400), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")),
    "composed": with_steps(byte_level(WRITTEN, 300), normalizers.NFKC(), normalizers.Lowercase()),
    "strips": with_mark(),
    "unknown letters": letters(unk_token="?"),
}
UNBOUNDED = {
    "words": words("?", "hello"),
    "fused": letters(unk_token="?", fuse_unk=True),
    "dropped letters": letters(),
    "stripped": with_steps(byte_level(WRITTEN, 300), normalizers.Strip()),
    "shortened": with_steps(byte_level(WRITTEN, 300), normalizers.Replace(Regex(" +"), " ")),
    "no tokenizer": None,
}
DECOMPOSED = "\u03b1\u0313\u0300\u0345"
"""Four characters that compose to one."""
ANY = st.lists(st.sampled_from([" ", "\n", "end", MARK, DECOMPOSED, "\u1f82", "a", "?"]) | st.characters(codec="utf-8"))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", BOUNDED)
@settings(max_examples=60)
@example(parts=[" "] * 3000 + [MARK] + ["\n"] * 3000)
@example(parts=[DECOMPOSED] * 50)
@given(parts=ANY)
def test_no_text_that_fits_is_refused(kind, parts):
    made, text = BOUNDED[kind], "".join(parts)
    if tokens := len(made(text)["input_ids"]):
        check_characters(text, made, tokens + 1)


@pytest.mark.parametrize("kind", BOUNDED)
def test_a_text_that_is_too_long_is_refused_with_length_and_limit(kind):
    made = BOUNDED[kind]
    longest = longest_token(made)
    assert longest
    check_characters("a" * (9 * longest), made, 10)
    with pytest.raises(ContextError, match=rf"has {9 * longest + 1} characters.* 10 tokens .* {9 * longest} at most"):
        check_characters("a" * (9 * longest + 1), made, 10)


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_a_text_is_let_through_where_a_token_may_stand_for_anything(kind):
    assert longest_token(UNBOUNDED[kind]) is None
    check_characters("a" * 10**5, UNBOUNDED[kind], 2)


def test_a_splitter_that_removes_characters_bounds_nothing():
    made = byte_level(WRITTEN, 300)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )
    assert longest_token(made) is None


def test_a_text_in_a_vocabulary_of_words_is_as_long_as_its_words():
    assert longest_token(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))) is None


@pytest.fixture
def untouched(monkeypatch):
    """A tokenizer that must not be asked for the tokens of anything."""
    made = byte_level(WRITTEN, 300)
    made.chat_template = CHAT_TEMPLATE
    monkeypatch.setattr(type(made), "_encode_plus", lambda *_, **__: pytest.fail("it is tokenised"))
    return made


def test_a_long_prompt_is_not_tokenised(untouched):
    with pytest.raises(ContextError, match="3800000 characters"):
        encode("x" * 3_800_000, untouched, 300, context=2048)
    with pytest.raises(ContextError, match="characters"):
        encode([{"role": "user", "content": "x" * 3_800_000}], untouched, 300, context=2048)


def test_messages_are_as_long_as_the_template_makes_them(untouched):
    untouched.chat_template = (
        "{% for message in messages %}{{ message.content | replace('x', '') }}{% endfor %}{{ extra }}"
    )
    messages = [{"role": "user", "content": "x" * 10**5}]
    with pytest.raises(pytest.fail.Exception, match="it is tokenised"):
        render_chat(messages, untouched, 100)
    with pytest.raises(ContextError, match="100000 characters"):
        render_chat(messages, untouched, 100, extra="y" * 10**5)
