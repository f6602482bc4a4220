"""Benchmarks: what speculation gains, what it costs, and where the time of a round goes.

Everything that is compared runs interleaved in one process, after a warm-up, and every figure is a median.
"""

from drafttree.bench.compare import Comparison, compare
from drafttree.bench.edits import code_edits
from drafttree.bench.lookup import LookupBench, bench_lookup
from drafttree.bench.overhead import Overhead, measure_overhead
from drafttree.bench.policies import PolicyBench, PolicyRow, bench_policies

__all__ = [
    "Comparison",
    "LookupBench",
    "Overhead",
    "PolicyBench",
    "PolicyRow",
    "bench_lookup",
    "bench_policies",
    "code_edits",
    "compare",
    "measure_overhead",
]
