"""The tokens that two tokenizers have in common, against transformers' own map, and texts in the other's tokens."""

import random

import pytest
import torch
from transformers.generation.candidate_generator import AssistantToTargetTranslator

from drafttree.drafters import VocabularyMap
from testing.tokenizers import byte_level, pieces, words

CPU = torch.device("cpu")
FIRST = "the quick brown fox jumps over the lazy dog; a café in the houses, naïve and quick. " * 3
SECOND = "houses of the brown dogs and the quickest foxes, jumping over cafés; thinking of a lazy one. " * 3
PAIRS = {
    "bytes to bytes": lambda: (byte_level(FIRST, 330), byte_level(SECOND, 330)),
    "bytes to pieces": lambda: (byte_level(FIRST, 330), pieces(SECOND, 360)),
    "pieces to bytes": lambda: (pieces(FIRST, 360), byte_level(SECOND, 330)),
    "pieces to pieces": lambda: (pieces(FIRST, 360), pieces(SECOND, 360)),
}


def mapped(target, draft) -> VocabularyMap:
    return VocabularyMap(target, draft, len(target), len(draft), CPU)


@pytest.mark.parametrize("kind", ["bytes to bytes", "pieces to pieces"])
def test_twins_and_their_logits_are_those_of_transformers(kind):
    target, draft = PAIRS[kind]()
    theirs, ours = AssistantToTargetTranslator(target, draft, len(target)), mapped(target, draft)
    expected = dict(theirs.target_to_assistant_input_ids)
    if kind == "pieces to pieces":
        del expected[target.unk_token_id]  # which is no token in common: it stands for what each does not know
    assert ours.twins == expected
    assert 0.8 < ours.share < 1
    logits = torch.randn(3, len(draft), generator=torch.Generator().manual_seed(0))
    spread = ours.spread(logits)
    found = theirs.get_target_logits(logits)
    found[:, [token for token in range(len(target)) if token not in expected]] = -torch.inf
    torch.testing.assert_close(spread[:, :-1], found, atol=0, rtol=0)


def test_tokens_keep_their_probabilities_and_the_rest_is_the_last_columns():
    target, draft = PAIRS["bytes to pieces"]()
    ours = mapped(target, draft)
    logits = torch.randn(2, len(draft), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before, after = logits.softmax(-1), ours.spread(logits).softmax(-1)
    for token, twin in ours.twins.items():
        torch.testing.assert_close(after[:, token], before[:, twin])
    others = [index for index in range(len(draft)) if index not in ours.twins.values()]
    torch.testing.assert_close(after[:, -1], before[:, others].sum(-1))


@pytest.mark.parametrize(
    ("ours", "theirs"), [("Ġthe", "▁the"), ("Ġquick", "▁quick"), ("Ċ", "<0x0A>"), ("Ã", "<0xC3>"), (".", ".")]
)
def test_signs_of_spaces_and_bytes_are_no_difference(ours, theirs):
    target, draft = byte_level(FIRST, 330), pieces(FIRST, 380)
    found = mapped(target, draft).twins
    assert found[target.convert_tokens_to_ids(ours)] == draft.convert_tokens_to_ids(theirs)


def test_the_ends_of_texts_are_twins_and_a_characters_byte_is_none():
    target, draft = byte_level(FIRST, 330), pieces(FIRST, 380)
    found = mapped(target, draft).twins
    assert found[target.eos_token_id] == draft.eos_token_id
    assert draft.convert_tokens_to_ids("<0x61>") not in found.values()  # "a" has a token of its own


@pytest.mark.parametrize("kind", PAIRS)
def test_any_tokens_are_spelled_as_they_were(kind):
    """Both tokenizers can spell every byte, so the text must be the same whatever is in common."""
    target, draft = PAIRS[kind]()
    ours, rng = mapped(target, draft), random.Random(0)
    texts = ["the quickest café 漢字 🦊 houses", "naïve", "\n\n  the", "ü"]
    parts = [target.encode(text, add_special_tokens=False) for text in texts]
    parts += [[rng.randrange(3, len(target)) for _ in range(12)] for _ in range(60)]
    several = 0
    for part in parts:
        own, known = ours.translate(part)
        assert _bytes(draft, own) == _bytes(target, part)
        assert known == sorted(known)
        assert known[-1] == len(own) > 0
        for place, count in enumerate(known):
            assert own[:count] == ours.translate(part[: place + 1])[0][:count]
        several += len(own) > len(part)
    assert several > 5


def _bytes(tokenizer, ids: list[int]) -> bytes:
    """The text by each tokenizer's own decoder, of every token between two marks, which keep spaces."""
    table = {character: byte for byte, character in _characters().items()}
    parts = []
    for token in tokenizer.convert_ids_to_tokens(ids):
        if token.startswith("<0x"):
            parts.append(bytes([int(token[3:5], 16)]))
        elif token in tokenizer.get_added_vocab():
            parts.append(b"\x00end")
        elif tokenizer.unk_token:
            parts.append(token.replace("▁", " ").encode())
        else:
            parts.append(bytes(table[character] for character in token))
    return b"".join(parts)


def _characters() -> dict[int, str]:
    """GPT-2's characters for bytes: printable ones are themselves, others follow from 256 in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def test_what_no_token_spells_is_one_unknown_token():
    target, draft = words("?", "a", "b", "c"), words("?", "c", "d")
    target.unk_token = draft.unk_token = "?"
    ours = mapped(target, draft)
    assert ours.twins == {3: 1}
    assert ours.translate([3, 1, 2, 3]) == ([1, 0, 1], [1, 1, 2, 3])
    assert [ours.twin(token) for token in (3, 1)] == [1, 0]


def test_ids_without_a_column_are_no_tokens():
    ours = VocabularyMap(words("a", "b", "c", "d"), words("d", "c", "b", "a"), 3, 3, CPU)
    assert ours.tokens == 3
    assert ours.twins == {1: 2, 2: 1}
    assert ours.translate([1, 99, 0, 2]) == ([2, 0, 1], [1, 1, 2, 3])
