"""Refuses a text before it is tokenised if it has more characters than the context could hold as tokens."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from drafttree.core.errors import ContextError, InputError

NORMALIZED = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Lowercase": 1, "Prepend": 1, "ByteLevel": 1}
"""Normalizers that drop no character, with the most characters that become one; four in a canonical composition."""
SPLITTING = {"ByteLevel", "Metaspace", "Digits", "Punctuation", "Split", "UnicodeScripts", "FixedLength"}
"""Pre-tokenizers that drop no character, unless they are set to remove what they split at."""


def check_characters(text: str, tokenizer: Any, context: int | None) -> None:
    """Refuse a text that cannot be encoded, or that has too many characters for a model's context.

    If nothing is known of the tokenizer (see `longest_token`), any length passes.

    Args:
        text: the text to tokenise.
        tokenizer: a tokenizer of transformers.
        context: the most tokens of prompt and text together; None for no limit.

    Raises:
        InputError: if the text has half a surrogate pair.
        ContextError: if the text is too long; names the length and the limit.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt holds half a surrogate pair, which is not text") from None
    if context is None or len(text) < context or (token_length := longest_token(tokenizer)) is None:
        return
    limit = token_length * (context - 1)
    if len(text) > limit and (count := _counted(text, tokenizer)) > limit:
        raise ContextError(
            f"the prompt has {count} characters, and the model's context of {context} tokens has room for {limit} at "
            "most; shorten the prompt"
        )


@lru_cache(maxsize=4)
def longest_token(tokenizer: Any) -> int | None:
    """The most characters of a text that one token can represent, without whitespace beside special tokens.

    Returns:
        That number, or None if a token may represent any number of characters, since the tokenizer drops characters or
        has one token for everything unknown.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    normalizers = [*_parts(backend.normalizer)]
    splitters = [*_parts(backend.pre_tokenizer)]
    vocabulary = backend.get_vocab(with_added_tokens=True)
    by_byte = any(step["type"] == "ByteLevel" for step in (*normalizers, *splitters))
    if not all(map(_keeps_all, splitters)) or not _knows_all(backend.model, vocabulary, by_byte=by_byte):
        return None
    max_length = max(map(len, vocabulary))
    for normalizer in normalizers:
        factor = _shrinking(normalizer)
        if factor is None:
            return None
        max_length *= factor
    return max_length


def _parts(step: Any) -> Iterator[dict[str, Any]]:
    """The settings of a step of a tokenizer, or of the steps that it consists of."""
    if step is not None:
        yield from _flat(json.loads(step.__getstate__()))


def _flat(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if settings["type"] != "Sequence":
        yield settings
    for step in settings.get("normalizers", settings.get("pretokenizers", [])):
        yield from _flat(step)


def _keeps_all(splitter: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer drops no character."""
    return splitter["type"] in SPLITTING and splitter.get("behavior") != "Removed"


def _shrinking(normalizer: dict[str, Any]) -> int | None:
    """The most characters that a normalizer turns into one; None if it may drop some."""
    if normalizer["type"] != "Replace":
        return NORMALIZED.get(normalizer["type"])
    replaced_text = normalizer["pattern"].get("String")
    return 1 if replaced_text and len(normalizer["content"]) >= len(replaced_text) else None


def _knows_all(model: Any, vocabulary: dict[str, int], *, by_byte: bool) -> bool:
    """Whether a model drops no character, and has no token for several unknown characters."""
    if not isinstance(model, BPE):
        return False
    if by_byte:
        return vocabulary.keys() >= {*ByteLevel.alphabet()}
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    return model.unk_token is not None and not model.fuse_unk


def _counted(text: str, tokenizer: Any) -> int:
    """The number of characters of a text, without whitespace if special tokens may take that."""
    for token in tokenizer.backend_tokenizer.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip:
            return sum(map(len, text.split()))
    return len(text)
