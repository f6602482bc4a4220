"""Tokenizers in GGUF files cut texts as llama.cpp's rules and as transformers do."""

import random
import re
from itertools import pairwise

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from drafttree.loading import load_tokenizer
from drafttree.loading.gguf.reader import GGUFFile
from drafttree.loading.gguf.tokenizers import tokenizer_of
from testing import gguf_files, tiny

TEXTS = [
    "The old man looked at the sea.",
    "  two  spaces\n\n\nthree breaks\t\ttabs ",
    "don't I'LL we've it's O'Neil",
    "1234567 89 3.14159 1_000",
    "caf\u00e9 cafe\u0301 \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u0928\u092e\u0938\u094d\u0924\u0947",
    "def f(x):\n    return {'a': x ** 2}  # HTTPServer camelCase\r\n",
    "\U0001f642\U0001f469\u200d\U0001f469 \u00a0 \ufb01",
    "",
    " ",
]
PIECES = [
    *("<unk>", "<s>", "</s>"),
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("\u2581", "a", "b", "c", "t", "h", "e", "th", "the", "\u2581t", "\u2581th", "\u2581the", "he", "ab", "bc", "abc"),
    *("\u2581a", "aa", "aaa", "aaaa", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<user>", "\n"),
]
TYPES = [2, 3, 3, *[6] * 256, *[1] * 22, 4, 1]
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.scores": [float(-number) for number in range(len(PIECES))],
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.fixture(scope="module")
def file_with(tmp_path_factory):
    """Writes a file whose metadata differs, and gives its path."""
    model = tiny.from_config(gguf_files.CONFIGS["llama"]())

    def write(**metadata):
        path = tmp_path_factory.mktemp("tokenizer") / "model.gguf"
        return gguf_files.write(model, path, metadata=metadata)

    return write


def merged(text):
    """Ids by SentencePiece's rule: the neighbours are joined whose token has the best score, leftmost first."""
    pieces = list(text)
    scores = {piece: -number for number, piece in enumerate(PIECES)}
    while True:
        joined = [left + right for left, right in pairwise(pieces)]
        places = [(scores[token], -place) for place, token in enumerate(joined) if token in scores]
        if not places:
            break
        place = -max(places)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    found = []
    for piece in pieces:
        known = piece in scores
        found += [PIECES.index(piece)] if known else [PIECES.index(f"<0x{byte:02X}>") for byte in piece.encode()]
    return found


@given(st.text(st.sampled_from("abcthe \n\u00e9\u65e5"), max_size=24))
def test_pieces_are_merged_by_their_scores(sentencepiece, text):
    tokenizer = sentencepiece
    assert tokenizer(text).input_ids == [1, *(merged("\u2581" + text.replace(" ", "\u2581")) if text else [])]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@pytest.fixture(scope="module")
def sentencepiece(file_with):
    return tokenizer_of(GGUFFile(file_with(**SENTENCEPIECE)))


def test_words_of_users_stay_whole_and_those_of_the_model_are_special(sentencepiece):
    user, begin = PIECES.index("<user>"), 1
    assert sentencepiece("<user>").input_ids == [begin, user]
    assert sentencepiece.decode([user, begin], skip_special_tokens=True) == "<user>"
    assert (sentencepiece.bos_token, sentencepiece.eos_token, sentencepiece.unk_token) == ("<s>", "</s>", "<unk>")


def test_texts_begin_and_end_as_the_file_says(file_with):
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = tokenizer_of(GGUFFile(file_with(**SENTENCEPIECE, **flags)))
    assert tokenizer("a").input_ids == [PIECES.index("\u2581a"), 2]
    plain = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    tokenizer = tokenizer_of(GGUFFile(file_with(**SENTENCEPIECE, **plain)))
    assert tokenizer("a").input_ids == [PIECES.index("a")]
    assert tokenizer.decode([PIECES.index("\u2581a")]) == " a"


def test_chat_templates_are_kept(file_with):
    templates = {
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    tokenizer = tokenizer_of(GGUFFile(file_with(**templates)))
    assert tokenizer.chat_template == {"default": "{{ messages[0].content }}", "tool_use": "tools"}
    assert tokenizer_of(GGUFFile(file_with())).chat_template == load_tokenizer("embedded").chat_template


def test_bytes_are_merged_as_by_the_tokenizer_that_was_written(file_with):
    tokenizer, written = tokenizer_of(GGUFFile(file_with())), load_tokenizer("embedded")
    for text in TEXTS:
        assert tokenizer(text).input_ids == written(text).input_ids
        assert tokenizer.decode(written(text).input_ids) == text


@pytest.mark.skipif(
    [int(part) for part in transformers.__version__.split(".")[:2]] < [5, 24],
    reason="transformers splits by the patterns of these names from 5.24 on",
)
@pytest.mark.parametrize("split", ["llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o"])
def test_texts_are_split_as_transformers_splits_them(split, file_with):
    path = file_with(**{"tokenizer.ggml.pre": split})
    ours, theirs = tokenizer_of(GGUFFile(path)), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    splits = [tokenizer.backend_tokenizer.pre_tokenizer for tokenizer in (ours, theirs)]
    for text in TEXTS:
        assert splits[0].pre_tokenize_str(text) == splits[1].pre_tokenize_str(text)


def test_qwen_composes_letters_and_llama_takes_whole_tokens(file_with):
    qwen = tokenizer_of(GGUFFile(file_with(**{"tokenizer.ggml.pre": "qwen2"})))
    assert qwen("cafe\u0301").input_ids == qwen("caf\u00e9").input_ids
    merges = {"tokenizer.ggml.merges": ["o l"], "tokenizer.ggml.pre": "llama-bpe"}
    llama = tokenizer_of(GGUFFile(file_with(**merges, **{"tokenizer.ggml.add_bos_token": False})))
    assert len(llama("The").input_ids) == 1
    merges["tokenizer.ggml.pre"] = "smaug-bpe"
    assert len(tokenizer_of(GGUFFile(file_with(**merges)))("The").input_ids) == 3


def test_a_vocabulary_of_150_000_is_read_whole(file_with):
    draw = random.Random(0)
    words = [f"word{number}{draw.choice('abc')}" for number in range(150_000)]
    path = file_with(**{"tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [1] * len(words)})
    assert GGUFFile(path).metadata["tokenizer.ggml.tokens"] == words


def test_a_gemma_has_runs_of_spaces_and_merges_in_the_order_of_its_tokens(file_with, tmp_path):
    pieces = [re.sub("^\u2581{2,}$", lambda run: " " * len(run[0]), piece) for piece in PIECES]
    metadata = {**SENTENCEPIECE, "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": [-1000.0] * len(PIECES)}
    metadata["tokenizer.ggml.add_space_prefix"] = False
    model = tiny.from_config(gguf_files.CONFIGS["gemma3"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", metadata=metadata)
    tokenizer = tokenizer_of(GGUFFile(path))
    for text in ("the  abc", "    a", "aaaaaaa b\n\nthe", "\u00e9"):
        assert tokenizer(text).input_ids == [1, *merged(text.replace(" ", "\u2581"))]
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
