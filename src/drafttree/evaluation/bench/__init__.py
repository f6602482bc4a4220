"""Benchmarks: what speculation gains, what it costs, and where the time of a round goes.

Everything that is compared runs interleaved in one process, after a warm-up, and every figure is a median.
"""

from drafttree.evaluation.bench.acceptance import Acceptance, AcceptanceRow, bench_acceptance
from drafttree.evaluation.bench.arrival import Arrival, ArrivalBench, bench_arrival
from drafttree.evaluation.bench.auto import AutoBench, AutoRow, bench_auto
from drafttree.evaluation.bench.batch import BatchBench, bench_batch
from drafttree.evaluation.bench.compare import Comparison, compare
from drafttree.evaluation.bench.drafters import DrafterBench, bench_drafters, bench_methods
from drafttree.evaluation.bench.edits import code_edits
from drafttree.evaluation.bench.exact_text import ExactTextRow, bench_exact_text
from drafttree.evaluation.bench.expansion import ExpansionBench, ExpansionTime, bench_expansion
from drafttree.evaluation.bench.inflation import inflate
from drafttree.evaluation.bench.law import LawBench, measure_law
from drafttree.evaluation.bench.lookup import LookupBench, bench_lookup
from drafttree.evaluation.bench.overhead import Overhead, measure_overhead
from drafttree.evaluation.bench.policies import PeerRow, PolicyBench, PolicyRow, bench_policies
from drafttree.evaluation.bench.reliability import ReliabilityBench, ReliabilityCurve, bench_reliability
from drafttree.evaluation.bench.verifiers import VerifierBench, VerifierTime, bench_verifiers

__all__ = [
    "Acceptance",
    "AcceptanceRow",
    "Arrival",
    "ArrivalBench",
    "AutoBench",
    "AutoRow",
    "BatchBench",
    "Comparison",
    "DrafterBench",
    "ExactTextRow",
    "ExpansionBench",
    "ExpansionTime",
    "LawBench",
    "LookupBench",
    "Overhead",
    "PeerRow",
    "PolicyBench",
    "PolicyRow",
    "ReliabilityBench",
    "ReliabilityCurve",
    "VerifierBench",
    "VerifierTime",
    "bench_acceptance",
    "bench_arrival",
    "bench_auto",
    "bench_batch",
    "bench_drafters",
    "bench_exact_text",
    "bench_expansion",
    "bench_lookup",
    "bench_methods",
    "bench_policies",
    "bench_reliability",
    "bench_verifiers",
    "code_edits",
    "compare",
    "inflate",
    "measure_law",
    "measure_overhead",
]
