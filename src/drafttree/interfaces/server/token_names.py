"""Tokens by name: their text, or their bytes where these are a part of a character."""

from collections.abc import Sequence
from typing import Self

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.decoder import Decoder


class TokenNames:
    """The names of a vocabulary.

    Args:
        pieces: the bytes of every token.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """The names of a decoder's tokens.

        Raises:
            ConfigError: xgrammar, which reads them from the tokenizer, is not installed or cannot.
        """
        return cls(token_bytes(decoder.tokenizer, decoder.target.vocab_size))

    def bytes(self, token: int) -> bytes:
        """What a token stands for."""
        return self._pieces[token]

    def name(self, token: int) -> str:
        """Its text, or `bytes:\\xe2\\x82` for bytes that are no text, as OpenAI's API writes them."""
        piece = self._pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
