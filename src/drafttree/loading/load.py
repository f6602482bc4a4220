"""`load`: from names, paths and loaded models to a decoder."""

import logging
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.autocast import refuse_autocast
from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.core.stages import tells_stages
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
from drafttree.loading.model_files import ModelFiles
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
from drafttree.models import TargetModel, choose_backend

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
            docs/performance.md). It is tried when the model is loaded, and refused where it does not hold.
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
            stored where drafttree-native runs the model; "none" unpacks them to the dtype.
        quantize_drafter: "int8" and "int4" do the same to a drafter that is a language model, its head included, and to
            those of `Decoder.with_drafter`. The text stays the target's. "auto" is "int8" for a drafter that is loaded
            by name where drafttree-native runs it on a CPU and its weights are 50 MB or more, and a GGUF file as it is
            stored; "none" or None loads it in the target's dtype.
        max_model_len: maximum number of tokens of prompt and text together, so that no text takes more memory for its
            KV cache. Default: the target's own context.
        tensor_parallel_size: number of processes over which the target is sharded. As many processes must run the same
            program under torchrun; see docs/large-scale.md.

    The options in the target's generation config become the decoder's `defaults`, as in transformers: a model that asks
    for sampling samples, unless a call gives `temperature=0`.

    A loaded target keeps its dtype and device, and its own `generate` works meanwhile. It is in evaluation mode until
    `decoder.target.release()`.

    Raises:
        ConfigError: a policy, verifier, parameter, dtype, device or quantisation does not exist, the package that reads
            GGUF files is missing, a loaded model is to be quantised, `max_model_len` is above the target's context,
            `torch.autocast` is active, or an option is not available for a sharded target.
        InputError: a file of a tuned policy cannot be used.
        ModelError: a model or head cannot be loaded or quantised, does not fit the target or the tuned policy, or
            cannot be verified in a tree; or `exact_text` or `lossy_window` cannot hold for it.
        TokenizerMismatch: a draft model has less than a third of the target's tokens.
    """
    wants = wanted_backend(exact_text, lossy_window, sinks)
    policy = find_policy(policy)
    target = find_model(target)
    tuned_policy = policy if isinstance(policy, TunedPolicy) else None
    unserved_options = {"exact_text": exact_text, "quantize": quantize, "a tuned policy": tuned_policy}
    check_sharding(tensor_parallel_size, target, unserved_options)
    if tuned_policy:
        drafter, verifier = _defaults(tuned_policy, drafter, verifier)
        dtype = tuned_policy.dtype if is_auto(dtype) and not isinstance(target, PreTrainedModel) else dtype
    chosen_verifier = find_verifier(verifier)
    if policy is None:
        chosen_policy = default_policy(chosen_verifier, sharded=tensor_parallel_size != 1)
    else:
        chosen_policy = make_policy(policy.policy) if isinstance(policy, TunedPolicy) else policy
    if chosen_verifier:
        compatibility.check(chosen_policy, chosen_verifier)
    is_rounded = isinstance(quantize, str) and quantize in KINDS
    target_device, target_dtype = find_placement(target, dtype, device, quantize if is_rounded else None)
    refuse_autocast(target_device)
    check_quantization("quantize", quantize, target_device, target, (NONE,))
    check_quantization("quantize_drafter", quantize_drafter, target_device, drafter, (BY_DEFAULT, NONE))
    quantize_drafter = None if quantize_drafter == NONE else quantize_drafter
    drafter_files = None if is_auto(drafter) else check_drafter_exists(drafter)
    if quantize_drafter in KINDS and not is_auto(drafter):
        check_quantizable(drafter, drafter_files, quantize_drafter)
    origin = target if isinstance(target, PreTrainedModel) else ModelFiles.of_model(target)
    if quantize is None and not wants.lossy_window:  # whose KV caches drafttree-native does not have
        quantize = AS_STORED
    elif quantize == NONE:
        quantize = None
    if is_auto(dtype) and isinstance(origin, ModelFiles) and stays_as_stored(origin, target_device, quantize):
        target_dtype = torch.bfloat16  # as with int8: rows are rounded to eight bits anyway
    model = load_model(origin, target_dtype, target_device, quantize, tensor_parallel_size)
    tokenizer = load_tokenizer(origin) if tokenizer is None else tokenizer
    eos = eos_ids(model, tokenizer)
    target_model = TargetModel(model, partial(choose_backend, wants=wants))
    part_finder = NamedParts(quantize_drafter)
    try:
        if max_model_len is not None:
            target_model.limit_context(max_model_len)
        if tuned_policy:
            tuned_policy.check_target(model_digest(target_model), str(target_model.dtype).removeprefix("torch."))
        loaded_drafter = find_or_choose(
            drafter, origin, target_model, tokenizer, quantize_drafter, drafter_files, part_finder.held
        )
        if quantize_drafter in KINDS:
            check_quantized(loaded_drafter, drafter, quantize_drafter)
        if tuned_policy and loaded_drafter:
            tuned_policy.check_drafter(model_digest(loaded_drafter))
        if policy is None and loaded_drafter:
            chosen_policy = default_policy(chosen_verifier, loaded_drafter, sharded=tensor_parallel_size != 1)
    except DraftTreeError:
        target_model.release()
        raise
    defaults = model_defaults(model.generation_config)
    if defaults:
        logger.info("options of the model's generation config: %s", show_options(defaults))
    if tuned_policy and tuned_policy.draft_temperature != 1:
        defaults = {**defaults, "draft_temperature": tuned_policy.draft_temperature}
    learned_state = LearnedState(_costs(tuned_policy, target_model)) if tuned_policy else None
    return Decoder(
        *(target_model, loaded_drafter, chosen_policy, chosen_verifier, tokenizer, eos, defaults),
        learned=learned_state,
        parts=part_finder,
    )


def _defaults(
    tuned: TunedPolicy, drafter: DrafterSource | None, verifier: VerifierLike | None
) -> tuple[DrafterSource | None, VerifierLike | None]:
    """Drafter and verifier; those of a tuned policy where they are "auto"."""
    if is_auto(drafter):
        drafter = tuned.drafter.name if tuned.drafter else None
        logger.info("drafter: %s (%s)", drafter or "none", tuned.path)
    return drafter, tuned.verifier if verifier is None or is_auto(verifier) else verifier


def _costs(tuned: TunedPolicy, target: TargetModel) -> CostCurve | None:
    """The tuned policy's cost curve; None to measure it anew where it is of another machine."""
    if tuned.costs and (machine_name := machine(target.device)) != tuned.machine:
        logger.info("%s was tuned on %s; costs are measured anew on %s", tuned.path, tuned.machine, machine_name)
        return None
    return tuned.costs
