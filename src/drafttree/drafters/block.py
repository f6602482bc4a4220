"""Drafts a block of tokens in one pass: DFlash, JetSpec and DSpark.

A few decoder layers read the root and a mask token for every token to be drafted, and attend to a context: what the
target's hidden states of all tokens before the root are fused to, which is projected to keys and values of every layer
and never changes. So the logits of a level are the same for all of its nodes (DFlash, arXiv 2602.06036), unless a
transition adds to them what the token above says (DSpark's Markov head, DeepSpec): a low-rank table of the tokens that
follow a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from drafttree.drafters.base import DraftSession, HiddenStates, ShownBySize
from drafttree.drafters.session import Frontier, SharedSession, count_pass
from drafttree.drafters.transitions import make_transition
from drafttree.models import NAME, CacheLayout, Segment, TreeCache
from drafttree.models.module.module_inputs import ModuleInputs, as_cache
from drafttree.models.segment import join

PREFILL_CHUNK = 512


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and variants of a block drafter.

    Attributes:
        layer: config of its decoder layers.
        vocab: size of the target's vocabulary.
        draft_vocab: number of tokens it can propose.
        target_hidden: width of the target's hidden states.
        states: number of the target's layers whose hidden states are fused.
        block: rows of a block, the root's included.
        mask_token: id of the token that stands for those to be drafted.
        levels: levels that it drafts.
        from_root: the root's row predicts the first level ("sample_from_anchor"); else the first mask's row does.
        causal: rows attend to those before them in the block; else to the whole block.
        transition: kind of the transition, None for logits that do not depend on the path.
        rank: width of the transition.
    """

    layer: Qwen3Config
    vocab: int
    draft_vocab: int
    target_hidden: int
    states: int
    block: int
    mask_token: int
    levels: int
    from_root: bool = False
    causal: bool = False
    transition: str | None = None
    rank: int = 0

    @property
    def rows(self) -> slice:
        """The rows of a block that predict a level each."""
        first = 0 if self.from_root else 1
        return slice(first, first + self.levels)


class BlockLayers(nn.Module):
    """The weights and the forward pass; `state_dict` has the names of z-lab's and DeepSpec's checkpoints.

    Attributes:
        layout: the layout of its KV cache.
        markov_head: the transition, None without.
        target_ids: `[draft_vocab]` the target's id of every draft id, None if the two vocabularies are the same.
    """

    target_ids: Tensor | None

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        layer, width, eps = config.layer, config.layer.hidden_size, config.layer.rms_norm_eps
        layer._attn_implementation = NAME
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, width)
        self.fc = nn.Linear(config.states * config.target_hidden, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(layer, index) for index in range(layer.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps)
        self.lm_head = nn.Linear(width, config.draft_vocab, bias=False)
        self.markov_head = make_transition(config.transition, config.vocab, config.draft_vocab, config.rank, width)
        self.rotary = Qwen3RotaryEmbedding(layer)
        self.layout = CacheLayout.of_config(layer)
        self.register_buffer("target_ids", None, persistent=False)

    def context(self, hidden_states: HiddenStates) -> Tensor:
        """Fuse the target's hidden states of committed tokens, `[batch, rows, width]`."""
        return self.hidden_norm(self.fc(torch.cat(hidden_states, -1)))

    def keys_and_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of every layer `[batch, heads, rows, head_dim]`, of a context at its positions."""
        cos, sin = self.rotary(context, positions)
        found = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            heads = *context.shape[:-1], -1, attention.head_dim
            keys = attention.k_norm(attention.k_proj(context).view(heads)).transpose(1, 2)
            values = attention.v_proj(context).view(heads).transpose(1, 2)
            found.append((apply_rotary_pos_emb(keys, keys, cos, sin)[1], values))
        return found

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Compute the states after the final norm `[1, rows, width]` of the blocks of one request or several.

        Args:
            segments: the root and its mask tokens, behind each KV cache's context; their rows join its drafted ones.
        """
        embedded = self.embed_tokens(join([segment.tokens for segment in segments]))
        inputs = ModuleInputs.of(segments, embedded.dtype)
        states, rotary = embedded, self.rotary(embedded, inputs.positions)
        for layer in self.layers:
            given: Any = {"tree_plan": inputs.plan, **as_cache(layer, inputs.cache)}
            states = layer(states, position_embeddings=rotary, **given)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return self.norm(states)

    def in_target_vocab(self, logits: Tensor) -> Tensor:
        """Spread logits `[..., draft_vocab]` over the target's vocabulary, -inf for tokens it cannot propose."""
        if self.target_ids is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab), -torch.inf)
        return full.index_copy_(-1, self.target_ids, logits)


class BlockDrafter(ShownBySize):
    """Drafts all levels in one pass per round.

    Args:
        block: the layers, in the target's dtype and on its device.
        hidden_layers: layers of the target whose hidden states are fused, in the order of the weights.
        nbytes: bytes of the weights that are not shared with the target.

    Attributes:
        flat: whether all nodes of a level have the same logits, whatever the path to them.
    """

    context: int | None = None

    def __init__(self, block: BlockLayers, hidden_layers: tuple[int, ...], nbytes: int) -> None:
        self.block, self.config, self.nbytes = block, block.config, nbytes
        self.hidden_layers = hidden_layers
        self.vocab_size = block.config.vocab
        self.levels: int | None = block.config.levels
        self.flat = block.markov_head is None

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a request."""
        return BlockSession(self, prompt, capacity)

    @torch.inference_mode()
    def root(self, sessions: "Sequence[BlockSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.session.SharedDrafter`."""
        with count_pass(sessions):
            for session in sessions:
                session.read_context()
            states = self.block([session.segment() for session in sessions])
            rows = states.unflatten(1, (len(sessions), self.config.block))[0, :, self.config.rows]
            logits = self.block.lm_head(rows)
            for session, own, given in zip(sessions, rows, logits, strict=True):
                session.begin_tree(own, given)
            return self._level(sessions, [Frontier([session.token], [0]) for session in sessions])

    @torch.inference_mode()
    def expand(self, sessions: "Sequence[BlockSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.session.SharedDrafter`."""
        for session in sessions:
            session.level += 1
        return self._level(sessions, frontiers)

    def _level(self, sessions: "Sequence[BlockSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """The logits of the next level after each node of the frontiers."""
        widths = [len(own.tokens) for own in frontiers]
        level = sessions[0].level
        logits = join(
            [session.logits[level].expand(width, -1) for session, width in zip(sessions, widths, strict=True)], 0
        )
        if (transition := self.block.markov_head) is not None:
            tokens = torch.tensor([token for own in frontiers for token in own.tokens], device=logits.device)
            given = [(each, own) for each, own in zip(sessions, frontiers, strict=True)]
            rows = join([each.rows[level].expand(len(own.tokens), -1) for each, own in given], 0)
            above = join([each.memory[own.origins] for each, own in given], 0)
            added, memory = transition(tokens, rows, above)
            for session, own in zip(sessions, memory.split(widths), strict=True):
                session.memory = own
            logits = logits + added
        return self.block.in_target_vocab(logits)


class BlockSession(SharedSession):
    """The context of one request, as keys and values of every layer, and the block of this round.

    Attributes:
        cache: the KV cache; between rounds it holds the context alone.
        token: the root.
        level: level that was drafted last; the root's children are level 0.
        rows: `[levels, width]` the states that predict a level each.
        logits: `[levels, draft_vocab]` of these rows.
        memory: `[frontier, ...]` what the transition keeps of the path to each node of the newest frontier.
    """

    drafter: BlockDrafter
    rows: Tensor
    logits: Tensor
    memory: Tensor

    def __init__(self, drafter: BlockDrafter, prompt: list[int], capacity: int) -> None:
        device = drafter.block.fc.weight.device
        super().__init__(drafter, device)
        self.cache = TreeCache(drafter.block.layout, capacity)
        self.token, self.level = prompt[-1], 0
        self._device = device
        self._unread: list[HiddenStates] = []

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._unread.append(hidden_states)
        self.read_context()

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.token = tokens[-1]
        self._unread.append(hidden_states)

    def keep(self, tokens: int) -> object:
        """As in `ResumableSession`; the context that the next draft pass would have read is read now."""
        self.read_context()
        return self.cache.copy_rows(tokens)

    def resume(self, kept: object, tokens: int) -> int:
        return self.cache.resume(kept, tokens) if isinstance(kept, TreeCache) else 0

    @torch.inference_mode()
    def read_context(self) -> None:
        """Commit the keys and values of the tokens whose hidden states have come since."""
        unread, self._unread = self._unread, []
        for states in unread:
            for start in range(0, states[0].shape[1], PREFILL_CHUNK):
                part = self.drafter.block.context(tuple(state[:, start : start + PREFILL_CHUNK] for state in states))
                positions = self.cache.next_position + torch.arange(part.shape[1], device=self._device)[None]
                for index, (keys, values) in enumerate(self.drafter.block.keys_and_values(part, positions)):
                    self.cache.update(keys, values, index)
                self.cache.grow(positions)
                self.cache.commit(range(part.shape[1]))

    def segment(self) -> Segment:
        """The root and the mask tokens behind it."""
        config = self.drafter.config
        tokens = torch.tensor([[self.token] + [config.mask_token] * (config.block - 1)], device=self._device)
        positions = self.cache.next_position + torch.arange(config.block, device=self._device)[None]
        visible = np.ones((1, config.block, config.block), dtype=bool)
        seen = torch.from_numpy(np.tril(visible) if config.causal else visible).to(self._device)
        return Segment(self.cache, tokens, positions, seen)

    def begin_tree(self, rows: Tensor, logits: Tensor) -> None:
        """Note what the pass has given, and drop the block's own keys and values."""
        self.cache.commit([])
        self.level, self.rows, self.logits = 0, rows, logits
        self.memory = rows.new_zeros(1, self.drafter.config.rank)
