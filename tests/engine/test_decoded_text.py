"""A text is what its tokenizer makes of all tokens, and what was streamed of it is never taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, Unigram, WordPiece
from transformers import PreTrainedTokenizerFast

from drafttree.policies import Chain
from testing.costs import toy_decoder
from testing.tokenizers import byte_level, pieces
from testing.toy import PieceTokenizer, Script, ToyDrafter, ToyModel

TEXT = "the cat isn't here: é€😀\n"
BYTES = [f"<0x{byte:02X}>" for byte in b"A\n \xc3\xa9\xe2\x82\xac\xff"]
WORDS = ["<unk>", "<s>", "the", "cat", "##s", "##", ".", ",", "'", "n", "n't", "t", "ve", "s", "中"]
PARTS = ["<unk>", "<s>", "▁", "▁the", "▁n", "▁'", "'", "t", "n't", ".", "▁.", "▁▁", "s", "é"]


def made(model, decoder, **options):
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", **options)


def unigram(parts, decoder, **options):
    return made(Unigram([(part, -1.0) for part in parts], unk_id=0, byte_fallback=True), decoder, **options)


def numbered(words):
    return {word: index for index, word in enumerate(words)}


METASPACE = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
FORCED = {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}
TOKENIZERS = {
    "bytes": byte_level(TEXT, 262),
    "bytes, unused cleaning": byte_level(TEXT, 262),
    "byte fallback": pieces(TEXT, 280),
    "runs of bytes": unigram(PARTS[:6] + BYTES, METASPACE),
    "runs of bytes, cleaned": unigram(PARTS[:9] + BYTES, METASPACE, clean_up_tokenization_spaces=True),
    "metaspace": unigram(PARTS, decoders.Metaspace(), clean_up_tokenization_spaces=False),
    "metaspace, cleaned": unigram(PARTS, decoders.Metaspace(), clean_up_tokenization_spaces=True),
    "word pieces": made(WordPiece(numbered(WORDS), unk_token="<unk>"), decoders.WordPiece(cleanup=True)),
    "word pieces, cleaned": made(
        WordPiece(numbered(WORDS), unk_token="<unk>"),
        decoders.WordPiece(cleanup=False),
        clean_up_tokenization_spaces=True,
    ),
    "BPE, cleaned": made(
        BPE(numbered(["<unk>", "<s>", "a</w>", "n", "'</w>", "'", "t</w>", ".</w>"]), []),
        decoders.BPEDecoder(),
        clean_up_tokenization_spaces=True,
        **FORCED,
    ),
}
TOKENIZERS["bytes, unused cleaning"].clean_up_tokenization_spaces = True


def decoder_of(tokens, tokenizer, prompt, vocab):
    """A decoder whose target recites tokens after a prompt, and whose drafter guesses most of them."""
    guess = [(token + (place % 5 == 4)) % vocab for place, token in enumerate(tokens)]
    laws = [Script(each, vocab, begins_at=len(prompt)) for each in (tokens, guess)]
    return toy_decoder(ToyModel(laws[0], vocab), ToyDrafter(laws[1], vocab), Chain(depth=4), tokenizer=tokenizer)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(st.data())
def test_pieces_put_together_are_the_whole_that_the_tokenizer_decodes(name, data):
    tokenizer = TOKENIZERS[name]
    vocab, prompt = len(tokenizer) + 1, tokenizer.convert_tokens_to_ids(["the" if name.startswith("word") else "s"])
    few = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6))
    tokens = data.draw(st.lists(st.sampled_from(few) | st.integers(0, vocab - 1), min_size=1, max_size=40))
    decoder, options = decoder_of(tokens, tokenizer, prompt, vocab), {"max_new_tokens": len(tokens)}
    out = decoder.generate(prompt, **options)
    assert out.tokens == tokens
    assert tokenizer.decode(prompt, skip_special_tokens=True) + out.text == tokenizer.decode(
        prompt + tokens, skip_special_tokens=True
    )
    chunks = list(decoder.stream(prompt, **options))
    assert "".join(chunk.text for chunk in chunks) == out.text
    origins = [origin for chunk in chunks for origin in chunk.origins]
    assert len(origins) == len(out.text)
    assert origins == sorted(origins)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_is_not_held_back_for_long(name):
    tokenizer = TOKENIZERS[name]
    word = tokenizer.convert_tokens_to_ids({"w": "cat", "B": "a</w>", "r": "▁the", "m": "▁the"}.get(name[0], "t"))
    chunks = decoder_of([word] * 12, tokenizer, [word], len(tokenizer)).stream([word], max_new_tokens=12)
    assert len([chunk for chunk in chunks if chunk.text]) > 2


@pytest.mark.parametrize("stop", ["\n\n", "é", "never"])
def test_a_stop_string_ends_a_run_of_bytes_where_the_decoded_text_has_it(stop):
    tokenizer = TOKENIZERS["runs of bytes"]
    run = ["<0x0A>", "<0xC3>", "<0xA9>", "<0x0A>", "<0x0A>", "<0xFF>", "▁the"]
    tokens, prompt = tokenizer.convert_tokens_to_ids(run), tokenizer.convert_tokens_to_ids(["▁the"])
    ends = [n for n in range(1, 8) if stop in tokenizer.decode(tokens[:n])]
    out = decoder_of(tokens, tokenizer, prompt, len(tokenizer)).generate(prompt, max_new_tokens=7, stop=stop)
    assert len(out.tokens) == (ends or [7])[0]
    assert out.text == tokenizer.decode(out.tokens).partition(stop)[0]


@pytest.mark.parametrize("piece", [b"a", b"\xff", b"\xc3"])
def test_decoding_costs_in_proportion_to_the_text(piece):
    class Counting(PieceTokenizer):
        decoded = 0

        def decode(self, token_ids, **options):
            self.decoded += len(token_ids)
            return super().decode(token_ids, **options)

    counts = []
    for length in (100, 400):
        tokenizer = Counting([piece, b" "])
        decoder_of([0] * length, tokenizer, [1], 2).generate([1], max_new_tokens=length, stop="never")
        counts.append(tokenizer.decoded)
    assert counts[1] < 5 * counts[0]
