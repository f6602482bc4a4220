"""transformers' own batching, `generate_batch`, on the same module: one packed pass per token, no speculation."""

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
"""Tokens of a page of its KV cache, its default."""
CHUNK = 512
"""Rows of a pass at most, unless the batch is larger."""
TRIAL_TOKENS = 4


def generate_batch(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Decode prompts greedily by transformers' continuous batching, past the end of texts; and when tokens came.

    Its memory is told to it, since it would take 60 % of a CPU's otherwise. What it does before it has the prompts is
    left out of the seconds.

    Raises:
        ConfigError: the target is none of transformers' models.
        ModelError: it has not written all texts.
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
    """When the tokens of a text came, after its beginning."""
    return [time - start for time in output.timestamps or []]


def _memory(prompts: Sequence[Sequence[int]], max_new_tokens: int, *, flash: bool) -> ContinuousBatchingConfig:
    """Pages for all texts, and rows of a pass."""
    return ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=sum((len(prompt) + max_new_tokens) // PAGE + 2 for prompt in prompts),
        max_batch_tokens=max(CHUNK, 2 * len(prompts)),
        auto_switch_to_flash=flash,
    )


def why_not(decoder: Decoder, prompt: Sequence[int]) -> str | None:
    """Why there is nothing to compare with, None if `generate_batch` works; this warms it up."""
    if not isinstance(decoder.target, TargetModel):
        return "the target is no transformers model"
    if decoder.target.lossy_window:
        return "it has no lossy_window"
    try:
        generate_batch(decoder, [prompt], TRIAL_TOKENS)
    except Exception as error:  # whatever keeps another program from running is no reason to measure nothing
        return " ".join(str(error).split()) or type(error).__name__
    return None


def describe(decoder: Decoder) -> str:
    """What is compared with, in words."""
    with released(transformers_model(decoder)) as module:
        attention = module.config._attn_implementation
    return f"generate_batch of transformers {transformers.__version__}, {attention} attention"
