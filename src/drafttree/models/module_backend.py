"""The backend that runs transformers' own module, with our attention in its layers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.base import Output
from drafttree.models.kv_cache import TreeCache
from drafttree.models.module_checks import input_device
from drafttree.models.tree_attention import NAME, TreePlan

ORIGINAL_ATTENTION = "_attention_before_drafttree"
TREE_LAYERS = {"full_attention", "sliding_attention"}


class ModuleBackend:
    """Runs the module itself, hooks, adapters and quantised layers included. See `drafttree.models.base.Backend`.

    The module's attention implementation is switched to ours, and again before a pass if it is another then.

    Args:
        module: a decoder-only model with a language-model head, in evaluation mode.

    Raises:
        ModelError: the model has layers that cannot be verified in a tree; the message names their kind.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        if reason := _incompatibility(module):
            raise ModelError(f"{type(module).__name__} cannot be verified in a tree: it has {reason}")
        self.device = input_device(module)
        self._module = module
        self._dtype = module.dtype
        self._layers: int = module.config.get_text_config().num_hidden_layers
        use_tree_attention(module)

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        return TreeCache(self._layers, batch, capacity)

    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        use_tree_attention(self._module)
        with self._capturing(hidden_layers) as states:
            out = self._module(
                input_ids=tokens,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                tree_plan=TreePlan(cache, positions, visible, self._dtype),
            )
        cache.grow(positions)
        return Output(out.logits, tuple(states[layer] for layer in hidden_layers))

    @contextmanager
    def _capturing(self, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
        """Capture the hidden states of these layers by hooks: `output_hidden_states` would keep those of all layers."""
        states: dict[int, Tensor] = {}
        with ExitStack() as undo:
            for layer in set(layers):
                undo.callback(self._capture(layer, states).remove)
            yield states

    def _capture(self, layer: int, states: dict[int, Tensor]) -> RemovableHandle:
        decoder = self._module.get_decoder()
        if layer == self._layers:
            return decoder.register_forward_hook(
                lambda _, __, output: states.__setitem__(layer, output.last_hidden_state)
            )

        def note(_: nn.Module, given: tuple, named: dict) -> None:
            states[layer] = given[0] if given else named["hidden_states"]

        return _blocks(decoder, self._layers)[layer].register_forward_pre_hook(note, with_kwargs=True)


def use_tree_attention(module: PreTrainedModel) -> None:
    """Switch a module to our attention implementation and remember its own."""
    attention = module.config.get_text_config()._attn_implementation
    if attention != NAME:
        setattr(module, ORIGINAL_ATTENTION, attention or "eager")
        module.set_attn_implementation(NAME)


def restore_attention(module: PreTrainedModel) -> None:
    """Give a module its own attention implementation back."""
    if module.config.get_text_config()._attn_implementation == NAME:
        module.set_attn_implementation(getattr(module, ORIGINAL_ATTENTION, "sdpa"))


def _blocks(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The layers of a decoder, which every architecture names differently."""
    return next(part for part in decoder.children() if isinstance(part, nn.ModuleList) and len(part) == count)


def _incompatibility(module: PreTrainedModel) -> str | None:
    """The layers that keep a model from being verified in a tree, None if there are none."""
    if module.config.is_encoder_decoder:
        return "encoder-decoder (cross-attention) layers"
    config = module.config.get_text_config()
    types = set(getattr(config, "layer_types", None) or ())
    foreign = ", ".join(sorted(types - TREE_LAYERS))
    if getattr(module, "_is_stateful", False) and not (types and types <= TREE_LAYERS):  # Granite 4 may only attend
        return f"recurrent layers ({foreign or config.model_type})"
    if foreign:
        return f"{foreign} layers"
    if getattr(config, "alibi", False) or config.model_type in {"bloom", "mpt"}:
        return "ALiBi attention layers, whose scores depend on the order of the cache"
    if getattr(config, "attn_logit_softcapping", None):
        return "attention layers with soft-capped scores"
    if any(name.endswith("sinks") for name, _ in module.named_parameters()):
        return "attention layers with attention sinks"
    if any(rope.get("rope_type") == "dynamic" for rope in _ropes(config)):
        return "rotary embeddings that change with the length (rope_type 'dynamic')"
    if not module._supports_attention_backend:
        return f"attention layers ({config.model_type}) outside transformers' AttentionInterface"
    layers = dict(module.get_decoder().named_modules())
    if any(getattr(layer, "is_causal", True) is False for layer in layers.values()):
        return "bidirectional attention layers"
    tables = [layer for name, layer in layers.items() if name.endswith("position_embeddings")]
    if any(getattr(table, "padding_idx", None) is not None for table in tables):
        return "position embeddings that leave room for padding"
    return None


def context_limit(config: object) -> int | None:
    """The number of positions a model can be used for; LongRoPE changes its frequencies past its original length."""
    for rope in _ropes(config):
        if rope.get("rope_type") == "longrope" and "original_max_position_embeddings" in rope:
            return rope["original_max_position_embeddings"]
    return getattr(config, "max_position_embeddings", None)


def _ropes(config: object) -> list[dict]:
    """The parameters of the rotary embeddings: one set for all layers, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [typed for typed in rope.values() if isinstance(typed, dict)] or [rope]


def lay_out_for_cpu(module: nn.Module) -> None:
    """Store the weights of linear layers input-major, which changes no value.

    A product of a few rows with a float32 weight is up to four times faster that way in MKL. A head that shares its
    weight with the embedding is laid out too: looking up a few scattered rows costs less than the product gains.
    """
    for weight in {layer.weight for layer in module.modules() if isinstance(layer, nn.Linear)}:
        weight.data = weight.data.t().contiguous().t()
