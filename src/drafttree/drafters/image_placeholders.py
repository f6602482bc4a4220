"""What drafters see of a prompt with images.

A target has hundreds of rows for an image, all of the same placeholder token. There are three kinds of drafters:

- Heads read the target's hidden states, so they also have a row for each of these tokens.
- Draft models and lookup read tokens only, and see one placeholder for each image. More of them would tell a draft
  model nothing, and lookup would propose them. A draft model that can read images is not given them either.
- A session that does not override `Session.see_images` sees every token.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from drafttree.images.prompt_images import PromptImages


class ImagePlaceholders(NamedTuple):
    """The placeholder tokens of a prompt, of which a drafter sees one for each image.

    Attributes:
        token: the token id of a placeholder; -1 without images.
        spans: by image, the tokens of the text that stand for it: the first one, and the one after the last.
    """

    token: int = -1
    spans: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, images: PromptImages, prompt: Sequence[int]) -> Self:
        """The placeholders of a prompt with images."""
        spans = sorted(images.spans)
        return cls(prompt[spans[0][0]], spans)

    def shown(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that a drafter sees of a text."""
        shown_tokens = list[int]()
        text_begin = 0
        for begin, end in self.spans:
            shown_tokens += [*tokens[text_begin:begin], self.token]
            text_begin = end
        return [*shown_tokens, *tokens[text_begin:]]

    def seen(self, tokens: int) -> int:
        """The number of tokens that a drafter sees of the first `tokens` tokens of a text."""
        hidden_count = 0
        for begin, end in self.spans:
            hidden_count += max(min(end, tokens) - begin - 1, 0)
        return tokens - hidden_count

    def read_by(self, seen_tokens: int) -> int:
        """The number of first tokens of a text of which a drafter sees `seen_tokens`."""
        tokens = seen_tokens
        for begin, end in self.spans:
            if tokens > begin:
                tokens += end - begin - 1
        return tokens

    def seen_after(self, seen_tokens: int, tokens: int) -> int:
        """The number of tokens that a drafter sees after further `tokens` tokens of the text.

        Args:
            seen_tokens: the number that it has seen before.
            tokens: the number of further tokens.
        """
        return self.seen(self.read_by(seen_tokens) + tokens)


NO_IMAGES = ImagePlaceholders()
