"""Drafts with an EAGLE-3 head: one decoder layer that reads the target's hidden states (Li et al. 2025).

Each row of the head pairs a token with the hidden state of the token before it, and gives logits of the next token. The
hidden state of a committed token is fused from three layers of the target, which verification has computed anyway; that
of a drafted token is the head's own output at its parent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from drafttree.drafters.base import DraftSession, HiddenStates, PackedDraft, ShownBySize, extend_visible
from drafttree.drafters.packed import DraftEach, drafting_sessions, share
from drafttree.drafters.pass_counter import PassCounter, count_pass
from drafttree.models import NAME, CacheLayout, Segment, TreeCache, TreePlan
from drafttree.models.packed_cache import PackedCache
from drafttree.models.packed_plan import PackedPlan
from drafttree.models.selected_backend import SelectedBackend
from drafttree.models.tree_attention import Plan

PREFILL_CHUNK = 512


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and variants of a head.

    Attributes:
        layer: config of its decoder layers: width, attention heads and their windows, MLP, norms, rotary embedding.
        vocab: size of the target's vocabulary.
        draft_vocab: number of tokens it can propose.
        target_hidden: width of the target's hidden states.
        states: number of the target's layers whose hidden states it fuses.
        normed_residual: the first layer's residual is the normed hidden state ("norm_before_residual").
        normed_input: the concatenated hidden states are normed before they are fused ("norm_before_fc").
        normed_states: each hidden state is normed on its own before concatenation ("fc_norm").
        normed_output: children of a drafted token read its output after the final norm ("norm_output").
    """

    layer: LlamaConfig | Qwen3Config
    vocab: int
    draft_vocab: int
    target_hidden: int
    states: int = 3
    normed_residual: bool = False
    normed_input: bool = False
    normed_states: bool = False
    normed_output: bool = False

    @property
    def hidden(self) -> int:
        """Width of the head."""
        return self.layer.hidden_size


class Eagle3Head(nn.Module):
    """The head's weights and forward pass over rows of a tree (Li et al. 2025, section 3.1).

    Attributes:
        layout: of its KV cache.
        target_ids: `[draft_vocab]` the target's id of every draft id, None if the two vocabularies are the same.
    """

    target_ids: Tensor | None

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        hidden, eps = config.hidden, config.layer.rms_norm_eps
        fused = config.states * config.target_hidden
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, hidden)
        self.fc_norm = nn.ModuleList(
            LlamaRMSNorm(config.target_hidden, eps) for _ in range(config.states * config.normed_states)
        )
        self.input_norm = LlamaRMSNorm(fused, eps) if config.normed_input else nn.Identity()
        self.fc = nn.Linear(fused, hidden, bias=False)
        self.layers = _layers(config.layer)
        self.layout = CacheLayout.of_config(config.layer)
        self.norm = LlamaRMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab, bias=False)
        self.rotary = LlamaRotaryEmbedding(config.layer)  # pyright: ignore[reportArgumentType]
        self.register_buffer("target_ids", None, persistent=False)

    def new_cache(self, capacity: int) -> TreeCache:
        """Return an empty KV cache for one request of about `capacity` tokens."""
        return TreeCache(self.layout, 1, capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """Fuse the target's hidden states of committed tokens into the head's, `[batch, rows, hidden]`."""
        return self.fc(self.normed_states(hidden_states))

    def normed_states(self, hidden_states: HiddenStates) -> Tensor:
        """The target's hidden states side by side `[batch, rows, states * target_hidden]`, normed if the head does."""
        if self.fc_norm:
            hidden_states = tuple(norm(state) for norm, state in zip(self.fc_norm, hidden_states, strict=True))
        return self.input_norm(torch.cat(hidden_states, -1))

    def forward(self, cache: TreeCache, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Compute the outputs `[batch, rows, hidden]` of new rows; their keys and values join the cache's drafted rows.

        Args:
            cache: the KV cache the rows attend to.
            tokens: `[batch, rows]` token ids of the target.
            hidden: `[batch, rows, hidden]` hidden state of the token before each token.
            positions: `[batch, rows]` positions of the hidden states, one less than their tokens'.
            visible: bool `[batch, rows, drafted]`, as in `Model.forward`.
        """
        output = self._run(cache, tokens, hidden, positions, TreePlan(cache, positions, visible, hidden.dtype))
        cache.grow(positions)
        return output

    def forward_packed(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """Compute the outputs `[1, rows, hidden]` of the new rows of several requests, which lie behind each other.

        Args:
            segments: their rows, each with a KV cache of its own.
            hidden: `[1, rows, hidden]` hidden states of all of them.
        """
        cache = PackedCache(segments)
        tokens = torch.cat([segment.tokens for segment in segments], 1)
        output = self._run(cache, tokens, hidden, cache.positions, PackedPlan(cache, hidden.dtype))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return output

    def _run(self, cache: Cache, tokens: Tensor, hidden: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """Run the layers over rows whose plan says what they attend to."""
        rotary = self.rotary(hidden, positions)
        shared = {"position_embeddings": rotary, "past_key_values": cache, "tree_plan": plan, "attention_mask": None}
        first: Any = self.layers[0]
        normed = first.hidden_norm(hidden)
        pair = torch.cat((first.input_layernorm(self.embed_tokens(tokens)), normed), -1)
        hidden = (normed if self.config.normed_residual else hidden) + first.self_attn(pair, **shared)[0]
        hidden = hidden + first.mlp(first.post_attention_layernorm(hidden))
        for layer in self.layers[1:]:
            hidden = layer(hidden, **shared)
        return hidden

    def next_hidden(self, output: Tensor) -> Tensor:
        """Return the hidden states that the children of drafted tokens read, from the tokens' outputs."""
        return self.norm(output) if self.config.normed_output else output

    def draft_logits(self, output: Tensor) -> Tensor:
        """Logits `[batch, rows, draft_vocab]` of outputs."""
        return self.lm_head(self.norm(output))

    def in_target_vocab(self, logits: Tensor) -> Tensor:
        """Spread logits `[batch, rows, draft_vocab]` over the target's vocabulary, -inf for unknown tokens."""
        if self.target_ids is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab), -torch.inf)
        return full.index_copy_(-1, self.target_ids, logits)


class Eagle3Backend(Protocol):
    """One way to run a head; the head itself is one, and its methods say more."""

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache for one sequence."""
        ...

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """The hidden states `[batch, rows, hidden]` of committed tokens from those of the target."""
        ...

    def __call__(self, cache: TreeCache, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """The output `[batch, rows, hidden]` of new rows; arguments as for `Eagle3Head.forward`."""
        ...

    def forward_packed(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """The output `[1, rows, hidden]` of the new rows of several requests, in one pass."""
        ...

    def next_hidden(self, output: Tensor) -> Tensor:
        """Return the hidden states that the children of drafted tokens read."""
        ...

    def draft_logits(self, output: Tensor) -> Tensor:
        """`[batch, rows, draft_vocab]` of outputs."""
        ...


class Eagle3Drafter(ShownBySize):
    """Drafts with an EAGLE-3 head, one draft pass per level of the tree.

    When a text begins, hooks, layers and weights of the head are compared with those its backend was made for (see
    `drafttree.models.fingerprint`), and another backend is selected if they differ.

    Args:
        head: in the target's dtype and on its device.
        hidden_layers: layers of the target whose hidden states it fuses, in the order of the head's weights.
        nbytes: bytes of the weights that are not shared with the target.
        select: makes the backend that runs the head; the default is the head itself.
    """

    context: int | None = None
    """No limit: past the length a head was trained at, its rotary positions only get less accurate."""

    def __init__(
        self,
        head: Eagle3Head,
        hidden_layers: tuple[int, ...],
        nbytes: int,
        select: Callable[[Eagle3Head], Eagle3Backend] = lambda head: head,
    ) -> None:
        self.head = head
        self._selected = SelectedBackend(head, select)
        self.nbytes = nbytes
        self.levels: int | None = None
        self.vocab_size = head.config.vocab
        self.hidden_layers = hidden_layers

    @property
    def backend(self) -> Eagle3Backend:
        """The backend that runs the head at present."""
        return self._selected.backend

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a request; its first row pairs the second token with the hidden state of the first."""
        self._selected.refresh()
        return Eagle3Session(self.head, self.backend, prompt, capacity)


class Eagle3Session(PassCounter):
    """The head's KV cache for one request.

    Committed rows are computed from the target's hidden states alone. Rows of drafted tokens, computed from the head's
    own outputs, are dropped after the round; the first pass of the next round computes the accepted tokens' rows anew.
    """

    def __init__(self, head: Eagle3Head, backend: Eagle3Backend, prompt: list[int], capacity: int) -> None:
        super().__init__(head.fc.weight.device)
        self._head, self._backend = head, backend
        self._cache = backend.new_cache(capacity)
        self._first = prompt[:1]
        self._unread = prompt[1:]
        self._hidden_states: list[HiddenStates] = []
        self._hidden = torch.zeros(0)
        self._visible = torch.zeros(1, 1, 0, dtype=torch.bool, device=head.fc.weight.device)
        self._levels = 0

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

    @torch.inference_mode()
    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        rows = min(tokens, len(self._unread) - 1)
        for start in range(0, rows, PREFILL_CHUNK):
            part = slice(start, min(start + PREFILL_CHUNK, rows))
            self._forward_committed(
                self._unread[part], self._backend.fuse(tuple(state[:, part] for state in hidden_states))
            )
        if tokens >= len(self._unread) > 0:  # the last hidden state goes with the last token, the first round's root
            self._hidden_states = [tuple(state[:, rows:] for state in hidden_states)]
        self._unread = self._unread[max(rows, 0) :]

    def keep(self, tokens: int) -> object:
        return self._cache.copy_rows(tokens)

    def resume(self, kept: object, tokens: int) -> int:
        resumed = self._cache.resume(kept, tokens) if isinstance(kept, TreeCache) else 0
        self._unread = self._unread[resumed:]
        return resumed

    @staticmethod
    def pack(sessions: "Sequence[Eagle3Session]") -> PackedDraft:
        return PackedEagle3(sessions) if share(each._backend for each in sessions) else DraftEach(sessions)

    def root(self) -> Tensor:
        return PackedEagle3([self]).root()[None]

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return PackedEagle3([self]).expand(tokens, origins, [tokens.shape[1]])[None]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._cache.commit([])
        self._unread += tokens
        self._hidden_states.append(hidden_states)

    def _forward_committed(self, tokens: list[int], hidden: Tensor) -> None:
        """Compute the rows of committed tokens and keep them in the cache."""
        _forward(self._backend, [Segment.of_text(self._cache, tokens, hidden.device)], hidden)
        self._cache.commit(range(len(tokens)))

    def _unread_rows(self) -> tuple[Segment, HiddenStates]:
        """The rows of unread tokens, and the target's hidden states before them.

        After a prompt of one token there are none: its own row, with zeros as hidden state, is computed and not kept.
        """
        tokens, states = self._unread, self._hidden_states
        if not tokens:
            config = self._head.config
            tokens, zero = self._first, self._head.fc.weight.new_zeros(1, 1, config.target_hidden)
            states = [(zero,) * config.states]
        layers = zip(*states, strict=True)
        return Segment.of_text(self._cache, tokens, self._visible.device), tuple(torch.cat(own, 1) for own in layers)

    def _begin_tree(self) -> None:
        """Commit the rows of the unread tokens."""
        self._cache.commit(range(len(self._unread)))
        self._unread, self._hidden_states = [], []
        self._visible, self._levels = self._visible[:, :1, :0], 0

    def _next_rows(self, tokens: Tensor, origins: Tensor) -> tuple[Segment, Tensor]:
        """The rows of a new frontier, and the hidden states `[1, frontier, hidden]` of its parents."""
        hidden = self._hidden.gather(1, origins[..., None].expand(-1, -1, self._hidden.shape[2]))
        positions = torch.full_like(tokens, self._cache.length + self._levels)
        self._visible, self._levels = extend_visible(self._visible, origins), self._levels + 1
        return Segment(self._cache, tokens, positions, self._visible), hidden


class PackedEagle3:
    """The passes of a head for several requests. See `drafttree.drafters.base.PackedDraft`.

    Args:
        sessions: whose head runs on the same backend.
    """

    def __init__(self, sessions: Sequence[Eagle3Session]) -> None:
        self._sessions = sessions
        self._head, self._backend = sessions[0]._head, sessions[0]._backend

    @torch.inference_mode()
    def root(self) -> Tensor:
        sessions = self._sessions
        with count_pass(sessions):
            segments, states = zip(*(session._unread_rows() for session in sessions), strict=True)
            hidden = self._backend.fuse(tuple(torch.cat(layer, 1) for layer in zip(*states, strict=True)))
            output = _forward(self._backend, segments, hidden)
            for session in sessions:
                session._begin_tree()
            lasts = torch.cat([rows[:, -1:] for rows in output.split([each.nodes for each in segments], 1)], 1)
            return self._logits(sessions, lasts, [1] * len(sessions))

    @torch.inference_mode()
    def expand(self, tokens: Tensor, origins: Tensor, widths: Sequence[int]) -> Tensor:
        drafting = drafting_sessions(self._sessions, tokens, origins, widths)
        sessions = [session for session, *_ in drafting]
        with count_pass(sessions):
            segments, hidden = zip(*(session._next_rows(*nodes) for session, *nodes in drafting), strict=True)
            output = _forward(self._backend, segments, torch.cat(hidden, 1))
            return self._logits(sessions, output, [each.nodes for each in segments])

    def _logits(self, sessions: Sequence[Eagle3Session], output: Tensor, widths: Sequence[int]) -> Tensor:
        """The logits `[nodes, vocab]` of a pass; every session keeps the hidden states that its next level reads.

        Args:
            sessions: that have nodes.
            output: `[1, nodes, hidden]`.
            widths: how many nodes each of them has.
        """
        for session, own in zip(sessions, self._backend.next_hidden(output).split(list(widths), 1), strict=True):
            session._hidden = own
        return self._head.in_target_vocab(self._backend.draft_logits(output))[0]


def _forward(backend: Eagle3Backend, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
    """The outputs `[1, rows, hidden]` of the rows of one request or several."""
    if len(segments) > 1:
        return backend.forward_packed(segments, hidden)
    cache, tokens, positions, visible, _ = segments[0]
    return backend(cache, tokens, hidden, positions, visible)


def _layers(config: LlamaConfig | Qwen3Config) -> nn.ModuleList:
    """Build transformers' decoder layers; the first projects (embedding, hidden state) pairs, twice as wide."""
    config._attn_implementation = NAME
    make = Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer
    layers = nn.ModuleList(make(config, index) for index in range(config.num_hidden_layers))  # pyright: ignore[reportArgumentType]
    first = layers[0]
    first.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
    for name in ("q_proj", "k_proj", "v_proj"):
        narrow = getattr(first.self_attn, name)
        wide = nn.Linear(2 * config.hidden_size, narrow.out_features, bias=narrow.bias is not None)
        setattr(first.self_attn, name, wide)
    return layers
