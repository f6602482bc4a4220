"""Tests, on texts of the target, whether a head is read correctly."""

from dataclasses import replace

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.acceptance_watch import BEST
from drafttree.loading.inspect import Inspection
from drafttree.measure.prompt_sets import shipped_prompts
from drafttree.policies import Chain

TOKENS = 64


def try_head(inspection: Inspection, decoder: Decoder) -> Inspection:
    """Add how often the target's token is among a head's likeliest, and how often the head itself expects that.

    The texts are drawn at temperature 1, where the two should be equal. Greedy texts would not show an error: a head
    without its last norm predicts greedy tokens as well as before.

    Args:
        inspection: the inspection of the head's files.
        decoder: a decoder with the head and its target.

    Raises:
        ConfigError: the drafter is not a head.
        InputError: the target has no tokenizer.
    """
    if decoder.drafter is None or not decoder.drafter.hidden_layers:
        raise ConfigError(
            f"a {inspection.kind} does not read the target's hidden states, so there is nothing to test; leave "
            "--target out"
        )
    decoder = Decoder(decoder.target, decoder.drafter, Chain(depth=1), tokenizer=decoder.tokenizer)
    watch = decoder.learned.head_watch
    for prompt in shipped_prompts():
        if watch.is_open:
            decoder.generate(prompt, temperature=1.0, seed=0, max_new_tokens=TOKENS, ignore_eos=True)
    trial_details: dict[str, object] = {
        "rounds tried": watch.found.rounds,
        f"target's token among its {BEST} likeliest": watch.found.accepted,
        "expected by its own probabilities": round(watch.claimed, 1),
    }
    problems = (
        ("it may be misread: its tokens are right far less often than its own probabilities say",)
        if watch.is_misread
        else ()
    )
    return replace(inspection, details=inspection.details | trial_details, problems=problems)
