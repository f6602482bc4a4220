"""Drafts with multi-token-prediction (MTP) layers, which come with the target's own checkpoint.

An MTP layer is a decoder layer of the target's class. In place of a token's embedding it reads a projection of that
embedding and of a hidden state, and its output after its own norm goes to the target's head: h = norm(block(eh_proj(
[enorm(embedding); hnorm(state)]))) (DeepSeek-V3, arXiv 2412.19437, section 2.2). So it is run as what it is: a language
model of one layer whose embedding reads a state.

The first layer reads the target's last state before a token, each later one the output of the layer before it at the
token before. Levels beyond the last layer repeat it on its own outputs, so one layer drafts trees of any depth.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.base import DraftSession, HiddenStates, ShownBySize
from drafttree.drafters.heads import last_layer, own_bytes, zero_hidden
from drafttree.drafters.session import Frontier, TreeSession, count_pass, level_segments
from drafttree.models import Output, Segment, TargetModel
from drafttree.models.segment import join
from drafttree.models.validation import select_unrecorded

PREFILL_CHUNK = 512
NOTHING, LAST = slice(0, 0), slice(-1, None)
"""Nodes whose logits are wanted."""


class MtpEmbedding(nn.Module):
    """What an MTP layer reads in place of the embeddings of tokens.

    Args:
        embed_tokens: the target's embedding.
        enorm: norm of embeddings.
        hnorm: norm of states.
        eh_proj: projects both, side by side, to the width of the layer.
        states_first: whether states stand before embeddings in the pair.

    Attributes:
        states: `[1, rows, hidden]` states that the next pass reads; zeros stand for None.
    """

    def __init__(
        self, embed_tokens: nn.Module, enorm: nn.Module, hnorm: nn.Module, eh_proj: nn.Linear, states_first: bool
    ) -> None:
        super().__init__()
        self.embed_tokens, self.enorm, self.hnorm, self.eh_proj = embed_tokens, enorm, hnorm, eh_proj
        self.states_first = states_first
        self.states: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """A weight, of the layer's dtype and device."""
        return self.eh_proj.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids `[1, rows]` to what the layer reads, `[1, rows, hidden]`."""
        embedded = self.embed_tokens(tokens)
        states = torch.zeros_like(embedded) if self.states is None else self.states
        pair = self.enorm(embedded), self.hnorm(states)
        return self.eh_proj(torch.cat(pair[::-1] if self.states_first else pair, -1))


class MtpLayer:
    """Runs an MTP layer over the rows of a tree.

    Args:
        module: a language model of the target's class: its embedding an `MtpEmbedding`, its head the target's.

    Attributes:
        model: the module in its fastest backend.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        self.model = TargetModel(module, select_unrecorded)
        self._embedding: Any = module.get_input_embeddings()
        self._output = (last_layer(module),)

    def forward(self, segments: Sequence[Segment], states: Sequence[Tensor]) -> list[Output]:
        """Compute logits, and outputs `[1, rows, hidden]` after the norm as the only hidden states.

        Args:
            segments: tokens of each request; their rows join its KV cache.
            states: `[1, rows, hidden]` the state that each row reads, for each segment.
        """
        if len(segments) > 1 and not self.model.shares_passes:
            return [self.forward([own], [read])[0] for own, read in zip(segments, states, strict=True)]
        self._embedding.states = join(states)
        try:
            return self.model.forward(segments, hidden_layers=self._output)
        finally:
            self._embedding.states = None


class MtpDrafter(ShownBySize):
    """Drafts with MTP layers, one draft pass per level of the tree.

    Args:
        modules: the layers, as `MtpLayer` takes them.
        target: the model they belong to.
    """

    context: int | None = None

    def __init__(self, modules: Sequence[PreTrainedModel], target: PreTrainedModel) -> None:
        self.layers = [MtpLayer(module) for module in modules]
        self.vocab_size = self.layers[0].model.vocab_size
        self.levels: int | None = None
        self.hidden_layers: tuple[int, ...] = (last_layer(target),)
        self.nbytes = own_bytes(nn.ModuleList(modules), target)
        self.zero_state = zero_hidden(target)

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a request; its first row pairs the second token with the hidden state of the first."""
        return MtpSession(self, prompt, capacity)

    @torch.inference_mode()
    def root(self, sessions: "Sequence[MtpSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.session.SharedDrafter`."""
        with count_pass(sessions):
            logits = self.read([(session, session.unread_rows(), LAST) for session in sessions])
        for session in sessions:
            session.begin_tree()
        return logits

    @torch.inference_mode()
    def expand(self, sessions: "Sequence[MtpSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.session.SharedDrafter`."""
        level = sessions[0].level + 1
        layer = self.layers[min(level, len(self.layers) - 1)]
        with count_pass(sessions):
            if level < len(self.layers):
                segments, states = zip(
                    *(each.whole_tree(own) for each, own in zip(sessions, frontiers, strict=True)), strict=True
                )
            else:
                states = [each.inherited(own) for each, own in zip(sessions, frontiers, strict=True)]
                segments = level_segments(sessions, frontiers, self.zero_state.device)
            outputs = layer.forward(segments, states)
            for session, own, output in zip(sessions, frontiers, outputs, strict=True):
                session.take(output.hidden[0], own)
            return join([output.logits for output in outputs])[0]

    def read(self, texts: "Sequence[tuple[MtpSession, Rows, slice]]") -> Tensor:
        """Compute and commit the rows of committed tokens, by all layers.

        Args:
            texts: sessions, the next rows of the first layer, and those of them whose logits are wanted.

        Returns:
            The wanted logits `[rows, vocab]` of the first layer.
        """
        reading, logits = [(session, rows) for session, rows, _ in texts], list[Tensor]()
        for index, layer in enumerate(self.layers):
            wanted = [own for _, _, own in texts] if index == 0 else [NOTHING] * len(reading)
            segments = [
                session.segment(index, rows.tokens, own) for (session, rows), own in zip(reading, wanted, strict=True)
            ]
            outputs = layer.forward(segments, [rows.states for _, rows in reading])
            logits = logits or [output.logits[0] for output in outputs]
            later = [
                (session, session.commit_rows(index, rows, output.hidden[0]))
                for (session, rows), output in zip(reading, outputs, strict=True)
            ]
            reading = [(session, rows) for session, rows in later if rows.tokens]
            if not reading:
                break
        return join(logits, 0)


class Rows(NamedTuple):
    """Rows that a layer has not computed.

    Attributes:
        tokens: the tokens.
        states: `[1, rows, hidden]` the state that each of them reads.
    """

    tokens: list[int]
    states: Tensor


class MtpSession(TreeSession):
    """A KV cache for every layer, of one request.

    Row i of layer k belongs to the token k + 1 places after the i-th. Committed rows are computed from the target's
    states; rows of drafted tokens are dropped after the round.

    Attributes:
        level: of the nodes that were drafted from last; 0 is the root.
    """

    def __init__(self, drafter: MtpDrafter, prompt: list[int], capacity: int) -> None:
        self.caches = [layer.model.new_cache(capacity) for layer in drafter.layers]
        self._device = drafter.zero_state.device
        super().__init__(drafter, self.caches[-1], prompt[1:], self._device)
        self._first = prompt[:1]
        self._states = list[Tensor]()
        self._newest = [drafter.zero_state] * len(self.caches)  # each layer's output at the last committed token

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    @torch.inference_mode()
    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        (states,) = hidden_states
        rows = max(min(tokens, len(self.unread) - 1), 0)
        for start in range(0, rows, PREFILL_CHUNK):
            part = slice(start, min(start + PREFILL_CHUNK, rows))
            self.drafter.read([(self, Rows(self.unread[part], states[:, part]), NOTHING)])
        if tokens >= len(self.unread) > 0:  # the last state goes with the last token, the first round's root
            self._states = [states[:, rows:]]
        self.unread = self.unread[rows:]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        for cache in self.caches:
            cache.commit([])
        self.unread += tokens
        self._states += hidden_states

    @torch.inference_mode()
    def read_rest(self) -> None:
        """As in `ResumableSession`."""
        if len(self.caches) == 1 and self.unread and self._states:
            self.drafter.read([(self, self.unread_rows(), NOTHING)])
            self.begin_tree()

    def keep(self, tokens: int) -> object:
        """As in `ResumableSession`.

        Several layers keep nothing: a later one's next row reads an output at a token that may not be the last.
        """
        return super().keep(tokens) if len(self.caches) == 1 else None

    def unread_rows(self) -> Rows:
        """The rows of the first layer at the unread tokens.

        After a prompt of one token there are none: its own row, with zeros as state, is computed and not kept.
        """
        if not self.unread:
            return Rows(self._first, self.drafter.zero_state)
        return Rows(self.unread, join(self._states))

    def segment(self, layer: int, tokens: list[int], wanted: slice) -> Segment:
        """The next tokens of the text, as rows of a layer."""
        return Segment.of_text(self.caches[layer], tokens, self._device)._replace(wanted=wanted)

    def commit_rows(self, layer: int, rows: Rows, outputs: Tensor) -> Rows:
        """Commit a layer's rows, given its outputs `[1, rows, hidden]`, and return those of the layer after it.

        That reads the output at the token before, so at first it begins one token later.
        """
        if layer == 0:
            self._hidden = outputs[:, -1:]
        cache = self.caches[layer]
        if rows.tokens is self._first:
            cache.commit([])
            return Rows([], outputs)
        begins = cache.length == 0
        cache.commit(range(len(rows.tokens)))
        before, self._newest[layer] = self._newest[layer], outputs[:, -1:]
        if begins:
            return Rows(rows.tokens[1:], outputs[:, :-1])
        return Rows(rows.tokens, torch.cat((before, outputs[:, :-1]), 1))

    def begin_tree(self) -> None:
        """Begin a tree at the last token, whose rows are committed."""
        self.unread, self._states = [], []
        self.level = 0
        self._tree = list[Frontier]()
        self._seen = list[np.ndarray]()
        self._outputs = self._hidden[:, :0]
        self.forget_tree()

    def inherited(self, frontier: Frontier) -> Tensor:
        """The states `[1, frontier, hidden]` that the nodes of a new frontier read: outputs at their parents."""
        if frontier.keeps_all:
            return self._hidden[:, : len(frontier.tokens)]
        return self._hidden[:, frontier.origins]

    def whole_tree(self, frontier: Frontier) -> tuple[Segment, Tensor]:
        """The nodes of a new frontier and all before it, as rows of a layer that has none of them, and their states.

        The states are the outputs of the layer before at their parents.
        """
        layer, cache = self.level + 1, self.caches[self.level + 1]
        self._tree.append(frontier)
        self._seen.append(self.next_level(frontier)[1])
        sizes = [len(own.tokens) for own in self._tree]
        nodes = sum(sizes)
        visible = np.concatenate([np.pad(seen, ((0, 0), (0, nodes - seen.shape[1]))) for seen in self._seen])
        starts = [0, 1, *(1 + end for end in accumulate(sizes[:-2]))]
        parents = [start + origin for start, own in zip(starts, self._tree, strict=False) for origin in own.origins]
        tokens = torch.tensor([[token for own in self._tree for token in own.tokens]], device=self._device)
        depths = [depth for depth, size in enumerate(sizes) for _ in range(size)]
        positions = cache.next_position + torch.tensor([depths], device=self._device)
        seen = torch.from_numpy(visible)[None].to(self._device)
        states = torch.cat((self._newest[layer - 1], self._outputs), 1)[:, parents]
        return Segment(cache, tokens, positions, seen, slice(nodes - sizes[-1], None)), states

    def take(self, outputs: Tensor, frontier: Frontier) -> None:
        """Note the outputs `[1, rows, hidden]` of the rows of a new frontier, and of those before it if there are."""
        self._outputs, self._hidden = outputs, outputs[:, -len(frontier.tokens) :]
        self.level += 1
