"""The package drafttree-native, if it is installed, and calls of it: passes, chains, and the best tokens of rows."""

import importlib
import logging
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drafttree.core.openmp import openmp_libraries
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.native.products import ProductWeights
from drafttree.models.norms import Norm
from drafttree.models.quantization.blocks import random_blocks
from drafttree.models.segment import Segment

logger = logging.getLogger("drafttree")
CALLS = 10
"""Version of the functions of drafttree-native that are called here; the package must have the same."""
MOST_CANDIDATES = 64
"""Up to this many candidates per row, keeping them sorted is faster than sorting the row."""
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
FLOAT32: Any = {"dtype": torch.float32, "device": "cpu"}
"""Given with every new tensor, since other code changes torch's defaults while it loads a model."""
TRIAL_TOKENS = 19
"""Tokens of the text on which `_rows_agree` compares passes."""


def find_native() -> Any:
    """The package drafttree-native (extra `drafttree[native]`); None if it is missing or, with a warning, unusable."""
    try:
        package = importlib.import_module("drafttree_native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        logger.warning("drafttree-native does not load (%s), so passes run on torch; reinstall it", error)
        return None
    if package.CALLS != CALLS:
        needed_version = "a newer one" if package.CALLS < CALLS else "an older one"
        logger.warning(
            "passes run on torch: this drafttree needs %s of drafttree-native; reinstall both", needed_version
        )
        return None
    for library in openmp_libraries()[:1]:
        package.use_openmp(library)
    return package


native: Any = find_native()


def why_not_packed(
    dtype: torch.dtype, device: torch.device, weight_formats: Collection[torch.dtype | str] = ()
) -> str | None:
    """Why the weights of a model cannot be packed, None if they can.

    Args:
        dtype: dtype of the model.
        device: device of the model.
        weight_formats: other formats of weights: dtypes, and names of blocks.
    """
    if device.type != "cpu":
        return f"weights on {device.type} are not packed"
    if native is None:
        return "drafttree-native is not installed, or cannot be used here"
    if dtype not in FORMATS:
        return f"weights of {str(dtype).removeprefix('torch.')} are not packed"
    if not all(map(_rows_agree, [dtype, *weight_formats])):
        return "this build of drafttree-native computes rows in different ways on this processor"
    return None


@lru_cache
def _rows_agree(weight_format: torch.dtype | str) -> bool:
    """Whether a token's logits are the same in any pass, with this build of drafttree-native on this processor.

    Args:
        weight_format: dtype of the weights, or the name of their blocks.
    """
    width = 512 if isinstance(weight_format, str) else 160  # more than a chunk of a sum in every dtype but float32
    head_width = width if isinstance(weight_format, str) else 32
    cache_dtype = torch.bfloat16 if weight_format == torch.bfloat16 else torch.float32
    model = _trial_model(weight_format, width, head_width, cache_dtype)
    layout = CacheLayout.uniform(1, 1, head_width)
    empty_tensor = torch.empty(0, dtype=cache_dtype, device="cpu")
    logits_of_one_pass = _trial_logits(model, TreeCache(layout, TRIAL_TOKENS), empty_tensor, TRIAL_TOKENS)
    logits_by_token = _trial_logits(model, TreeCache(layout, TRIAL_TOKENS), empty_tensor, 1)
    return torch.equal(logits_of_one_pass[:, :width], logits_by_token[:, :width])


def _trial_model(weight_format: torch.dtype | str, width: int, head_width: int, cache_dtype: torch.dtype) -> Any:
    """A model of drafttree-native with one layer and one attention head, whose weights have this format.

    Args:
        weight_format: dtype of the weights, or the name of their blocks.
        width: size of the vocabulary, and width of the residual stream and of the MLP.
        head_width: width of the attention head.
        cache_dtype: dtype of the KV cache.
    """
    embedding = torch.randn(width, width, generator=torch.Generator().manual_seed(0), **FLOAT32) / 10
    model = native.Model(
        threads=torch.get_num_threads(),
        embeddings=embedding,
        width=width,
        embedding_scale=1.0,
        cached=FORMATS[cache_dtype],
    )
    model.add_rotary(1e-2 ** torch.linspace(0, 1, 16, **FLOAT32), 1.0)
    norm = Norm(scale=torch.ones(width, **FLOAT32), shift=None, epsilon=1e-6, centred=False)
    shape = {
        **{"key_heads": 1, "groups": 1, "width": head_width, "window": None, "scale": 0.2, "multiplier": 1.0},
        **{"rotary": 0, "buffer": 0, "key_slot": 0, "value_slot": 1, "parallel": False, "activation": "silu"},
    }
    products = (
        _block_products(weight_format, width)
        if isinstance(weight_format, str)
        else _trial_products(weight_format, embedding, head_width)
    )
    model.add_layer(norms={"before_attention": norm, "before_mlp": norm}, weights=products, shape=shape)
    model.add_head(norm=norm, weight=products["up"], divisor=1.0, cap=0.0)
    return model


def _block_products(blocks: str, width: int) -> dict[str, ProductWeights]:
    """The products of the trial layer, in the form of `Products.read`, with random blocks as weights.

    The attention head is as wide as the residual stream.
    """
    weight = random_blocks(blocks, width, width)
    qkv = ProductWeights([torch.cat([weight] * 3)], blocks=blocks)
    return {"qkv/0": qkv, **dict.fromkeys(("out", "gate", "up", "down"), ProductWeights([weight], blocks=blocks))}


def _trial_products(dtype: torch.dtype, embedding: Tensor, head_width: int) -> dict[str, ProductWeights]:
    """The products of the trial layer, in the form of `Products.read`, with parts of an embedding `[width, width]`."""
    weight = (embedding * 400).to(dtype) if dtype == torch.int8 else embedding.to(dtype)
    scales = torch.full((len(weight),), 1 / 400, **FLOAT32)
    qkv_width = 3 * head_width
    return {
        "qkv/0": ProductWeights([weight[:qkv_width]], scales=scales[:qkv_width]),
        "out": ProductWeights([weight[:, :head_width].contiguous()], scales=scales),
        **dict.fromkeys(("gate", "up", "down"), ProductWeights([weight], scales=scales)),
    }


def _trial_logits(model: Any, cache: TreeCache, reference_tensor: Tensor, step: int) -> Tensor:
    """Logits `[TRIAL_TOKENS, vocab + padding]` of a text that is read in passes of `step` tokens."""
    logits = []
    for start in range(0, TRIAL_TOKENS, step):
        segment = Segment.of_text(cache, range(start, start + step))
        pass_logits, _ = run_pass(model, [segment._replace(wanted=slice(None))], reference_tensor, ())
        logits.append(pass_logits)
        cache.commit(range(step))
    return torch.cat(logits)


def run_pass(
    model: Any,
    segments: Sequence[Segment],
    reference_tensor: Tensor,
    hidden_layers: Sequence[int],
    input_states: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Run a pass, and append its keys and values to the KV caches.

    Args:
        model: a model of drafttree-native.
        segments: the parts of the pass.
        reference_tensor: an empty tensor of the dtype of the caches.
        hidden_layers: layers whose states are wanted, `BEFORE_NORM` for what the last norm reads.
        input_states: `[1, nodes, hidden]` states that a draft head reads.

    Returns:
        Logits `[wanted, vocab + padding]` and the states `[1, nodes, hidden]` of each layer, all in float32.
    """
    texts = [_pass_text(segment, reference_tensor) for segment in segments]
    nodes = sum(segment.nodes for segment in segments)
    logit_rows = sum(len(segment.wanted_nodes) for segment in segments)
    logits = torch.empty(logit_rows, model.room, **FLOAT32)
    states = [torch.empty(1, nodes, model.hidden, **FLOAT32) for _ in hidden_layers]
    state_addresses = [(layer, state.data_ptr()) for layer, state in zip(hidden_layers, states, strict=True)]
    input_states = None if input_states is None else input_states.float().contiguous()
    model.forward(
        threads=torch.get_num_threads(),
        texts=texts,
        inputs=0 if input_states is None else input_states.data_ptr(),
        logits=logits.data_ptr(),
        states=state_addresses,
    )
    for segment in segments:
        segment.cache.grow(segment.positions)
    return logits, states


def draft_chains(
    model: Any,
    segments: Sequence[Segment],
    reference_tensor: Tensor,
    count: int,
    allowed: int,
    *,
    output: int,
    input_states: Tensor | None = None,
    ids: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draft the best token after each text, the best token after that, and so on, in one call.

    Args:
        model: a model of drafttree-native.
        segments: one node of each text, before which all rows are committed. The rows of the node and of all tokens of
            the chain but the last are appended as drafted rows.
        reference_tensor: an empty tensor of the dtype of the caches.
        count: number of tokens in a chain.
        allowed: number of leading columns of the logits whose tokens may be drafted.
        output: the layer whose states the next pass of a draft head reads.
        input_states: `[1, texts, hidden]` states that a draft head reads.
        ids: token ids by column of the logits, None if column i is token i.

    Returns:
        Tokens and their log-probabilities `[count, texts]`.
    """
    for segment in segments:
        segment.cache.reserve(reference_tensor, count)
    tokens = np.empty((count, len(segments)), np.int64)
    logprobs = np.empty((count, len(segments)), np.float32)
    input_states = None if input_states is None else input_states.float().contiguous()
    model.draft_chains(
        threads=torch.get_num_threads(),
        texts=[_pass_text(segment, reference_tensor) for segment in segments],
        inputs=0 if input_states is None else input_states.data_ptr(),
        output=output,
        allowed=allowed,
        ids=0 if ids is None else ids.data_ptr(),
        tokens=tokens,
        logprobs=logprobs,
    )
    for segment in segments:
        segment.cache.grow(segment.positions + np.arange(count))
    return tokens, logprobs


def _pass_text(segment: Segment, reference_tensor: Tensor) -> Any:
    """Make room for the rows of a segment, and convert it to the form that drafttree-native reads.

    The cache must stay as it is until the pass has run, since its buffers are read in place.
    """
    cache = segment.cache
    nodes = segment.nodes
    cache.reserve(reference_tensor, nodes)
    drafted = cache.drafted + nodes
    if segment.visible.shape != (nodes, drafted):
        raise ValueError(f"of {drafted} drafted rows, the visible ones are {list(segment.visible.shape)}")
    wanted_nodes = segment.wanted_nodes
    return native.PassText(
        tokens=segment.tokens,
        positions=segment.positions,
        visible=segment.visible,
        length=cache.length,
        first_position=cache.first_position,
        long_rope=cache.long_rope,
        wanted_first=wanted_nodes.start,
        wanted_end=wanted_nodes.stop,
        buffers=[_cache_rows(buffer) for buffer in cache.buffers],
    )


def _cache_rows(buffer: Tensor) -> Any:
    """A buffer `[slots, 1, heads, capacity, width]` of a KV cache in the form that drafttree-native reads."""
    slot_stride, _, head_stride, *_ = buffer.stride()
    itemsize = buffer.itemsize
    return native.CacheRows(
        data=buffer.data_ptr(), slot_bytes=slot_stride * itemsize, head_bytes=head_stride * itemsize
    )


def native_candidates(logits: Tensor, count: int, allowed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The log-probabilities and ids, `[rows, count]` each, of the best tokens of each row of logits.

    Of equal logits the lower id comes first. None if drafttree-native is missing or cannot read these logits.

    Args:
        logits: `[rows, columns]`.
        count: number of tokens a row.
        allowed: number of leading columns whose tokens may be returned. The others count in the sum of probabilities.
    """
    is_readable = logits.is_cpu and logits.dtype == torch.float32 and logits.ndim == 2 and logits.stride(1) == 1
    if native is None or not is_readable or not 0 < count <= MOST_CANDIDATES or logits.shape[1] > logits.stride(0):
        return None
    rows, columns = logits.shape
    logprobs = np.empty((rows, count), np.float32)
    tokens = np.empty((rows, count), np.int64)
    native.best_tokens(
        threads=torch.get_num_threads(),
        logits=logits.data_ptr(),
        stride=logits.stride(0),
        columns=columns,
        allowed=allowed,
        logprobs=logprobs,
        tokens=tokens,
    )
    return logprobs, tokens
