"""transformers' continuous batching, `generate_batch`, on the same module: one packed pass per token, no drafts."""

import contextlib
import copy
import sys
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from drafttree.core.errors import ModelError
from drafttree.engine.decoder import Decoder
from drafttree.measure.reference import released, transformers_model
from drafttree.models import TargetModel

PAGE = 256
"""Tokens per page of its KV cache, its default."""
CHUNK = 512
"""Maximum rows of a pass, unless the batch is larger."""
TRIAL_TOKENS = 4


def generate_batch(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Decode prompts greedily with transformers' continuous batching, past EOS tokens; also return when tokens came.

    The cache size is set explicitly, since its default on a CPU is 60 % of the memory. The time before the prompts are
    submitted does not count.

    Raises:
        ConfigError: the target is not a transformers model.
        ModelError: not all texts were written.
    """
    with released(transformers_model(decoder)) as module, contextlib.redirect_stdout(sys.stderr):
        settings = copy.deepcopy(module.generation_config)
        settings.update(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs_by_id = module.generate_batch(  # pyright: ignore[reportCallIssue]
            list(map(list, prompts)),
            generation_config=settings,
            continuous_batching_config=_memory(prompts, max_new_tokens, flash=module.device.type == "cuda"),
            record_timestamps=True,
        )
    outputs = list(outputs_by_id.values())
    if failure := next(filter(None, map(attrgetter("error"), outputs)), None):
        raise ModelError(f"transformers' generate_batch: {failure}")
    if len(outputs) < len(prompts):
        raise ModelError(f"transformers' generate_batch wrote {len(outputs)} of {len(prompts)} texts")
    start = min(map(attrgetter("created_time"), outputs))
    times = list(map(partial(_seconds_since, start), outputs))
    return list(map(attrgetter("generated_tokens"), outputs)), times


def _seconds_since(start: float, output: Any) -> list[float]:
    """Seconds from the start to each token of a text."""
    return [time - start for time in output.timestamps or []]


def _memory(prompts: Sequence[Sequence[int]], max_new_tokens: int, *, flash: bool) -> ContinuousBatchingConfig:
    """A configuration with enough pages for all texts."""
    return ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=sum((len(prompt) + max_new_tokens) // PAGE + 2 for prompt in prompts),
        max_batch_tokens=max(CHUNK, 2 * len(prompts)),
        auto_switch_to_flash=flash,
    )


def why_not(decoder: Decoder, prompt: Sequence[int]) -> str | None:
    """Try `generate_batch`, which also warms it up: None if it works, or else why not."""
    if not isinstance(decoder.target, TargetModel):
        return "the target is not a transformers model"
    if decoder.target.lossy_window:
        return "it has no lossy_window"
    try:
        generate_batch(decoder, [prompt], TRIAL_TOKENS)
    except Exception as error:  # a failure of another program must not stop the measurement
        return " ".join(str(error).split()) or type(error).__name__
    return None


def describe(decoder: Decoder) -> str:
    """A description of the program, with its version."""
    with released(transformers_model(decoder)) as module:
        attention = module.config._attn_implementation
    return f"generate_batch of transformers {transformers.__version__}, {attention} attention"
