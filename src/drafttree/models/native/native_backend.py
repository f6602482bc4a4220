"""The backend that runs a whole pass in one call of drafttree-native, on a CPU.

A token's logits do not depend on what else is in the pass, in any dtype: every output of a product is summed in one
order, and attention runs by absolute positions. So a text is that of plain decoding however it is drafted, alone and
in a batch. `drafttree.models.validation.select_backend` compares it with the module before it prefers it.
"""

import importlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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
from drafttree.models.fused.int8_linear import Int8Linear
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.module.released import (
    Released,
    ReleasedParameters,
    can_release,
    look,
    weights,
)
from drafttree.models.segment import Output, Segment, split, split_layers

logger = logging.getLogger("drafttree")
CALLS = 3
"""The version of what is called of drafttree-native."""
LEFT_FREE = 0.1
"""The share of the machine's memory that packing leaves free."""


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


def is_native(module: PreTrainedModel) -> bool:
    """Whether passes of a module can be run in one call: the package is here, and knows the family and its dtype."""
    if not is_supported(module):
        return False
    products = _products(module)
    if not all(isinstance(part, nn.Linear | Int8Linear) for part in products):
        return False
    if not knows(module.dtype, module.device, any(isinstance(part, Int8Linear) for part in products)):
        return False
    memory = machine_memory()
    copied = sum(look(part)[_name(part)].nbytes for part in products if not _is_released_by(part))
    return not copied or module in _packed or memory is None or memory.free - copied > LEFT_FREE * memory.total


def knows(dtype: torch.dtype, device: torch.device, quantized: bool = False) -> bool:
    """Whether weights of a dtype on a device can be packed, and those of eight bits if some are quantised."""
    if native is None or device.type != "cpu" or dtype not in FORMATS:
        return False
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported() and not quantized:
        return False  # torch's products of several rows use it; nothing here does yet
    return all(map(_rows_agree, [dtype, *([torch.int8] if quantized else [])]))


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
        self._module = module
        head: Any = module.get_output_embeddings()
        self._vocab: int = head.out_features
        packed = _packed.get(module)
        if packed is None or not packed.holds(module):
            packed = None
            _packed.pop(module, None)  # two copies at once would take too much memory
            packed = _packed[module] = PackedModel(module)
        packed.take_back()
        self._model, self._layout = packed.model, packed.layout

    @property
    def packed_nbytes(self) -> int:
        weights = [look(part)[_name(part)] for part in _products(self._module)]
        return sum(weight.nbytes for weight in weights if not isinstance(weight, Released))

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
        allowed, output = min(allowed, self._vocab), len(self._layout.slots)
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


def new_model(embedding: nn.Embedding, entry: tuple | None = None, multiplier: float | None = None) -> Any:
    """A model of drafttree-native without layers.

    Args:
        embedding: of the tokens, read where it lies.
        entry: what a draft head begins with, None if it is none: norms of tokens and of states, the projection of both,
            whether states come first, and whether the residual stream begins with the normed state.
        multiplier: of embeddings, None for the embedding's own.
    """
    weight = embedding.weight.detach()
    # Gemma rounds its factor to the dtype of the weights, and so does its module
    scale = torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(weight.dtype).item()
    scale = scale if multiplier is None else multiplier
    model = native.Model(torch.get_num_threads(), weight, scale, FORMATS[weight.dtype])
    if entry:
        model.add_entry(*entry)
    return model


def add_layer(model: Any, layer: "NativeLayer", rotary: Any, kinds: dict[str | None, int]) -> None:
    """Add a decoder layer.

    Args:
        model: of drafttree-native.
        layer: what has to be known of it.
        rotary: the rotary embedding of a model of transformers.
        kinds: the rotary embeddings that the model has, by type.
    """
    if layer.rotary not in kinds:
        kinds[layer.rotary] = len(kinds)
        prefix = f"{layer.rotary}_" if hasattr(rotary, f"{layer.rotary}_inv_freq") else ""
        frequencies = getattr(rotary, f"{prefix}inv_freq").detach().float().contiguous()
        model.add_rotary(frequencies, getattr(rotary, f"{prefix}attention_scaling"))
    model.add_layer(layer.norms, layer.products.arrays, {**layer.shape, "rotary": kinds[layer.rotary]})


def add_head(model: Any, norm: tuple | None, head: Any, divisor: float = 1.0) -> bool:
    """Add the last norm, if there is one, and the output projection: one that is packed already, where it is the same.

    A draft head often has the target's. Whether it was packed for this model.
    """
    owner = next((packed.model for packed in [*_packed.values()] if packed.has_head(head)), None)
    if owner:
        model.share_head(norm, owner, divisor)
    else:
        model.add_head(norm, weight_of(head), divisor)
    return owner is None


class PackedModel:
    """A model of drafttree-native with a module's weights, which the module's layers release as they are packed.

    Args:
        module: the module.

    Attributes:
        model: the model.
        layout: the layout of its KV caches.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        decoder: Any = module.get_decoder()
        embedding: Any = module.get_input_embeddings()
        config, entry = module.config, None
        if isinstance(embedding, MtpEmbedding):
            projection = weight_of(embedding.eh_proj)
            entry = norm_of(embedding.enorm), norm_of(embedding.hnorm), projection, embedding.states_first, False
            embedding = embedding.embed_tokens
        self.model = new_model(embedding, entry, getattr(config, "embedding_multiplier", None))
        kinds, shape = dict[str | None, int](), dict[str, Any]()
        kind = NativeLlamaLayer if config.model_type in LLAMAS else NativeNeoXLayer
        for index, block in enumerate(decoder.layers):
            layer = kind(block, config)
            add_layer(self.model, layer, decoder.rotary_emb, kinds)
            self._release(index, layer.products)
            shape = layer.shape
        self.layout = CacheLayout.uniform(len(decoder.layers), shape["key_heads"], shape["width"])
        norm = decoder.norm if config.model_type in LLAMAS else decoder.final_layer_norm
        head: Any = module.get_output_embeddings()
        if add_head(self.model, norm_of(norm), head, getattr(config, "logits_scaling", 1.0)):
            products = Products()
            products.places[head] = [Place("head", 0, None)]
            self._release(-1, products)
        self._stamps, self._head = [*map(_stamp, weights(module))], _stamp(look(head)[_name(head)])
        self._head_bias = None if head.bias is None else _stamp(head.bias)

    def has_head(self, layer: Any) -> bool:
        """Whether a linear layer is the output projection that is packed."""
        bias = None if layer.bias is None else _stamp(layer.bias)
        return bias == self._head_bias and _is_stamped(self._head, look(layer)[_name(layer)])

    def holds(self, module: PreTrainedModel) -> bool:
        """Whether a module's weights are those that are packed."""
        now = [*weights(module)]
        return len(now) == len(self._stamps) and all(map(_is_stamped, self._stamps, now))

    def take_back(self) -> None:
        """Let layers release again what they were given back, where that can be."""
        for stamp in self._stamps:
            if isinstance(stamp, Released):
                stamp.owner.take_back()

    def _release(self, index: int, products: "Products") -> None:
        """Let the layers that were packed release their weights."""
        products.arrays.clear()
        for layer, found in products.places.items():
            weight = look(layer)[_name(layer)]
            unpack = partial(_unpack, self.model, index, found, weight.shape, weight.dtype)
            del weight
            if can_release(layer, _name(layer)):
                ReleasedParameters(layer, _name(layer), unpack)
        native.trim_heap()


_packed = WeakKeyDictionary[PreTrainedModel, PackedModel]()
"""The packed models of modules, which several backends may share."""


def _stamp(weight: Any) -> Any:
    if isinstance(weight, Released):
        return weight
    return weight.data_ptr(), version(weight), *(view.flatten().tolist() for view in samples(weight))


def _is_stamped(stamp: Any, weight: Any) -> bool:
    if isinstance(stamp, Released):
        return stamp is weight or stamp.is_unchanged(weight)
    return stamp == _stamp(weight)


def _unpack(model: Any, index: int, places: Sequence["Place"], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A linear layer's weight."""
    whole = torch.empty(shape, dtype=dtype, device="cpu")
    for place in places:
        if len(places) == 1 and place.outputs is None:
            model.unpack(index, place.product, place.first, len(whole), whole.data_ptr())
            continue
        rows = torch.empty((len(place.outputs), shape[1]), dtype=dtype, device="cpu")  # pyright: ignore[reportArgumentType]
        model.unpack(index, place.product, place.first, len(rows), rows.data_ptr())
        whole[place.outputs] = rows
    return whole


@lru_cache
def _rows_agree(dtype: torch.dtype) -> bool:
    """Whether this build computes rows on this processor alike in a pass over all of them and in one over each."""
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    embedding = torch.randn(96, 96, generator=torch.Generator().manual_seed(0), **kind) / 10
    cached = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    model = native.Model(torch.get_num_threads(), embedding, 1.0, FORMATS[cached])
    norm = torch.ones(96, **kind), None, 1e-6, False
    model.add_rotary(1e-2 ** torch.linspace(0, 1, 16, **kind), 1.0)
    sizes = {"key_heads": 1, "groups": 1, "width": 32, "window": None, "scale": 0.2, "multiplier": 1.0, "rotary": 0}
    weight = (embedding * 400).to(dtype) if dtype == torch.int8 else embedding.to(dtype)
    scales = torch.full((96,), 1 / 400, **kind)
    weights = {"out": ([weight[:, :32].contiguous()], None, scales)}
    weights |= dict.fromkeys(("qkv", "gate", "up", "down"), ([weight], None, scales))
    norms = {"before_attention": norm, "before_mlp": norm}
    model.add_layer(norms, weights, {**sizes, "parallel": False, "activation": "silu"})
    model.add_head(norm, ([weight], None, scales), 1.0)
    layout, rows = CacheLayout.uniform(1, 1, 32), 19
    like = torch.empty(0, dtype=cached, device="cpu")
    found = []
    for step in (rows, 1):
        cache = TreeCache(layout, rows)
        for first in range(0, rows, step):
            segment = Segment.of_text(cache, list(range(first, first + step)), torch.device("cpu"))
            found.append(run_pass(model, [segment._replace(wanted=slice(None))], like, ())[0][:, :96])
            cache.commit(range(step))
    return torch.equal(found[0], torch.cat(found[1:]))


class Place(NamedTuple):
    """Where outputs of a linear layer are.

    Attributes:
        product: the product that they are in.
        first: the first of them there.
        outputs: which they are, None for all in order.
    """

    product: str
    first: int
    outputs: Tensor | None


class Products:
    """The products of a decoder layer.

    Attributes:
        arrays: by name, the weights that they are made of, their bias, and the scales of weights of eight bits.
        places: where the outputs of each linear layer are.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, tuple[list[Tensor], Tensor | None, Tensor | None]] = {}
        self.places: dict[Any, list[Place]] = {}

    def add(self, name: str, layers: Sequence[Any], taken: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add the product of linear layers of one input.

        Args:
            name: its name.
            layers: the layers.
            taken: takes those of their outputs that are wanted, of weights `[out, in]` and of vectors `[out]`; all
                without.
        """
        first, take = 0, taken or (lambda rows: rows)
        for layer in layers:
            outputs = taken(torch.arange(layer.out_features, device="cpu")) if taken else None
            self.places.setdefault(layer, []).append(Place(name, first, outputs))
            first += layer.out_features if outputs is None else len(outputs)
        weights = [take(getattr(layer, _name(layer)).detach()).contiguous() for layer in layers]
        is_int8 = isinstance(layers[0], Int8Linear)
        scales = torch.cat([take(layer.scale.detach()) for layer in layers]) if is_int8 else None
        biases = [  # some may have one and others none
            torch.zeros(layer.out_features, dtype=torch.float32) if layer.bias is None else layer.bias.detach().float()
            for layer in layers
        ]
        has_bias = any(layer.bias is not None for layer in layers)
        self.arrays[name] = weights, torch.cat([take(bias) for bias in biases]) if has_bias else None, scales


class NativeLayer:
    """What drafttree-native has to know of a decoder layer.

    Attributes:
        norms: by place; None or nothing for none.
        products: its products.
        shape: sizes and numbers of the layer.
        rotary: type of the rotary embedding, None where all layers have the same.
    """

    norms: dict[str, tuple | None]
    products: Products
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
        joined = hasattr(attention, "qkv_proj")  # as in Phi-3
        qkv = [attention.qkv_proj] if joined else [attention.q_proj, attention.k_proj, attention.v_proj]
        self.products = Products()
        for name, layers in (("qkv", qkv), ("out", [attention.o_proj]), ("down", [mlp.down_proj])):
            self.products.add(name, layers)
        for half, name in enumerate(("gate", "up")):
            if hasattr(mlp, "gate_up_proj"):
                self.products.add(name, [mlp.gate_up_proj], lambda rows, half=half: rows.chunk(2)[half])
            else:
                self.products.add(name, [getattr(mlp, f"{name}_proj")])
        self.norms = _block_norms(block)
        if hasattr(attention, "q_norm"):
            self.norms |= {"query": norm_of(attention.q_norm), "key": norm_of(attention.k_norm)}
        activation = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
        outputs = sum(layer.out_features for layer in qkv)
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
        self.products = Products()
        self.products.add(
            "qkv",
            [attention.query_key_value],
            lambda rows: rows.unflatten(0, (heads, 3, width)).transpose(0, 1).flatten(0, 2),
        )
        parts = {"out": attention.dense, "up": mlp.dense_h_to_4h, "down": mlp.dense_4h_to_h}
        for name, part in parts.items():
            self.products.add(name, [part])
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


def weight_of(layer: Any) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """The product of a linear layer alone, as of `Products.arrays`."""
    products = Products()
    products.add("own", [layer])
    return products.arrays["own"]


def _name(layer: Any) -> str:
    """The name of a linear layer's weight."""
    return "quantized" if isinstance(layer, Int8Linear) else "weight"


def _is_released_by(layer: Any) -> bool:
    """Whether a layer has released its weight, or could."""
    return isinstance(look(layer)[_name(layer)], Released) or can_release(layer, _name(layer))


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
