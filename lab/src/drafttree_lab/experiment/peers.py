"""Baselines from transformers: plain, assisted and prompt-lookup generation with the same weights."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import GenerationConfig

from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.measure.reference import ReferenceRun, released, transformers_generate
from drafttree.models import TargetModel

Peer = Callable[[Sequence[int]], ReferenceRun]
SCHEDULES = ("constant", "heuristic")
PROMPT_LOOKUP = {"prompt_lookup_num_tokens": 10}


def make_peers(decoder: Decoder, max_new_tokens: int) -> dict[str, Peer]:
    """Make greedy generation functions of transformers, by name.

    Assisted generation is among them if the drafter is a language model, with transformers' defaults and each of its
    schedules for the number of assistant tokens.

    Args:
        decoder: gives the target and the drafter.
        max_new_tokens: tokens to generate per prompt.
    """

    def run(prompt: Sequence[int], **assistance: Any) -> ReferenceRun:
        options = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        return transformers_generate(decoder, prompt, assistance=assistance, **options)

    def assisted(schedule: str) -> Peer:
        return lambda prompt: _assisted(decoder, schedule, lambda assistant: run(prompt, assistant_model=assistant))

    peers: dict[str, Peer] = {
        "transformers": run,
        "transformers prompt lookup": lambda prompt: run(prompt, **PROMPT_LOOKUP),
    }
    if isinstance(decoder.drafter, LanguageModelDrafter) and isinstance(decoder.drafter.model, TargetModel):
        peers |= {f"transformers assisted, {schedule}": assisted(schedule) for schedule in SCHEDULES}
    return peers


def _assisted(decoder: Decoder, schedule: str, run: Callable[[object], ReferenceRun]) -> ReferenceRun:
    assert isinstance(decoder.drafter, LanguageModelDrafter)
    assert isinstance(decoder.drafter.model, TargetModel)
    with released(decoder.drafter.model) as assistant:
        assistant.generation_config = GenerationConfig(num_assistant_tokens_schedule=schedule)
        return run(assistant)
