"""The backend of `exact_text`: every row of a pass is computed the same whatever stands beside it.

Decoding in trees then gives the logits of plain decoding bit for bit, and so its texts, in every dtype. Three things
make rows depend on others: attention adds up in another order where other branches lie between a path's rows (see
`drafttree.models.attention.exact_attention`), products of matrices use other kernels for other numbers of rows, and
vectorised functions treat the last few values of a tensor differently. Which numbers of rows are safe depends on the
device and its libraries, so it is tried out.
"""

import itertools
from collections.abc import Hashable, Sequence

import torch

from drafttree.models.base import Backend, Output, WrappedBackend, forward_in_groups
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.segment import Segment, join


class ExactTextBackend(WrappedBackend):
    """Runs another backend with attention that is the same in every pass, on numbers of rows that are safe.

    See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner: runs the passes.
        least: rows of a pass at least; smaller ones are padded.
        most: rows of a pass at most; larger ones are split. None for no limit.
    """

    def __init__(self, inner: Backend, least: int, most: int | None) -> None:
        super().__init__(inner)
        self.exact_text = True
        self._least, self._most = least, most

    def new_cache(self, capacity: int) -> TreeCache:
        cache = super().new_cache(capacity)
        cache.exact_text = True
        return cache

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        def group_of(segment: Segment) -> Hashable:
            """Segments that the inner backend would not run together do not add to each other's rows."""
            return segment.cache.long_rope if self._inner.shares_passes else id(segment)

        if len(segments) <= 1:
            return self._run(segments, hidden_layers) if segments else []
        return forward_in_groups(segments, group_of, lambda group: self._run(group, hidden_layers))

    def _run(self, segments: Sequence[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """Run segments that share passes, cut where a pass has its most rows."""
        sizes = [segment.nodes for segment in segments]
        step = self._most or sum(sizes)
        starts = [*itertools.accumulate(sizes, initial=0)]
        parts: list[list[Output]] = [[] for _ in segments]
        for first in range(0, starts[-1], step):
            cut = [
                (index, segment.part(max(first - start, 0), min(first + step - start, segment.nodes)))
                for index, (segment, start) in enumerate(zip(segments, starts, strict=False))
                if start < first + step and start + segment.nodes > first
            ]
            outputs = self._padded([part for _, part in cut], hidden_layers)
            for (index, _), output in zip(cut, outputs, strict=True):
                parts[index].append(output)
        return [_joined(outputs) for outputs in parts]

    def _padded(self, segments: list[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """A pass whose last segment is padded, if there are too few rows."""
        *others, last = segments
        padding = max(0, self._least - sum(segment.nodes for segment in segments))
        outputs = self._scored([*others, _pad(last, padding) if padding else last], hidden_layers)
        last.cache.drop_last(padding)
        hidden = tuple(states[:, : last.nodes] for states in outputs[-1].hidden)
        return [*outputs[:-1], outputs[-1]._replace(hidden=hidden)]

    def _scored(self, segments: list[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """A pass whose head is given enough rows as well, if any."""
        wanted = [range(segment.nodes)[segment.wanted] for segment in segments]
        if not 0 < sum(map(len, wanted)) < self._least:
            return self._inner.forward(segments, hidden_layers=hidden_layers)
        starts = [own.start if own else segment.nodes for own, segment in zip(wanted, segments, strict=True)]
        firsts = [max(0, min(start, each.nodes - self._least)) for start, each in zip(starts, segments, strict=True)]
        more = [each._replace(wanted=slice(first, None)) for first, each in zip(firsts, segments, strict=True)]
        outputs = self._inner.forward(more, hidden_layers=hidden_layers)
        return [
            output._replace(logits=output.logits[:, start - first : start - first + len(own)])
            for output, start, first, own in zip(outputs, starts, firsts, wanted, strict=True)
        ]


def _pad(segment: Segment, padding: int) -> Segment:
    """A segment padded with copies of its last token, which see all rows, so a chain stays one."""
    nodes, visible = segment.nodes, segment.visible
    seen = visible.new_ones(1, nodes + padding, visible.shape[2] + padding).tril(visible.shape[2] - nodes)
    seen[:, :nodes, : visible.shape[2]] = visible
    tokens, positions = (torch.cat((each, each[:, -1:].expand(-1, padding)), 1) for each in segment[1:3])
    return Segment(segment.cache, tokens, positions, seen, segment.wanted)


def _joined(outputs: list[Output]) -> Output:
    """The output of a segment from those of its parts."""
    hidden = zip(*(output.hidden for output in outputs), strict=True)
    return Output(join([output.logits for output in outputs]), tuple(join(parts) for parts in hidden))
