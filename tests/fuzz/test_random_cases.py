"""Random policies, drafters, verifiers and options: no crash, and no text that plain decoding does not give.

In float32, and in bfloat16 with `exact_text`.

`make test` runs some fixed cases, `make fuzz` 500 drawn by a seed that it prints. A refusal is a result, but only where
plain decoding refuses the same.
"""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, event, given, settings

from drafttree import Decoder, Generation
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.errors import DraftTreeError
from drafttree.verifiers import Coupled
from testing.random_cases import Case, cases

CASES = int(os.environ.get("FUZZ_CASES", 0))
FUZZ = {"suppress_health_check": [HealthCheck.too_slow], "phases": [Phase.reuse, Phase.generate, Phase.shrink]}


@settings(max_examples=CASES or 8, derandomize=not CASES, **FUZZ)
@given(case=cases())
def test_a_random_case(case: Case):
    decoder, options = case.decoder(), case.arguments()
    found = outcome(decoder, case.prompt, options)
    plain = outcome(decoder.plain(), case.prompt, options)
    if isinstance(found, str):
        event(f"refused: {found[:40]}")
        assert found == plain, "plain decoding serves what speculation refuses"
        return
    verifier = type(decoder.new_request(case.prompt, **options).task.verifier)
    if is_text_of_seed(verifier):
        assert shown(found) == shown(plain)
    elif verifier.lossless and options.get("top_k") == 1:
        assert found.tokens == decoder.plain().with_verifier(Coupled).generate(case.prompt, **options).tokens
    event(f"served by {verifier.__name__}")
    assert_well_formed(found, decoder, options)
    assert_streams_the_same(found, decoder, case.prompt, options)


def outcome(decoder: Decoder, prompt: Any, options: dict[str, Any]) -> Generation | str:
    """The text, or the refusal's message."""
    try:
        return decoder.generate(prompt, **options)
    except DraftTreeError as error:
        return str(error)


def shown(found: Generation) -> tuple[object, ...]:
    return found.tokens, found.text, found.finish_reason


def assert_well_formed(found: Generation, decoder: Decoder, options: dict[str, Any]) -> None:
    metrics, count = found.metrics, len(found.tokens)
    assert 1 <= count <= options["max_new_tokens"]
    assert found.finish_reason in ("stop", "length")
    assert metrics.tokens == len(found.drafted) == count
    assert sum(round_.accepted for round_ in metrics.rounds) == sum(found.drafted)
    assert max(round_.nodes for round_ in metrics.rounds) <= decoder.policy.budget
    assert not {*options.get("suppress_tokens", ())} & {*found.tokens}
    if found.logprobs is not None:
        assert len(found.logprobs) == count
        assert max(found.logprobs) <= 0
    stops = options.get("stop", [])
    assert not any(stop in found.text for stop in ([stops] if isinstance(stops, str) else stops))


def assert_streams_the_same(found: Generation, decoder: Decoder, prompt: Any, options: dict[str, Any]) -> None:
    """A text comes again with its seed, in pieces too."""
    chunks = list(decoder.stream(prompt, **options))
    assert [token for chunk in chunks for token in chunk.tokens] == found.tokens
    assert "".join(chunk.text for chunk in chunks) == found.text
    assert [drafted for chunk in chunks for drafted in chunk.drafted] == found.drafted
    assert [value for chunk in chunks for value in chunk.logprobs] == (found.logprobs or [])
    assert [top for chunk in chunks for top in chunk.top_logprobs] == (found.top_logprobs or [])
    assert all(len(chunk.origins) == len(chunk.text) for chunk in chunks)
    assert all(chunk.drafted_text == [found.drafted[token] for token in chunk.origins] for chunk in chunks)
