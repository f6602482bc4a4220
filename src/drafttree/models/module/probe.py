"""Small trees by which a backend is compared with the untouched module: after a prefix, and at late positions.

A backend that attends or scales wrongly at late positions would be right in short texts and wrong in long ones.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

from drafttree.models.base import Backend, append
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.module.long_rope import context_limit, rope_switch
from drafttree.models.module.module_checks import input_device, logits_width, recurrent_layers
from drafttree.models.module.module_inputs import as_cache
from drafttree.models.module.plain_module import is_plain_module
from drafttree.models.segment import Output, Segment, forward_in_groups
from drafttree.models.windows import span_of

PREFIX = 12
"""Tokens before the first tree, read in two passes."""
PARENTS = (-1, 0, 0, 1, 2, 4)
LEAVES = (3, 5)
"""Nodes whose logits are compared: the ends of two paths of different lengths."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
REDUCED_TOLERANCE = 0.1
"""The tolerance of dtypes with less precision than float32."""
ALIGNMENT = 1 << 13
"""Late positions start at a multiple of this number, so that a chunk of chunked attention starts there too."""
EDGE = 2
"""Rows before the window of a tree's root, to which no node may attend."""

Rows = Sequence[tuple[Tensor, Tensor]]
"""Keys and values `[1, key heads, rows, width]` of each layer."""


class Probe(NamedTuple):
    """A tree to be scored.

    Attributes:
        prefix: token ids before the root.
        nodes: token ids of the tree.
        start: position of the first of `rows`; without rows, of the first token.
        long_rope: whether LongRoPE's long frequencies apply.
        rows: rows that the KV cache holds before the prefix.
    """

    prefix: list[int]
    nodes: list[int]
    start: int = 0
    long_rope: bool = False
    rows: Rows = ()

    @property
    def held(self) -> int:
        """Number of rows that the KV cache holds before the prefix."""
        return self.rows[0][0].shape[2] if self.rows else 0

    def shifted(self, vocab: int) -> "Probe":
        """The same probe on other tokens."""
        return self._replace(nodes=[(token + 1) % vocab for token in self.nodes])


def make_probes(module: PreTrainedModel) -> list[Probe]:
    """A probe after a prefix and, if the context is long enough, one at late positions without rows before it."""
    tokens = _tokens(module)
    probes = [Probe(tokens[:PREFIX], tokens[PREFIX:])]
    late_start = ((context_limit(module) or 0) - len(PARENTS) - 1) // ALIGNMENT * ALIGNMENT
    if late_start > 0:
        probes.append(Probe([], tokens[PREFIX:], late_start, _is_long(module, late_start)))
    return probes


@torch.inference_mode()
def make_late_probes(module: PreTrainedModel) -> list[Probe]:
    """Probes for backends that rotate keys and attend with their own code, which may go wrong at late positions only.

    The first is at the end of the context, after rows that the module has computed. An error of the angles that is the
    same for all tokens shows only beside right rows. The second is for modules with windows, after as many rows as the
    largest window has.

    Args:
        module: a module whose layers have their own keys and values, except that the last ones may share others'.
    """
    root_position = (context_limit(module) or 0) - len(PARENTS)
    if root_position <= PREFIX:
        return []
    tokens = _tokens(module)
    start = root_position - PREFIX
    cache = _LateCache(start)
    _own_pass(module, cache, tokens[:PREFIX], start)
    layers: list[Any] = cache.layers
    rows = [(layer.keys, layer.values) for layer in layers]
    late_probe = Probe([], tokens[PREFIX:], start, _is_long(module, root_position), rows)
    spans = {
        span_of(submodule)
        for submodule in module.modules()
        if hasattr(submodule, "layer_idx") and hasattr(submodule, "config")
    }
    windows = [span.window for span in spans if span.window is not None and span.window + EDGE <= root_position]
    if not windows:
        return [late_probe]
    row_count = max(windows) + EDGE
    edge_rows = [_rows_at_edges(values, row_count, windows) for _, values in rows]
    return [late_probe, late_probe._replace(start=root_position - row_count, rows=edge_rows)]


def _rows_at_edges(values: Tensor, count: int, windows: list[int]) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer by which a token's result shows which rows it attends to.

    All keys are 0, so a token gives the same weight to all rows that it sees. Values are 0 except near the first row of
    a window. There they are so large that each row changes the result by about the size of an ordinary value.

    Args:
        values: `[1, key heads, rows, width]` that the module computed.
        count: number of rows to make.
        windows: sizes of the windows.
    """
    generator = torch.Generator(values.device).manual_seed(0)
    size = values.float().square().mean().sqrt() * count
    _, heads, _, width = values.shape
    edge_values = values.new_zeros(1, heads, count, width)
    for window in windows:
        first_row = count - window - EDGE
        rows = edge_values[:, :, first_row : first_row + EDGE + len(PARENTS)]
        rows.copy_(size * torch.randn(rows.shape, generator=generator, device=values.device))
    return values.new_zeros(1, 1, 1, 1).expand(edge_values.shape), edge_values


def _tokens(module: PreTrainedModel) -> list[int]:
    """Token ids of a prefix and of the tree after it."""
    vocab = logits_width(module)
    return [(7 * index + 1) % vocab for index in range(PREFIX + len(PARENTS))]


def _is_long(module: PreTrainedModel, position: int) -> bool:
    """Whether LongRoPE's long frequencies apply at a position."""
    switch = rope_switch(module)
    return switch is not None and position >= switch


@torch.inference_mode()
def own_logits(module: PreTrainedModel, probe: Probe, by_token: bool | None = None) -> Tensor:
    """Logits `[leaves, vocab]` of the untouched module, which reads each path to a leaf as a text.

    One pass reads the shared beginning of the paths, and another the rest of each path, unless `by_token`.

    Args:
        module: the module.
        probe: the tree.
        by_token: whether every token has its own pass; None to let `decodes_otherwise` decide.
    """
    by_token = decodes_otherwise(module) if by_token is None else by_token
    paths = [[probe.nodes[node] for node in _path(leaf)] for leaf in LEAVES]
    if by_token:
        return torch.stack([_read_by_token(module, probe, path) for path in paths])
    cache = _held_rows(module, probe)
    start = probe.start + probe.held
    shared_tokens = [*probe.prefix, probe.nodes[0]]
    _own_pass(module, cache, shared_tokens, start)
    path_logits = [_own_pass(module, deepcopy(cache), path[1:], start + len(shared_tokens)) for path in paths]
    return torch.stack([logits[0, -1].float() for logits in path_logits])


def decodes_otherwise(module: PreTrainedModel) -> bool:
    """Whether a module may compute a single token otherwise than several in a pass.

    Recurrent layers may decode by another formula, and so may modules with hooks or layers of other libraries.
    """
    return bool(recurrent_layers(module)) or not is_plain_module(module)


def _read_by_token(module: PreTrainedModel, probe: Probe, path: list[int]) -> Tensor:
    """Read a path with one pass for each token; the logits `[vocab]` at its end."""
    cache = _held_rows(module, probe)
    logits = torch.empty(0)
    start = probe.start + probe.held
    chunks = [probe.prefix] if probe.prefix else []
    chunks += [[token] for token in path]
    for chunk in chunks:
        logits = _own_pass(module, cache, chunk, start)
        start += len(chunk)
    return logits[0, -1].float()


def _held_rows(module: PreTrainedModel, probe: Probe) -> "_LateCache":
    """A cache of transformers that holds the rows before a probe."""
    cache = _LateCache(probe.start, module.config)
    for layer, (keys, values) in enumerate(probe.rows):
        cache.update(keys, values, layer)
    return cache


def _own_pass(module: PreTrainedModel, cache: Cache, tokens: list[int], start: int) -> Tensor:
    """Run the module; the logits of the last token, or of all if the module cannot leave out the others."""
    logits_option = {"logits_to_keep": 1} if "logits_to_keep" in signature(module.forward).parameters else {}
    ids = torch.tensor([tokens], device=input_device(module))
    positions = start + torch.arange(len(tokens), device=ids.device)[None]
    options = as_cache(module, cache) | logits_option
    return module(input_ids=ids, position_ids=positions, use_cache=True, **options).logits


class _LateCache(DynamicCache):
    """A cache that counts tokens before its first row, for layers that take positions from its length (Llama 4).

    Args:
        start: number of tokens before its rows.
        config: config by which layers keep only the rows of their windows; without one they keep all rows.
    """

    def __init__(self, start: int, config: PreTrainedConfig | None = None) -> None:
        super().__init__(config=config)
        self._start = start

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start + super().get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The number of rows and the position of the first; without the offset, windows would hide all rows."""
        rows, first_position = super().get_mask_sizes(query_length, layer_idx)
        return rows, self._start + first_position


@torch.inference_mode()
def tree_logits(backend: Backend, probe: Probe) -> Tensor:
    """Logits `[leaves, vocab]` of a backend, which scores the whole tree in one pass."""
    return backend.forward([segment_of(backend, probe)])[0].logits[0, LEAVES].float()


@torch.inference_mode()
def segment_of(backend: Backend, probe: Probe) -> Segment:
    """The tree of a probe as a segment, whose KV cache holds the rows and the prefix before it."""
    cache = backend.new_cache(probe.held + len(probe.prefix) + len(probe.nodes))
    cache.long_rope = probe.long_rope
    _hold(cache, probe)
    _read(backend, cache, probe.prefix)
    visible = np.eye(len(PARENTS), dtype=bool)
    for node, parent in enumerate(PARENTS[1:], start=1):
        visible[node] |= visible[parent]
    positions = visible.sum(1) - 1 + probe.start + probe.held + len(probe.prefix)
    return Segment(cache, np.array(probe.nodes), positions, visible)


@torch.inference_mode()
def shares_alike(backend: Backend, module: PreTrainedModel, run: Callable[[list[Segment]], list[Output]]) -> bool:
    """Whether one pass over trees, after prefixes of different lengths, gives the logits of a pass over each tree.

    Layers that compute over neighbouring tokens are an example of those that do not.

    Args:
        backend: runs a pass over each tree alone.
        module: the backend's module.
        run: runs one pass over several trees.
    """
    vocab = logits_width(module)
    probes = make_probes(module)
    probes += [probe._replace(prefix=probe.prefix[: len(probe.prefix) // 3]).shifted(vocab) for probe in probes]
    single_logits = [tree_logits(backend, probe) for probe in probes]
    segments = [segment_of(backend, probe)._replace(wanted=slice(LEAVES[0], None)) for probe in probes]
    try:
        outputs = forward_in_groups(segments, lambda segment: segment.cache.long_rope, run)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a module made for other passes may raise anything
        return False
    leaves = [leaf - LEAVES[0] for leaf in LEAVES]
    shared_logits = [output.logits[0, leaves].float() for output in outputs]
    gaps = map(relative_gap, shared_logits, single_logits)
    return all(gap <= tolerance(module.dtype) for gap in gaps)


def tolerance(dtype: torch.dtype) -> float:
    """The largest `relative_gap` that rounding explains."""
    return TOLERANCE.get(dtype, REDUCED_TOLERANCE)


def relative_gap(logits: Tensor, reference: Tensor) -> float:
    """The largest difference from reference logits, relative to the largest of these if that exceeds 1."""
    return float((logits - reference).abs().max()) / max(float(reference.abs().max()), 1.0)


def _hold(cache: TreeCache, probe: Probe) -> None:
    """Commit the rows of a probe to an empty KV cache."""
    cache.first_position = probe.start
    for layer, (keys, values) in enumerate(probe.rows):
        cache.update(keys, values, layer)
    cache.grow(np.arange(probe.start, probe.start + probe.held))
    cache.commit(range(probe.held))


def _read(backend: Backend, cache: TreeCache, tokens: list[int]) -> None:
    half_length = len(tokens) // 2
    for chunk in filter(None, (tokens[:half_length], tokens[half_length:])):
        append(backend, cache, chunk)


def _path(node: int) -> list[int]:
    return [*(_path(PARENTS[node]) if node else []), node]
