"""The metrics of a server: what its engine counts, and the times of the texts."""

import time

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from drafttree.engine.batching import Engine, Handle
from drafttree.interfaces.server.engine_collector import PREFIX, EngineCollector

FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
NEXT_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
WHOLE_TEXT = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
"""Upper ends of the buckets of the histograms, in seconds."""
WRITTEN = ("stop", "length")
"""The finish reasons of texts that were written to their end; the others are vLLM's "abort"."""


class ServerMetrics:
    """The metrics of one server.

    Args:
        engine: writes its texts.
        model_name: the label of every metric.

    Attributes:
        registry: of all of them.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, {"model_name": model_name}))
        ProcessCollector(registry=self.registry)
        self._model_name = model_name
        self._first_token = self._seconds("time_to_first_token_seconds", "Until a text's first token.", FIRST_TOKEN)
        self._next_token = self._seconds(
            "inter_token_latency_seconds", "From token to token, those of a round being even.", NEXT_TOKEN
        )
        self._whole_text = self._seconds("e2e_request_latency_seconds", "Until the end of a text.", WHOLE_TEXT)
        labels = ("model_name", "finished_reason")
        self._ended = Counter(f"{PREFIX}request_success", "Texts that have ended.", labels, registry=self.registry)

    def watch(self, handle: Handle, begun: float) -> None:
        """Measure a text.

        Args:
            handle: of it.
            begun: when it was asked for, by `time.perf_counter`.
        """
        handle.listen(_Watch(self, handle, begun).look)

    def see_round(self, tokens: int, seconds: float, *, first: bool) -> None:
        """Count the tokens that a round has added after so many seconds."""
        if first:
            self._first_token.observe(seconds)
            return
        for _ in range(tokens):
            self._next_token.observe(seconds / tokens)

    def see_end(self, reason: str, seconds: float) -> None:
        """Count a text that has ended."""
        self._ended.labels(self._model_name, reason).inc()
        self._whole_text.observe(seconds)

    def _seconds(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(PREFIX + name, what, ("model_name",), buckets=buckets, registry=self.registry)
        return histogram.labels(self._model_name)


class _Watch:
    """Looks at one text.

    Args:
        metrics: are told.
        handle: of the text.
        begun: when it was asked for.
    """

    def __init__(self, metrics: ServerMetrics, handle: Handle, begun: float) -> None:
        self._metrics, self._handle, self._begun = metrics, handle, begun
        self._last, self._seen, self._ended = begun, 0, False

    def look(self) -> None:
        """Note what is new."""
        now, rounds = time.perf_counter(), self._handle.metrics.rounds
        for turn in rounds[self._seen :]:
            self._metrics.see_round(turn.committed, now - self._last, first=not self._seen)
            self._seen, self._last = self._seen + 1, now
        if self._handle.done and not self._ended:
            self._ended = True
            self._metrics.see_end(self._reason(), now - self._begun)

    def _reason(self) -> str:
        if self._handle.error:
            return "error"
        reason = self._handle.result(0).finish_reason
        return reason if reason in WRITTEN else "abort"
