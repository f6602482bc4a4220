"""An EAGLE-3 head with less in between: the same function as its module's, on the lean decoder's fused layers.

A head is one layer, so the price of calling it weighs more than in any model: transformers' layer makes twice as many
operations as this one.
"""

import torch
from torch import Tensor

from drafttree.drafters.base import Features
from drafttree.drafters.eagle3 import Eagle3Head
from drafttree.models.attention import TreePlan
from drafttree.models.cache import TreeCache
from drafttree.models.lean import STATIC_ROPES, LlamaLayer, Pass, angles, product, rms_norm

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
REDUCED = 0.1
ROWS = 3


class LeanEagle3Head(Eagle3Head):
    """A head whose passes run on fused weights.

    Args:
        head: frozen; its parameters become views of the fused ones.
    """

    def __init__(self, head: Eagle3Head) -> None:
        self.__dict__.update(vars(head))
        first = head.layers[0]
        norms = {"token": first.input_layernorm, "state": first.hidden_norm, "last": head.norm}
        self._norms = {name: rms_norm(norm) for name, norm in norms.items()}
        self._blocks = [LlamaLayer(block, head.config.layer) for block in head.layers]
        self._fc, self._head = product(head.fc), product(head.lm_head)

    def fuse(self, features: Features) -> Tensor:
        if self.fc_norm:
            features = tuple(norm(state) for norm, state in zip(self.fc_norm, features, strict=True))
        states = self.input_norm(torch.cat(features, -1))
        return self._fc.of(states.flatten(0, 1)).unflatten(0, states.shape[:2])

    def forward(self, cache: TreeCache, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        first, (batch, nodes) = self._blocks[0], tokens.shape
        mask = TreePlan(cache, positions, visible, hidden.dtype).mask(first.groups, None)
        rows = cache.rows(hidden, first.key_heads, first.width, nodes)
        where = slice(cache.get_seq_length(), None)
        turn = Pass(batch, nodes, *angles(self.rotary, positions, hidden.dtype), mask, where)
        x = hidden.flatten(0, 1)
        normed = self._norms["state"](x)
        pair = torch.cat((self._norms["token"](self.embed_tokens(tokens).flatten(0, 1)), normed), -1)
        x = first.carry(normed if self.config.normed_residual else x, pair, turn, *rows[0])
        for block, own in zip(self._blocks[1:], rows[1:], strict=True):
            x = block.forward(x, turn, *own)
        cache.grow(positions)
        return x.view(hidden.shape)

    def recycle(self, output: Tensor) -> Tensor:
        return self._norms["last"](output) if self.config.normed_output else output

    def draft_logits(self, output: Tensor) -> Tensor:
        return self._head.of(self._norms["last"](output).flatten(0, 1)).unflatten(0, output.shape[:2])


def lean(head: Eagle3Head) -> Eagle3Head:
    """A frozen head's lean form, where it gives the same outputs; else the head itself."""
    if (head.config.layer.rope_parameters or {}).get("rope_type") not in STATIC_ROPES:
        return head
    own = _probe(head)
    fast = LeanEagle3Head(head)
    gap = float((_probe(fast) - own).abs().max()) / max(float(own.abs().max()), 1.0)
    return fast if gap <= TOLERANCE.get(own.dtype, REDUCED) else head


@torch.inference_mode()
def _probe(head: Eagle3Head) -> Tensor:
    """The draft logits of a few rows whose states are not alike."""
    weight = head.fc.weight
    states = torch.linspace(-1, 1, ROWS * weight.shape[1], device=weight.device).to(weight.dtype)
    states = states.view(1, ROWS, -1).split(head.config.target_hidden, -1)
    tokens = torch.arange(ROWS, device=weight.device)[None] % head.config.vocab
    causal = torch.ones(1, ROWS, ROWS, dtype=torch.bool, device=weight.device).tril()
    cache = TreeCache(len(head.layers), 1, ROWS)
    return head.draft_logits(head(cache, tokens, head.fuse(states), tokens, causal))
