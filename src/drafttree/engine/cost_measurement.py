"""Measures a `CostCurve`: a second or two of passes and rounds, kept on disk for the next process."""

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts, parse_cost_curve
from drafttree.core.disk_cache import DiskCache
from drafttree.core.errors import ConfigError
from drafttree.drafters.base import Drafter
from drafttree.engine.metrics import Round
from drafttree.engine.pass_times import time_passes
from drafttree.models import Model, TargetModel
from drafttree.policies import Chain, Template, TreePolicy

Rounds = Callable[[Drafter | None, TreePolicy, list[int], int], Iterator[Round]]
SIZES = (1, 4, 16, 64, 2, 8, 32)
"""Nodes of the passes, in the order in which they are measured as long as there is time."""
CONTEXT = 64
"""Tokens before the passes and rounds."""
TOKENS = 64
"""Tokens of the rounds' text at most."""
WIDE = 8
"""The frontier whose draft passes are measured beside those of a single node."""
PASS_SECONDS, ROUND_SECONDS, REPEATS = 0.9, 0.25, 12
"""The time for all passes, for the rounds of each policy, and how often each is measured at most."""
CHAIN_OF_1, CHAIN_OF_4 = Chain(depth=1), Chain(depth=4)
PARALLEL_CHAINS = Template(paths=tuple((rank, *[0] * deep) for deep in range(3) for rank in range(WIDE)))
logger = logging.getLogger("drafttree")


def measured_costs(target: Model, drafter: Drafter, rounds: Rounds) -> CostCurve:
    """The costs of a target and a drafter: those kept on disk, or measured now and kept; arguments as below."""
    cache, key = DiskCache("costs"), cost_key(target, drafter)
    if key and (kept := cache.get(key)):
        try:
            return parse_cost_curve(kept)
        except ConfigError:
            logger.info("the kept costs of %r are of another version; they are measured again", target)
    started = time.perf_counter()
    costs = measure_costs(target, drafter, rounds)
    logger.info("measured the costs of %r and %r in %.1f s", target, drafter, time.perf_counter() - started)
    if key:
        cache.put(key, costs.to_json())
    return costs


def measure_costs(target: Model, drafter: Drafter, rounds: Rounds) -> CostCurve:
    """Measure the costs of a target and a drafter, by passes and greedy rounds behind a short text.

    Args:
        target: whose passes are timed.
        drafter: whose passes are timed, and those of its models apart if it has several.
        rounds: decodes a prompt greedily with a drafter, or plainly, and a policy, a round at a time; the last
            argument is how many tokens at most.
    """
    room = target.context or 4 * (CONTEXT + max(SIZES))
    context = min(CONTEXT, room // 4)
    sizes = [size for size in SIZES if context + size <= room]
    passes = time_passes(target, sizes, context, REPEATS, PASS_SECONDS)
    prompt = [token % (context // 4) % target.vocab_size for token in range(context)]  # a text that repeats itself
    models: Sequence[Drafter] = getattr(drafter, "sources", None) or (drafter,)
    length = min(TOKENS, room - context)
    drafted = [_draft_costs(model, prompt, length, rounds) for model in models]
    return CostCurve(
        target=Costs.of(passes),
        draft=tuple(costs for costs, _ in drafted),
        overhead=statistics.fmean(overhead for _, overhead in drafted),
        plain_overhead=statistics.median(_outside(each) for each in _run(rounds(None, CHAIN_OF_1, prompt, length))),
    )


def _draft_costs(drafter: Drafter, prompt: list[int], length: int, rounds: Rounds) -> tuple[DraftCosts, float]:
    """What a model's draft passes cost, growth included, and a round outside of them and of the target's."""
    policies = (CHAIN_OF_1, CHAIN_OF_4, PARALLEL_CHAINS)
    short, long, wide = (_run(rounds(drafter, policy, prompt, length)) for policy in policies)
    first = statistics.median(_drafting(each) for each in short)
    later = {1: _later(long, first)}
    overhead = statistics.median(_outside(each) - each.growth_seconds for each in long)
    return DraftCosts(first, Costs.of(later | {WIDE: _later(wide, first)})), overhead


def _later(rounds: list[Round], first: float) -> float:
    """Seconds for each level of rounds behind the first level; 0 where there was no other."""
    deep = [(_drafting(each) - first) / (each.levels - 1) for each in rounds if each.levels > 1]
    return max(statistics.median(deep), 0.0) if deep else 0.0


def _run(rounds: Iterator[Round]) -> list[Round]:
    """Some rounds, without the first, in which drafters read what a prompt has left."""
    end, done = time.perf_counter() + ROUND_SECONDS, []
    for turn in islice(rounds, REPEATS + 1):
        done.append(turn)
        if time.perf_counter() > end and len(done) > 2:
            break
    return done[1:] or done


def _drafting(turn: Round) -> float:
    return turn.draft_seconds + turn.growth_seconds


def _outside(turn: Round) -> float:
    return turn.seconds - turn.draft_seconds - turn.target_seconds


def cost_key(target: Model, drafter: Drafter) -> str | None:
    """What decides the costs, as a text; None where the target is no transformers model and cannot be told apart.

    Shapes and types of weights decide, their values do not.
    """
    if not isinstance(target, TargetModel):
        return None
    parts = (_digest(target), _digest(drafter), machine(target.device), str(target.dtype), torch.__version__)
    return " | ".join(parts)


def machine(device: torch.device) -> str:
    """The part of a machine that passes take their time on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device}, {torch.get_num_threads()} threads"


def _digest(model: Any) -> str:
    """A digest of the architecture of a target or a drafter."""
    return hashlib.sha256(json.dumps(_describe(model), default=str).encode()).hexdigest()[:16]


def _describe(part: Any, depth: int = 0) -> Any:
    if isinstance(part, TargetModel):
        return [type(part.backend).__name__, _describe(part.module)]
    if isinstance(part, nn.Module):
        config: Any = getattr(part, "config", None)
        tensors = [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in part.state_dict().items()]
        return [type(part).__name__, config.to_diff_dict() if hasattr(config, "to_diff_dict") else None, tensors]
    if isinstance(part, bool | int | float | str | torch.dtype) or part is None:
        return str(part)
    parts: dict[str, Any] = vars(part) if hasattr(part, "__dict__") and depth < 3 else {}
    return [type(part).__qualname__, [(name, _describe(each, depth + 1)) for name, each in sorted(parts.items())]]
