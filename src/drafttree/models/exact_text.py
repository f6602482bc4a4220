"""The backend of `exact_text`: every row of a pass is computed the same whatever stands beside it.

Decoding in trees then gives the logits of plain decoding bit for bit, and so its texts, in every dtype. Three things
make rows depend on others: attention adds up in another order where other branches lie between a path's rows (see
`drafttree.models.exact_attention`), products of matrices use other kernels for other numbers of rows, and vectorised
functions treat the last few values of a tensor differently. Which numbers of rows are safe depends on the device and
its libraries, so it is tried out.
"""

import torch
from torch import Tensor

from drafttree.models.base import Backend, Output
from drafttree.models.kv_cache import TreeCache


class ExactTextBackend:
    """Runs another backend with attention that is the same in every pass, on numbers of rows that are safe.

    See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner: runs the passes.
        least: rows of a pass at least; smaller ones are padded.
        most: rows of a pass at most; larger ones are split. None for no limit.

    Attributes:
        packed_nbytes: memory of packed copies of its weights, beside the weights themselves.
    """

    def __init__(self, inner: Backend, least: int, most: int | None) -> None:
        self.device = inner.device
        self._inner = inner
        self.packed_nbytes: int = getattr(inner, "packed_nbytes", 0)
        self._least, self._most = least, most

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        cache = self._inner.new_cache(batch, capacity)
        cache.exact_text = True
        return cache

    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        nodes, drafted = visible.shape[1:]
        step, before = self._most or nodes, drafted - nodes
        outputs = []
        for first in range(0, nodes, step):
            part = slice(first, min(first + step, nodes))
            seen = visible[:, part, : before + part.stop]
            outputs.append(self._padded(cache, tokens[:, part], positions[:, part], seen, last_only, hidden_layers))
        logits = outputs[-1].logits if last_only else torch.cat([output.logits for output in outputs], 1)
        hidden = zip(*(output.hidden for output in outputs), strict=True)
        return Output(logits, tuple(torch.cat(parts, 1) for parts in hidden))

    def _padded(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        last_only: bool,
        hidden_layers: tuple[int, ...],
    ) -> Output:
        """A pass padded with copies of its last token, which see all rows, so a chain stays one."""
        nodes = tokens.shape[1]
        padding = max(0, self._least - nodes)
        if not padding:
            return self._inner.forward(
                cache, tokens, positions, visible, last_only=last_only, hidden_layers=hidden_layers
            )
        seen = visible.new_ones(1, nodes + padding, visible.shape[2] + padding).tril(visible.shape[2] - nodes)
        seen[:, :nodes, : visible.shape[2]] = visible
        tokens, positions = (torch.cat((each, each[:, -1:].expand(-1, padding)), 1) for each in (tokens, positions))
        output = self._inner.forward(cache, tokens, positions, seen, hidden_layers=hidden_layers)
        cache.drop_last(padding)
        logits = output.logits[:, nodes - 1 : nodes] if last_only else output.logits[:, :nodes]
        return Output(logits, tuple(states[:, :nodes] for states in output.hidden))
