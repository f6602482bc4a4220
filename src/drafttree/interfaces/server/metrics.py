"""Prometheus metrics of a server: the counts of its engine, and the times of texts.

Their names are vLLM's, with the prefix `drafttree:`.
"""

import re
import time
from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from drafttree.engine.batching import Engine, Handle
from drafttree.models.base import Backend

PREFIX = "drafttree:"
COUNTERS = {
    "spec_decode_num_drafts": ("drafts", "Draft trees that were verified."),
    "spec_decode_num_draft_tokens": ("drafted", "Drafted tokens that were verified."),
    "spec_decode_num_accepted_tokens": ("accepted", "Drafted tokens that became part of a text."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts behind which a text has begun."),
    "prefix_cache_queries": ("prompt_tokens", "Tokens of prompts that were looked for in the prefix cache."),
    "prefix_cache_hits": ("reused_tokens", "Of them, those that an earlier text had left there."),
    "generation_tokens": ("tokens", "Tokens that were generated."),
    "num_preemptions": ("preempted", "Requests that had to be read again, since memory ran out."),
    "drafter_failures": ("drafter_failures", "Rounds that went on without drafts, since the drafter failed."),
    "collapsed_texts": ("collapsed_texts", "Texts whose drafts became useless from some token on."),
    "image_wait_seconds": ("image_wait_seconds", "Seconds for which texts waited while images of a prompt were read."),
}
"""By name: an attribute of `EngineMetrics`, and the description."""
GAUGES = {
    "num_requests_running": ("running", "Requests that run."),
    "num_requests_waiting": ("waiting", "Requests that wait."),
    "predicted_gain": ("predicted_gain", "Speed of drafting over plain rounds, by costs and counted acceptance."),
    "measured_gain": ("measured_gain", "The same, as measured in recent rounds."),
}
"""By name: an attribute of `EngineMetrics`, and the description. A gauge is left out while its value is None."""
FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
NEXT_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
WHOLE_TEXT = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
"""Upper bounds of the histograms' buckets, in seconds."""
WRITTEN = ("stop", "length")
"""Finish reasons of complete texts. All other reasons are reported as "abort", as in vLLM."""


class ServerMetrics:
    """The metrics of one server.

    Attributes:
        registry: all metrics, for `generate_latest`.
        grammar: histogram of the seconds that requests wait for their grammar.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, {"model_name": model_name}))
        ProcessCollector(registry=self.registry)

        def seconds(name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
            histogram = Histogram(PREFIX + name, description, ("model_name",), buckets=buckets, registry=self.registry)
            return histogram.labels(model_name)

        self._first_token = seconds("time_to_first_token_seconds", "Until a text's first token.", FIRST_TOKEN)
        documentation = "From token to token, those of a round being even."
        self._next_token = seconds("inter_token_latency_seconds", documentation, NEXT_TOKEN)
        self._queue = seconds("request_queue_time_seconds", "Until a text's prompt is read.", FIRST_TOKEN)
        self.grammar = seconds("grammar_compilation_time_seconds", "Until a grammar is made.", FIRST_TOKEN)
        self._whole_text = seconds("e2e_request_latency_seconds", "Until the end of a text.", WHOLE_TEXT)
        labels = ("model_name", "finished_reason")
        success_counter = Counter(f"{PREFIX}request_success", "Texts that have ended.", labels, registry=self.registry)
        self._ended = partial(success_counter.labels, model_name)

    def watch(self, handle: Handle, start_time: float) -> None:
        """Measure the times of a text that was requested at `start_time`, a value of `time.perf_counter`."""
        last_time = start_time
        seen_rounds = 0
        has_ended = False

        def look() -> None:
            nonlocal last_time, seen_rounds, has_ended
            current_time = time.perf_counter()
            metrics = handle.metrics
            for text_round in metrics.rounds[seen_rounds:]:
                if not seen_rounds:
                    self._first_token.observe(current_time - last_time)
                    self._queue.observe(metrics.queue_seconds)
                else:
                    for _ in range(text_round.committed):
                        self._next_token.observe((current_time - last_time) / text_round.committed)
                seen_rounds += 1
                last_time = current_time
            if handle.done and not has_ended:
                has_ended = True
                reason = "error" if handle.error else handle.result(0).finish_reason
                self._ended(reason if reason in (*WRITTEN, "error") else "abort").inc()
                self._whole_text.observe(current_time - start_time)

        handle.listen(look)


class EngineCollector(Collector):
    """Collects the metrics of an engine at each scrape. All metrics get the same labels."""

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._names = [*labels]
        self._values = [*labels.values()]

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        metrics = self._engine.metrics
        for name, (attribute, help_) in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, help_, labels=self._names)
            counter.add_metric(self._values, getattr(metrics, attribute))
            yield counter
        gauges = {name: (getattr(metrics, attribute), help_) for name, (attribute, help_) in GAUGES.items()}
        gauges["kv_cache_usage_perc"] = self._engine.kv_cache_usage, "Rows of the KV cache in use, 1 is all."
        budget = metrics.latest.drafted if metrics.latest else None
        gauges["draft_budget"] = budget, "Drafted tokens of the latest round: k, over all requests."
        for name, (value, help_) in gauges.items():
            gauge = GaugeMetricFamily(PREFIX + name, help_, labels=self._names)
            if value is not None:
                gauge.add_metric(self._values, value)
            yield gauge

        help_ = "Drafted tokens that became part of a text, by their level in the tree."
        name = f"{PREFIX}spec_decode_num_accepted_tokens_per_pos"
        counter = CounterMetricFamily(name, help_, labels=[*self._names, "position"])
        for position, count in enumerate(metrics.accepted_by_position):
            counter.add_metric([*self._values, str(position)], count)
        yield counter

        reason = metrics.drafting_off
        help_ = "1 where the latest round drafted nothing, with the reason."
        gauge = GaugeMetricFamily(f"{PREFIX}drafting_off", help_, labels=[*self._names, "reason"])
        gauge.add_metric([*self._values, _kind(reason or "")], float(reason is not None))
        yield gauge

        fidelity = self._engine.decoder.fidelity
        help_ = "1 where texts do not follow the target's law, with the reason."
        gauge = GaugeMetricFamily(f"{PREFIX}lossy", help_, labels=[*self._names, "reason"])
        gauge.add_metric([*self._values, fidelity.lossy or ""], float(not fidelity.lossless))
        yield gauge

        backend: Backend | None = getattr(self._engine.decoder.target, "backend", None)
        if backend is None:
            return
        help_ = "Always 1; the labels say what runs the target's passes, and why no faster backend does."
        info = InfoMetricFamily(f"{PREFIX}target_backend", help_, labels=self._names)
        reason = backend.fallback_reason or ""
        info.add_metric(self._values, {"backend": backend.name, "fallback_reason": reason})
        yield info


def _kind(reason: str) -> str:
    """A reason without numbers and details, so that the label has few values."""
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", reason.partition(":")[0])
