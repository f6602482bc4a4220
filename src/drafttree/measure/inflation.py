"""Cost inflation: builds a larger model that computes the same function as a small one.

The embedded pair is small, so its passes cost little and its speed-ups say little about large targets. An inflated
target gives the embedded target's logits, and hence its real acceptance, at the cost of a large target. Weights that
write to the residual stream are padded with zeros, and all others with random values, so that no product is trivially
zero. Norm weights are scaled by the square root of the ratio of widths. That is exact in binary if the ratio is a power
of four. Added layers have output projections of zero.
"""

import copy
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from drafttree.core.errors import ConfigError
from drafttree.drafters import MixedDrafter
from drafttree.drafters.base import Drafter, HiddenStates, Session
from drafttree.engine.decoder import Decoder
from drafttree.loading import choose_drafter, find_device, find_drafter, find_dtype, load_model, load_tokenizer
from drafttree.loading.load import load
from drafttree.loading.target_options import BY_DEFAULT, NONE, apply_quantization, check_quantization
from drafttree.measure.reference import transformers_model
from drafttree.measure.shapes import Shape, find_shape
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend

NOISE = 1 << 20
"""Number of random values that are drawn; added weights repeat them."""


@torch.no_grad()
def inflate(model: PreTrainedModel, shape: Shape) -> PreTrainedModel:
    """Build a model of a larger shape with the same logits (to 1e-5 of their scale in float32).

    Args:
        model: a Llama model without biases.
        shape: sizes, none smaller than the model's; `head_dim` must be a multiple of the model's.

    Raises:
        ConfigError: the model is not a Llama model without biases, or a size is too small; the message names it.
    """
    _check(model, shape)
    config = copy.deepcopy(model.config)
    for name, value in _fields(shape).items():
        setattr(config, name, value)
    config.rms_norm_eps = model.config.rms_norm_eps * model.config.hidden_size / shape.hidden
    with torch.device(model.device), no_init_weights():
        large_model: Any = AutoModelForCausalLM.from_config(config, dtype=model.dtype).eval()
    large_model.tie_weights()
    _fill(large_model)
    large_model.generation_config = copy.deepcopy(model.generation_config)
    _copy(large_model.get_input_embeddings(), model.get_input_embeddings(), fill_value=0.0)
    if not config.tie_word_embeddings:
        _copy(large_model.get_output_embeddings(), model.get_output_embeddings())
    _copy_norm(large_model.model.norm, model.model.norm)
    heads = _HeadPlacement(model, shape)
    for index, block in enumerate(large_model.model.layers):
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
        if index < len(model.model.layers):
            _copy_block(block, model.model.layers[index], heads)
    return large_model


def load_inflated(
    target: str,
    drafter: str,
    shape: str,
    dtype: str,
    device: str,
    quantize: str | None = None,
    quantize_drafter: str | None = BY_DEFAULT,
) -> Decoder:
    """Load a decoder with an inflated target; arguments and errors as for `drafttree.load` and `find_shape`.

    The weights stay row-major, also on a CPU, where transformers' passes over a few rows are faster on such weights.
    """
    large_shape = find_shape(shape)
    model_device = find_device(device)
    check_quantization("quantize", quantize, model_device)
    check_quantization("quantize_drafter", quantize_drafter, model_device, other_values=(BY_DEFAULT, NONE))
    model_dtype = torch.bfloat16 if quantize and dtype == "auto" else find_dtype(dtype, model_device)
    small_model = load_model(target, model_dtype, model_device)
    large_model = inflate(small_model, large_shape)
    tokenizer = load_tokenizer(target)
    if quantize:
        apply_quantization(large_model, quantize, shape, tokenizer, head=False)
    decoder = load(large_model, "none", tokenizer=tokenizer, device=device)
    name = choose_drafter(target).name if drafter == "auto" else drafter
    return decoder.with_drafter(_find(name, TargetModel(small_model, choose_backend), decoder, quantize_drafter))


def drafters_for_inflated(
    decoder: Decoder, target: str, names: Iterable[str], quantize: str | None = BY_DEFAULT
) -> dict[str, Drafter]:
    """The drafters of a small target, by name, for the decoder of the target that was inflated from it.

    Args:
        decoder: the decoder, as `load_inflated` returns it.
        target: the small target.
        names: drafters as `drafttree.load` takes them; "none" is left out.
        quantize: as for `find_drafter`.

    Raises:
        ModelError: a drafter cannot be loaded or does not fit the small target.
    """
    large_target = transformers_model(decoder)
    small_target = TargetModel(load_model(target, large_target.dtype, large_target.device), choose_backend)
    drafters = {}
    for name in dict.fromkeys(names):
        if drafter := _find(name, small_target, decoder, quantize):
            drafters[name] = drafter
    return drafters


def _find(name: str, small_target: TargetModel, decoder: Decoder, quantize: str | None) -> Drafter | None:
    """Load a drafter that was made for the small target, for the decoder of the inflated one; None for "none"."""
    drafter = find_drafter(name, small_target, decoder.tokenizer, None if quantize == NONE else quantize)
    return _narrowed(drafter, small_target.module, transformers_model(decoder).module) if drafter else None


def _narrowed(drafter: Drafter, small_model: PreTrainedModel, large_model: PreTrainedModel) -> Drafter:
    """The drafter for the inflated target: heads are wrapped, also in a mixed drafter; other drafters are unchanged."""
    if isinstance(drafter, MixedDrafter):
        return MixedDrafter(drafter.lookup, _narrowed(drafter.model, small_model, large_model))
    return NarrowDrafter(drafter, small_model, large_model) if drafter.hidden_layers else drafter


class NarrowDrafter:
    """Lets a head that was trained for a small target draft for the inflated target, at the head's own cost.

    The hidden states of the inflated target are those of the small one followed by zeros, which are cut off.

    Args:
        drafter: the drafter made for the small target.
        small_model: the small target.
        large_model: the target inflated from it.
    """

    def __init__(self, drafter: Drafter, small_model: PreTrainedModel, large_model: PreTrainedModel) -> None:
        self._drafter = drafter
        self._hidden_size = small_model.config.hidden_size
        self.vocab_size = drafter.vocab_size
        self.context = drafter.context
        self.levels = drafter.levels
        self.nbytes = drafter.nbytes
        self.flat = getattr(drafter, "flat", False)
        layer_map = {small_model.config.num_hidden_layers: large_model.config.num_hidden_layers}
        self.hidden_layers = tuple(layer_map.get(layer, layer) for layer in drafter.hidden_layers)

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request, as the head itself does."""
        return NarrowSession(self._drafter.start(prompt, capacity), self._hidden_size)


class NarrowSession(Session):
    """A head's session that reads the first columns of every hidden state."""

    def __init__(self, session: Session, hidden_size: int) -> None:
        self._session = session
        self._hidden_size = hidden_size

    def choose(self, source: int) -> Session:
        return self._session.choose(source)

    def draft_root(self) -> Tensor:
        return self._session.draft_root()

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return self._session.draft_level(tokens, origins)

    @property
    def passes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._session.passes

    @property
    def seconds(self) -> float:
        return self._session.seconds

    @property
    def nbytes(self) -> int:
        return self._session.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._session.prefill(self._narrow(hidden_states), tokens)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._session.commit(tokens, self._narrow(hidden_states))

    def _narrow(self, hidden_states: HiddenStates) -> HiddenStates:
        return tuple(state[..., : self._hidden_size] for state in hidden_states)


class _HeadPlacement:
    """Where the heads of a small model lie in the attention projections of a large one.

    Rotary embedding pairs the dimensions i and i + head_dim / 2, and each pair has a frequency. So query and key
    dimensions move to where the large model's frequencies equal the small one's. The large model divides scores
    by a larger root of `head_dim`, which `query_scale` undoes.

    Attributes:
        query_scale: factor of the query weights.
        query: rows of the large query projection that hold the small one.
        out: columns of the large output projection that hold the small one.
        key: rows of the large key projection that hold the small one, with copies.
        value: rows of the large value projection that hold the small one, with copies.
        sources: rows of the small key and value projections that `key` and `value` are copied from.
        whole_query: all rows of the large query projection in heads that hold small ones.
    """

    def __init__(self, model: PreTrainedModel, shape: Shape) -> None:
        width = model.config.head_dim
        groups = _HeadGroups.of(model.config, shape)
        query_heads = groups.query_heads
        key_value_heads = list(range(groups.key_value_heads * groups.copies))
        head_dims = torch.arange(width, device=model.device)
        dim_ratio = shape.head_dim // width
        rotary_dims = head_dims % (width // 2) * dim_ratio + head_dims // (width // 2) * (shape.head_dim // 2)
        self.query_scale = math.sqrt(dim_ratio)
        self.query = _rows(query_heads, shape.head_dim, rotary_dims)
        self.out = _rows(query_heads, shape.head_dim, head_dims)
        self.key = _rows(key_value_heads, shape.head_dim, rotary_dims)
        self.value = _rows(key_value_heads, shape.head_dim, head_dims)
        self.sources = _rows([head // groups.copies for head in key_value_heads], width, head_dims)
        self.whole_query = _rows(query_heads, shape.head_dim, torch.arange(shape.head_dim, device=model.device))


class _HeadGroups(NamedTuple):
    """The heads of a small model in a large one, whose groups of query heads may be smaller.

    Attributes:
        key_value_heads: key-value heads of the small model, each of which has a group of query heads.
        size: query heads of a group of the small model.
        large_size: query heads of a group of the large model.
        copies: how many groups of the large model hold one of the small model; each has a copy of its key-value head.
    """

    key_value_heads: int
    size: int
    large_size: int
    copies: int

    @classmethod
    def of(cls, config: Any, shape: Shape) -> "_HeadGroups":
        """The groups of a small model, given by its configuration, in a model of this shape."""
        size = config.num_attention_heads // config.num_key_value_heads
        large_size = shape.heads // shape.key_value_heads
        return cls(config.num_key_value_heads, size, large_size, math.ceil(size / large_size))

    @property
    def query_heads(self) -> list[int]:
        """For each query head of the small model, its index among those of the large model."""
        heads = []
        for group in range(self.key_value_heads):
            first_head = group * self.copies * self.large_size
            heads += range(first_head, first_head + self.size)
        return heads


def _rows(heads: list[int], width: int, dims: Tensor) -> Tensor:
    """Row indices of the dimensions `dims` of these heads, in a projection with heads of this width."""
    return (torch.tensor(heads, device=dims.device)[:, None] * width + dims).flatten()


def _fill(model: PreTrainedModel) -> None:
    """Fill all weight matrices with repeats of the same noise; drawing every weight takes as long as loading."""
    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(0)).mul_(model.config.initializer_range)
    noise = noise.to(model.device, model.dtype)
    for weight in model.parameters():
        if weight.ndim == 2:
            for piece in weight.view(-1).split(NOISE):
                piece.copy_(noise[: len(piece)])


def _copy_block(large_block: Any, small_block: Any, heads: _HeadPlacement) -> None:
    small_attention, large_attention = small_block.self_attn, large_block.self_attn
    hidden_size = small_attention.q_proj.in_features
    large_attention.q_proj.weight[heads.whole_query] = 0.0
    large_attention.q_proj.weight[heads.query, :hidden_size] = small_attention.q_proj.weight * heads.query_scale
    large_attention.k_proj.weight[heads.key, :hidden_size] = small_attention.k_proj.weight[heads.sources]
    large_attention.v_proj.weight[heads.value, :hidden_size] = small_attention.v_proj.weight[heads.sources]
    large_attention.o_proj.weight[:hidden_size, heads.out] = small_attention.o_proj.weight
    for name in ("gate_proj", "up_proj", "down_proj"):
        _copy(getattr(large_block.mlp, name), getattr(small_block.mlp, name))
    for name in ("input_layernorm", "post_attention_layernorm"):
        _copy_norm(getattr(large_block, name), getattr(small_block, name))


def _copy(large_layer: Any, small_layer: Any, fill_value: float | None = None) -> None:
    """Copy a small weight into the corner of a large one, whose other entries become `fill_value` if given."""
    if fill_value is not None:
        large_layer.weight.fill_(fill_value)
    rows, columns = small_layer.weight.shape
    large_layer.weight[:rows, :columns] = small_layer.weight


def _copy_norm(large_norm: Any, small_norm: Any) -> None:
    width = len(small_norm.weight)
    large_norm.weight[:width] = small_norm.weight * math.sqrt(width / len(large_norm.weight))


def _fields(shape: Shape) -> dict[str, int]:
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_dim,
    }


def _check(model: PreTrainedModel, shape: Shape) -> None:
    config = model.config
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise ConfigError(f"only Llama models without biases can be inflated, not {config.model_type}")
    for name, value in _fields(shape).items():
        if value < getattr(config, name):
            raise ConfigError(f"cannot inflate {name} from {getattr(config, name)} to {value}; it can only grow")
    if shape.head_dim % config.head_dim:
        raise ConfigError(f"cannot inflate head_dim to {shape.head_dim}; it must be a multiple of {config.head_dim}")
    if shape.heads % shape.key_value_heads:
        raise ConfigError(f"{shape.heads} heads cannot share {shape.key_value_heads} key-value heads evenly")
    group_size = config.num_attention_heads // config.num_key_value_heads
    needed_heads = config.num_key_value_heads * math.ceil(group_size * shape.key_value_heads / shape.heads)
    if needed_heads > shape.key_value_heads:
        raise ConfigError(f"cannot inflate to {shape.key_value_heads} key-value heads; {needed_heads} are needed")
