"""What a round does on a device beside its recorded passes: kernels, copies, and waits, of which levels + 1 are due."""

import pytest

from drafttree.loading import make_policy
from helpers.device_counts import DeviceCounts, decoder_of, take_for_a_device

PROMPT = "The old keeper told the children that the storm would come before the night, and that the old keeper told"
TALON = "talon:budget=16,width=4"
CASES = [
    (None, "chain", 1, 1),
    (None, "chain", 16, 2),
    ("embedded-eagle3", "chain:depth=5", 1, 19),
    ("embedded-eagle3", "chain:depth=5", 16, 60),
    ("embedded-eagle3", TALON, 1, 17),
    ("embedded-eagle3", TALON, 16, 124),
    ("lookup", TALON, 1, 1),
    ("lookup", TALON, 16, 4),
    ("mixed:embedded-eagle3", TALON, 1, 14),
    ("mixed:embedded-eagle3", TALON, 16, 110),
]
"""Drafter, policy, texts at once, and kernels of a round at most, as they were counted."""


def rounds_of(counts: DeviceCounts, drafter: str | None, policy: str, batch: int, patch: pytest.MonkeyPatch):
    """Some rounds of texts whose prompts are read and whose passes are recorded: their number, and levels of each."""
    decoder = decoder_of(counts, drafter, policy)
    take_for_a_device(counts, patch)
    decoder = decoder.with_policy(make_policy(policy))  # whose loop is made anew
    words = PROMPT.split()
    prompts = [" ".join(words[place % 5 :] + words[: place % 5]) for place in range(batch)]
    for _ in range(2):
        requests = [decoder.new_request(prompt, max_new_tokens=40, ignore_eos=True) for prompt in prompts]
        for request in requests:
            decoder.loop.read_prompt(request)
        counts.counts.clear()
        levels, rounds = 0, 0
        while rounds < 6 and not any(request.text.finish_reason for request in requests):
            with counts:
                advance = decoder.loop.step(requests)
            errors = [turn for turn in advance.rounds if isinstance(turn, Exception)]
            assert not errors
            levels += max(sum(widths > 0 for widths in tree.widths) for tree in advance.drafts.trees)
            rounds += 1
    return rounds, levels


@pytest.mark.parametrize(("drafter", "policy", "batch", "kernels"), CASES)
def test_a_round_waits_once_a_level_and_once_for_its_pass(drafter, policy, batch, kernels, monkeypatch):
    counts = DeviceCounts()
    rounds, levels = rounds_of(counts, drafter, policy, batch, monkeypatch)
    shown = {event: round(number / rounds, 1) for event, number in sorted(counts.counts.items())}
    print(drafter, policy, f"texts {batch} rounds {rounds} levels {levels / rounds:.1f}", shown)
    assert counts.counts["waits"] <= levels + rounds
    assert counts.counts["kernels"] <= kernels * rounds
