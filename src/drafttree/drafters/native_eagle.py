"""The backend of EAGLE heads that runs a level in one call of drafttree-native, on a CPU."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.eagle import Eagle3Head, EagleHead
from drafttree.models import Segment, TreeCache
from drafttree.models.native.kernels import BEFORE_NORM, draft_chains, run_pass
from drafttree.models.native.native_layers import NativeLlamaLayer, norm_of, weight_of
from drafttree.models.native.packed_model import add_head, add_layer, new_model, rotaries_of

ROWS = 16
"""Above so many rows, hidden states are fused by multiples of them."""


class NativeEagle:
    """Runs a head in one call; see `drafttree.drafters.head.Head` for the protocol. States and logits are float32.

    Args:
        head: frozen, on a CPU, of a dtype that `drafttree.models.native.kernels.knows`.

    Raises:
        AttributeError: a layer or the order of its norms is not known.
        ValueError: sizes of layers do not fit together.
    """

    def __init__(self, head: EagleHead) -> None:
        config, first = head.config, head.layers[0]
        layers = [NativeLlamaLayer(block, config.layer) for block in head.layers]
        norm, self._output = None, BEFORE_NORM
        if isinstance(head, Eagle3Head):
            token_norm = layers[0].norms.pop("before_attention")
            entry = token_norm, norm_of(first.hidden_norm), None, False, config.normed_residual
            if config.normed_logits:
                norm = norm_of(head.norm)
            if config.normed_output:
                if not norm:
                    raise AttributeError("a norm of states that is none of logits is not known")
                self._output = len(layers)
        else:
            entry = None, None, weight_of(head.fc), False, False
        self._model, rotaries = new_model(head.embed_tokens, entry), rotaries_of(layers, head.rotary)
        for rotary in rotaries.values():
            self._model.add_rotary(*rotary)
        for index, layer in enumerate(layers):
            add_layer(self._model, layer, rotaries, head.layout.slots[index])
        add_head(self._model, norm, head.lm_head)
        self._head, self._like = head, head.fc.weight.new_empty(0)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._head.new_cache(capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """As the head does, over more rows than are given where these are many.

        For each number of rows torch makes a kernel in bfloat16, which takes 1 ms and 80 kB, and keeps some 1,000.
        """
        rows = hidden_states[0].shape[1]
        if rows > ROWS:
            hidden_states = tuple(F.pad(states, (0, 0, 0, -rows % ROWS)) for states in hidden_states)
        return self._head.fuse(hidden_states)[:, :rows]

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        room, (output,) = run_pass(self._model, segments, self._like, (self._output,), states)
        logits = room[:, : self._head.lm_head.out_features]
        if (ids := self._head.target_ids) is not None:
            full = torch.full((len(logits), self._head.config.vocab), -torch.inf, dtype=logits.dtype, device="cpu")
            logits = full.index_copy_(-1, ids, logits)
        return logits, output

    def draft_chains(
        self, segments: Sequence[Segment], count: int, allowed: int, states: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft chains; see `drafttree.models.native.kernels.draft_chains`."""
        ids, columns = self._head.target_ids, self._head.lm_head.out_features
        allowed = min(allowed, columns) if ids is None else columns
        how = {"output": self._output, "read": states, "ids": ids}
        return draft_chains(self._model, segments, self._like, count, allowed, **how)
