"""The backend that runs the transformers module itself, with our attention function in its layers."""

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.attention.tree_attention import TreePlan
from drafttree.models.attention.tree_config import attending_to_trees, configured_parts
from drafttree.models.cache.kv_cache import CacheLayout, LayerShape, TreeCache
from drafttree.models.cache.recurrent_states import RecurrentStates
from drafttree.models.module.alibi import biases_by_position, has_alibi
from drafttree.models.module.hidden_states import capturing
from drafttree.models.module.long_rope import long_frequencies, rope_switch
from drafttree.models.module.module_checks import (
    decoder_of,
    incompatibility,
    input_device,
    recurrent_layers,
    takes_mask,
)
from drafttree.models.module.module_inputs import JoinedCache, ModuleInputs, SharedCache, as_cache
from drafttree.models.module.probe import shares_alike
from drafttree.models.module.recurrent import TreeSteps, stepping
from drafttree.models.segment import Output, Segment, forward_in_groups, split, split_layers


class ModuleBackend:
    """Runs the module itself, hooks, adapters and quantised layers included. See `drafttree.models.base.Backend`.

    During a pass its layers call our attention function. Families whose layers call no such function get the tree as a
    mask.

    Args:
        module: a decoder-only model with a language-model head, in evaluation mode.

    Raises:
        ModelError: the model has layers that cannot be verified in a tree; the message names their kind.
    """

    name = "ModuleBackend"
    exact_text = False
    lossy_window = None
    packed_nbytes = 0
    fallback_reason: str | None = None

    def __init__(self, module: PreTrainedModel) -> None:
        if reason := incompatibility(module):
            raise ModelError(f"{type(module).__name__} cannot be verified in a tree: it has {reason}")
        self.device = input_device(module)
        self._module = module
        self._dtype = module.dtype
        self._rope_switch = rope_switch(module)
        self._takes_mask = takes_mask(module)
        self._has_alibi = has_alibi(module.config.get_text_config())
        self._recurrent = recurrent_layers(module)
        self._layout = layout_of(module)
        self._attending = [] if self._takes_mask else configured_parts(module)

    def new_cache(self, capacity: int) -> TreeCache:
        cache = TreeCache(self._layout, capacity)
        cache.recurrent = RecurrentStates(self._recurrent)
        return cache

    @property
    def shares_passes(self) -> bool:
        return self._shared_cache is not None

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if len(segments) <= 1 or self._shared_cache is None:
            return [output for segment in segments for output in self._run([segment], hidden_layers)]
        run = partial(self._run, hidden_layers=hidden_layers, cache_class=self._shared_cache)
        return forward_in_groups(segments, _group_of, run)

    @cached_property
    def _shared_cache(self) -> type[SharedCache] | None:
        """The cheapest cache with which a trial of a shared pass gave the right logits, None if there is none."""
        if self._takes_mask:
            return None
        for cache_class in (SharedCache, JoinedCache):
            if shares_alike(self, self._module, partial(self._run, cache_class=cache_class)):
                return cache_class
        return None

    def _run(
        self,
        segments: Sequence[Segment],
        hidden_layers: tuple[int, ...] = (),
        cache_class: type[SharedCache] = SharedCache,
    ) -> list[Output]:
        """A pass over segments of one group."""
        inputs = ModuleInputs.of(segments, self._dtype, self.device, cache_class)
        scored_nodes: list[int] = []
        start = 0
        for segment in segments:
            scored_nodes += range(start, start + segment.nodes)[segment.wanted]
            start += segment.nodes
        with ExitStack() as contexts:
            contexts.enter_context(attending_to_trees(self._attending))
            if self._recurrent:
                contexts.enter_context(self._stepping(segments, inputs.cache))
            if isinstance(inputs.plan, TreePlan) and self._has_alibi:
                positions = inputs.plan.key_positions()[0]
                contexts.enter_context(biases_by_position(decoder_of(self._module), positions))
            if self._rope_switch is not None and segments[0].cache.long_rope:
                contexts.enter_context(long_frequencies(self._module, self._rope_switch))
            output = self._score(inputs, scored_nodes, hidden_layers)
        for segment in segments:
            segment.cache.grow(segment.positions)
        logits = split(output.logits, [len(segment.wanted_nodes) for segment in segments])
        return [*map(Output, logits, split_layers(segments, output.hidden))]

    def _score(self, inputs: ModuleInputs, scored: Sequence[int], hidden_layers: tuple[int, ...]) -> Output:
        """Run the module. The output has the logits of the nodes in `scored`."""
        is_all = len(scored) == inputs.tokens.shape[1]
        plan = inputs.plan
        mask_arguments = {"attention_mask": plan.full_mask()} if isinstance(plan, TreePlan) and self._takes_mask else {}
        with capturing(self._module, hidden_layers) as states:
            # indices, not their number: if it is 1, some models (Gemma 4) leave out nodes
            out = self._module(
                input_ids=inputs.tokens,
                position_ids=inputs.positions,
                **as_cache(self._module, inputs.cache),
                use_cache=True,
                logits_to_keep=0 if is_all else torch.tensor(scored or [0], device=self.device),
                **(mask_arguments or {"tree_plan": plan}),
            )
        return Output(out.logits[:, : len(scored)], tuple(states[layer] for layer in hidden_layers))

    def _stepping(self, segments: Sequence[Segment], module_cache: Cache) -> AbstractContextManager[None]:
        """Context manager: recurrent layers, which the module hands `module_cache`, run along the trees."""
        texts = [segment.cache.recurrent for segment in segments]
        steps = None if texts[0].is_reading else TreeSteps(segments, self.device)
        return stepping(self._recurrent, module_cache, texts, steps)


@torch.inference_mode()
def layout_of(module: PreTrainedModel) -> CacheLayout:
    """The layout of a module's KV cache, found by a pass over one token with its own attention."""
    cache = DynamicCache(config=module.config)
    module(input_ids=torch.zeros(1, 1, dtype=torch.long, device=input_device(module)), **as_cache(module, cache))
    layers: dict[int, Any] = dict(enumerate(cache.layers))
    shapes = {
        index: LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
        for index, layer in layers.items()
        if getattr(layer, "keys", None) is not None
    }
    return CacheLayout(shapes)


def _group_of(segment: Segment) -> Hashable:
    """A key that is equal for segments that may share a pass; texts that recurrent layers only read run alone."""
    cache = segment.cache
    return cache.long_rope, cache.recurrent.is_reading and id(cache)


def lay_out_for_cpu(module: nn.Module) -> None:
    """Store the weights of linear layers input-major, which changes no value.

    In MKL this makes products of a few rows with float32 weights up to four times faster. A head that shares its weight
    with the embedding is included: slower look-ups of a few rows cost less than the faster product gains.
    """
    for weight in {layer.weight for layer in module.modules() if isinstance(layer, nn.Linear)}:
        weight.data = weight.data.t().contiguous().t()
