"""What a round has written can be read before the next round's pass, alone and in company."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from drafttree import Chunk, Engine
from drafttree.models import Output, Segment
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, SMALL, TARGET, small
from testing.toy import ToyDrafter, ToyModel, greedy_text

PROMPT = [3]
LENGTH = 16


class Patient(ToyModel):
    """A model that begins no pass before its readers have read all that was written."""

    def __init__(self) -> None:
        super().__init__(TARGET)
        self.read, self.changed = 0, threading.Condition()

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        written = sum(int(segment.positions[0]) for segment in segments)  # of one token's prompts
        with self.changed:
            assert self.changed.wait_for(lambda: self.read >= written, 10), "a pass began before what was written came"
        return super().forward(segments, hidden_layers=hidden_layers)

    def tokens_of(self, chunks: Iterable[Chunk]) -> list[int]:
        tokens = []
        for chunk in chunks:
            tokens += chunk.tokens
            with self.changed:
                self.read += len(chunk.tokens)
                self.changed.notify_all()
        return tokens


@pytest.mark.parametrize("policy", [*SMALL, None])
def test_of_a_stream(policy):
    target = Patient()
    decoder = toy_decoder(target, ToyDrafter(DRAFT), small(policy or "talon"))
    stream = (decoder if policy else decoder.plain()).stream(PROMPT, max_new_tokens=LENGTH)
    assert target.tokens_of(stream) == greedy_text(TARGET, PROMPT, LENGTH)


@pytest.mark.parametrize("texts", [1, 4])
@pytest.mark.parametrize("policy", ["auto", "chain", "talon"])
def test_of_an_engine(policy, texts):
    target = Patient()
    decoder = toy_decoder(target, ToyDrafter(DRAFT), small(policy))
    with Engine(decoder) as engine, ThreadPoolExecutor(texts) as readers:
        handles = [engine.submit(PROMPT, max_new_tokens=LENGTH, reuse_prefix=False) for _ in range(texts)]
        found = list(readers.map(target.tokens_of, handles))
    assert found == [greedy_text(TARGET, PROMPT, LENGTH)] * texts
