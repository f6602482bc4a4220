"""The configuration of an EAGLE-3 head, read from the config.json of every format.

They differ in where the fields are, in their names, and in how the target's hidden states are counted. What a file does
not say is taken from the tensors.
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.eagle import Eagle3Config
from drafttree.drafters.formats.checkpoints import FLAG, OBJECT, SIZE, TEXTS, entry
from drafttree.drafters.formats.decoder_layers import LAYERS, layer_config, size_of
from drafttree.drafters.formats.head_checkpoint import usual_rows

OUTPUT = r"lm_head\.weight"
SPECFORGE = "LlamaForCausalLMEagle3"
DEPTH, STATES = "target_num_hidden_layers", "eagle_aux_hidden_state_layer_ids"
OUTPUTS_READ = ("target_layer_ids", "aux_hidden_states_layer_ids")
logger = logging.getLogger("drafttree")


def format_of(raw: Mapping[str, Any], first: bool) -> str:
    """Whose format a checkpoint is in.

    Args:
        raw: its `config.json`.
        first: whether its first layer is called `layers.0.`.
    """
    architectures = entry(raw, "architectures", TEXTS) or [""]
    if raw.get("target_layer_ids"):
        return "DeepSpec"
    if "transformer_layer_config" in raw or first:
        return "vLLM speculators"
    if architectures[0] == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    return "SpecForge" if architectures[0] == SPECFORGE or "eagle_config" in raw else "SafeAILab"


def hidden_states_read(raw: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, int | None]:
    """The target's hidden states to read and the depth of the target, where the configuration tells.

    States are counted as transformers counts `hidden_states`: number i is the input of layer i. At the top of the
    configuration `eagle_aux_hidden_state_layer_ids` are such numbers: vLLM (`LlamaModel.forward`) keeps the residual
    stream before the layers they name, and vLLM speculators trains with them. Within `eagle_config`, as SpecForge and
    SGLang (`set_eagle3_layers_to_capture`) read it, they are layers whose output is read, one less; so are DeepSpec's
    `target_layer_ids` (`extract_eagle3_context_feature`) and AngelSlim's `aux_hidden_states_layer_ids`. An empty list
    stands for the default.

    Raises:
        ModelError: the fields name different states.
    """
    given = {STATES: (raw, STATES, 0), f"eagle_config.{STATES}": (_nested(raw), STATES, 1)}
    given |= {name: (raw, name, 1) for name in OUTPUTS_READ}
    read = {
        place: tuple(layer + shift for layer in layers)
        for place, (config, name, shift) in given.items()
        if (layers := entry(config, name, LAYERS))
    }
    if len(set(read.values())) > 1:
        said = " and ".join(f"{place} means {list(states)}" for place, states in read.items())
        raise ModelError(f"config.json names different hidden states of the target: {said}; leave one of them")
    states = next(iter(read.values()), None)
    depth = entry(raw, DEPTH, SIZE) or entry(raw, "num_target_layers", SIZE)
    if states and depth is None and states[:2] == (2, (states[-1] + 3) // 2):
        depth = states[-1] + 3
    return states, depth


def reads_states(raw: Mapping[str, Any]) -> bool:
    """Whether a head reads states between the target's layers; vLLM and ModelOpt know heads that read its last one."""
    return entry({**raw, **_nested(raw)}, "use_aux_hidden_state", FLAG) is not False


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """SpecForge's fields of its own."""
    return entry(raw, "eagle_config", OBJECT) or {}


def read_config(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int, layers: int) -> Eagle3Config:
    """The configuration of a head.

    Args:
        raw: its `config.json`.
        tensors: tensors of the checkpoint, those of its first layer under `layers.0.`.
        states: number of the target's hidden states it reads.
        layers: number of its decoder layers.

    Raises:
        ModelError: it lacks a size, gives a field as what it cannot be, or asks for what a tree pass does not
            reproduce.
    """
    layer = entry(raw, "transformer_layer_config", OBJECT) or raw
    options = {**_nested(raw), **raw}
    hidden, vocab = (size_of(layer, name) for name in ("hidden_size", "vocab_size"))
    return Eagle3Config(
        layer=layer_config(layer, tensors, layers),
        vocab=vocab,
        draft_vocab=entry(raw, "draft_vocab_size", SIZE) or usual_rows(OUTPUT, tensors) or vocab,
        target_hidden=entry(raw, "target_hidden_size", SIZE) or hidden,
        states=states,
        normed_residual=bool(entry(options, "norm_before_residual", FLAG)),
        normed_input=bool(entry(options, "norm_before_fc", FLAG)) or "input_norm.weight" in tensors,
        normed_states=bool(entry(options, "fc_norm", FLAG)) or any(name.startswith("fc_norm.") for name in tensors),
        normed_output=_normed_output(options),
        normed_logits=not _head_without_norm(options, tensors),
    )


def _normed_output(options: Mapping[str, Any]) -> bool:
    """Whether the state after the final norm is what the next level reads ("norm_output", EAGLE-3.1).

    TensorRT-LLM calls it `return_hidden_post_norm`. So vLLM, SGLang and SpecForge since its pull request 879 (September
    2026) read it. Before, SpecForge trained heads with "norm_output" to read the state before the norm, as heads of
    files without the key do; its files do not say which version wrote them.
    """
    if entry(options, "return_hidden_post_norm", FLAG):
        return True
    normed = bool(entry(options, "norm_output", FLAG))
    if normed and _is_specforge(options):
        logger.warning(
            "norm_output: drafted tokens read states after the final norm, as vLLM and SGLang serve this head; if few "
            "drafts are accepted and SpecForge before its pull request 879 trained it, remove norm_output from its "
            "config.json"
        )
    return normed


def _head_without_norm(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the logits are of states before the final norm, as SpecForge before its pull request 879 trained them.

    It meant that by "norm_output" as false, where vLLM, SGLang and later versions mean EAGLE-3. It left the weights
    of a norm that it did not use as they are made, all ones, by which such files are told apart.
    """
    norm = tensors.get("norm.weight")
    unused = entry(options, "norm_output", FLAG) is False and _is_specforge(options)
    if not unused or norm is None or not bool((norm == 1).all()):
        return False
    logger.info("norm_output is false and the final norm was not trained: logits are of states before it")
    return True


def _is_specforge(options: Mapping[str, Any]) -> bool:
    return SPECFORGE in (options.get("architectures") or ())
