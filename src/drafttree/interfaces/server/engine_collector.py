"""What the engine counts, as Prometheus reads it; the names are vLLM's, under `drafttree:`."""

import re
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drafttree.engine.batching import Engine, EngineMetrics

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
}
"""By name: the attribute of `EngineMetrics`, and what it is."""
GAUGES = {
    "num_requests_running": ("running", "Requests that run."),
    "num_requests_waiting": ("waiting", "Requests that wait."),
    "predicted_gain": ("predicted_gain", "Speed of drafting over plain rounds, by costs and calibration."),
    "measured_gain": ("measured_gain", "The same, as measured in recent rounds."),
}
"""Likewise; what is None is left out."""


class EngineCollector(Collector):
    """Reads an engine whenever the metrics are asked for.

    Args:
        engine: that is read.
        labels: of every metric.
    """

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine, self._names, self._values = engine, [*labels], [*labels.values()]

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        metrics = self._engine.metrics
        for name, (attribute, help_) in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, help_, labels=self._names)
            counter.add_metric(self._values, getattr(metrics, attribute))
            yield counter
        for name, (attribute, help_) in GAUGES.items():
            yield self._gauge(name, help_, getattr(metrics, attribute))
        yield self._gauge("kv_cache_usage_perc", "Rows of the KV cache in use, 1 is all.", self._engine.kv_cache_usage)
        budget = metrics.latest.drafted if metrics.latest else None
        yield self._gauge("draft_budget", "Drafted tokens of the latest round: k, over all requests.", budget)
        yield self._accepted_by_position(metrics)
        yield self._drafting_off(metrics.drafting_off)

    def _gauge(self, name: str, help_: str, value: float | None) -> Metric:
        gauge = GaugeMetricFamily(PREFIX + name, help_, labels=self._names)
        if value is not None:
            gauge.add_metric(self._values, value)
        return gauge

    def _accepted_by_position(self, metrics: EngineMetrics) -> Metric:
        help_ = "Drafted tokens that became part of a text, by their level in the tree."
        name = f"{PREFIX}spec_decode_num_accepted_tokens_per_pos"
        counter = CounterMetricFamily(name, help_, labels=[*self._names, "position"])
        for position, count in enumerate(metrics.accepted_by_position):
            counter.add_metric([*self._values, str(position)], count)
        return counter

    def _drafting_off(self, reason: str | None) -> Metric:
        help_ = "1 where the latest round drafted nothing, with the reason."
        gauge = GaugeMetricFamily(f"{PREFIX}drafting_off", help_, labels=[*self._names, "reason"])
        gauge.add_metric([*self._values, _kind(reason or "")], float(reason is not None))
        return gauge


def _kind(reason: str) -> str:
    """A reason without its figures and details, so that there are few different ones."""
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", reason.partition(":")[0])
