"""Benchmarks: what speculation gains, what it costs, and where the time of a round goes.

Everything that is compared runs interleaved in one process, after a warm-up, and every figure is a median.
"""

from drafttree.bench.compare import Comparison, compare
from drafttree.bench.inflation import inflate
from drafttree.bench.law import LawBench, measure_law
from drafttree.bench.overhead import Overhead, measure_overhead
from drafttree.bench.policies import PeerRow, PolicyBench, PolicyRow, bench_policies

__all__ = [
    "Comparison",
    "LawBench",
    "Overhead",
    "PeerRow",
    "PolicyBench",
    "PolicyRow",
    "bench_policies",
    "compare",
    "inflate",
    "measure_law",
    "measure_overhead",
]
