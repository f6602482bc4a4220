"""Looks for evidence that served texts do not follow the target's distribution, and reports it in `/metrics`."""

import logging
import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request
from drafttree.evaluation.audit import Audit
from drafttree.interfaces.server.metrics import PREFIX

logger = logging.getLogger("drafttree")


class ServedAudit(Audit):
    """An audit of a server's texts, which logs an error once the evidence refutes their distribution.

    Use it only for texts whose seed the server has drawn. A client may repeat a seed, and with it the random numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refuted = False

    def settled(
        self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        """See `Audit`."""
        super().settled(request, tree, logits, verdict, text_round)
        if not self._refuted and self.evidence.refutes:
            self._refuted = True
            logger.error(
                "the texts do not follow the target's distribution: after %d tokens the e-value is 10^%.1f (%s)",
                self.evidence.tokens,
                self.evidence.log_e_value / math.log(10),
                request.task.fidelity.words,
            )


class AuditCollector(Collector):
    """Collects the figures of an audit at each scrape. All metrics get the same labels."""

    def __init__(self, audit: Audit, labels: dict[str, str]) -> None:
        self._audit = audit
        self._names = [*labels]
        self._values = [*labels.values()]

    def collect(self) -> Iterator[Metric]:
        """The current evidence."""
        evidence = self._audit.evidence
        help_ = "Tokens that were looked at for evidence against the target's law."
        tokens = CounterMetricFamily(f"{PREFIX}audit_tokens", help_, labels=self._names)
        tokens.add_metric(self._values, evidence.tokens)
        yield tokens
        help_ = "Tokens among them that have no probability, such as those that top_k leaves out."
        impossible_counter = CounterMetricFamily(f"{PREFIX}audit_impossible_tokens", help_, labels=self._names)
        impossible_counter.add_metric(self._values, evidence.impossible)
        yield impossible_counter
        help_ = "Logarithm to base 10 of the e-value against the target's law; 6 refutes it."
        e_value = GaugeMetricFamily(f"{PREFIX}audit_e_value_log10", help_, labels=self._names)
        e_value.add_metric(self._values, evidence.log_e_value / math.log(10))
        yield e_value
