"""Records the passes of a server's models as CUDA graphs before its first request."""

import logging
import time
from typing import Any

import torch

from drafttree.core.machine_memory import is_out_of_memory
from drafttree.drafters import HeadDrafter
from drafttree.drafters.base import sources_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import TRIAL_COSTS

LONGEST_TEXT = 4096
"""Room is reserved for texts of this many tokens. For a longer text KV caches move, and passes are recorded again."""
PROMPT, TOKENS = 8, 8
"""Tokens of the prompts, and of the texts, that are generated for recording."""
logger = logging.getLogger("drafttree")


def record_passes(decoder: Decoder, max_batch: int, rows: float) -> None:
    """Generate short texts in batches of several sizes, so that most requests find their passes recorded.

    Memory for all KV caches is reserved first, since a recorded pass is bound to the addresses of its caches. Passes of
    other sizes are recorded when they first run. A pass over a single request is recorded for each buffer that its KV
    cache gets. Nothing is learned from these texts. Time and memory are logged.

    Args:
        decoder: the decoder whose target and drafter run.
        max_batch: the most requests at once.
        rows: the most rows of all KV caches together.
    """
    target = decoder.target
    recording_backends = [backend for backend in _backends(decoder) if hasattr(backend, "reserve")]
    if not recording_backends:
        return
    start = time.perf_counter()
    initial_bytes = _reserved(target.device)
    try:
        for backend in recording_backends:
            backend.reserve(int(min(rows, max_batch * LONGEST_TEXT)))
        trial = decoder.with_verifier(None).with_costs(TRIAL_COSTS)
        for size in sorted({max_batch, *(1 << power for power in range(max_batch.bit_length()))}, reverse=True):
            trial.generate([[0] * PROMPT] * size, max_batch=size, max_new_tokens=TOKENS, temperature=0, ignore_eos=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("memory ran out while CUDA graphs were recorded; the others are recorded when first used")
    mib = (_reserved(target.device) - initial_bytes) / 2**20
    seconds = time.perf_counter() - start
    logger.info("recorded CUDA graphs for up to %d requests: %.1f s, %.0f MiB", max_batch, seconds, mib)


def _backends(decoder: Decoder) -> list[Any]:
    """The backends of the target and of the drafter's models."""
    drafters = sources_of(decoder.drafter) if decoder.drafter else ()
    models = [decoder.target, *(getattr(drafter, "model", drafter) for drafter in drafters)]
    heads = [head for drafter in drafters if isinstance(drafter, HeadDrafter) for head in drafter.heads]
    return [getattr(model, "backend", None) for model in (*models, *heads)]


def _reserved(device: torch.device) -> int:
    """Bytes of a GPU that torch has reserved; 0 on other devices."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
