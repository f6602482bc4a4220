"""A smaller language model as drafter."""

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from drafttree.drafters.base import DraftSession, HiddenStates, extend_visible
from drafttree.drafters.pass_counter import PassCounter
from drafttree.models import Model, append, prefill


class LanguageModelDrafter:
    """Drafts with any model of the protocol, a whole tree level per pass.

    Args:
        model: the draft model; it must share the target's vocabulary. Padding ids that only the target has are read
            as its last one.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocab_size = model.vocab_size
        self.context = model.context
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = model.nbytes

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a sequence; the prompt is read on the first draft."""
        return LanguageModelSession(self.model, prompt, capacity)


class LanguageModelSession(PassCounter):
    """The draft model's cache for one sequence: a committed prefix and the nodes expanded this round.

    After a round the rows of accepted nodes stay, so the next round's first pass reads only what the model has not
    seen: the bonus token and, where the deepest accepted node was never expanded, that node.
    """

    def __init__(self, model: Model, prompt: list[int], capacity: int) -> None:
        super().__init__(model.device)
        self._model = model
        self._cache = model.new_cache(1, capacity)
        self._unread = list(prompt)
        self._root = torch.empty(1, 1, 0, device=model.device)
        self._levels: list[tuple[Tensor, Tensor]] = []
        self._visible = torch.zeros(1, 1, 0, dtype=torch.bool, device=model.device)

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

    def prefill(self, hidden_states: HiddenStates) -> None:
        prefill(self._model, self._cache, self._known(self._unread[:-1]))
        self._unread = self._unread[-1:]

    def root(self) -> Tensor:
        """As for every draft; asked again before the next commit, it begins another tree in the same place."""
        if self._unread:
            with self.counted():
                self._root = append(self._model, self._cache, self._known(self._unread)).logits
            self._unread = []
        else:
            self._cache.commit([])
        self._levels = []
        self._visible = self._visible[:, :1, :0]
        return self._root

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        with self.counted():
            self._visible = extend_visible(self._visible, origins)
            positions = torch.full_like(tokens, self._cache.length + len(self._levels))
            self._levels.append((tokens, origins))
            return self._model.forward(self._cache, tokens, positions, self._visible).logits

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        if self._unread:
            self._unread += tokens
            return
        path = self._path(tokens[:-1])
        self._cache.commit(path)
        self._unread = tokens[len(path) :]

    def _path(self, tokens: list[int]) -> list[int]:
        """Rows of the expanded nodes along these tokens, as far as they were expanded."""
        path: list[int] = []
        first, parent = 0, 0
        for token, children in zip(tokens, self._read_levels(), strict=False):
            if (token, parent) not in children:
                break
            parent = children.index((token, parent))
            path.append(first + parent)
            first += len(children)
        return path

    def _read_levels(self) -> list[list[tuple[int, int]]]:
        """Per level, its nodes' tokens and origins; the device is asked once."""
        if not self._levels:
            return []
        nodes = torch.cat([torch.cat(level) for level in self._levels], 1).t().tolist()
        ends = list(accumulate(len(tokens[0]) for tokens, _ in self._levels))
        return [[(token, origin) for token, origin in nodes[start:end]] for start, end in pairwise((0, *ends))]

    def _known(self, tokens: list[int]) -> list[int]:
        """The tokens with those only the target has replaced: lossless, since the draft only guesses."""
        return [min(token, self._model.vocab_size - 1) for token in tokens]
