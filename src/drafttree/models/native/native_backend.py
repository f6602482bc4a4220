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
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.machine_memory import machine_memory
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.fused.fused_backend import LLAMAS, is_supported
from drafttree.models.fused.fused_layers import LayerKind, norm_offset
from drafttree.models.fused.fused_linear import LEFT_FREE
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.segment import Output, Segment, split, split_layers

logger = logging.getLogger("drafttree")
CALLS = 1
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

ACTIVATIONS = {
    **{"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu", "ReLU": "relu"},
    **{"NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh"},
}
"""Names of activations in drafttree-native by those of transformers' and torch's classes."""
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

_packed = WeakKeyDictionary[PreTrainedModel, tuple[int, Any]]()
"""The packed model of a module, and a hash of what its weights were."""


def is_native(module: PreTrainedModel) -> bool:
    """Whether passes of a module can be run in one call: the package is here, and knows the family and its dtype."""
    if native is None or module.device.type != "cpu" or module.dtype not in FORMATS or not is_supported(module):
        return False
    if module.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return False  # torch's products of several rows use it; nothing here does yet
    if not all(isinstance(part, nn.Linear) for part in _products(module)) or not _rows_agree(FORMATS[module.dtype]):
        return False
    memory = machine_memory()
    copied = sum(weight.nbytes for weight in module.parameters())
    return module in _packed or memory is None or memory.free - copied > LEFT_FREE * memory.total


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
        embedding: Any = module.get_input_embeddings()
        self._empty: Tensor = embedding.weight.new_empty(0)
        layers = describe(module)
        self._layout = CacheLayout.uniform(len(layers), layers[0].shape["key_heads"], layers[0].shape["width"])
        head: Any = module.get_output_embeddings()
        self._vocab = len(head.weight)
        self._room = -(-self._vocab // native.panel) * native.panel
        stamp = hash(
            tuple(
                (weight.data_ptr(), version(weight), *(tuple(view.flatten().tolist()) for view in samples(weight)))
                for weight in module.parameters()
            )
        )
        if module not in _packed or _packed[module][0] != stamp:
            _packed.pop(module, None)  # two copies at once would take too much memory
            _packed[module] = stamp, pack(module, layers)
        self._model = _packed[module][1]

    @property
    def packed_nbytes(self) -> int:
        return self._model.nbytes

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self._layout, capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if not segments:
            return []
        logits, states = _run(self._model, segments, self._empty, self._room, hidden_layers)
        for segment in segments:
            segment.cache.grow(segment.positions)
        scored = [len(range(segment.nodes)[segment.wanted]) for segment in segments]
        own = split(logits[None, :, : self._vocab], scored)
        return [Output(*each) for each in zip(own, split_layers(segments, states), strict=True)]


def _run(
    model: Any, segments: Sequence[Segment], like: Tensor, room: int, hidden_layers: tuple[int, ...]
) -> tuple[Tensor, list[Tensor]]:
    """A pass: logits `[wanted, room]` in float32, and the states `[1, nodes, hidden]` of layers as `like`."""
    texts, held, nodes, wanted = [], [], 0, 0
    for segment in segments:
        cache, scored = segment.cache, range(segment.nodes)[segment.wanted]
        cache.reserve(like, segment.nodes)
        (buffer,) = cache.buffers
        given = segment.tokens.contiguous(), segment.positions.contiguous(), segment.visible.contiguous()
        held.append(given)  # while the pass reads them
        slot, head = buffer.stride(0) * buffer.itemsize, buffer.stride(2) * buffer.itemsize
        rows = segment.nodes, cache.drafted + segment.nodes, slot, head, cache.length, scored.start, scored.stop
        texts.append([*(each.data_ptr() for each in given), buffer.data_ptr(), *rows])
        nodes, wanted = nodes + segment.nodes, wanted + len(scored)
    # named, since the default dtype and device are the process's, and others change them while they load a model
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    logits = torch.empty(wanted, room, **kind)
    states = [torch.empty(1, nodes, model.hidden, **kind) for _ in hidden_layers]
    asked = [(layer, own.data_ptr()) for layer, own in zip(hidden_layers, states, strict=True)]
    model.forward(torch.get_num_threads(), texts, logits.data_ptr(), room, asked)
    return logits, [own.to(like.dtype) for own in states]


def pack(module: PreTrainedModel, layers: Sequence["NativeLayer"]) -> Any:
    """A model of drafttree-native with a packed copy of a module's weights."""
    decoder: Any = module.get_decoder()
    embedding: Any = module.get_input_embeddings()
    config, form = module.config, FORMATS[module.dtype]
    # Gemma rounds its factor to the dtype of the weights, and so does its module
    scale = torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(module.dtype).item()
    scale = getattr(config, "embedding_multiplier", scale)
    model = native.Model(torch.get_num_threads(), embedding.weight.detach(), scale, form)
    kinds: dict[str | None, int] = {}
    for layer in layers:
        if layer.rotary not in kinds:
            kinds[layer.rotary] = len(kinds)
            prefix = f"{layer.rotary}_" if hasattr(decoder.rotary_emb, f"{layer.rotary}_inv_freq") else ""
            frequencies = getattr(decoder.rotary_emb, f"{prefix}inv_freq").detach().float().contiguous()
            model.add_rotary(frequencies, getattr(decoder.rotary_emb, f"{prefix}attention_scaling"))
        model.add_layer(layer.norms, layer.weights, form, {**layer.shape, "rotary": kinds[layer.rotary]})
    norm = decoder.norm if config.model_type in LLAMAS else decoder.final_layer_norm
    divisor = getattr(config, "logits_scaling", 1.0)
    head: Any = module.get_output_embeddings()
    model.add_head(_norm(norm), _weight(head), form, divisor)
    return model


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
            found.append(_run(model, [segment._replace(wanted=slice(None))], like, 128, ())[0])
            cache.grow(segment.positions)
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
        norms: by place, those that there are.
        weights: by product, the weights it is made of and its bias.
        shape: sizes and numbers of the layer.
        rotary: type of the rotary embedding, None where all layers have the same.
    """

    norms: dict[str, tuple]
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
        self.weights = {"qkv": qkv, "out": _weight(attention.o_proj), "down": _weight(mlp.down_proj)}
        if hasattr(mlp, "gate_up_proj"):
            weights, biases = mlp.gate_up_proj.weight.detach().chunk(2), mlp.gate_up_proj.bias
            halves = (None, None) if biases is None else biases.detach().float().chunk(2)
            for name, weight, bias in zip(("gate", "up"), weights, halves, strict=True):
                self.weights[name] = [weight], bias
        else:
            self.weights |= {"gate": _weight(mlp.gate_proj), "up": _weight(mlp.up_proj)}
        self.norms = _block_norms(block)
        if hasattr(attention, "q_norm"):
            self.norms |= {"query": _norm(attention.q_norm), "key": _norm(attention.k_norm)}
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
            "out": _weight(attention.dense),
            "up": _weight(mlp.dense_h_to_4h),
            "down": _weight(mlp.dense_4h_to_h),
        }
        self.norms = {
            "before_attention": _norm(block.input_layernorm),
            "before_mlp": _norm(block.post_attention_layernorm),
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


def _weight(layer: nn.Linear) -> tuple[list[Tensor], Tensor | None]:
    bias = None if layer.bias is None else layer.bias.detach().float().contiguous()
    return [layer.weight.detach().contiguous()], bias


def _joined(part: Any, joined: str, *names: str) -> tuple[list[Tensor], Tensor | None]:
    """Linear layers of one input, which some families (Phi-3) have as one."""
    layers = [getattr(part, joined)] if hasattr(part, joined) else [getattr(part, name) for name in names]
    weights, biases = zip(*(_weight(layer) for layer in layers), strict=True)
    if all(bias is None for bias in biases):
        return [weight for own in weights for weight in own], None
    parts = zip(biases, layers, strict=True)  # some have one and others none
    filled = [layer.weight.new_zeros(len(layer.weight)).float() if bias is None else bias for bias, layer in parts]
    return [weight for own in weights for weight in own], torch.cat(filled)


def _block_norms(block: Any) -> dict[str, tuple]:
    """The norms of a layer by place; transformers' name of a norm does not always say where it is."""
    names = ["before_attention", "before_mlp"]
    if hasattr(block, "post_feedforward_layernorm"):
        names = ["before_attention", "after_attention", "before_mlp", "after_mlp"]
        if not hasattr(block, "pre_feedforward_layernorm"):
            names = ["after_attention", "after_mlp"]
    attributes = ["input_layernorm", "post_attention_layernorm"]
    attributes += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    found = [getattr(block, attribute) for attribute in attributes if hasattr(block, attribute)]
    return {name: _norm(norm) for name, norm in zip(names, found, strict=True)}


def _norm(norm: Any) -> tuple:
    """Scale, shift, epsilon, and whether the mean is taken off."""
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
