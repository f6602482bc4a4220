"""Packed passes of any model: all requests in one pass where it can do that, else one request after the other."""

from collections.abc import Callable, Hashable, Sequence

from drafttree.models.base import Backend, Output
from drafttree.models.segment import Segment


def forward_packed(model: Backend, segments: Sequence[Segment], hidden_layers: tuple[int, ...] = ()) -> list[Output]:
    """Score the segments of several requests; see `drafttree.models.base.PackedBackend.forward_packed`.

    A model without that method (`PackedBackend` has it, `Backend` need not) runs them one after the other.
    """
    run = getattr(model, "forward_packed", None)
    return run(segments, hidden_layers=hidden_layers) if run else forward_each(model, segments, hidden_layers)


def shares_passes(model: Backend) -> bool:
    """Whether several requests share a pass of a model."""
    return getattr(model, "shares_passes", False)


def forward_each(model: Backend, segments: Sequence[Segment], hidden_layers: tuple[int, ...] = ()) -> list[Output]:
    """Score segments one after the other."""
    return [_forward(model, segment, hidden_layers) for segment in segments]


def forward_in_groups(
    segments: Sequence[Segment],
    group_of: Callable[[Segment], Hashable],
    run: Callable[[list[Segment]], list[Output]],
) -> list[Output]:
    """Run the segments of each group together; the outputs in the order of all segments."""
    groups: dict[Hashable, list[int]] = {}
    for index, segment in enumerate(segments):
        groups.setdefault(group_of(segment), []).append(index)
    outputs: dict[int, Output] = {}
    for indices in groups.values():
        outputs.update(zip(indices, run([segments[index] for index in indices]), strict=True))
    return [outputs[index] for index in range(len(segments))]


def _forward(model: Backend, segment: Segment, hidden_layers: tuple[int, ...]) -> Output:
    wanted = range(segment.nodes)[segment.wanted]
    last_only = set(wanted) <= {segment.nodes - 1}
    output = model.forward(*segment[:4], last_only=last_only, hidden_layers=hidden_layers)
    logits = output.logits[:, : len(wanted)] if last_only else output.logits[:, segment.wanted]
    return output._replace(logits=logits)
