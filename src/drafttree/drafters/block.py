"""Drafts a block of tokens in one pass: DFlash, DFlash2, JetFlow (once JetSpec) and DSpark.

A few decoder layers read the root and a mask token for each token to be drafted. They attend to a context: the
target's hidden states of all tokens before the root are fused, and projected once to keys and values of every layer.
So all nodes of a level have the same logits (DFlash, arXiv 2602.06036), unless a transition changes them by the
parent's token (DSpark, DFlash2).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.block_layers import BlockLayers
from drafttree.drafters.session import Frontier, count_pass
from drafttree.drafters.transitions import CandidateSelector, Transition
from drafttree.models import Segment, TreeCache
from drafttree.models.host_copies import send
from drafttree.models.inference import in_inference_mode
from drafttree.models.segment import join

PREFILL_CHUNK = 512


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
        self.block = block
        self.config = block.config
        self.nbytes = nbytes
        self.hidden_layers = hidden_layers
        self.vocab_size = block.config.vocab
        self.levels: int | None = block.config.levels
        self.flat = block.markov_head is None

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request."""
        return BlockSession(self, prompt, capacity)

    @in_inference_mode
    def draft_root(self, sessions: "Sequence[BlockSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            for session in sessions:
                session.read_context()
            states = self.block([session.segment() for session in sessions])
            rows = states.unflatten(1, (len(sessions), self.config.block))[0, :, self.config.rows]
            logits = self.block.logits(rows)
            for session, session_rows, session_logits in zip(sessions, rows, logits, strict=True):
                session.begin_tree(session_rows, session_logits)
            return self._level(sessions, [Frontier([session.token], [0]) for session in sessions])

    @in_inference_mode
    def draft_level(self, sessions: "Sequence[BlockSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        for session in sessions:
            session.level += 1
        return self._level(sessions, frontiers)

    def _level(self, sessions: "Sequence[BlockSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node of the frontiers, from the sessions' present level."""
        level_logits = list[Tensor]()
        for session, frontier in zip(sessions, frontiers, strict=True):
            level_logits.append(session.logits[session.level].expand(len(frontier.tokens), -1))
        logits = join(level_logits, 0)
        if self.block.markov_head is not None:
            logits = self._after_transition(self.block.markov_head, logits, sessions, frontiers)
        return self.block.in_target_vocab(logits)

    def _after_transition(
        self,
        transition: Transition | CandidateSelector,
        logits: Tensor,
        sessions: "Sequence[BlockSession]",
        frontiers: Sequence[Frontier],
    ) -> Tensor:
        """Change logits `[nodes, draft_vocab]` by the paths to the nodes, and store the memory of these paths."""
        tokens = list[int]()
        rows = list[Tensor]()
        parent_memory = list[Tensor]()
        for session, frontier in zip(sessions, frontiers, strict=True):
            tokens += frontier.tokens
            rows.append(session.rows[session.level].expand(len(frontier.tokens), -1))
            parent_memory.append(rows_of(session.memory[None], frontier.origins)[0])
        ids = torch.tensor(tokens, device=logits.device)
        logits, memory = transition(logits, ids, join(rows, 0), join(parent_memory, 0))
        widths = [len(frontier.tokens) for frontier in frontiers]
        for session, session_memory in zip(sessions, memory.split(widths), strict=True):
            session.memory = session_memory
        return logits


class BlockSession(Session):
    """The keys and values of one request's context, and the block of the present round.

    Attributes:
        cache: the KV cache; between rounds it holds the context only.
        token: the root's token.
        level: the level that was drafted last; the root's children are level 0.
        rows: `[levels, width]` one state per level, from which the level is predicted.
        logits: `[levels, draft_vocab]` the logits of these rows.
        memory: `[frontier, ...]` the transition's memory of the path to each node of the newest frontier.
    """

    drafter: BlockDrafter
    rows: Tensor
    logits: Tensor
    memory: Tensor

    def __init__(self, drafter: BlockDrafter, prompt: list[int], capacity: int) -> None:
        device = drafter.block.fc.weight.device
        super().__init__(drafter, device)
        self.cache = TreeCache(drafter.block.layout, capacity)
        self.token = prompt[-1]
        self.level = 0
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

    def read_rest(self) -> None:
        """See `Session`."""
        self.read_context()

    def snapshot(self, tokens: int) -> object:
        return self.cache.copy_rows(tokens)

    def restore(self, snapshot: object, tokens: int) -> int:
        return self.cache.copy_from(snapshot, tokens) if isinstance(snapshot, TreeCache) else 0

    @in_inference_mode
    def read_context(self) -> None:
        """Compute and commit keys and values from the unread hidden states."""
        unread_states = self._unread
        self._unread = []
        for states in unread_states:
            for start in range(0, states[0].shape[1], PREFILL_CHUNK):
                chunk = slice(start, start + PREFILL_CHUNK)
                context = self.drafter.block.context(tuple(state[:, chunk] for state in states))
                positions = self.cache.next_position + np.arange(context.shape[1])
                (position_ids,) = send([positions[None]], self._device)
                for index, (keys, values) in enumerate(self.drafter.block.keys_and_values(context, position_ids)):
                    self.cache.update(keys, values, index)
                self.cache.grow(positions)
                self.cache.commit(range(context.shape[1]))

    def segment(self) -> Segment:
        """The root and the mask tokens after it."""
        config = self.drafter.config
        tokens = np.full(config.block, config.mask_token)
        tokens[0] = self.token
        positions = self.cache.next_position + np.arange(config.block)
        return Segment(self.cache, tokens, positions, np.ones((config.block, config.block), dtype=bool))

    def begin_tree(self, rows: Tensor, logits: Tensor) -> None:
        """Keep the states and logits of a pass, and drop the block's own keys and values."""
        self.cache.commit([])
        self.level = 0
        self.rows = rows
        self.logits = logits
        self.memory = rows.new_zeros(1, self.drafter.config.rank)
