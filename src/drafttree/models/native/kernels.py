"""The package drafttree-native, where there is one, and its calls: passes, chains, and the best tokens of rows."""

import importlib
import logging
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.openmp import openmp_libraries
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.quantization.blocks import random_blocks
from drafttree.models.segment import Segment

logger = logging.getLogger("drafttree")
CALLS = 9
"""The version of what is called of drafttree-native."""
MOST_CANDIDATES = 64
"""Tokens of a row for which keeping them sorted is faster than sorting the row."""
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def find_native() -> Any:
    """The package drafttree-native, an extra (`drafttree[native]`); None where there is none that can be used."""
    try:
        package = importlib.import_module("drafttree_native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        logger.warning("drafttree-native does not load (%s), so passes run on torch; install it anew", error)
        return None
    if package.CALLS != CALLS:
        needed_version = "a newer one" if package.CALLS < CALLS else "an older one"
        logger.warning(
            "passes run on torch: this drafttree needs %s of drafttree-native; install both anew", needed_version
        )
        return None
    for library in openmp_libraries()[:1]:
        package.use_openmp(library)
    return package


native: Any = find_native()


def why_not_packed(dtype: torch.dtype, device: torch.device, kinds: Collection[torch.dtype | str] = ()) -> str | None:
    """Why a model of a dtype on a device is not packed, some of whose weights are of other kinds; None if it can be.

    Args:
        dtype: its dtype.
        device: where it is.
        kinds: as of `_rows_agree`.
    """
    if device.type != "cpu":
        return f"weights on {device.type} are not packed"
    if native is None:
        return "drafttree-native is not installed, or cannot be used here"
    if dtype not in FORMATS:
        return f"weights of {str(dtype).removeprefix('torch.')} are not packed"
    if not all(map(_rows_agree, [dtype, *kinds])):
        return "this build of drafttree-native computes rows in different ways on this processor"
    return None


@lru_cache
def _rows_agree(kind: torch.dtype | str) -> bool:
    """Whether this build computes rows on this processor alike in a pass over all of them and in one over each.

    Args:
        kind: dtype of the weights, or the name of the blocks that they are.
    """
    width = 512 if isinstance(kind, str) else 160  # more than a chunk, in every dtype but float32
    options: Any = {"dtype": torch.float32, "device": "cpu"}
    embedding = torch.randn(width, width, generator=torch.Generator().manual_seed(0), **options) / 10
    cache_dtype = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    model = native.Model(torch.get_num_threads(), embedding, width, 1.0, FORMATS[cache_dtype])
    norm = torch.ones(width, **options), None, 1e-6, False
    model.add_rotary(1e-2 ** torch.linspace(0, 1, 16, **options), 1.0)
    sizes = {
        "key_heads": 1,
        "groups": 1,
        "width": width if isinstance(kind, str) else 32,
        "window": None,
        "scale": 0.2,
        "multiplier": 1.0,
    }
    sizes |= {"rotary": 0, "buffer": 0, "key_slot": 0, "value_slot": 1}
    if isinstance(kind, str):
        weight = random_blocks(kind, width, width)
        scales = None
        blocks = kind
        qkv_weight = torch.cat([weight] * 3)
    else:
        weight = (embedding * 400).to(kind) if kind == torch.int8 else embedding.to(kind)
        scales = torch.full((width,), 1 / 400, **options)
        blocks = None
        qkv_weight = weight[:96]
    weight_arrays = [weight], None, scales, blocks
    out_weight = weight if blocks else weight[:, :32].contiguous()
    weights = {"qkv/0": ([qkv_weight], None, None if scales is None else scales[:96], blocks)}
    weights |= {"out": ([out_weight], None, scales, blocks)} | dict.fromkeys(("gate", "up", "down"), weight_arrays)
    norms = {"before_attention": norm, "before_mlp": norm}
    model.add_layer(norms, weights, {**sizes, "parallel": False, "activation": "silu"})
    model.add_head(norm, weight_arrays, 1.0, 0.0)
    layout = CacheLayout.uniform(1, 1, sizes["width"])
    rows = 19
    empty_tensor = torch.empty(0, dtype=cache_dtype, device="cpu")
    logits = []
    for step in (rows, 1):
        cache = TreeCache(layout, rows)
        for start in range(0, rows, step):
            segment = Segment.of_text(cache, range(start, start + step))
            logits.append(run_pass(model, [segment._replace(wanted=slice(None))], empty_tensor, ())[0][:, :width])
            cache.commit(range(step))
    return torch.equal(logits[0], torch.cat(logits[1:]))


def run_pass(
    model: Any, segments: Sequence[Segment], like: Tensor, hidden_layers: Sequence[int], read: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Run a pass; keys and values join the KV caches.

    Args:
        model: of drafttree-native.
        segments: the texts.
        like: an empty tensor of the dtype of the caches.
        hidden_layers: layers whose states are wanted, `BEFORE_NORM` for what the last norm reads.
        read: `[1, nodes, hidden]` states that a draft head reads.

    Returns:
        Logits `[wanted, vocab]` with room behind each row, and the states `[1, nodes, hidden]`, all in float32.
    """
    texts, _arrays = _texts(segments, like)
    nodes = sum(segment.nodes for segment in segments)
    logit_rows = sum(len(range(segment.nodes)[segment.wanted]) for segment in segments)
    # named, since the default dtype and device are the process's, and others change them while they load a model
    options: Any = {"dtype": torch.float32, "device": "cpu"}
    logits = torch.empty(logit_rows, model.room, **options)
    states = [torch.empty(1, nodes, model.hidden, **options) for _ in hidden_layers]
    state_addresses = [(layer, state.data_ptr()) for layer, state in zip(hidden_layers, states, strict=True)]
    read = None if read is None else read.float().contiguous()
    model.forward(
        torch.get_num_threads(),
        texts,
        0 if read is None else read.data_ptr(),
        logits.data_ptr(),
        model.room,
        state_addresses,
    )
    for segment in segments:
        segment.cache.grow(segment.positions)
    return logits, states


def draft_chains(
    model: Any,
    segments: Sequence[Segment],
    like: Tensor,
    count: int,
    allowed: int,
    *,
    output: int,
    read: Tensor | None = None,
    ids: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draft the best token behind each text, the best behind that, and so on; every node but the last is expanded.

    Args:
        model: of drafttree-native.
        segments: a node of each text, whose rows are committed.
        like: an empty tensor of the dtype of the caches.
        count: tokens of a chain.
        allowed: columns of logits whose tokens may be drafted.
        output: the layer whose states the next pass of a draft head reads.
        read: `[1, texts, hidden]` states that a draft head reads.
        ids: the tokens that columns stand for, None for themselves.

    Returns:
        Tokens and their log-probabilities `[count, texts]`.
    """
    for segment in segments:
        segment.cache.reserve(like, count)
    texts, _arrays = _texts(segments, like)
    tokens = np.empty((count, len(texts)), np.int64)
    logprobs = np.empty((count, len(texts)), np.float32)
    read = None if read is None else read.float().contiguous()
    arguments = 0 if read is None else read.data_ptr(), output, count, allowed, 0 if ids is None else ids.data_ptr()
    model.draft_chains(torch.get_num_threads(), texts, *arguments, tokens.ctypes.data, logprobs.ctypes.data)
    for segment in segments:
        segment.cache.grow(segment.positions + np.arange(count))
    return tokens, logprobs


def _texts(segments: Sequence[Segment], like: Tensor) -> tuple[list[list[int]], list[Array]]:
    """The texts of a pass as drafttree-native reads them, and the arrays that must live until it has."""
    arrays = [
        np.ascontiguousarray(_joined([segment.tokens for segment in segments]), dtype=np.int64),
        np.ascontiguousarray(_joined([segment.positions for segment in segments]), dtype=np.int64),
        np.ascontiguousarray(_joined([segment.visible for segment in segments]), dtype=bool),
    ]
    tokens, positions, visible = (array.__array_interface__["data"][0] for array in arrays)
    texts = list[list[int]]()
    for segment in segments:
        cache = segment.cache
        nodes = segment.nodes
        cache.reserve(like, nodes)
        drafted = cache.drafted + nodes
        if segment.visible.shape != (nodes, drafted):
            raise ValueError(f"of {drafted} drafted rows, the visible ones are {list(segment.visible.shape)}")
        scored_nodes = range(nodes)[segment.wanted]
        rows = (
            nodes,
            drafted,
            cache.length,
            cache.first_position,
            int(cache.long_rope),
            scored_nodes.start,
            scored_nodes.stop,
        )
        texts.append([tokens, positions, visible, *rows, *cache.addresses])
        tokens, positions, visible = tokens + 8 * nodes, positions + 8 * nodes, visible + nodes * drafted
    return texts, arrays


def _joined(arrays: Sequence[Array]) -> Array:
    """Numbers behind each other; those of a lone text are not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1) for array in arrays])


def native_candidates(logits: Tensor, count: int, allowed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The log-probabilities and ids `[rows, count]` of the best tokens of logits `[rows, columns]`.

    Of equal ones the lower id is the better. None where torch has to look.

    Args:
        logits: of all columns.
        count: tokens of a row.
        allowed: columns that tokens may be of; the others count among the probabilities.
    """
    is_readable = logits.is_cpu and logits.dtype == torch.float32 and logits.ndim == 2 and logits.stride(1) == 1
    if native is None or not is_readable or not 0 < count <= MOST_CANDIDATES or logits.shape[1] > logits.stride(0):
        return None
    rows, columns = logits.shape
    logprobs = np.empty((rows, count), np.float32)
    tokens = np.empty((rows, count), np.int64)
    arguments = (
        logits.data_ptr(),
        rows,
        logits.stride(0),
        columns,
        allowed,
        count,
        logprobs.ctypes.data,
        tokens.ctypes.data,
    )
    native.best_tokens(torch.get_num_threads(), *arguments)
    return logprobs, tokens
