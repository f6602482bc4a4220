"""`load`: makes a decoder from names, paths and loaded models."""

import logging
from collections.abc import Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.autocast import refuse_autocast
from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.core.stages import tells_stages
from drafttree.drafters import Drafter
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.prices import machine
from drafttree.engine.generation_options import model_defaults, show_options
from drafttree.engine.learned_state import LearnedState
from drafttree.engine.model_digest import model_digest
from drafttree.loading.drafters import (
    DrafterSource,
    check_drafter_exists,
    check_quantizable,
    check_quantized,
    find_or_choose,
)
from drafttree.loading.model_files import FoundModel, ModelFiles
from drafttree.loading.part_finder import NamedParts
from drafttree.loading.placement import find_placement, is_auto
from drafttree.loading.pretrained import ModelSource, eos_ids, find_model, load_model, load_tokenizer, stays_as_stored
from drafttree.loading.specs import PolicyLike, VerifierLike, default_policy, find_verifier, make_policy
from drafttree.loading.target_options import (
    AS_STORED,
    BY_DEFAULT,
    KINDS,
    NONE,
    SINKS,
    check_quantization,
    check_sharding,
    wanted_backend,
)
from drafttree.loading.tuned import TunedPolicy, find_policy
from drafttree.models import TargetModel, Wants, choose_backend
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
              "drafttree" tells which and why
        policy: a policy, its class, its specification such as "talon:budget=60,margin=0.03", or a file saved by
            `drafttree tune`, which also sets drafter, verifier and dtype where they are "auto", the draft temperature
            and the cost curve. None is `auto`, which measures costs when the first text is generated, for about two
            seconds per machine. It is `dynatree`, which measures nothing, where the verifier draws from the drafts or
            the target is sharded. For drafters whose drafts do not depend on their path (such as DFlash) it is
            `auto:flat=true`, or else `chain`.
        verifier: the name or class of a verifier, or "auto": greedy at temperature 0, coupled above it. For verifiers
            of your own see `drafttree.loading.methods`.
        dtype: "float32", "bfloat16", "float16" or "auto": bfloat16 where the device multiplies it fast, else float32.
        device: "cpu", "cuda", ... or "auto": cuda where it is available.
        tokenizer: the target's tokenizer. Default: the one in its folder.
        exact_text: keep the text identical to plain decoding's in every dtype. Without it, the text is identical in
            float32, and in bfloat16 and float16 up to ties, where rounding decides between two tokens. Slower (see
            docs/performance.md). It is tested when the model is loaded, and refused if it does not hold.
        lossy_window: attend only to this many last tokens and the first `sinks` tokens (StreamingLLM;
            `drafttree.models.windows` tells the differences). This changes the output: plain decoding over the same
            window generates the same text. The drafter reads the whole text. DynaTree v1's cache of 1024 is a window of
            1020 with 4 sinks.
        sinks: number of first tokens that stay visible with `lossy_window`.
        quantize: "int8" rounds the weights of the target's linear layers, except its head, to 8 bits. This changes the
            output: plain decoding and transformers' `generate` on `decoder.target.module` generate the same text. Takes
            less memory and time; on a CPU it needs drafttree-native (`pip install "drafttree[native]"`). "int4" rounds
            them to 4 bits by GPTQ, and the head to 8, on CPUs; `drafttree quantize` does that once and keeps the
            result. Weights that files have in few bits (GGUF, GPTQ, AWQ, compressed-tensors, MLX) stay as they are
            stored if drafttree-native runs the model; "none" unpacks them to the dtype.
        quantize_drafter: "int8" and "int4" do the same to a drafter that is a language model, its head included, and to
            those of `Decoder.with_drafter`. The text stays the target's. "auto" is "int8" for a drafter that is loaded
            by name where drafttree-native runs it on a CPU and its weights are 50 MB or more, and a GGUF file as it is
            stored; "none" or None loads it in the target's dtype.
        max_model_len: maximum number of tokens of prompt and text together, so that no text takes more memory for its
            KV cache. Default: the target's own context.
        tensor_parallel_size: number of processes over which the target is sharded. As many processes must run the same
            program under torchrun; see docs/large-scale.md.

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
    policy = find_policy(policy)
    target = find_model(target)
    tuned_policy = policy if isinstance(policy, TunedPolicy) else None
    check_sharding(
        tensor_parallel_size,
        target,
        {"exact_text": exact_text, "quantize": quantize, "a tuned policy": tuned_policy},
    )
    if tuned_policy:
        drafter, verifier = _defaults(tuned_policy, drafter, verifier)
        dtype = tuned_policy.dtype if is_auto(dtype) and not isinstance(target, PreTrainedModel) else dtype
    strategy = _choose_strategy(policy, verifier, is_sharded=tensor_parallel_size != 1)
    options = _TargetOptions(target, dtype, device, quantize, max_model_len, tensor_parallel_size, wants)
    return _load_decoder(options, drafter, quantize_drafter, strategy, tokenizer)


class _TargetOptions(NamedTuple):
    """The arguments of `load` that say how to load the target.

    Attributes:
        source: the target's name or path, or the loaded model without wrappers.
        wants: what its backend must be able to do.
    """

    source: ModelSource
    dtype: str | torch.dtype
    device: str
    quantize: str | None
    max_model_len: int | None
    tensor_parallel_size: int
    wants: Wants

    def placement(self) -> tuple[torch.device, torch.dtype]:
        """The device and dtype to load the target with.

        Raises:
            ConfigError: one of them is not available, `torch.autocast` is active, or the target cannot be quantised as
                asked on this device.
        """
        is_rounded = isinstance(self.quantize, str) and self.quantize in KINDS
        device, dtype = find_placement(self.source, self.dtype, self.device, self.quantize if is_rounded else None)
        refuse_autocast(device)
        check_quantization("quantize", self.quantize, device, self.source, (NONE,))
        return device, dtype

    def load(self, device: torch.device, dtype: torch.dtype) -> tuple[FoundModel, PreTrainedModel]:
        """The files that the target is loaded from, or the given model itself, and the loaded model.

        Args:
            device: where the model is to run.
            dtype: dtype of its weights. Weights that stay as stored are loaded in bfloat16 unless a dtype was asked
                for.

        Raises:
            ModelError: the target does not exist, or cannot be loaded or quantised.
        """
        origin = self.source if isinstance(self.source, PreTrainedModel) else ModelFiles.of_model(self.source)
        quantize = self.quantize
        if quantize is None and not self.wants.lossy_window:  # drafttree-native has no KV caches for a window
            quantize = AS_STORED
        elif quantize == NONE:
            quantize = None
        if is_auto(self.dtype) and isinstance(origin, ModelFiles) and stays_as_stored(origin, device, quantize):
            dtype = torch.bfloat16  # as with int8, since activations are rounded to eight bits anyway
        return origin, load_model(origin, dtype, device, quantize, self.tensor_parallel_size)


class _FoundDrafter(NamedTuple):
    """A drafter whose files or class were found, but are not loaded yet.

    Attributes:
        source: what `load` takes as drafter.
        quantize: how a language model is quantised; None for not at all, "auto" for what is fastest.
        files: the drafter's files; None without files of its own, and for a drafter "auto", which is chosen later.
    """

    source: DrafterSource | None
    quantize: str | None
    files: ModelFiles | None

    @classmethod
    def find(cls, source: DrafterSource | None, quantize: str | None, device: torch.device) -> "_FoundDrafter":
        """Find a drafter, and check how it is to be quantised.

        Args:
            source: what `load` takes as drafter.
            quantize: what `load` takes as `quantize_drafter`.
            device: device of the target.

        Raises:
            ConfigError: the source is no drafter, or cannot be quantised as asked.
            ModelError: the drafter has no files.
        """
        check_quantization("quantize_drafter", quantize, device, source, (BY_DEFAULT, NONE))
        quantize = None if quantize == NONE else quantize
        files = None if is_auto(source) else check_drafter_exists(source)
        if quantize in KINDS and not is_auto(source):
            check_quantizable(source, files, quantize)
        return cls(source, quantize, files)

    def load(
        self,
        origin: FoundModel,
        target: TargetModel,
        tokenizer: PreTrainedTokenizerBase | None,
        held: MutableMapping[str, Drafter],
    ) -> Drafter | None:
        """The drafter for a target; None for plain decoding. Arguments and errors are those of `find_or_choose`."""
        drafter = find_or_choose(self.source, origin, target, tokenizer, self.quantize, self.files, held)
        if self.quantize in KINDS:
            check_quantized(drafter, self.source, self.quantize)
        return drafter


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


def _load_decoder(
    options: _TargetOptions,
    drafter: DrafterSource | None,
    quantize_drafter: str | None,
    strategy: _Strategy,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Decoder:
    """Load target, tokenizer and drafter, and make their decoder; arguments and errors are those of `load`.

    If the drafter cannot be loaded, or the tuned policy is for other models, the target is released again.
    """
    device, dtype = options.placement()
    found_drafter = _FoundDrafter.find(drafter, quantize_drafter, device)
    origin, model = options.load(device, dtype)
    tokenizer = load_tokenizer(origin) if tokenizer is None else tokenizer
    eos = eos_ids(model, tokenizer)
    target_model = TargetModel(model, partial(choose_backend, wants=options.wants))
    part_finder = NamedParts(found_drafter.quantize)
    tuned_policy = strategy.tuned_policy
    try:
        if options.max_model_len is not None:
            target_model.limit_context(options.max_model_len)
        if tuned_policy:
            tuned_policy.check_target(model_digest(target_model), str(target_model.dtype).removeprefix("torch."))
        loaded_drafter = found_drafter.load(origin, target_model, tokenizer, part_finder.held)
        if tuned_policy and loaded_drafter:
            tuned_policy.check_drafter(model_digest(loaded_drafter))
        policy = strategy.policy_for(loaded_drafter)
    except DraftTreeError:
        target_model.release()
        raise
    defaults = _generation_defaults(model, tuned_policy)
    learned_state = LearnedState(_costs(tuned_policy, target_model)) if tuned_policy else None
    return Decoder(
        *(target_model, loaded_drafter, policy, strategy.verifier, tokenizer, eos, defaults),
        learned=learned_state,
        parts=part_finder,
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
