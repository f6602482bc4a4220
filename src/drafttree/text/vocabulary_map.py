"""The tokens that two tokenizers have in common, and translation of texts from one to the other."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE_SPACE = "Ġ"
"""A space in the tokens of byte-level vocabularies."""
PIECE_SPACE = "▁"
"""A space in the tokens of SentencePiece."""


class Marks(NamedTuple):
    """The ids of a tokenizer's unknown token and of those that end and begin a text; -1 for one that it has not."""

    unknown: int
    end: int
    begin: int


class Spelling(NamedTuple):
    """The meaning of a token.

    Attributes:
        text: its bytes; one token may have only a part of a character.
        special: whether it is a mark, such as the end of a text, and no part of the text.
    """

    text: bytes
    special: bool = False


def spell(tokenizer: PreTrainedTokenizerBase) -> dict[int, Spelling]:
    """The spelling of every token by its id; the vocabulary's signs for spaces and bytes are decoded.

    Tokens such as <0x0A> come last, so of several that are spelled alike another one comes first.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = _count(vocabulary, BYTE_SPACE) > _count(vocabulary, PIECE_SPACE)
    byte_by_sign = {sign: byte for byte, sign in bytes_to_unicode().items()}
    special_ids = {*tokenizer.all_special_ids}
    added_vocab: Any = tokenizer.get_added_vocab()  # pyright: ignore[reportCallIssue, reportOptionalCall]
    spellings = dict[int, Spelling]()

    def order(entry: tuple[str, int]) -> tuple[bool, int]:
        token, index = entry
        return _fallback_byte(token) is not None, index

    for token, index in sorted(vocabulary.items(), key=order):
        if token in added_vocab or index in special_ids:
            spellings[index] = Spelling(token.encode(), index in special_ids)
        elif byte_level and byte_by_sign.keys() >= {*token}:
            spellings[index] = Spelling(bytes(map(byte_by_sign.__getitem__, token)))
        elif (byte := _fallback_byte(token)) is not None:
            spellings[index] = Spelling(byte)
        else:
            spellings[index] = Spelling(token.replace(PIECE_SPACE, " ").encode())
    return spellings


class VocabularyMap:
    """Maps between the vocabularies of a target and a draft model with another tokenizer.

    Tokens in common, *twins*, are spelled alike (token-level intersection, Timor et al. 2025, arXiv:2502.05202,
    algorithm 4); the tokens that begin and end texts are also twins where no others are. The probability of all other
    tokens of the draft model becomes that of "none of these", so twins keep the probabilities they had.

    Args:
        target: the target's tokenizer.
        draft: the draft model's tokenizer.
        target_vocab: columns of the target's logits.
        draft_vocab: columns of the draft model's logits.
        device: the device of the logits.

    Attributes:
        target_vocab: as given.
        tokens: number of tokens of the target's tokenizer.
        twins: the draft model's id by the target's id, for tokens in common.
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
        target_ids = _by_spelling(self._spelled, _marks(target).unknown)
        draft_ids = _by_spelling(self._draft_spelled, _marks(draft).unknown)
        self._draft_ids = {spelling: alike[0] for spelling, alike in draft_ids.items()}
        self.twins = dict[int, int]()
        for spelling, alike in target_ids.items():
            self.twins.update(zip(alike, draft_ids.get(spelling, ()), strict=False))
        for target_mark, draft_mark in zip(_marks(target)[1:], _marks(draft)[1:], strict=True):
            in_vocabularies = target_mark in self._spelled and draft_mark in self._draft_spelled
            if in_vocabularies and target_mark not in self.twins and draft_mark not in self.twins.values():
                self.twins[target_mark] = draft_mark
        self._stand_in = next((mark for mark in _marks(draft) if mark in self._draft_spelled), 0)
        texts = [spelling.text for spelling in self._draft_ids if not spelling.special]
        self._longest_token = max(map(len, texts), default=0)
        self._columns = torch.tensor([*self.twins.items()], device=device).reshape(-1, 2).T.contiguous()

    @property
    def share(self) -> float:
        """The share of the target's tokens that the draft model has."""
        return len(self.twins) / max(self.tokens, 1)

    def spread(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary, with one more column for "none of these".

        Args:
            logits: `[rows, draft_vocab]`.

        Returns:
            `[rows, target_vocab + 1]`, -inf for the target's tokens without a twin; the last column is of the draft
            model's other tokens together.
        """
        target_columns, draft_columns = self._columns
        spread = logits.new_full((len(logits), self.target_vocab + 1), -torch.inf)
        spread.index_copy_(1, target_columns, logits.index_select(1, draft_columns))
        spread[:, -1] = logits.index_fill(1, draft_columns, -torch.inf).logsumexp(1)
        return spread

    def twin(self, token: int) -> int:
        """The draft model's id of a token, or else its unknown token (or another that stands in)."""
        return self.twins.get(token, self._stand_in)

    def translate(self, tokens: Iterable[int]) -> tuple[list[int], list[int]]:
        """Translate a part of a text into the draft model's tokens.

        Each twin becomes its counterpart. The tokens between two twins are joined, and the draft tokenizer encodes
        their text; if it is not a text, or the ids spell another one, the longest tokens that fit are taken.

        Returns:
            The ids, at least one for any text, and for every token of the target the number of ids that are known from
            the tokens up to it. Those between two twins are known only at the last token between these.
        """
        ids = list[int]()
        known_counts = list[int]()
        for twins, run in groupby(tokens, self.twins.__contains__):
            run_tokens = [*run]
            if twins:
                known_counts += range(len(ids) + 1, len(ids) + 1 + len(run_tokens))
                ids += (self.twins[token] for token in run_tokens)
            else:
                known_counts += [len(ids)] * (len(run_tokens) - 1)
                ids += self._spell(_joined(self._spelled, run_tokens))
                known_counts.append(len(ids))
        return ids, known_counts

    def _spell(self, text: bytes) -> list[int]:
        """The draft tokenizer's ids of a text, at least one."""
        ids = list[int]()
        with suppress(UnicodeDecodeError):
            ids = self._draft.encode(text.decode(), add_special_tokens=False)
        if _joined(self._draft_spelled, ids) != text:
            ids = self._longest(text)  # SentencePiece would put a space before it, for one
        return ids or [self._stand_in]

    def _longest(self, text: bytes) -> list[int]:
        """The ids of the longest tokens that spell a text; the stand-in where no token fits."""
        ids = list[int]()
        start = 0
        while start < len(text):
            if spelling := self._longest_spelling(text[start : start + self._longest_token]):
                ids.append(self._draft_ids[spelling])
                start += len(spelling.text)
            else:
                if ids[-1:] != [self._stand_in]:
                    ids.append(self._stand_in)
                start += 1
        return ids

    def _longest_spelling(self, text: bytes) -> Spelling | None:
        """The spelling of the longest token that a text begins with; None if there is none."""
        for size in range(len(text), 0, -1):
            spelling = Spelling(text[:size])
            if spelling in self._draft_ids:
                return spelling
        return None


def _marks(tokenizer: Any) -> Marks:
    ids = (tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    return Marks(*(-1 if index is None else index for index in ids))


def _joined(spelled: Mapping[int, Spelling], ids: Iterable[int]) -> bytes:
    """The text of some tokens; those without a spelling have none."""
    return b"".join(spelled[index].text for index in ids if index in spelled)


def _below(size: int, spelled: dict[int, Spelling]) -> dict[int, Spelling]:
    return {index: spelling for index, spelling in spelled.items() if index < size}


def _by_spelling(spelled: Mapping[int, Spelling], unknown_id: int) -> dict[Spelling, list[int]]:
    """The ids of every spelling, in order; the unknown token and empty ones have none."""
    ids = dict[Spelling, list[int]]()
    for index, spelling in spelled.items():
        if spelling.text and index != unknown_id:
            ids.setdefault(spelling, []).append(index)
    return ids


def _count(vocabulary: Iterable[str], sign: str) -> int:
    return sum(token.startswith(sign) for token in vocabulary)


def _fallback_byte(token: str) -> bytes | None:
    """The byte of a token such as <0x0A>, SentencePiece's for text that no other token spells; None for others."""
    match = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(match[1]) if match else None
