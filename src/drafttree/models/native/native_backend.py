"""The backend that runs a whole pass in one call of drafttree-native, on a CPU.

A token's logits do not depend on what else is in the pass, in any dtype: every output of a product is summed in one
order, and attention runs by absolute positions. So a text is that of plain decoding however it is drafted, alone and
in a batch. `drafttree.models.validation.select_backend` compares it with the module before it prefers it.
"""

import importlib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.machine_memory import machine_memory
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.fused.fused_backend import LLAMAS, is_supported
from drafttree.models.fused.fused_layers import LayerKind, norm_offset
from drafttree.models.fused.fused_linear import LEFT_FREE
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.segment import Output, Segment, split, split_layers

logger = logging.getLogger("drafttree")
CALLS = 2
"""The version of what is called of drafttree-native."""


def find_native() -> Any:
    """The package drafttree-native, an extra (`drafttree[native]`); None where there is none that can be used."""
    try:
        found = importlib.import_module("drafttree_native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        logger.warning("drafttree-native does not load (%s), so passes run on torch; install it anew", error)
        return None
    if found.CALLS != CALLS:
        needed = "a newer one" if found.CALLS < CALLS else "an older one"
        logger.warning("passes run on torch: this drafttree needs %s of drafttree-native; install both anew", needed)
        return None
    if library := _openmp():
        found.use_openmp(library)
    return found


def _openmp() -> str | None:
    """The path of the OpenMP library that torch has loaded; None where the system does not tell."""
    try:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return None
    found = [path for path in mapped if re.search(r"/lib(g|i)?omp\d*[-.\w]*\.so", path)]
    return next((path for path in found if "torch" in path), next(iter(found), None))


native: Any = find_native()

MOST_CANDIDATES = 64
"""Tokens of a row for which keeping them sorted is faster than sorting the row."""

ACTIVATIONS = {
    **{"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu", "ReLU": "relu"},
    **{"NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh"},
}
"""Names of activations in drafttree-native by those of transformers' and torch's classes."""
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

BEFORE_NORM = -1
"""Stands for the layer whose states are what the last norm reads."""


class Packed(NamedTuple):
    """A packed model.

    Attributes:
        model: of drafttree-native.
        stamp: a hash of what the module's weights were.
        head: what its output projection was, by `_identity`.
    """

    model: Any
    stamp: int
    head: tuple


_packed = WeakKeyDictionary[PreTrainedModel, Packed]()
"""The packed models of modules."""


def is_native(module: PreTrainedModel) -> bool:
    """Whether passes of a module can be run in one call: the package is here, and knows the family and its dtype."""
    if not knows(module.dtype, module.device) or not is_supported(module):
        return False
    if not all(isinstance(part, nn.Linear) for part in _products(module)):
        return False
    memory = machine_memory()
    copied = sum(weight.nbytes for weight in module.parameters())
    return module in _packed or memory is None or memory.free - copied > LEFT_FREE * memory.total


def knows(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of a dtype on a device can be packed."""
    if native is None or device.type != "cpu" or dtype not in FORMATS:
        return False
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return False  # torch's products of several rows use it; nothing here does yet
    return _rows_agree(FORMATS[dtype])


class NativeBackend:
    """Runs passes in one call. See `drafttree.models.base.Backend` for the protocol.

    Args:
        module: a model for which `is_native` is true.

    Raises:
        AttributeError: a layer is not as those of its family.
        ValueError: sizes of layers do not fit together.
    """

    exact_text = True
    lossy_window = None
    shares_passes = True

    def __init__(self, module: PreTrainedModel) -> None:
        self.device = module.device
        self._embedding: Any = module.get_input_embeddings()
        self._empty: Tensor = self._embedding.weight.new_empty(0)
        layers = describe(module)
        self._layers = len(layers)
        self._layout = CacheLayout.uniform(len(layers), layers[0].shape["key_heads"], layers[0].shape["width"])
        head: Any = module.get_output_embeddings()
        self._vocab = len(head.weight)
        stamp = hash(
            tuple(
                (weight.data_ptr(), version(weight), *(tuple(view.flatten().tolist()) for view in samples(weight)))
                for weight in module.parameters()
            )
        )
        if module not in _packed or _packed[module].stamp != stamp:
            _packed.pop(module, None)  # two copies at once would take too much memory
            _packed[module] = Packed(pack(module, layers), stamp, _identity(head))
        self._model = _packed[module].model

    @property
    def packed_nbytes(self) -> int:
        return self._model.nbytes

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self._layout, capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if not segments:
            return []
        read = self._embedding.read_states(segments) if isinstance(self._embedding, MtpEmbedding) else None
        logits, states = run_pass(self._model, segments, self._empty, hidden_layers, read)
        scored = [len(range(segment.nodes)[segment.wanted]) for segment in segments]
        own = split(logits[None, :, : self._vocab], scored)
        kept = [state.to(self._empty.dtype) for state in states]
        return [Output(*each) for each in zip(own, split_layers(segments, kept), strict=True)]

    def draft_chains(
        self, segments: Sequence[Segment], count: int, allowed: int, states: Tensor | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft chains behind a node of each text; states `[1, texts, hidden]` are what an MTP layer reads.

        See `draft_chains`.
        """
        output, allowed = self._layers, min(allowed, self._vocab)
        return draft_chains(self._model, segments, self._empty, count, allowed, output=output, read=states)


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
    texts, _held = _texts(segments, like)
    nodes, wanted = sum(segment.nodes for segment in segments), sum(text[-1] - text[-2] for text in texts)
    # named, since the default dtype and device are the process's, and others change them while they load a model
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    logits = torch.empty(wanted, model.room, **kind)
    states = [torch.empty(1, nodes, model.hidden, **kind) for _ in hidden_layers]
    asked = [(layer, own.data_ptr()) for layer, own in zip(hidden_layers, states, strict=True)]
    read = None if read is None else read.float().contiguous()
    model.forward(
        torch.get_num_threads(), texts, 0 if read is None else read.data_ptr(), logits.data_ptr(), model.room, asked
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
    output: int = BEFORE_NORM,
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
    texts, _held = _texts(segments, like)
    tokens, logprobs = np.empty((count, len(texts)), np.int64), np.empty((count, len(texts)), np.float32)
    read = None if read is None else read.float().contiguous()
    given = 0 if read is None else read.data_ptr(), output, count, allowed, 0 if ids is None else ids.data_ptr()
    model.draft_chains(torch.get_num_threads(), texts, *given, tokens.ctypes.data, logprobs.ctypes.data)
    for segment in segments:
        segment.cache.grow(segment.positions + torch.arange(count, device="cpu"))
    return tokens, logprobs


def _texts(segments: Sequence[Segment], like: Tensor) -> tuple[list[list[int]], list[object]]:
    """The texts of a pass as drafttree-native reads them, and what must be held meanwhile."""
    texts, held = list[list[int]](), list[object]()
    for segment in segments:
        cache, scored = segment.cache, range(segment.nodes)[segment.wanted]
        cache.reserve(like, segment.nodes)
        (buffer,) = cache.buffers
        given = segment.tokens.contiguous(), segment.positions.contiguous(), segment.visible.contiguous()
        held.append(given)
        slot, head = buffer.stride(0) * buffer.itemsize, buffer.stride(2) * buffer.itemsize
        seen = cache.drafted + segment.nodes
        if given[2].shape != (1, segment.nodes, seen):
            raise ValueError(f"of {seen} drafted rows, the visible ones are {list(given[2].shape)}")
        rows = segment.nodes, seen, slot, head, cache.length, scored.start, scored.stop
        texts.append([*(each.data_ptr() for each in given), buffer.data_ptr(), *rows])
    return texts, held


def native_candidates(logits: Tensor, count: int, allowed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The log-probabilities and ids `[rows, count]` of the best tokens of logits `[rows, columns]`.

    Of equal ones the lower id is the better. None where torch has to look.

    Args:
        logits: of all columns.
        count: tokens of a row.
        allowed: columns that tokens may be of; the others count among the probabilities.
    """
    fits = logits.is_cpu and logits.dtype == torch.float32 and logits.ndim == 2 and logits.stride(1) == 1
    if native is None or not fits or not 0 < count <= MOST_CANDIDATES or logits.shape[1] > logits.stride(0):
        return None
    rows, columns = logits.shape
    logprobs, tokens = np.empty((rows, count), np.float32), np.empty((rows, count), np.int64)
    given = logits.data_ptr(), rows, logits.stride(0), columns, allowed, count, logprobs.ctypes.data, tokens.ctypes.data
    native.best_tokens(torch.get_num_threads(), *given)
    return logprobs, tokens


def pack(module: PreTrainedModel, layers: Sequence["NativeLayer"]) -> Any:
    """A model of drafttree-native with a packed copy of a module's weights."""
    decoder: Any = module.get_decoder()
    embedding: Any = module.get_input_embeddings()
    config, entry = module.config, None
    if isinstance(embedding, MtpEmbedding):
        norms = norm_of(embedding.enorm), norm_of(embedding.hnorm)
        entry = *norms, weight_of(embedding.eh_proj), FORMATS[module.dtype], embedding.states_first, False
        embedding = embedding.embed_tokens
    model = pack_layers(embedding, layers, decoder.rotary_emb, entry, getattr(config, "embedding_multiplier", None))
    norm = decoder.norm if config.model_type in LLAMAS else decoder.final_layer_norm
    add_head(model, norm_of(norm), module.get_output_embeddings(), getattr(config, "logits_scaling", 1.0))
    return model


def pack_layers(
    embedding: nn.Embedding,
    layers: Sequence["NativeLayer"],
    rotary: Any,
    entry: tuple | None = None,
    multiplier: float | None = None,
) -> Any:
    """A model of drafttree-native without its head.

    Args:
        embedding: of the tokens, read where it lies.
        layers: what has to be known of the decoder layers.
        rotary: the rotary embedding of a model of transformers.
        entry: what a draft head begins with, None if it is none: norms of tokens and of states, the projection of both,
            its format, whether states come first, and whether the residual stream begins with the normed state.
        multiplier: of embeddings, None for the embedding's own.
    """
    weight = embedding.weight.detach()
    form = FORMATS[weight.dtype]
    # Gemma rounds its factor to the dtype of the weights, and so does its module
    scale = torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(weight.dtype).item()
    model = native.Model(torch.get_num_threads(), weight, scale if multiplier is None else multiplier, form)
    if entry:
        model.add_entry(*entry)
    kinds: dict[str | None, int] = {}
    for layer in layers:
        if layer.rotary not in kinds:
            kinds[layer.rotary] = len(kinds)
            prefix = f"{layer.rotary}_" if hasattr(rotary, f"{layer.rotary}_inv_freq") else ""
            frequencies = getattr(rotary, f"{prefix}inv_freq").detach().float().contiguous()
            model.add_rotary(frequencies, getattr(rotary, f"{prefix}attention_scaling"))
        model.add_layer(layer.norms, layer.weights, form, {**layer.shape, "rotary": kinds[layer.rotary]})
    return model


def add_head(model: Any, norm: tuple | None, head: Any, divisor: float = 1.0) -> None:
    """Add the last norm, if there is one, and the output projection: one that is packed already, where it is the same.

    A draft head often has the target's.
    """
    owner = next((packed.model for packed in _packed.values() if packed.head == _identity(head)), None)
    if owner:
        model.share_head(norm, owner, divisor)
    else:
        model.add_head(norm, weight_of(head), FORMATS[head.weight.dtype], divisor)


@lru_cache
def _rows_agree(form: str) -> bool:
    """Whether this build computes rows on this processor alike in a pass over all of them and in one over each."""
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    weight = torch.randn(96, 96, generator=torch.Generator().manual_seed(0), **kind) / 10
    model = native.Model(torch.get_num_threads(), weight, 1.0, form)
    norm = torch.ones(96, **kind), None, 1e-6, False
    model.add_rotary(1e-2 ** torch.linspace(0, 1, 16, **kind), 1.0)
    sizes = {"key_heads": 1, "groups": 1, "width": 32, "window": None, "scale": 0.2, "multiplier": 1.0, "rotary": 0}
    weights = {"qkv": ([weight], None), "out": ([weight[:, :32].contiguous()], None)}
    weights |= dict.fromkeys(("gate", "up", "down"), ([weight], None))
    norms = {"before_attention": norm, "before_mlp": norm}
    model.add_layer(norms, weights, form, {**sizes, "parallel": False, "activation": "silu"})
    model.add_head(norm, ([weight], None), form, 1.0)
    layout, rows = CacheLayout.uniform(1, 1, 32), 19
    like = torch.empty(0, dtype={name: dtype for dtype, name in FORMATS.items()}[form], device="cpu")
    found = []
    for step in (rows, 1):
        cache = TreeCache(layout, rows)
        for first in range(0, rows, step):
            segment = Segment.of_text(cache, list(range(first, first + step)), torch.device("cpu"))
            found.append(run_pass(model, [segment._replace(wanted=slice(None))], like, ())[0][:, :96])
            cache.commit(range(step))
    return torch.equal(found[0], torch.cat(found[1:]))


def describe(module: PreTrainedModel) -> list["NativeLayer"]:
    """The decoder layers of a module.

    Raises:
        AttributeError: a layer is not as those of its family.
    """
    decoder: Any = module.get_decoder()
    layer = NativeLlamaLayer if module.config.model_type in LLAMAS else NativeNeoXLayer
    return [layer(block, module.config) for block in decoder.layers]


class NativeLayer:
    """What drafttree-native has to know of a decoder layer.

    Attributes:
        norms: by place; None or nothing for none.
        weights: by product, the weights it is made of and its bias.
        shape: sizes and numbers of the layer.
        rotary: type of the rotary embedding, None where all layers have the same.
    """

    norms: dict[str, tuple | None]
    weights: dict[str, tuple]
    shape: dict[str, Any]
    rotary: str | None


class NativeLlamaLayer(NativeLayer):
    """A layer of the Llama kind; see `drafttree.models.fused.fused_layers.LlamaLayer`."""

    def __init__(self, block: Any, config: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        kind = LayerKind.of(attention)
        if kind.span.chunk is not None:
            raise AttributeError("layers that attend in chunks are not known")
        self.rotary = kind.layer_type
        width, groups = attention.head_dim, attention.num_key_value_groups
        qkv = _joined(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
        self.weights = {"qkv": qkv, "out": weight_of(attention.o_proj), "down": weight_of(mlp.down_proj)}
        if hasattr(mlp, "gate_up_proj"):
            weights, biases = mlp.gate_up_proj.weight.detach().chunk(2), mlp.gate_up_proj.bias
            halves = (None, None) if biases is None else biases.detach().float().chunk(2)
            for name, weight, bias in zip(("gate", "up"), weights, halves, strict=True):
                self.weights[name] = [weight], bias
        else:
            self.weights |= {"gate": weight_of(mlp.gate_proj), "up": weight_of(mlp.up_proj)}
        self.norms = _block_norms(block)
        if hasattr(attention, "q_norm"):
            self.norms |= {"query": norm_of(attention.q_norm), "key": norm_of(attention.k_norm)}
        activation = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
        outputs = sum(len(weight) for weight in qkv[0])
        self.shape = {
            "key_heads": outputs // width // (2 + groups),
            "groups": groups,
            "width": width,
            "window": kind.span.window,
            "scale": attention.scaling,
            "multiplier": getattr(block, "residual_multiplier", 1.0),
            "parallel": False,
            "activation": _activation(activation),
        }


class NativeNeoXLayer(NativeLayer):
    """A layer of GPT-NeoX, whose queries, keys and values are interleaved by heads in the module."""

    rotary = None

    def __init__(self, block: Any, config: Any) -> None:
        attention, mlp = block.attention, block.mlp
        heads, width = config.num_attention_heads, attention.head_size
        weight = attention.query_key_value.weight.detach().unflatten(0, (heads, 3, width))
        bias = attention.query_key_value.bias
        by_kind = None if bias is None else bias.detach().float().view(heads, 3, width).transpose(0, 1).flatten()
        self.weights = {
            "qkv": ([weight[:, kind].flatten(0, 1).contiguous() for kind in range(3)], by_kind),
            "out": weight_of(attention.dense),
            "up": weight_of(mlp.dense_h_to_4h),
            "down": weight_of(mlp.dense_4h_to_h),
        }
        self.norms = {
            "before_attention": norm_of(block.input_layernorm),
            "before_mlp": norm_of(block.post_attention_layernorm),
        }
        self.shape = {
            "key_heads": heads,
            "groups": 1,
            "width": width,
            "window": None,
            "scale": attention.scaling,
            "multiplier": 1.0,
            "parallel": block.use_parallel_residual,
            "activation": _activation(mlp.act),
        }


def _products(module: PreTrainedModel) -> list[Any]:
    decoder: Any = module.get_decoder()
    return [part for part in decoder.layers.modules() if hasattr(part, "in_features")] + [
        module.get_output_embeddings()
    ]


def _identity(layer: nn.Linear) -> tuple:
    """What tells a linear layer from others, and from what it was before an edit."""
    bias = None if layer.bias is None else (layer.bias.data_ptr(), version(layer.bias))
    return layer.weight.data_ptr(), version(layer.weight), layer.weight.shape, bias


def weight_of(layer: nn.Linear) -> tuple[list[Tensor], Tensor | None]:
    bias = None if layer.bias is None else layer.bias.detach().float().contiguous()
    return [layer.weight.detach().contiguous()], bias


def _joined(part: Any, joined: str, *names: str) -> tuple[list[Tensor], Tensor | None]:
    """Linear layers of one input, which some families (Phi-3) have as one."""
    layers = [getattr(part, joined)] if hasattr(part, joined) else [getattr(part, name) for name in names]
    weights, biases = zip(*(weight_of(layer) for layer in layers), strict=True)
    if all(bias is None for bias in biases):
        return [weight for own in weights for weight in own], None
    parts = zip(biases, layers, strict=True)  # some have one and others none
    filled = [layer.weight.new_zeros(len(layer.weight)).float() if bias is None else bias for bias, layer in parts]
    return [weight for own in weights for weight in own], torch.cat(filled)


def _block_norms(block: Any) -> dict[str, tuple | None]:
    """The norms of a layer by place; transformers' name of a norm does not always say where it is."""
    names = ["before_attention", "before_mlp"]
    if hasattr(block, "post_feedforward_layernorm"):
        names = ["before_attention", "after_attention", "before_mlp", "after_mlp"]
        if not hasattr(block, "pre_feedforward_layernorm"):
            names = ["after_attention", "after_mlp"]
    attributes = ["input_layernorm", "post_attention_layernorm"]
    attributes += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    found = [getattr(block, attribute) for attribute in attributes if hasattr(block, attribute)]
    return {name: norm_of(norm) for name, norm in zip(names, found, strict=True)}


def norm_of(norm: Any) -> tuple | None:
    """Scale, shift, epsilon, and whether the mean is taken off; None for no norm."""
    if isinstance(norm, nn.Identity):
        return None
    weight = norm.weight.detach().float()
    if isinstance(norm, nn.LayerNorm):
        return weight, None if norm.bias is None else norm.bias.detach().float(), norm.eps, True
    offset = norm_offset(norm, norm.weight.detach())
    if offset is None:
        raise AttributeError(f"{type(norm).__name__} is no norm that is known")
    return weight + offset, None, getattr(norm, "variance_epsilon", getattr(norm, "eps", None)), False


def _activation(function: Any) -> str:
    name = type(function).__name__
    if name not in ACTIVATIONS or getattr(function, "approximate", "none") not in ("none", "tanh"):
        raise AttributeError(f"{name} is no activation that is known")
    return "gelu_tanh" if getattr(function, "approximate", "none") == "tanh" else ACTIVATIONS[name]
