"""Drafts with a smaller language model."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from drafttree.drafters.base import HiddenStates, Session, ShownBySize
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.drafters.ranked_logits import RANKED, DraftLogits, logits_of
from drafttree.drafters.session import Frontier, TreeSession, count_pass, level_segments
from drafttree.models import Model, Segment, TargetModel
from drafttree.models.base import prefill
from drafttree.models.segment import Output


class LanguageModelDrafter(ShownBySize):
    """Drafts with any `Model`, one forward pass per level of the tree.

    Args:
        model: the draft model; it must share the target's vocabulary. If only the target has further padding ids, they
            are replaced by the draft model's last id.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocab_size = model.vocab_size
        self.context = model.context if model.rope_switch is None else model.rope_switch
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = model.nbytes

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request. Without `prefill`, the first draft pass reads the prompt."""
        return LanguageModelSession(self, prompt, capacity)

    def draft_root(self, sessions: "Sequence[LanguageModelSession]") -> DraftLogits:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`.

        A second call before the next commit begins new trees at the same roots.
        """
        for session in sessions:
            session.begin_tree()
        if unread := [session for session in sessions if session.unread]:
            with count_pass(unread), ExitStack() as reading:
                for session in unread:
                    reading.enter_context(session.cache.recurrent.reading())
                outputs = self.model.forward([session.unread_text() for session in unread])
                for session, output in zip(unread, outputs, strict=True):
                    session.read(output)
        return logits_of([session.output for session in sessions])

    def draft_level(self, sessions: "Sequence[LanguageModelSession]", frontiers: Sequence[Frontier]) -> DraftLogits:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            return logits_of(self.model.forward(level_segments(sessions, frontiers)))

    def draft_chain(
        self, sessions: "Sequence[LanguageModelSession]", tokens: Sequence[int], count: int, allowed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Draft chains after the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        model: Any = self.model
        # an overridden `forward` may change logits
        is_target = getattr(model.forward, "__func__", None) is TargetModel.forward
        draft = getattr(model.backend, "draft_chains", None) if is_target else None
        if not draft:
            return None
        with count_pass(sessions, count):
            frontiers = [Frontier([token], [0]) for token in tokens]
            chains = draft(level_segments(sessions, frontiers), count, allowed)
        for session, drafted in zip(sessions, chains[0].T.tolist(), strict=True):
            for token in drafted[:-1]:
                session.next_level(Frontier([token], [0]))
        return chains


class LanguageModelSession(TreeSession):
    """The draft model's KV cache for one request: the committed prefix and the nodes expanded this round.

    The rows of accepted nodes stay in the cache. So the first pass of the next round reads only the bonus token, and
    the deepest accepted node if it was never expanded.

    Attributes:
        output: the model's output after the last token that was read.
    """

    output: Output

    def __init__(self, drafter: LanguageModelDrafter, prompt: list[int], capacity: int) -> None:
        super().__init__(drafter, drafter.model.new_cache(capacity), prompt, drafter.model.device)
        self._expanded = list[Frontier]()

    def see_images(self, images: ImagePlaceholders) -> None:
        self.images = images
        self.unread = images.shown(self.unread)

    def snapshot(self, tokens: int) -> object:
        return super().snapshot(self.images.seen(tokens))

    def restore(self, snapshot: object, tokens: int) -> int:
        return self.images.read_by(super().restore(snapshot, self.images.seen(tokens)))

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        seen_tokens = self.cache.read_tokens
        self.read_prompt(self.images.seen_after(seen_tokens, tokens) - seen_tokens)

    def read_prompt(self, rows: int) -> None:
        """Read the next `rows` tokens of the prompt, but not its last one."""
        count = min(rows, len(self.unread) - 1)
        prefill(self.drafter.model, self.cache, self._clamp_to_vocab(self.unread[:count]))
        self.unread = self.unread[count:]

    def begin_tree(self) -> None:
        """Drop the rows of an earlier tree."""
        self.cache.commit([])
        self._expanded = []
        self.forget_tree()

    def unread_text(self) -> Segment:
        """The segment of the unread tokens; the last one needs logits."""
        return Segment.of_text(self.cache, self._clamp_to_vocab(self.unread))._replace(ranked=RANKED)

    def read(self, output: Output) -> None:
        """Commit the unread tokens' rows, and keep the output after the last of them."""
        self.cache.commit(range(len(self.unread)))
        self.output = output
        self.unread = []

    def next_level(self, frontier: Frontier) -> tuple[int, np.ndarray]:
        self._expanded.append(frontier)
        return super().next_level(frontier)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        if self.unread:
            self.unread += tokens
            return
        path = self._accepted_rows(tokens[:-1])
        self.cache.commit(path)
        self.unread = tokens[len(path) :]

    def _accepted_rows(self, tokens: list[int]) -> list[int]:
        """Indices of the drafted rows along an accepted path, up to the first node that was not expanded.

        A level whose pass failed has no rows.
        """
        path: list[int] = []
        first_row = 0
        parent = 0
        for token, frontier in zip(tokens, self._expanded, strict=False):
            nodes = [*zip(frontier.tokens, frontier.origins, strict=True)]
            if (token, parent) not in nodes:
                break
            parent = nodes.index((token, parent))
            if first_row + parent >= self.cache.drafted:
                break
            path.append(first_row + parent)
            first_row += len(nodes)
        return path

    def _clamp_to_vocab(self, tokens: list[int]) -> list[int]:
        """Replace ids beyond the draft model's vocabulary. This changes only drafts, so texts stay lossless."""
        return [min(token, self.drafter.model.vocab_size - 1) for token in tokens]
