"""The events of one text, as the page reads them."""

from collections.abc import AsyncIterator, Iterable
from itertools import groupby, islice
from typing import Any

from sse_starlette import JSONServerSentEvent

from drafttree.engine.batching import Handle
from drafttree.engine.generation import Chunk
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.trace import TracingObserver
from drafttree.interfaces.page_parts.round_packing import pack_round
from drafttree.interfaces.server.errors import as_server_error

FIGURES = (
    "tokens",
    "rounds",
    "mean_accepted_tokens",
    "draft_efficiency",
    "acceptance_rate",
    "mean_nodes",
    "time_to_first_token",
    "decoding_tokens_per_second",
)
"""Of `Metrics.summary`, those that end a stream."""


class RoundEvents:
    """The rounds of a text while it is written.

    A `round` has new text, the tree of the round and the time so far; `end` has the figures of the text, and `error`
    what a failed request's reply has. Texts of tokens are sent once: `strings` has those that are new in a round.

    Args:
        handle: of the text; it is cancelled where nobody reads to the end.
        observer: of its rounds.
    """

    def __init__(self, handle: Handle, observer: TracingObserver) -> None:
        self._handle, self._observer = handle, observer
        self._strings: dict[str, int] = {}

    async def __aiter__(self) -> AsyncIterator[JSONServerSentEvent]:
        try:
            async for chunk in self._handle:
                yield JSONServerSentEvent(self._round(chunk), event="round")
            yield JSONServerSentEvent(self._end(), event="end")
        except Exception as error:
            yield JSONServerSentEvent(as_server_error(error).body, event="error")
        finally:
            self._handle.cancel()

    def _round(self, chunk: Chunk) -> dict[str, Any]:
        """A round, or the text that a cancelled request had held back."""
        added = {"text": _pieces(chunk), "seconds": _decoding_seconds(self._handle.metrics)}
        served = self._observer.take() if chunk.tokens else None
        if served is None:
            return added
        known = len(self._strings)
        packed = pack_round(served.traced, self._strings)
        return added | {
            "round": packed,
            "strings": list(islice(self._strings, known, None)),
            "passes": served.cost.draft_passes,
            "reason": served.reason,
        }

    def _end(self) -> dict[str, Any]:
        whole = self._handle.result()
        summary = whole.metrics.summary()
        figures = {name: summary[name] for name in FIGURES}
        return {"finish": whole.finish_reason, "figures": figures}


def _pieces(chunk: Chunk) -> list[tuple[str, bool]]:
    """The new text in pieces, each with whether the drafter proposed it."""
    characters: Iterable[tuple[str, bool]] = zip(chunk.text, chunk.drafted_text, strict=True)
    return [
        ("".join(character for character, _ in piece), drafted)
        for drafted, piece in groupby(characters, key=lambda each: each[1])
    ]


def _decoding_seconds(metrics: Metrics) -> float:
    return round(metrics.seconds - metrics.prefill_seconds, 5)
