"""Single tokens as text."""

from drafttree.engine.detokenizer import Tokenizer


class TokenTexts:
    """Texts of tokens behind a token, each decoded once.

    Args:
        tokenizer: decodes the tokens; None to show token ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int | None, int], str] = {}

    def piece(self, before: int | None, token: int) -> str:
        """A token behind another one, special tokens by their name.

        Some tokenizers leave out the space that a text begins with, so a token is decoded behind the one before it.
        """
        if (before, token) not in self._known:
            self._known[before, token] = self._piece(before, token)
        return self._known[before, token]

    def _piece(self, before: int | None, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        if before is None:
            return self._decode(token)
        head, both = self._decode(before), self._decode(before, token)
        return both[len(head) :] if both.startswith(head) else self._decode(token)

    def _decode(self, *tokens: int) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)
