"""The backend that runs transformers' own module, with our attention in its layers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.base import Output
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.incompatibility import incompatibility, takes_mask
from drafttree.models.kv_cache import TreeCache
from drafttree.models.long_rope import long_frequencies, rope_switch
from drafttree.models.module_checks import decoder_of, input_device
from drafttree.models.packed import forward_in_groups
from drafttree.models.packed_cache import JoinedCache, PackedCache
from drafttree.models.packed_check import packs_alike
from drafttree.models.packed_plan import PackedPlan
from drafttree.models.recurrent import LayerStates, TreeSteps, recurrent_layers, stepping
from drafttree.models.segment import Segment, split_states
from drafttree.models.tree_attention import NAME, TreePlan

ORIGINAL_ATTENTION = "_attention_before_drafttree"


class ModuleBackend:
    """Runs the module itself, hooks, adapters and quantised layers included. See `drafttree.models.base.PackedBackend`.

    The module's attention implementation is switched to ours, and again before a pass if it is another then. Families
    that know no attention implementations are given the tree as a mask.

    Args:
        module: a decoder-only model with a language-model head, in evaluation mode.

    Raises:
        ModelError: the model has layers that cannot be verified in a tree; the message names their kind.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        if reason := incompatibility(module):
            raise ModelError(f"{type(module).__name__} cannot be verified in a tree: it has {reason}")
        self.device = input_device(module)
        self._module = module
        self._dtype = module.dtype
        self._layers: int = module.config.get_text_config().num_hidden_layers
        self._rope_switch = rope_switch(module)
        self._takes_mask = takes_mask(module)
        self._recurrent = recurrent_layers(module)
        restore_attention(module)
        self._layout = CacheLayout.of_module(module)
        use_tree_attention(module)

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        cache = TreeCache(self._layout, batch, capacity)
        cache.recurrent = {name: LayerStates() for name in self._recurrent}
        return cache

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
        segment = Segment(cache, tokens, positions, visible, slice(-1, None) if last_only else slice(None))
        return self._run_alone(segment, hidden_layers)

    @property
    def shares_passes(self) -> bool:
        return self._packed_cache is not None

    def forward_packed(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if len(segments) <= 1 or self._packed_cache is None:
            return [self._run_alone(segment, hidden_layers) for segment in segments]
        run = partial(self._run_together, self._packed_cache, hidden_layers=hidden_layers)
        return forward_in_groups(segments, lambda segment: segment.cache.long_rope, run)

    @cached_property
    def _packed_cache(self) -> type[PackedCache] | None:
        """The cheapest KV cache with which layers can be handed several requests at once, which is tried out."""
        if self._takes_mask or self._recurrent:
            return None
        kinds = (PackedCache, JoinedCache)
        return next(
            (kind for kind in kinds if packs_alike(self, self._module, partial(self._run_together, kind))), None
        )

    def _run_alone(self, segment: Segment, hidden_layers: tuple[int, ...]) -> Output:
        if not self._takes_mask:
            use_tree_attention(self._module)
        cache, tokens, positions, visible, wanted = segment
        plan = TreePlan(cache, positions, visible, self._dtype)
        tree = {"attention_mask": plan.full_mask()} if self._takes_mask else {"tree_plan": plan}
        scored = range(segment.nodes)[wanted]
        with cache.counting(positions), self._stepping(cache, positions, visible), self._frequencies(cache):
            output = self._run(cache, tokens, positions, scored, hidden_layers, **tree)
        cache.grow(positions)
        return output

    def _run_together(
        self, kind: type[PackedCache], segments: Sequence[Segment], hidden_layers: tuple[int, ...] = ()
    ) -> list[Output]:
        """A packed pass over segments with the same rotary frequencies."""
        use_tree_attention(self._module)
        cache = kind(segments)
        starts = accumulate(cache.sizes, initial=0)
        own = [range(start, start + each.nodes)[each.wanted] for start, each in zip(starts, segments, strict=False)]
        tokens, plan = torch.cat([segment.tokens for segment in segments], 1), PackedPlan(cache, self._dtype)
        with self._frequencies(segments[0].cache):
            output = self._run(cache, tokens, cache.positions, [*chain(*own)], hidden_layers, tree_plan=plan)
        for segment in segments:
            segment.cache.grow(segment.positions)
        logits = output.logits.split([len(rows) for rows in own], 1)
        return [Output(*each) for each in zip(logits, split_states(segments, output.hidden), strict=True)]

    def _run(
        self,
        cache: Cache,
        tokens: Tensor,
        positions: Tensor,
        scored: Sequence[int],
        hidden_layers: tuple[int, ...],
        **tree: Any,
    ) -> Output:
        """A pass of the module, whose head is given indices: for the number 1 some models (Gemma 4) leave out nodes.

        Args:
            scored: the nodes whose logits are returned.
        """
        is_all = len(scored) == tokens.shape[1]
        with self._capturing(hidden_layers) as states:
            out = self._module(
                input_ids=tokens,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=0 if is_all else torch.tensor(scored or [0], device=self.device),
                **tree,
            )
        return Output(out.logits[:, : len(scored)], tuple(states[layer] for layer in hidden_layers))

    def _stepping(self, cache: TreeCache, positions: Tensor, visible: Tensor) -> AbstractContextManager[None]:
        """Run recurrent layers along the tree."""
        if not self._recurrent:
            return nullcontext()
        steps = None if cache.is_reading else TreeSteps(positions, visible, cache.positions)
        return stepping(self._recurrent, cache, cache.recurrent, steps)

    def _frequencies(self, cache: TreeCache) -> AbstractContextManager[None]:
        """The frequencies of the rotary embedding that a text has, where the module does not choose the right ones."""
        if self._rope_switch is None or not cache.long_rope:
            return nullcontext()
        return long_frequencies(self._module, self._rope_switch)

    @contextmanager
    def _capturing(self, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
        """Capture the hidden states of these layers by hooks: `output_hidden_states` would keep those of all layers."""
        states: dict[int, Tensor] = {}
        with ExitStack() as undo:
            for layer in set(layers):
                undo.callback(self._capture(layer, states).remove)
            yield states

    def _capture(self, layer: int, states: dict[int, Tensor]) -> RemovableHandle:
        decoder = decoder_of(self._module)
        if layer == self._layers:
            return decoder.register_forward_hook(
                lambda _, __, output: states.__setitem__(layer, output.last_hidden_state)
            )

        def note(_: nn.Module, given: tuple, named: dict) -> None:
            states[layer] = given[0] if given else named["hidden_states"]

        return _blocks(decoder, self._layers)[layer].register_forward_pre_hook(note, with_kwargs=True)


def use_tree_attention(module: PreTrainedModel) -> None:
    """Switch a module that knows attention implementations to ours and remember its own."""
    attention = module.config.get_text_config()._attn_implementation
    if attention != NAME and not takes_mask(module):
        setattr(module, ORIGINAL_ATTENTION, attention or "eager")
        module.set_attn_implementation(NAME)


def restore_attention(module: PreTrainedModel) -> None:
    """Give a module its own attention implementation back."""
    if module.config.get_text_config()._attn_implementation == NAME:
        module.set_attn_implementation(getattr(module, ORIGINAL_ATTENTION, "sdpa"))


def _blocks(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The layers of a decoder, which every architecture names differently."""
    lists = [part for part in decoder.children() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not lists:
        raise ModelError(f"{type(decoder).__name__} has no list of {count} layers whose states can be read")
    return lists[0]


def lay_out_for_cpu(module: nn.Module) -> None:
    """Store the weights of linear layers input-major, which changes no value.

    A product of a few rows with a float32 weight is up to four times faster that way in MKL. A head that shares its
    weight with the embedding is laid out too: looking up a few scattered rows costs less than the product gains.
    """
    for weight in {layer.weight for layer in module.modules() if isinstance(layer, nn.Linear)}:
        weight.data = weight.data.t().contiguous().t()
