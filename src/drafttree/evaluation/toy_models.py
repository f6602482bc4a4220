"""Toy models, whose next-token distributions are rows of a table, as target and as drafter of a `Decoder`."""

import copy
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.drafters.base import HiddenStates, Session
from drafttree.models import CacheLayout, Output, Segment, TreeCache

UNTRUNCATED = Sampling(1.0)
TOY_COSTS = CostCurve(
    target=Costs((1, 2, 4, 6, 8), (1.0, 1.01, 1.02, 1.025, 2.0)),
    draft=(DraftCosts(first=0.02, later=Costs((1, 4), (0.01, 0.012))),),
    overhead=0.1,
    plain_overhead=0.05,
)
"""Costs for the policies that weigh them, since toy models take no time worth measuring. Up to 6 nodes are so cheap
that trees grow wide and deep."""

Context = tuple[int, ...]


class TabularModel:
    """A toy model: a distribution over the next token for every context.

    Args:
        vocab: number of tokens.
        depth: contexts up to this length have rows of their own; longer ones use their last `depth` tokens.
        seed: the seed of the random rows.
        spread: standard deviation of the logits; larger is more peaked.
        near: a model to whose logits the random ones are added, such as the target of a draft.

    Attributes:
        vocab: columns of the logits.
        tokens: the token ids of the table's columns.
        dtype: the dtype of the logits.

    Raises:
        ConfigError: there are no tokens, or the depth is negative.
    """

    def __init__(
        self, vocab: int, depth: int, seed: int, spread: float = 1.0, near: "TabularModel | None" = None
    ) -> None:
        if vocab < 1 or depth < 0:
            raise ConfigError(
                f"a table of {vocab} tokens and depth {depth}; it needs a token and a depth of at least 0"
            )
        generator = torch.Generator().manual_seed(seed)
        contexts = [c for length in range(depth + 1) for c in itertools.product(range(vocab), repeat=length)]
        base = {} if near is None else near.rows
        self.vocab = vocab
        self.depth = depth
        self.dtype = torch.float64
        self.tokens: Sequence[int] = range(vocab)
        self.rows = {
            context: base.get(context, 0.0) + spread * torch.randn(vocab, generator=generator, dtype=torch.float64)
            for context in contexts
        }

    def in_dtype(self, dtype: torch.dtype) -> "TabularModel":
        """The same model with its logits rounded to another dtype."""
        model = copy.copy(self)
        model.dtype = dtype
        return model

    def over(self, tokens: Sequence[int], vocab: int) -> "TabularModel":
        """The same model over another vocabulary, in which all tokens but its own are impossible.

        Args:
            tokens: the ids of its tokens there. Ids beyond the vocabulary are never proposed, but may be in a context.
            vocab: the number of tokens of the vocabulary.
        """
        model = copy.copy(self)
        model.tokens = tokens
        model.vocab = vocab
        return model

    def logits(self, context: Context) -> Tensor:
        """`[vocab]` logits after a text without its first token, which only serves as the root of a tree."""
        indices = {token: index for index, token in enumerate(self.tokens)}
        row = self.rows[tuple(indices[token] for token in context[-self.depth :]) if self.depth else ()].to(self.dtype)
        if len(self.tokens) == self.vocab:
            return row
        vocab_tokens = [token for token in self.tokens if token < self.vocab]
        return row.new_full((self.vocab,), -math.inf).index_copy(
            0, torch.tensor(vocab_tokens), row[: len(vocab_tokens)]
        )

    def law(self, context: Context, sampling: Sampling = UNTRUNCATED) -> dict[int, float]:
        """The probability of each next token of `tokens`."""
        probs = sampling.process(self.logits(context).double()).softmax(-1).tolist()
        return {token: probs[token] for token in self.tokens if token < self.vocab}


class TabularTarget:
    """A `TabularModel` as a target, which reads each node's context from the KV cache rows that the node attends to."""

    shares_passes = False

    def __init__(self, table: TabularModel) -> None:
        self._table = table
        self.vocab_size = table.vocab
        self.nbytes = 0
        self._layout = CacheLayout.uniform(1, 1, 1)  # has a head, so that texts can reuse rows of other texts
        self.context: int | None = None
        self.rope_switch: int | None = None
        self.device = torch.device("cpu")

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self._layout, capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        states = torch.zeros(1, 1, dtype=torch.float64)  # no toy drafter reads them
        outputs = [self._score(segment) for segment in segments]
        return [
            Output(output.logits, (states.expand(1, segment.nodes, 1),) * len(hidden_layers))
            for segment, output in zip(segments, outputs, strict=True)
        ]

    def _score(self, segment: Segment) -> Output:
        committed_tokens, drafted_tokens = _cached_tokens(segment)
        logits = []
        for visible in segment.visible[segment.wanted].tolist():
            context = (*committed_tokens, *itertools.compress(drafted_tokens, visible))[1:]
            logits.append(self._table.logits(context))
        return Output(torch.stack(logits)[None] if logits else torch.empty(1, 0, self.vocab_size))


def _cached_tokens(segment: Segment) -> tuple[list[int], list[int]]:
    """Add the nodes of a segment to its KV cache; return the tokens of its committed and of its drafted rows."""
    cache = segment.cache
    ids = torch.from_numpy(segment.tokens).double()[None, None, :, None]
    positions = torch.from_numpy(segment.positions).double()[None, None, :, None]
    keys, _ = cache.update(ids, positions, 0)
    tokens = [int(token) for token in keys.flatten().tolist()]
    committed_tokens, drafted_tokens = tokens[: cache.length], tokens[cache.length :]
    cache.grow(segment.positions)
    return committed_tokens, drafted_tokens


class TabularDrafter:
    """A `TabularModel` as a drafter.

    Args:
        table: the model.
        levels: maximum number of levels of a tree.
        is_head: whether it is taken for a head, which reads hidden states of the target and whose acceptance is tested.
    """

    def __init__(self, table: TabularModel, levels: int, *, is_head: bool = False) -> None:
        self.table = table
        self.vocab_size = table.vocab
        self.nbytes = 0
        self.hidden_layers: tuple[int, ...] = (0,) if is_head else ()
        self.context: int | None = None
        self.levels: int | None = levels

    def start(self, prompt: list[int], capacity: int) -> "TabularSession":
        return TabularSession(self.table, prompt)


class TabularSession(Session):
    """A session of a text; it keeps the text so far and the contexts of the frontier."""

    def __init__(self, table: TabularModel, prompt: list[int]) -> None:
        super().__init__(None, torch.device("cpu"))
        self._table = table
        self._context = tuple(prompt[1:])
        self._frontier: list[Context] = []

    def draft_root(self) -> Tensor:
        return self._logits([self._context])

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        children = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
        return self._logits([(*self._frontier[origin], token) for token, origin in children])

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._context = (*self._context, *tokens)

    def _logits(self, frontier: list[Context]) -> Tensor:
        self._frontier = frontier
        return torch.stack([self._table.logits(context) for context in frontier])[None]
