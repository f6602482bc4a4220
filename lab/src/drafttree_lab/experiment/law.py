"""Decoding against its limits: memory bandwidth, and the speed-up law of `engine.metrics`."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import time_passes, wait_for
from drafttree.loading import PolicyLike
from drafttree.measure.reference import transformers_model
from drafttree.measure.run_store import RunStore
from drafttree.models import TargetModel, prefill
from drafttree_lab.experiment.methods import MethodBench, MethodRow, bench_policies
from drafttree_lab.experiment.peers import Peer, make_peers

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
BEHIND = (1, 16)
"""Nodes of the passes that are timed behind contexts of several lengths."""
COPIED = 256 << 20
ROOFLINE, WIDE, WIDE_COST, SPEEDUP = 0.75, 64, 1.2, 3.0
"""The targets on a GPU."""


@dataclass(frozen=True)
class Target:
    """A figure beside what it should be on a GPU, where passes wait for memory. No test asserts one.

    Attributes:
        name: the name of the figure.
        found: measured.
        bound: the target.
        is_upper: whether the figure should be at most that, or at least.
    """

    name: str
    found: float
    bound: float
    is_upper: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        return self.found <= self.bound if self.is_upper else self.found >= self.bound


@dataclass(frozen=True)
class LawBench:
    """The measurements of one pair of models, on one machine, in one run.

    Attributes:
        device: and `dtype`, of the target; how its weights are quantised follows the dtype.
        parameters: parameters of the target.
        bandwidth: bytes per second of a large copy, read and written.
        target_bytes: bytes that a target pass over one node reads: weights, and keys and values of `context` tokens.
        draft_bytes: bytes that a draft pass over one node reads; 0 where the drafter is no language model.
        context: tokens before the passes that were timed.
        passes: median seconds of a target pass by number of nodes.
        contexts: by the tokens before them, seconds of passes over 1 and 16 nodes.
        bench: plain decoding, policies and peers over the prompts.
    """

    device: str
    dtype: str
    parameters: int
    bandwidth: float
    target_bytes: int
    draft_bytes: int
    context: int
    passes: dict[int, float]
    contexts: dict[int, dict[int, float]]
    bench: MethodBench

    def v(self, nodes: int) -> float:
        """Time of a pass over so many nodes in passes over one."""
        return self.passes[nodes] / self.passes[1]

    def moved(self, row: MethodRow) -> float:
        """Bytes per second that the models' passes of a way of decoding read."""
        rounds = row.tokens_per_second / row.law.tau
        return rounds * (self.target_bytes + row.law.delta * self.draft_bytes)

    def targets(self) -> list[Target]:
        """What was measured of the targets on a GPU, empty for another device."""
        if not self.device.startswith("cuda"):
            return []
        plain, *others = [row for row in self.bench.rows if row.group == "all"]
        found = [
            Target("share of the memory bandwidth in plain decoding", self.moved(plain) / self.bandwidth, ROOFLINE)
        ]
        if WIDE in self.passes:
            found.append(Target(f"v({WIDE})", self.v(WIDE), WIDE_COST, is_upper=True))
        if others and plain.tokens_per_second:
            best = max(others, key=lambda row: row.tokens_per_second)
            if not best.doubt:
                found.append(Target("best R", best.tokens_per_second / plain.tokens_per_second, SPEEDUP))
        return found

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        verification = {nodes: self.v(nodes) for nodes in self.passes}
        roofline = {
            f"{row.method}, {row.group}": self.moved(row) / self.bandwidth for row in self.bench.rows if row.law.tau
        }
        return {
            **asdict(self),
            "bench": self.bench.summary(),
            "v": verification,
            "share_of_roofline": roofline,
            "targets": [*map(asdict, self.targets())],
        }


def measure_law(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 3,
    max_new_tokens: int = 128,
    context: int = 256,
    contexts: Sequence[int] = (),
    peers: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> LawBench:
    """Measure the machine, the passes, and decoding by every policy, greedily.

    Args:
        decoder: the decoder with a transformers target and a drafter.
        prompts: token ids.
        policies: as for `parse_policies`.
        repeats: repeats of the runs over the prompts, and ten times as many of the single passes; medians are taken.
        max_new_tokens: per prompt.
        context: tokens before the single passes.
        contexts: also time passes over 1 and 16 nodes behind so many tokens; that may be more than the model was made
            for, since only the time is looked at.
        peers: also run transformers' own ways of generating.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: the target is no transformers model or has too little context, there is no drafter, or a policy
            or an option is refused.
    """
    target = transformers_model(decoder)
    nodes = [n for n in BUCKETS if target.context is None or context + n <= target.context]
    if not nodes:
        raise ConfigError(f"context={context} leaves no room in the model's context of {target.context}")
    others: dict[str, Peer] = make_peers(decoder, max_new_tokens) if peers else {}
    settings = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "store": store, **options}
    bench = bench_policies(decoder, prompts, policies, repeats=repeats, peers=others, progress=progress, **settings)
    draft = getattr(decoder.drafter, "model", None)
    return LawBench(
        device=str(target.device),
        dtype=target.precision,
        parameters=sum(parameter.numel() for parameter in target.module.parameters()),
        bandwidth=copy_bandwidth(target.device),
        target_bytes=pass_bytes(target, context),
        draft_bytes=pass_bytes(draft, context) if isinstance(draft, TargetModel) else 0,
        context=context,
        passes=time_passes(target, nodes, context, 10 * repeats),
        contexts={length: time_passes(target, BEHIND, length, 3 * repeats) for length in contexts},
        bench=bench,
    )


def copy_bandwidth(device: torch.device, repeats: int = 9) -> float:
    """Bytes per second, read and written, of a copy much larger than any cache: the machine's roofline."""
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)

    def once() -> float:
        wait_for(device)
        started = time.perf_counter()
        copy.copy_(source)
        wait_for(device)
        return 2 * COPIED / (time.perf_counter() - started)

    return statistics.median([once() for _ in range(1 + repeats)][1:])


def pass_bytes(model: TargetModel, context: int) -> int:
    """Bytes a pass over one node reads: every weight but the embedding's other rows, and the cache of a context."""
    module: Any = model.module
    weights = {id(parameter): parameter.nbytes for parameter in module.parameters()}
    table, head = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    if table is not head:
        weights[id(table)] = table[0].nbytes
    cache = model.new_cache(context)
    prefill(model, cache, [0])
    return sum(weights.values()) + cache.nbytes * context // cache.capacity
