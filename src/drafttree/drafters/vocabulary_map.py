"""The tokens that two tokenizers have in common, and texts of one in tokens of the other."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE_SPACE, PIECE_SPACE = "Ġ", "▁"
"""How tokens spell a space: in byte-level vocabularies, and in those of SentencePiece."""


class Marks(NamedTuple):
    """The ids of a tokenizer's unknown token and of those that end and begin a text; -1 for one that it has not."""

    unknown: int
    end: int
    begin: int


class Spelling(NamedTuple):
    """What a token stands for.

    Attributes:
        text: its bytes; one token may have only a part of a character.
        special: whether it marks a text rather than being a part of it.
    """

    text: bytes
    special: bool = False


def spell(tokenizer: PreTrainedTokenizerBase) -> dict[int, Spelling]:
    """The spelling of every token by its id, whatever signs the vocabulary has for spaces and bytes.

    Of several tokens that are spelled alike lone bytes come last.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = _count(vocabulary, BYTE_SPACE) > _count(vocabulary, PIECE_SPACE)
    of_character = {character: byte for byte, character in bytes_to_unicode().items()}
    special = {*tokenizer.all_special_ids}
    added: Any = tokenizer.get_added_vocab()  # pyright: ignore[reportCallIssue, reportOptionalCall]
    spelled = dict[int, Spelling]()
    for token, index in sorted(vocabulary.items(), key=lambda each: (_fallback_byte(each[0]) is not None, each[1])):
        if token in added or index in special:
            spelled[index] = Spelling(token.encode(), index in special)
        elif byte_level and all(character in of_character for character in token):
            spelled[index] = Spelling(bytes(of_character[character] for character in token))
        elif (byte := _fallback_byte(token)) is not None:
            spelled[index] = Spelling(byte)
        else:
            spelled[index] = Spelling(token.replace(PIECE_SPACE, " ").encode())
    return spelled


class VocabularyMap:
    """Between the vocabularies of a target and of a draft model that has another tokenizer.

    Tokens in common, *twins*, are spelled alike (token-level intersection, Timor et al. 2025, arXiv:2502.05202,
    algorithm 4); the tokens that begin and end texts are also twins where no others are. The draft model's probability
    of its other tokens is kept as that of "none of these", so what is in common keeps the probabilities it had.

    Args:
        target: the target's tokenizer.
        draft: the draft model's.
        target_vocab: columns of the target's logits.
        draft_vocab: columns of the draft model's.
        device: the device of the logits.

    Attributes:
        target_vocab: as given.
        tokens: number of tokens of the target's tokenizer.
        twins: the draft model's id of each of the target's tokens that it has.
    """

    def __init__(
        self,
        target: PreTrainedTokenizerBase,
        draft: PreTrainedTokenizerBase,
        target_vocab: int,
        draft_vocab: int,
        device: torch.device,
    ) -> None:
        self.target_vocab = target_vocab
        self._draft = draft
        self._spelled = _below(target_vocab, spell(target))
        self._draft_spelled = _below(draft_vocab, spell(draft))
        self.tokens = len(self._spelled)
        ours = _by_spelling(self._spelled, _marks(target).unknown)
        theirs = _by_spelling(self._draft_spelled, _marks(draft).unknown)
        self._draft_ids = {spelling: alike[0] for spelling, alike in theirs.items()}
        self.twins = dict(
            pair for spelling, alike in ours.items() for pair in zip(alike, theirs.get(spelling, ()), strict=False)
        )
        for own, other in zip(_marks(target)[1:], _marks(draft)[1:], strict=True):
            known = own in self._spelled and other in self._draft_spelled
            if known and own not in self.twins and other not in self.twins.values():
                self.twins[own] = other
        self._stand_in = next((each for each in _marks(draft) if each in self._draft_spelled), 0)
        self._longest_token = max((len(each.text) for each in self._draft_ids if not each.special), default=0)
        self._columns = torch.tensor([*self.twins.items()], device=device).reshape(-1, 2).T.contiguous()

    @property
    def share(self) -> float:
        """The share of the target's tokens that the draft model has."""
        return len(self.twins) / max(self.tokens, 1)

    def spread(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary, and of none of its tokens.

        Args:
            logits: `[rows, draft_vocab]`.

        Returns:
            `[rows, target_vocab + 1]`, -inf for the target's tokens without a twin; the last column has the draft
            model's other tokens together.
        """
        ours, theirs = self._columns
        spread = logits.new_full((len(logits), self.target_vocab + 1), -torch.inf)
        spread.index_copy_(1, ours, logits.index_select(1, theirs))
        spread[:, -1] = logits.index_fill(1, theirs, -torch.inf).logsumexp(1)
        return spread

    def twin(self, token: int) -> int:
        """The draft model's id of a token, or else its unknown token (or another that stands in)."""
        return self.twins.get(token, self._stand_in)

    def translate(self, tokens: Iterable[int]) -> tuple[list[int], list[int]]:
        """A part of a text in the draft model's tokens.

        Twins are taken one to one. What lies between them is spelled, as one, by the draft tokenizer; parts of
        characters, and what it would spell otherwise, by the longest tokens that fit.

        Returns:
            The ids, at least one for any text, and for every token of the target how many of them are known by it;
            the tokens between two twins are known together.
        """
        ids, known = list[int](), list[int]()
        for twins, run in groupby(tokens, self.twins.__contains__):
            own = [*run]
            if twins:
                known += range(len(ids) + 1, len(ids) + 1 + len(own))
                ids += (self.twins[token] for token in own)
            else:
                known += [len(ids)] * (len(own) - 1)
                ids += self._spell(b"".join(self._spelled.get(token, Spelling(b"")).text for token in own))
                known.append(len(ids))
        return ids, known

    def _spell(self, text: bytes) -> list[int]:
        """The draft tokenizer's ids of a text, at least one."""
        ids = list[int]()
        with suppress(UnicodeDecodeError):
            ids = self._draft.encode(text.decode(), add_special_tokens=False)
        if b"".join(self._draft_spelled[each].text for each in ids if each in self._draft_spelled) != text:
            ids = self._longest(text)  # SentencePiece would put a space before it, for one
        return ids or [self._stand_in]

    def _longest(self, text: bytes) -> list[int]:
        """The ids of the longest tokens that spell a text; the stand-in's for what none begins with."""
        ids, start = list[int](), 0
        while start < len(text):
            longest = min(self._longest_token, len(text) - start)
            parts = (Spelling(text[start : start + size]) for size in range(longest, 0, -1))
            part = next((part for part in parts if part in self._draft_ids), None)
            if part or ids[-1:] != [self._stand_in]:
                ids.append(self._draft_ids[part] if part else self._stand_in)
            start += len(part.text) if part else 1
        return ids


def _marks(tokenizer: Any) -> Marks:
    ids = (tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    return Marks(*(-1 if each is None else each for each in ids))


def _below(size: int, spelled: dict[int, Spelling]) -> dict[int, Spelling]:
    return {index: each for index, each in spelled.items() if index < size}


def _by_spelling(spelled: Mapping[int, Spelling], unknown: int) -> dict[Spelling, list[int]]:
    """The ids of every spelling, in order; the unknown token and empty ones have none."""
    found = dict[Spelling, list[int]]()
    for index, each in spelled.items():
        if each.text and index != unknown:
            found.setdefault(each, []).append(index)
    return found


def _count(vocabulary: Iterable[str], sign: str) -> int:
    return sum(token.startswith(sign) for token in vocabulary)


def _fallback_byte(token: str) -> bytes | None:
    """The byte of a token such as <0x0A>, which SentencePiece has for what no other token spells."""
    found = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(found[1]) if found else None
