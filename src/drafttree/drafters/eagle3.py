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
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from drafttree.drafters.base import DraftSession, HiddenStates, ShownBySize
from drafttree.drafters.session import Frontier, TreeSession, count_pass, level_segments
from drafttree.models import NAME, CacheLayout, Segment, TreeCache
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.module.module_inputs import ModuleInputs, as_cache
from drafttree.models.segment import join, split

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
        normed_logits: logits are of outputs after the final norm.
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
    normed_logits: bool = True

    @property
    def hidden(self) -> int:
        """Width of the head."""
        return self.layer.hidden_size


class Eagle3Head(nn.Module):
    """The head's weights and forward pass over rows of a tree (Li et al. 2025, section 3.1).

    Attributes:
        layout: the layout of its KV cache.
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
        return TreeCache(self.layout, capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """Fuse the target's hidden states of committed tokens into the head's, `[batch, rows, hidden]`."""
        return self.fc(self.normed_states(hidden_states))

    def normed_states(self, hidden_states: HiddenStates) -> Tensor:
        """The target's hidden states side by side `[batch, rows, states * target_hidden]`, normed if the head does."""
        if self.fc_norm:
            hidden_states = tuple(norm(state) for norm, state in zip(self.fc_norm, hidden_states, strict=True))
        return self.input_norm(torch.cat(hidden_states, -1))

    def forward(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """Compute the outputs `[1, rows, hidden]` of the new rows of one request or several, behind each other.

        Their keys and values join the drafted rows of each KV cache.

        Args:
            segments: token ids of the target, and positions of the hidden states, one less than their tokens'.
            hidden: `[1, rows, hidden]` hidden state of the token before each token, of all segments.
        """
        output = self._run(ModuleInputs.of(segments, hidden.dtype), hidden)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return output

    def _run(self, inputs: ModuleInputs, hidden: Tensor) -> Tensor:
        """Run the layers over rows whose plan says what they attend to."""
        tokens, positions, cache, plan = inputs
        rotary = self.rotary(hidden, positions)
        first: Any = self.layers[0]
        shared = {"position_embeddings": rotary, "tree_plan": plan, "attention_mask": None, **as_cache(first, cache)}
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
        return self.lm_head(self.norm(output) if self.config.normed_logits else output)

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

    def __call__(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """The output `[1, rows, hidden]` of the new rows of one request or several; see `Eagle3Head.forward`."""
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
    `drafttree.models.module.fingerprint`), and another backend is selected if they differ.

    Args:
        head: the head in the target's dtype and on its device.
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
        return Eagle3Session(self, prompt, capacity)

    @torch.inference_mode()
    def root(self, sessions: "Sequence[Eagle3Session]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.session.SharedDrafter`."""
        backend: Eagle3Backend = sessions[0].shared
        with count_pass(sessions):
            segments, states = zip(*(session.unread_rows() for session in sessions), strict=True)
            output = backend(segments, backend.fuse(_joined(states)))
            for session in sessions:
                session.begin_tree()
            lasts = [part[:, -1:] for part in split(output, [segment.nodes for segment in segments])]
            return self._logits(backend, sessions, join(lasts), [1] * len(sessions))

    @torch.inference_mode()
    def expand(self, sessions: "Sequence[Eagle3Session]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.session.SharedDrafter`."""
        backend: Eagle3Backend = sessions[0].shared
        with count_pass(sessions):
            hidden = [session.inherited(own) for session, own in zip(sessions, frontiers, strict=True)]
            segments = level_segments(sessions, frontiers, hidden[0].device)
            output = backend(segments, join(hidden))
            return self._logits(backend, sessions, output, [len(own.tokens) for own in frontiers])

    def _logits(
        self, backend: Eagle3Backend, sessions: "Sequence[Eagle3Session]", output: Tensor, widths: list[int]
    ) -> Tensor:
        """The logits of an output `[1, nodes, hidden]`; every session keeps the states that its next level reads."""
        for session, own in zip(sessions, backend.next_hidden(output).split(widths, 1), strict=True):
            session.hidden = own
        return self.head.in_target_vocab(backend.draft_logits(output))[0]


def _joined(states: Sequence[HiddenStates]) -> HiddenStates:
    return tuple(join(layer) for layer in zip(*states, strict=True))


class Eagle3Session(TreeSession):
    """The head's KV cache for one request.

    Committed rows are computed from the target's hidden states alone. Rows of drafted tokens, computed from the head's
    own outputs, are dropped after the round; the first pass of the next round computes the accepted tokens' rows anew.

    Attributes:
        hidden: `[1, frontier, hidden]` what the children of the newest frontier read.
    """

    hidden: Tensor

    def __init__(self, drafter: Eagle3Drafter, prompt: list[int], capacity: int) -> None:
        backend, self._device = drafter.backend, drafter.head.fc.weight.device
        super().__init__(drafter, backend.new_cache(capacity), prompt[1:], self._device, shared=backend)
        self._first = prompt[:1]
        self._hidden_states: list[HiddenStates] = []

    @torch.inference_mode()
    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        rows = min(tokens, len(self.unread) - 1)
        for start in range(0, rows, PREFILL_CHUNK):
            part = slice(start, min(start + PREFILL_CHUNK, rows))
            fused = self.shared.fuse(tuple(state[:, part] for state in hidden_states))
            self.shared([Segment.of_text(self.cache, self.unread[part], fused.device)], fused)
            self.cache.commit(range(fused.shape[1]))
        if tokens >= len(self.unread) > 0:  # the last hidden state goes with the last token, the first round's root
            self._hidden_states = [tuple(state[:, rows:] for state in hidden_states)]
        self.unread = self.unread[max(rows, 0) :]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.cache.commit([])
        self.unread += tokens
        self._hidden_states.append(hidden_states)

    @torch.inference_mode()
    def read_rest(self) -> None:
        """As in `ResumableSession`."""
        if self.unread and self._hidden_states:
            segment, states = self.unread_rows()
            self.shared([segment], self.shared.fuse(states))
            self.begin_tree()

    def unread_rows(self) -> tuple[Segment, HiddenStates]:
        """The rows of unread tokens, and the target's hidden states before them.

        After a prompt of one token there are none: its own row, with zeros as hidden state, is computed and not kept.
        """
        tokens, states = self.unread, self._hidden_states
        if not tokens:
            head = self.drafter.head
            config, tokens = head.config, self._first
            zero = head.fc.weight.new_zeros(1, 1, config.target_hidden)
            states = [(zero,) * config.states]
        hidden = states[0] if len(states) == 1 else tuple(torch.cat(own, 1) for own in zip(*states, strict=True))
        return Segment.of_text(self.cache, tokens, self._device), hidden

    def begin_tree(self) -> None:
        """Commit the rows of the unread tokens."""
        self.cache.commit(range(len(self.unread)))
        self.unread, self._hidden_states = [], []
        self.forget_tree()

    def inherited(self, frontier: Frontier) -> Tensor:
        """The hidden states `[1, frontier, hidden]` that the nodes of a new frontier read."""
        if frontier.keeps_all:
            return self.hidden[:, : len(frontier.tokens)]
        return self.hidden[:, frontier.origins]


def decoder_layers(config: LlamaConfig | Qwen3Config) -> nn.ModuleList:
    """Build transformers' decoder layers, which attend to trees."""
    config._attn_implementation = NAME
    make = Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer
    return nn.ModuleList(make(config, index) for index in range(config.num_hidden_layers))  # pyright: ignore[reportArgumentType]


def _layers(config: LlamaConfig | Qwen3Config) -> nn.ModuleList:
    """Build decoder layers, the first of which projects (embedding, hidden state) pairs, twice as wide."""
    layers = decoder_layers(config)
    first: Any = layers[0]
    first.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
    for name in ("q_proj", "k_proj", "v_proj"):
        narrow = getattr(first.self_attn, name)
        wide = nn.Linear(2 * config.hidden_size, narrow.out_features, bias=narrow.bias is not None)
        setattr(first.self_attn, name, wide)
    return layers
