"""Toy laws of the next token, and a model and a drafter that follow them.

The model reads each node's context from the rows it may see, in order of their positions, and refuses a context with a
gap. So a wrong mask, a wrong position or a cache row in the wrong place raises an error or gives other logits.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from drafttree.drafters import HiddenStates, Session
from drafttree.exactness import TabularModel
from drafttree.models import CacheLayout, Output, Segment, TreeCache

Law = Callable[[Sequence[int]], list[float]]


class Table(TabularModel):
    """A `TabularModel` as a law: the logits after the last `order` tokens of a text."""

    def __init__(
        self, vocab: int = 8, order: int = 2, seed: int = 0, scale: float = 2.0, near: TabularModel | None = None
    ) -> None:
        super().__init__(vocab, order, seed, scale, near)
        self._lists = {context: row.tolist() for context, row in self.rows.items()}

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        return self._lists[tuple(prefix[-self.depth :])]

    def blurred(self, noise: float, seed: int = 1) -> "Table":
        """The same table with noise on every logit, for a drafter."""
        return Table(self.vocab, self.depth, seed, noise, near=self)


class Script:
    """A law that strongly prefers one text, whatever the prefix, and repeats its last token after it."""

    def __init__(self, tokens: Sequence[int], vocab: int, begins_at: int = 1) -> None:
        self.tokens, self.vocab, self.begins_at = list(tokens), vocab, begins_at

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        due = self.tokens[min(len(prefix) - self.begins_at, len(self.tokens) - 1)]
        return [8.0 if token == due else -0.01 * token for token in range(self.vocab)]


def softmax(logits: Iterable[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def argmax(logits: Sequence[float]) -> int:
    return max(range(len(logits)), key=lambda token: (logits[token], -token))


def greedy_text(law: Law, prompt: Sequence[int], count: int) -> list[int]:
    """The text of greedy decoding, one token at a time."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(argmax(law(tokens)))
    return tokens[len(prompt) :]


class ToyModel:
    """A model of the protocol that follows a law and counts its work.

    Attributes:
        passes: forward passes.
        forwarded: tokens given, over all passes.
        interrupt_at: the pass that Ctrl-C hits.
    """

    shares_passes = False

    def __init__(self, law: Law, vocab: int = 8, context: int | None = None) -> None:
        self.law, self.vocab_size, self.context = law, vocab, context
        self.rope_switch: int | None = None
        self.device = torch.device("cpu")
        self.passes = self.forwarded = self.nbytes = 0
        self.interrupt_at: int | None = None

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(CacheLayout.uniform(1, 1, 1), capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return [self.score(segment) for segment in segments]

    def score(self, segment: Segment) -> Output:
        """The output for one request; subclasses do more before or after it."""
        cache, tokens, positions, visible, wanted = segment[:5]
        self.passes += 1
        self.forwarded += segment.nodes
        if self.passes == self.interrupt_at:
            raise KeyboardInterrupt
        given = (torch.from_numpy(each).double()[None, None, :, None] for each in (tokens, positions))
        rows = cache.update(*given, 0)
        seen = torch.cat((torch.ones(segment.nodes, cache.length, dtype=torch.bool), torch.from_numpy(visible)), 1)
        known = [part.flatten().long().tolist() for part in rows]
        asked = range(segment.nodes)[wanted]
        logits = [self.law(_context(seen[node], *known, int(positions[node]))) for node in asked]
        cache.grow(positions)
        return Output(torch.tensor(logits)[None] if logits else torch.empty(1, 0, self.vocab_size))


def _context(seen: Tensor, tokens: list[int], positions: list[int], own: int) -> list[int]:
    """The visible tokens in order of position; the positions must be 0 to the node's own without gaps."""
    rows = sorted(seen.nonzero()[:, 0].tolist(), key=positions.__getitem__)
    assert [positions[row] for row in rows] == list(range(own + 1)), "a context with a gap or with rows of another path"
    return [tokens[row] for row in rows]


class ToyDrafter:
    """A drafter that follows a law and keeps only token ids."""

    def __init__(self, law: Law, vocab: int = 8, context: int | None = None, levels: int | None = None) -> None:
        self.law, self.vocab_size, self.context, self.levels, self.hidden_layers = law, vocab, context, levels, ()
        self.drafts: deque[ToyDraft] = deque(maxlen=8)  # the latest
        self.nbytes = 0

    def start(self, prompt: list[int], capacity: int) -> "ToyDraft":
        self.drafts.append(ToyDraft([self.law], [prompt], torch.float32))
        return self.drafts[-1]


class ToyDraft(Session):
    """A draft session with one text per law, for batches of any size."""

    nbytes = 0

    def __init__(self, laws: Sequence[Law], prefixes: Sequence[Sequence[int]], dtype: torch.dtype) -> None:
        super().__init__(None, torch.device("cpu"))
        self.laws, self.prefixes, self.dtype = laws, [list(prefix) for prefix in prefixes], dtype
        self.frontier: list[list[list[int]]] = []

    def draft_root(self) -> Tensor:
        return self._score([[prefix] for prefix in self.prefixes])

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return self._score(
            [
                [before[origin] + [token] for token, origin in zip(*nodes, strict=True)]
                for before, *nodes in zip(self.frontier, tokens.tolist(), origins.tolist(), strict=True)
            ]
        )

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.prefixes[0] += tokens

    def _score(self, frontier: list[list[list[int]]]) -> Tensor:
        self.passes += 1
        self.frontier = frontier
        logits = [[law(path) for path in paths] for law, paths in zip(self.laws, frontier, strict=True)]
        return torch.tensor(logits, dtype=self.dtype)


class PieceTokenizer:
    """Token ids that stand for pieces of UTF-8, which may end inside a character."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [self.pieces.index(character.encode()) for character in text]}

    def decode(self, token_ids: Sequence[int], **_: object) -> str:
        return b"".join(self.pieces[token] for token in token_ids).decode(errors="replace")
