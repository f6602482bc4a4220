"""The backend of `exact_text`: a row's result does not depend on the other rows of its pass.

So decoding in trees gives the logits of plain decoding bit for bit, and the same texts, in every dtype. Without this
backend, a row depends on others in three ways:

- Attention adds up in another order where other branches lie between a path's rows (see
  `drafttree.models.attention.exact_attention`).
- Matrix products use other kernels for other numbers of rows.
- Vectorised functions treat the last few values of a tensor differently.

Which numbers of rows are safe depends on the device and its libraries, so a trial decides. After random keys and
values, it scores the same tokens one by one, in trees, and after a prompt that was read in parts. Experts get
one row for each token that is routed to them, which no bounds on a pass can limit. So they compute every token alone
(`drafttree.models.module.experts`).
"""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from drafttree.models.base import Backend, append
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.module.experts import token_by_token
from drafttree.models.segment import Output, Segment, forward_in_groups, join
from drafttree.models.wrapped_backends import WrappedBackend

PREFIX = 600
"""Random rows of the KV cache in the trial, more than a block of the CPU's attention kernel."""
PARTS = (1, 2, 3, 5, 8, 13)
"""Numbers of tokens of the passes in which the trial reads a prompt after these rows."""
PATH = 16
"""Tokens whose logits the trial compares."""
SMALL, LARGE = 2, 5
"""Nodes per level of the trees in which these tokens are scored."""


class ExactTextBackend(WrappedBackend):
    """Runs another backend with attention that is the same in every pass, and with safe numbers of rows.

    See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner_backend: runs the passes.
        min_rows: fewest rows of a pass; smaller passes are padded.
        max_rows: most rows of a pass, None for no limit; larger passes are split.
        experts: the modules of experts that the passes call.
    """

    def __init__(
        self, inner_backend: Backend, min_rows: int, max_rows: int | None, experts: Sequence[nn.Module] = ()
    ) -> None:
        super().__init__(inner_backend)
        self.exact_text = True
        self._min_rows = min_rows
        self._max_rows = max_rows
        self._experts = experts

    def new_cache(self, capacity: int) -> TreeCache:
        cache = super().new_cache(capacity)
        cache.exact_text = True
        return cache

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        def group_of(segment: Segment) -> Hashable:
            """The rows of segments count together only if the inner backend runs them in one pass."""
            return segment.cache.long_rope if self._inner_backend.shares_passes else id(segment)

        if len(segments) <= 1:
            return self._run(segments, hidden_layers) if segments else []
        return forward_in_groups(segments, group_of, lambda group: self._run(group, hidden_layers))

    def _run(self, segments: Sequence[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """Run segments of one group in passes of at most `max_rows` rows."""
        sizes = [segment.nodes for segment in segments]
        step = self._max_rows or sum(sizes)
        starts = [*itertools.accumulate(sizes, initial=0)]
        outputs_by_segment = defaultdict[int, list[Output]](list)
        for row in range(0, starts[-1], step):
            segment_parts: dict[int, Segment] = {}
            for index, (segment, start) in enumerate(zip(segments, starts, strict=False)):
                if start < row + step and start + segment.nodes > row:
                    segment_parts[index] = segment.part(max(row - start, 0), min(row + step - start, segment.nodes))
            outputs = self._padded([*segment_parts.values()], hidden_layers)
            for index, output in zip(segment_parts, outputs, strict=True):
                outputs_by_segment[index].append(output)
        return [_joined(outputs_by_segment[index]) for index in range(len(segments))]

    def _padded(self, segments: list[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """Run a pass, and pad its last segment if the pass has too few rows."""
        *earlier_segments, last_segment = segments
        padding = max(0, self._min_rows - sum(segment.nodes for segment in segments))
        with token_by_token(self._experts, padding):
            outputs = self._scored(
                [*earlier_segments, _pad(last_segment, padding) if padding else last_segment], hidden_layers
            )
        last_segment.cache.drop_last(padding)
        hidden_states = tuple(states[:, : last_segment.nodes] for states in outputs[-1].hidden)
        return [*outputs[:-1], outputs[-1]._replace(hidden=hidden_states)]

    def _scored(self, segments: list[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """Run a pass. If some logits are wanted, but too few, the head computes more of them."""
        if not 0 < sum(len(segment.wanted_nodes) for segment in segments) < self._min_rows:
            return self._inner_backend.forward(segments, hidden_layers=hidden_layers)
        widened_segments = []
        wanted_slices = []
        for segment in segments:
            wanted_nodes = segment.wanted_nodes
            wanted_start = wanted_nodes.start if wanted_nodes else segment.nodes
            scored_start = max(0, min(wanted_start, segment.nodes - self._min_rows))
            widened_segments.append(segment._replace(wanted=slice(scored_start, None), ranked=0))
            first_row = wanted_start - scored_start
            wanted_slices.append(slice(first_row, first_row + len(wanted_nodes)))
        outputs = self._inner_backend.forward(widened_segments, hidden_layers=hidden_layers)
        wanted_outputs = []
        for output, wanted_slice in zip(outputs, wanted_slices, strict=True):
            wanted_outputs.append(output._replace(logits=output.logits[:, wanted_slice]))
        return wanted_outputs


def _pad(segment: Segment, padding: int) -> Segment:
    """Pad a segment with copies of its last token, which attend to all rows before them: a chain stays a chain."""
    nodes, drafted = segment.visible.shape
    padded_visible = np.tri(nodes + padding, drafted + padding, drafted - nodes, dtype=bool)
    padded_visible[:nodes, :drafted] = segment.visible
    tokens = np.pad(segment.tokens, (0, padding), mode="edge")
    positions = np.pad(segment.positions, (0, padding), mode="edge")
    return Segment(segment.cache, tokens, positions, padded_visible, segment.wanted)


def _joined(outputs: list[Output]) -> Output:
    """Concatenate the outputs of a segment's parts."""
    layer_chunks = zip(*(output.hidden for output in outputs), strict=True)
    return Output(join([output.logits for output in outputs]), tuple(join(chunks) for chunks in layer_chunks))


@torch.inference_mode()
def has_uniform_rows(backend: Backend, dtype: torch.dtype, vocab: int, context: int | None) -> bool:
    """Whether plain decoding, trees, and prompts read in parts give the same logits bit for bit.

    Args:
        backend: the backend to test.
        dtype: dtype of its KV cache.
        vocab: size of the vocabulary.
        context: largest number of positions, None for no limit.
    """
    prompt_length = sum(PARTS)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, (prompt_length + PATH,), generator=generator).tolist()
    sibling_tokens = torch.randint(vocab, (PATH * LARGE,), generator=generator).tolist()
    prefix = max(0, min(PREFIX, (context or PREFIX + len(tokens)) - len(tokens)))
    text, path = tokens[:prompt_length], tokens[prompt_length:]

    def read(*part_sizes: int) -> TreeCache:
        cache = _random_cache(backend, dtype, prefix, prefix + len(tokens) + len(sibling_tokens))
        for start, end in itertools.pairwise(itertools.accumulate(part_sizes, initial=0)):
            append(backend, cache, text[start:end])
        return cache

    cache = read(prompt_length)
    plain_logits = torch.cat([append(backend, cache, [token]).logits[0] for token in path])
    cache = read(*PARTS)
    half_length = PATH // 2
    tree_logits = [
        _tree_logits(backend, read(prompt_length), path, sibling_tokens, LARGE),
        _tree_logits(backend, cache, path[:half_length], sibling_tokens, SMALL),
        _tree_logits(backend, cache, path[half_length:], sibling_tokens, 1),
    ]
    return torch.equal(tree_logits[0], plain_logits) and torch.equal(torch.cat(tree_logits[1:]), plain_logits)


def _random_cache(backend: Backend, dtype: torch.dtype, rows: int, capacity: int) -> TreeCache:
    cache = backend.new_cache(capacity)
    generator = torch.Generator(backend.device).manual_seed(0)
    cache.reserve(torch.empty(0, dtype=dtype, device=backend.device), rows)
    for _, _, keys, values in cache.pass_rows(rows):
        keys.normal_(generator=generator)
        values.normal_(generator=generator)
    cache.grow(np.arange(rows))
    cache.commit(range(rows))
    return cache


def _tree_logits(
    backend: Backend, cache: TreeCache, path: list[int], sibling_tokens: list[int], branches: int
) -> Tensor:
    """Score a path in a tree, commit the path, and return its logits `[path, vocab]`.

    Args:
        backend: the backend to test.
        cache: holds the rows before the path.
        path: token ids of the path.
        sibling_tokens: token ids of the other nodes; each is a sibling of a node of the path.
        branches: number of nodes on every level but the first. The path's place among them changes by level.
    """
    tokens = [path[0]]
    parents = [-1]
    path_nodes = [0]
    for level, token in enumerate(path[1:], start=1):
        siblings = sibling_tokens[level * branches : (level + 1) * branches]
        siblings[level % branches] = token
        parents += [path_nodes[-1]] * branches
        path_nodes.append(len(tokens) + level % branches)
        tokens += siblings
    visible = np.eye(len(tokens), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        visible[node] |= visible[parent]
    positions = visible.sum(1) - 1 + cache.length
    (output,) = backend.forward([Segment(cache, np.array(tokens), positions, visible)])
    cache.commit(path_nodes)
    return output.logits[0, path_nodes]
