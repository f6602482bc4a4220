"""Benchmarks: what speculation gains, what it costs, and where the time of a round goes.

Everything that is compared runs interleaved in one process, after a warm-up, and every figure is a median.
"""

from drafttree.evaluation.compare import Comparison, compare
from drafttree.evaluation.inflation import inflate
from drafttree_lab.bench.acceptance import Acceptance, AcceptanceRow, bench_acceptance
from drafttree_lab.bench.arrival import Arrival, ArrivalBench, bench_arrival
from drafttree_lab.bench.auto import AutoBench, AutoRow, bench_auto
from drafttree_lab.bench.batch import BatchBench, bench_batch
from drafttree_lab.bench.drafters import DrafterBench, bench_drafters, bench_methods
from drafttree_lab.bench.edits import code_edits
from drafttree_lab.bench.exact_text import ExactTextRow, bench_exact_text
from drafttree_lab.bench.expansion import ExpansionBench, ExpansionTime, bench_expansion
from drafttree_lab.bench.law import LawBench, measure_law
from drafttree_lab.bench.lookup import LookupBench, bench_lookup
from drafttree_lab.bench.overhead import Overhead, measure_overhead
from drafttree_lab.bench.policies import PeerRow, PolicyBench, PolicyRow, bench_policies
from drafttree_lab.bench.reliability import ReliabilityBench, ReliabilityCurve, bench_reliability
from drafttree_lab.bench.verifiers import VerifierBench, VerifierTime, bench_verifiers

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
