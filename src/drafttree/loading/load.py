"""`load`: from names, paths and loaded models to a decoder."""

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.engine import compatibility
from drafttree.engine.costs.cost_file import machine
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import model_defaults, show_options
from drafttree.engine.learned_state import LearnedState
from drafttree.engine.model_digest import model_digest
from drafttree.loading.drafters import DrafterSource, check_drafter_exists, find_or_choose
from drafttree.loading.part_finder import NamedParts
from drafttree.loading.placement import find_device, find_dtype, find_placement
from drafttree.loading.pretrained import ModelSource, eos_ids, find_model, load_model, load_tokenizer
from drafttree.loading.specs import PolicyLike, VerifierLike, default_policy, find_verifier, make_policy
from drafttree.loading.target_options import SINKS, check_low_memory, check_quantization, check_sharding, choose_backend
from drafttree.loading.tuned import TunedPolicy, find_policy
from drafttree.models import TargetModel

logger = logging.getLogger("drafttree")
ADAPTED_NODES = 8
"""Nodes of trees that a dtype is chosen for, beside single nodes, where the policy grows what is worth its costs."""


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
    quantize_drafter: str | None = None,
    low_memory: bool = False,
    tensor_parallel_size: int = 1,
) -> Decoder:
    """A decoder from names, paths or loaded models.

    Args:
        target: "embedded", a folder, a hub name, or a loaded transformers model, which may be wrapped by
            `torch.compile` or peft; its adapters stay in force.
        drafter: "embedded-eagle3", a folder or a hub name (a language model, a Gemma 4 assistant, or an EAGLE, MTP,
            DFlash, DSpark, Medusa or Hydra drafter), a loaded model; "mtp", the MTP layers in the target's own files;
            "lookup" or "suffix", which propose what followed before and need no model; "mixed:" and a model, for lookup
            with that model to fall back to; an object of the protocol `drafttree.drafters.Drafter`; the name of a
            drafter class (see `drafttree.loading.drafters`) or the class itself; or "none" or None for plain decoding.
            "auto" takes what `choose_drafter` says; the logger "drafttree" says which and why, as a warning where it is
            lookup.
        policy: a policy, its class, or its specification, such as "talon:budget=60,margin=0.03"; or a file of
            `drafttree tune --save`, such as "tuned.json", which also decides drafter, verifier and dtype where they are
            "auto", and brings the draft temperature, as a default, and the cost curve of its machine. None is `auto`,
            which measures what passes cost when the first text is written, for about two seconds once a machine, and
            drafts what pays; where the verifier's draws depend on the drafts, or the target is sharded, it is
            `dynatree`, which measures nothing. For a drafter whose drafts do not depend on their path (DFlash's kind)
            it is `auto:flat=true`, or else `chain`.
        verifier: the name or class of one, or "auto": greedy at temperature 0, coupled above it. Policies and
            verifiers of your own are named by the dotted names of their classes or by entry points (see
            `drafttree.loading.methods`).
        dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 where the device multiplies it fast, else float32.
            On a CPU that has bfloat16 it is the one in which products of the model's shapes take less time, which is
            measured once a machine and kept in the user's cache folder; the logger "drafttree" says which.
        device: "cpu", "cuda", ... or "auto": cuda where there is one.
        tokenizer: the target's; by default the one in its folder.
        exact_text: make the text of every policy and drafter that of plain decoding token for token, in every dtype.
            Without it that holds in float32, and below it up to ties: logits so close that rounding decides. Costs
            time (see docs/performance.md); whether it holds on the device is tried at load.
        lossy_window: let the target attend to the latest tokens only, so many at most, and to the first `sinks` tokens,
            and keep the rows of no others in its KV cache (StreamingLLM; `drafttree.models.windows` says
            how it differs). That is another model, whose text is its own: plain decoding over the same window writes
            it too. The drafter reads the whole text. DynaTree v1's cache of 1024 is a window of 1020 with 4 sinks.
        sinks: first tokens that stay visible with `lossy_window`.
        quantize: "int8" rounds the weights of the target's linear layers to eight bits, those of its head excepted.
            That is another model, whose text is its own: plain decoding and transformers' `generate` on
            `decoder.target.module` write it too. It takes less memory; docs/performance.md says where it is faster.
        quantize_drafter: the same for a language model that drafts; the text stays the target's.
        low_memory: on a CPU, keep the weights of the target's linear layers once, packed as products read them, and
            unpack them for a state dict; without it, large ones have a packed copy beside them. The head, which is no
            such layer, has none then: passes over several tokens take longer for it. Adapters and whatever else needs
            layers of torch's own class cannot be added.
        tensor_parallel_size: processes that the target's weights are sharded over, for a target too large for one
            device; as many have to run the same program, started by torchrun. See docs/large-scale.md.

    The options that the target's generation config sets are the decoder's `defaults`, as for transformers' `generate`:
    a model that asks for sampling samples, unless a call gives `temperature=0`. The logger "drafttree" says which.

    A loaded target keeps its dtype and device, and attends to trees from then on: its own `generate` works again after
    `decoder.target.release()`.

    Raises:
        ConfigError: a policy, verifier, parameter, dtype, device or quantisation that does not exist, a loaded model to
            be quantised, or what cannot be had of a sharded target.
        InputError: a file that is no tuned policy of this version.
        ModelError: a model or head that cannot be loaded or quantised, does not fit the target, or cannot be verified
            in a tree; one that is not that of a tuned policy; or `exact_text` or `lossy_window` cannot hold for it.
        TokenizerMismatch: a language model that drafts has less than a third of the target's tokens.
    """
    select = choose_backend(exact_text, lossy_window, sinks)
    policy, target = find_policy(policy), find_model(target)
    tuned = policy if isinstance(policy, TunedPolicy) else None
    if tuned:
        drafter, verifier = _defaults(tuned, drafter, verifier)
        dtype = tuned.dtype if dtype == "auto" and not isinstance(target, PreTrainedModel) else dtype
    chosen_verifier = find_verifier(verifier)
    if policy is None:
        chosen_policy = default_policy(chosen_verifier, sharded=tensor_parallel_size != 1)
    else:
        chosen_policy = make_policy(policy.policy) if isinstance(policy, TunedPolicy) else policy
    if chosen_verifier:
        compatibility.check(chosen_policy, chosen_verifier)
    check_quantization("quantize", quantize, target)
    check_quantization("quantize_drafter", quantize_drafter, drafter)
    check_low_memory(low_memory, target)
    unserved = {"exact_text": exact_text, "quantize": quantize, "a tuned policy": tuned, "low_memory": low_memory}
    check_sharding(tensor_parallel_size, target, unserved)
    if tensor_parallel_size > 1:  # the faster dtype is measured, and processes might measure different ones
        dtype = find_dtype(dtype, find_device(device))
    nodes = (1, ADAPTED_NODES) if chosen_policy.uses_costs else (chosen_policy.most_nodes,)
    nodes = (1,) if drafter in (None, "none") else nodes
    on, kind = find_placement(target, dtype, device, quantize, nodes)
    if drafter != "auto":
        check_drafter_exists(drafter)
    model = load_model(target, kind, on, quantize, tensor_parallel_size, low_memory=low_memory)
    tokenizer = tokenizer or load_tokenizer(target)
    eos = eos_ids(model, tokenizer)
    wrapped = TargetModel(model, select)
    try:
        if tuned:
            tuned.check_target(model_digest(wrapped), str(wrapped.dtype).removeprefix("torch."))
        drafting = find_or_choose(drafter, target, wrapped, tokenizer, quantize_drafter)
        if tuned and drafting:
            tuned.check_drafter(model_digest(drafting))
        if policy is None and drafting:
            chosen_policy = default_policy(chosen_verifier, drafting, sharded=tensor_parallel_size != 1)
    except DraftTreeError:
        wrapped.release()
        raise
    defaults = model_defaults(model.generation_config)
    if defaults:
        logger.info("options of the model's generation config: %s", show_options(defaults))
    if tuned and tuned.draft_temperature != 1:
        defaults = {**defaults, "draft_temperature": tuned.draft_temperature}
    learned = LearnedState(_costs(tuned, wrapped)) if tuned else None
    return Decoder(
        *(wrapped, drafting, chosen_policy, chosen_verifier, tokenizer, eos, defaults),
        learned=learned,
        parts=NamedParts(),
    )


def _defaults(
    tuned: TunedPolicy, drafter: DrafterSource | None, verifier: VerifierLike | None
) -> tuple[DrafterSource | None, VerifierLike | None]:
    """Drafter and verifier; those of a tuned policy where they are "auto"."""
    if isinstance(drafter, str) and drafter == "auto":
        drafter = tuned.drafter.name if tuned.drafter else None
        logger.info("drafter: %s (%s)", drafter or "none", tuned.path)
    return drafter, tuned.verifier if verifier in (None, "auto") else verifier


def _costs(tuned: TunedPolicy, target: TargetModel) -> CostCurve | None:
    """The tuned policy's cost curve; None to measure it anew where it is of another machine."""
    if tuned.costs and (here := machine(target.device)) != tuned.machine:
        logger.info("%s was tuned on %s; costs are measured anew on %s", tuned.path, tuned.machine, here)
        return None
    return tuned.costs
