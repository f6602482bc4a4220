"""Drafts with a language model of another tokenizer, by the tokens that both have (Timor et al. 2025)."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from torch import Tensor

from drafttree.drafters.base import HiddenStates, Session, ShownBySize, as_tensor
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.drafters.language_model import LanguageModelDrafter, LanguageModelSession
from drafttree.drafters.ranked_logits import DraftLogits
from drafttree.drafters.session import Frontier, TreeSession
from drafttree.models import Model, Segment, TreeCache
from drafttree.text.vocabulary_map import VocabularyMap


class OtherTokenizerDrafter(ShownBySize):
    """Drafts with any `Model`, one forward pass per level; only tokens that the target and the model share.

    The model reads the text in its own tokens, so its rows have positions of their own. Its drafts are a distribution
    over the target's tokens and "none of these", which every verifier supports without loss.

    Args:
        model: the draft model.
        vocabulary: maps between its tokens and the target's.
    """

    def __init__(self, model: Model, vocabulary: VocabularyMap) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self._reader = LanguageModelDrafter(model)
        self.vocab_size = vocabulary.target_vocab
        self.context = self._reader.context
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = model.nbytes

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; without `prefill`, the first draft pass reads the prompt."""
        return OtherTokenizerSession(self, prompt, capacity)

    def draft_root(self, sessions: "Sequence[OtherTokenizerSession]") -> Tensor:
        """Logits `[sessions, vocab + 1]` of the token after each root; the last column is of "none of these"."""
        return self._spread(self._reader.draft_root(sessions))

    def draft_level(self, sessions: "Sequence[OtherTokenizerSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab + 1]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        draft_frontiers = [
            Frontier([*map(self.vocabulary.twin, frontier.tokens)], frontier.origins) for frontier in frontiers
        ]
        return self._spread(self._reader.draft_level(sessions, draft_frontiers))

    def _spread(self, draft_logits: DraftLogits) -> Tensor:
        return self.vocabulary.spread(as_tensor(draft_logits, self.model.device))


class OtherTokenizerSession(LanguageModelSession):
    """The draft model's KV cache for one request, whose rows are those of the draft model's tokens.

    If these exceed the model's context, further tokens are read at its last position. An image is one token: the twin
    of the target's placeholder, or else the token that stands for unknown ones.
    """

    def __init__(self, drafter: OtherTokenizerDrafter, prompt: list[int], capacity: int) -> None:
        self._vocabulary = drafter.vocabulary
        self._prompt = prompt
        self._last_position = (drafter.context or 1 << 62) - 1
        self._own_tokens = list[int]()
        self._known = [0]
        super().__init__(drafter, self._translate(prompt), capacity)  # pyright: ignore[reportArgumentType]
        self._prefilled = 0

    def _translate(self, tokens: list[int]) -> list[int]:
        """The next tokens of the text that it sees, in the draft model's vocabulary."""
        first_row = len(self._own_tokens)
        for is_image, piece in groupby(tokens, lambda token: token == self.images.token):
            offset = len(self._own_tokens)
            if is_image:
                draft_tokens = [*map(self._vocabulary.twin, piece)]
                known_counts = [*range(1, len(draft_tokens) + 1)]
            else:
                draft_tokens, known_counts = self._vocabulary.translate(piece)
            self._own_tokens += draft_tokens
            self._known += (offset + count for count in known_counts)
        return self._own_tokens[first_row:]

    def see_images(self, images: ImagePlaceholders) -> None:
        self.images = images
        self._own_tokens = []
        self._known = [0]
        self.unread = self._translate(images.shown(self._prompt))

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._prefilled = min(self.images.seen_after(self._prefilled, tokens), len(self._known) - 1)
        rows_read = len(self._own_tokens) - len(self.unread)
        self.read_prompt(max(min(self._known[self._prefilled], self._last_position + 1) - rows_read, 0))

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        super().commit(self._translate(tokens), hidden_states)

    def snapshot(self, tokens: int) -> object:
        rows = self._known[min(self.images.seen(tokens), len(self._known) - 1)]
        return self._own_tokens[:rows], TreeSession.snapshot(self, rows)

    def restore(self, snapshot: object, tokens: int) -> int:
        """See `Session`. The shared beginning is found among the draft model's tokens."""
        kept_tokens, cache = snapshot if isinstance(snapshot, tuple) else ([], None)
        token_pairs = enumerate(zip(kept_tokens, self._own_tokens[:-1], strict=False))
        shared_length = next(
            (index for index, (kept_token, own_token) in token_pairs if kept_token != own_token),
            min(len(kept_tokens), len(self.unread) - 1),
        )
        restored_rows = TreeSession.restore(self, cache, shared_length) if isinstance(cache, TreeCache) else 0
        self._prefilled = min(bisect_right(self._known, restored_rows) - 1, self.images.seen(tokens))
        return self.images.read_by(self._prefilled)

    def unread_text(self) -> Segment:
        segment = super().unread_text()
        return segment._replace(positions=segment.positions.clip(max=self._last_position))

    def next_level(self, frontier: Frontier) -> tuple[int, np.ndarray]:
        position, visible = super().next_level(frontier)
        return min(position, self._last_position), visible
