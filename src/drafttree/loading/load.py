"""`load`: makes a decoder from names, paths and loaded models."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.core.stages import tells_stages
from drafttree.drafters import Drafter
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.drafting.prices import machine
from drafttree.engine.generation_options import model_defaults, show_options
from drafttree.engine.image_prompt import ImageReader
from drafttree.engine.model_digest import model_digest
from drafttree.images.fetching import Fetcher
from drafttree.loading.drafter_spec import DrafterSpec
from drafttree.loading.drafters import DrafterSource, parse_drafter
from drafttree.loading.part_finder import NamedParts
from drafttree.loading.placement import Placement, is_auto
from drafttree.loading.pretrained import ModelSource, eos_ids
from drafttree.loading.processors import load_processor
from drafttree.loading.specs import PolicyLike, VerifierLike, default_policy, find_verifier, make_policy
from drafttree.loading.target_options import (
    BY_DEFAULT,
    NONE,
    SINKS,
    check_quantization,
    check_sharding,
    wanted_backend,
)
from drafttree.loading.targets import NamedTarget, TargetOptions, TargetSpec, parse_target
from drafttree.loading.tuned import TunedPolicy, find_policy
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier

logger = logging.getLogger("drafttree")


@tells_stages
def load(
    target: ModelSource = "embedded",
    drafter: DrafterSource | None = "auto",
    policy: PolicyLike | TunedPolicy | Path | None = None,
    verifier: VerifierLike | None = "auto",
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
    exact_text: bool = False,
    lossy_window: int | None = None,
    sinks: int = SINKS,
    quantize: str | None = None,
    quantize_drafter: str | None = BY_DEFAULT,
    max_model_len: int | None = None,
    tensor_parallel_size: int = 1,
) -> Decoder:
    """Load a decoder from names, folders or loaded models.

    Args:
        target: the model to generate with: "embedded", a folder, a hub name, a GGUF file (of the hub as
            "REPO:FILE.gguf"), or a loaded transformers model. A loaded model may be wrapped by `torch.compile` or peft,
            whose adapters stay active.
        drafter: what drafts (`drafttree drafters` lists the names):

            - a folder, a hub name, a GGUF file or a loaded model: a language model, a Gemma 4 assistant, or an EAGLE,
              MTP, DFlash, DSpark, Medusa or Hydra drafter; "embedded-eagle3" and others come with the package
            - "mtp": the MTP layers in the target's own files
            - "lookup" or "suffix": repeats what followed earlier in the text, without a model
            - "mixed:NAME": lookup where the text repeats, the named drafter elsewhere
            - a `drafttree.drafters.Drafter`, its class, or the dotted name of a class
            - "none" or None: plain decoding
            - "auto": the target's own MTP layers, a published head that is known for the target, or lookup; the logger
              "drafttree" says which one and why
        policy: a policy, its class, its specification such as "talon:budget=60,margin=0.03", or a file saved by
            `drafttree tune`. Such a file also sets the draft temperature and the cost curve, and drafter, verifier and
            dtype where they are "auto". The default (None) is `auto`, which measures costs when the first text is
            generated, for about two seconds per machine. If the verifier's draws depend on the drafts, or the target is
            sharded, the default is `dynatree`, which measures nothing. If the drafts do not depend on their path (as
            with DFlash), `auto:flat=true` and `chain` take the places of `auto` and `dynatree`.
        verifier: the name or class of a verifier, or "auto": greedy at temperature 0, coupled above it. For your own
            verifiers see `drafttree.loading.methods`.
        dtype: "float32", "bfloat16", "float16" or "auto": bfloat16 where the device multiplies it fast, else float32.
        device: "cpu", "cuda", ... or "auto": cuda where it is available.
        tokenizer: the target's tokenizer. Default: the one in its folder.
        exact_text: keep the text identical to plain decoding's in every dtype. Without it, the text is identical in
            float32, and in bfloat16 and float16 up to ties, where rounding decides between two tokens. This is slower
            (see docs/exactness.md). A test at loading raises an error if the target cannot keep it.
        lossy_window: attend only to this many last tokens and the first `sinks` tokens (StreamingLLM;
            `drafttree.models.windows` explains the differences). This changes the output: plain decoding over the same
            window generates the same text. The drafter reads the whole text. DynaTree v1's cache of 1024 is a window of
            1020 with 4 sinks.
        sinks: number of first tokens that stay visible with `lossy_window`.
        quantize: "int8" rounds the weights of the target's linear layers, except its head, to 8 bits. This changes the
            output: plain decoding and transformers' `generate` on `decoder.target.module` generate the same text. It
            saves memory and time; on a CPU it needs drafttree-native (`pip install "drafttree[native]"`). "int4" rounds
            them to 4 bits by GPTQ, and the head to 8, on CPUs; `drafttree quantize` does that once and saves the
            result. Weights that are quantised in their files (GGUF, GPTQ, AWQ, compressed-tensors, MLX) stay as they
            are stored if drafttree-native runs the model; "none" unpacks them to the dtype.
        quantize_drafter: "int8" and "int4" do the same to a drafter that is a language model, including its head, and
            to such drafters in `Decoder.with_drafter`. The text stays the target's. "auto" keeps a GGUF file as it is
            stored. Other drafters that are loaded by name become "int8" if drafttree-native runs them on a CPU and
            their weights are 50 MB or more. "none" or None loads the drafter in the target's dtype.
        max_model_len: maximum number of tokens of prompt and text together. It limits the memory of a text's KV cache.
            Default: the target's own context.
        tensor_parallel_size: number of processes over which the target is sharded. This many processes must run the
            same program under torchrun; see docs/large-scale.md.

    As in transformers, options in the target's generation config become the decoder's `defaults`: if they ask for
    sampling, texts are sampled unless a call gives `temperature=0`.

    A target that is a loaded model keeps its dtype and device, and its own `generate` still works. It stays in
    evaluation mode until `decoder.target.release()`.

    Raises:
        ConfigError: a policy, verifier, parameter, dtype, device or quantisation does not exist; the package that reads
            GGUF files is missing; a loaded model is to be quantised; `max_model_len` is above the target's context;
            `torch.autocast` is active; or an option is not available for a sharded target.
        InputError: the file of a tuned policy cannot be used.
        ModelError: a model or head cannot be loaded or quantised, or does not fit the target or the tuned policy; or
            the target cannot verify trees, or cannot keep `exact_text` or `lossy_window`.
        TokenizerMismatch: a draft model has less than a third of the target's tokens.
    """
    wants = wanted_backend(exact_text, lossy_window, sinks)
    options = TargetOptions(dtype, device, quantize, max_model_len, tensor_parallel_size, wants)
    spec = _DecoderSpec.parse(parse_target(target), drafter, find_policy(policy), verifier, options, quantize_drafter)
    placement = spec.check()
    return spec.build(placement, tokenizer)


class _Strategy(NamedTuple):
    """How draft trees are grown and verified.

    Attributes:
        policy: the policy, chosen before the drafter is known.
        verifier: the class of the verifier; None for "auto".
        tuned_policy: the tuned policy that `policy` is from; None without one.
        is_default: whether no policy was named.
        is_sharded: whether several processes share the target.
    """

    policy: TreePolicy
    verifier: type[Verifier] | None
    tuned_policy: TunedPolicy | None
    is_default: bool
    is_sharded: bool

    def policy_for(self, drafter: Drafter | None) -> TreePolicy:
        """The policy for a loaded drafter, whose kind decides the default."""
        if self.is_default and drafter:
            return default_policy(self.verifier, drafter, sharded=self.is_sharded)
        return self.policy


def _choose_strategy(
    policy: TreePolicy | TunedPolicy | None, verifier: VerifierLike | None, *, is_sharded: bool
) -> _Strategy:
    """The policy and verifier to decode with.

    Raises:
        ConfigError: the verifier does not exist, or cannot verify the policy's trees.
    """
    chosen_verifier = find_verifier(verifier)
    tuned_policy = policy if isinstance(policy, TunedPolicy) else None
    if policy is None:
        chosen_policy = default_policy(chosen_verifier, sharded=is_sharded)
    else:
        chosen_policy = make_policy(policy.policy) if isinstance(policy, TunedPolicy) else policy
    if chosen_verifier:
        compatibility.check(chosen_policy, chosen_verifier)
    return _Strategy(chosen_policy, chosen_verifier, tuned_policy, is_default=policy is None, is_sharded=is_sharded)


class _DecoderSpec(NamedTuple):
    """A decoder that is not loaded yet.

    Attributes:
        target: the target.
        options: how to load the target.
        drafter: the drafter.
        quantize_drafter: how to quantise a language model that drafts; None and "none" for not at all.
        strategy: how draft trees are grown and verified.
    """

    target: TargetSpec
    options: TargetOptions
    drafter: DrafterSpec
    quantize_drafter: str | None
    strategy: _Strategy

    @classmethod
    def parse(
        cls,
        target: TargetSpec,
        drafter: DrafterSource | None,
        policy: TreePolicy | TunedPolicy | None,
        verifier: VerifierLike | None,
        options: TargetOptions,
        quantize_drafter: str | None,
    ) -> "_DecoderSpec":
        """Resolve the arguments of `load`. Those that are "auto" are taken from the tuned policy.

        Raises:
            ConfigError: an argument names nothing that exists, or an option is not available for a sharded target.
            ModelError: a loaded model has an adapter that cannot be used.
        """
        tuned_policy = policy if isinstance(policy, TunedPolicy) else None
        unsharded_options = {"exact_text": options.wants.exact_text, "quantize": options.quantize}
        check_sharding(options.tensor_parallel_size, {**unsharded_options, "a tuned policy": tuned_policy})
        if tuned_policy:
            drafter, verifier = _defaults(tuned_policy, drafter, verifier)
            if is_auto(options.dtype) and isinstance(target, NamedTarget):
                options = options._replace(dtype=tuned_policy.dtype)
        strategy = _choose_strategy(policy, verifier, is_sharded=options.tensor_parallel_size != 1)
        return cls(target, options, parse_drafter(drafter), quantize_drafter, strategy)

    def check(self) -> Placement:
        """The device and dtype of the target; what can be refused before weights are read is refused.

        Raises:
            ConfigError: device, dtype or quantisation is not available, or `torch.autocast` is active.
            ModelError: the drafter has no files, or is not for this target.
        """
        placement = self.target.place(self.options)
        check_quantization("quantize_drafter", self.quantize_drafter, placement.device, (BY_DEFAULT, NONE))
        self.drafter.check(self.target, self.quantize_drafter)
        return placement

    def build(self, placement: Placement, tokenizer: PreTrainedTokenizerBase | None) -> Decoder:
        """Load target, tokenizer and drafter, and make their decoder; errors are those of `load`.

        If the drafter cannot be loaded, or the tuned policy is for other models, the target is released again.

        Args:
            placement: the target's device and dtype.
            tokenizer: the target's; None for the one in its folder.
        """
        model = self.target.load(placement, self.options)
        tokenizer = self.target.load_tokenizer() if tokenizer is None else tokenizer
        eos = eos_ids(model, tokenizer)
        target_model = TargetModel(model, partial(choose_backend, wants=self.options.wants))
        part_finder = NamedParts(None if self.quantize_drafter == NONE else self.quantize_drafter)
        tuned_policy = self.strategy.tuned_policy
        try:
            if self.options.max_model_len is not None:
                target_model.limit_context(self.options.max_model_len)
            if tuned_policy:
                tuned_policy.check_target(model_digest(target_model), str(target_model.dtype).removeprefix("torch."))
            drafter = self.drafter.build(part_finder.loaded(target_model, tokenizer, self.target))
            if tuned_policy and drafter:
                tuned_policy.check_drafter(model_digest(drafter))
            policy = self.strategy.policy_for(drafter)
        except DraftTreeError:
            target_model.release()
            raise
        defaults = _generation_defaults(model, tuned_policy)
        learned_state = LearnedState(_costs(tuned_policy, target_model)) if tuned_policy else None
        image_token = target_model.image_token
        load_images = partial(load_processor, self.target.location, image_token) if image_token is not None else None
        return Decoder(
            *(target_model, drafter, policy, self.strategy.verifier, tokenizer, eos, defaults),
            learned=learned_state,
            parts=part_finder,
            image_reader=load_images and ImageReader(load_images, target_model.context, fetcher=Fetcher()),
        )


def _defaults(
    tuned: TunedPolicy, drafter: DrafterSource | None, verifier: VerifierLike | None
) -> tuple[DrafterSource | None, VerifierLike | None]:
    """The drafter and the verifier, each replaced by the tuned policy's if it is "auto"."""
    if is_auto(drafter):
        drafter = tuned.drafter.name if tuned.drafter else None
        logger.info("drafter: %s (%s)", drafter or "none", tuned.path)
    return drafter, tuned.verifier if verifier is None or is_auto(verifier) else verifier


def _generation_defaults(model: PreTrainedModel, tuned: TunedPolicy | None) -> Mapping[str, Any]:
    """The decoder's default options: those of the generation config, and the tuned draft temperature unless it is 1."""
    defaults = model_defaults(model.generation_config)
    if defaults:
        logger.info("options of the model's generation config: %s", show_options(defaults))
    if tuned and tuned.draft_temperature != 1:
        return {**defaults, "draft_temperature": tuned.draft_temperature}
    return defaults


def _costs(tuned: TunedPolicy, target: TargetModel) -> CostCurve | None:
    """The tuned policy's cost curve; None if it was measured on another machine, so that costs are measured anew."""
    if tuned.costs and (machine_name := machine(target.device)) != tuned.machine:
        logger.info("%s was tuned on %s; costs are measured anew on %s", tuned.path, tuned.machine, machine_name)
        return None
    return tuned.costs
