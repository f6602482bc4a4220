"""An EAGLE-3 head with less in between: the same function as its module's, on the lean decoder's fused layers.

A head is one layer, so the price of calling it weighs more than in any model: transformers' layer makes twice as many
operations as this one.
"""

import weakref

import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.eagle3 import Eagle3Head
from drafttree.models.cuda_graphs import CudaGraphs
from drafttree.models.fused import STATIC_ROPES, LlamaLayer, Pass, angles, product, rms_norm
from drafttree.models.kv_cache import TreeCache
from drafttree.models.recorded import Arguments, Recorder, Recordings
from drafttree.models.tree_attention import TreePlan

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

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        if self.fc_norm:
            hidden_states = tuple(norm(state) for norm, state in zip(self.fc_norm, hidden_states, strict=True))
        states = self.input_norm(torch.cat(hidden_states, -1))
        return self._fc.of(states.flatten(0, 1)).unflatten(0, states.shape[:2])

    def forward(self, cache: TreeCache, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        first = self._blocks[0]
        mask = TreePlan(cache, positions, visible, hidden.dtype).mask(first.groups, None)
        rows = cache.rows(hidden, first.key_heads, first.width, tokens.shape[1])
        output = self.run(tokens, hidden, positions, mask, rows, slice(cache.get_seq_length(), None))
        cache.grow(positions)
        return output

    def run(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        rows: list[tuple[Tensor, Tensor]],
        where: slice | Tensor,
    ) -> Tensor:
        """A pass on memory that is given; arguments as for `forward` and `LeanModel.run`."""
        batch, nodes = tokens.shape
        turn = Pass(batch, nodes, *angles(self.rotary, positions, hidden.dtype), mask, where)
        x = hidden.flatten(0, 1)
        normed = self._norms["state"](x)
        pair = torch.cat((self._norms["token"](self.embed_tokens(tokens).flatten(0, 1)), normed), -1)
        x = self._blocks[0].carry(normed if self.config.normed_residual else x, pair, turn, *rows[0])
        for block, own in zip(self._blocks[1:], rows[1:], strict=True):
            x = block.forward(x, turn, *own)
        return x.view(hidden.shape)

    def next_hidden(self, output: Tensor) -> Tensor:
        return self._norms["last"](output) if self.config.normed_output else output

    def draft_logits(self, output: Tensor) -> Tensor:
        return self._head.of(self._norms["last"](output).flatten(0, 1)).unflatten(0, output.shape[:2])


class StaticEagle3Head(LeanEagle3Head):
    """A lean head whose passes over trees are recorded, as those of `drafttree.models.recorded.StaticModel`.

    Args:
        head: to record; its weights stay where they are from then on.
        recorder: of passes.
    """

    def __init__(self, head: LeanEagle3Head, recorder: Recorder) -> None:
        self.__dict__.update(vars(head))
        self._recordings = Recordings(recorder, self._blocks[0], self.fc.weight, self.config.hidden)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._recordings.new_cache(len(self.layers), capacity)

    @torch.inference_mode()
    def forward(self, cache: TreeCache, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        head = weakref.proxy(self)

        def run(given: Arguments) -> tuple[Tensor]:
            return (head.run(given.tokens, given.hidden, given.positions, given.mask, given.rows, given.where),)

        outputs = self._recordings.replay(cache, tokens, positions, visible, run, hidden=hidden)
        return super().forward(cache, tokens, hidden, positions, visible) if outputs is None else outputs[0]


def lean(head: Eagle3Head) -> Eagle3Head:
    """A frozen head's lean form, where it gives the same outputs; else the head itself. On CUDA it is recorded."""
    if (head.config.layer.rope_parameters or {}).get("rope_type") not in STATIC_ROPES:
        return head
    own = _probe(head)
    fast = LeanEagle3Head(head)
    if not _agrees(fast, own):
        return head
    device = head.fc.weight.device
    if device.type != "cuda":
        return fast
    recorded = StaticEagle3Head(fast, CudaGraphs(device))
    return recorded if repeats(recorded, own) else fast


def repeats(recorded: StaticEagle3Head, own: Tensor) -> bool:
    """Whether passes that were recorded on other tokens give the head's own logits when they are repeated."""
    _probe(recorded, shift=1)
    return _agrees(recorded, own)


def _agrees(head: Eagle3Head, own: Tensor) -> bool:
    gap = float((_probe(head) - own).abs().max()) / max(float(own.abs().max()), 1.0)
    return gap <= TOLERANCE.get(own.dtype, REDUCED)


@torch.inference_mode()
def _probe(head: Eagle3Head, shift: int = 0) -> Tensor:
    """The draft logits of rows behind as many committed ones; with a shift, of other tokens and states."""
    weight = head.fc.weight
    states = torch.linspace(-1, 1, ROWS * weight.shape[1], device=weight.device).to(weight.dtype)
    hidden = head.fuse(states.view(1, ROWS, -1).roll(shift, 1).split(head.config.target_hidden, -1))
    rows = torch.arange(ROWS, device=weight.device)[None]
    causal = torch.ones(1, ROWS, ROWS, dtype=torch.bool, device=weight.device).tril()
    cache, tokens = head.new_cache(2 * ROWS), (rows + shift) % head.config.vocab
    hidden = head.next_hidden(head(cache, tokens, hidden, rows, causal))
    cache.commit(range(ROWS))
    return head.draft_logits(head(cache, tokens, hidden, rows + ROWS, causal))
