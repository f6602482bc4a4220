"""Results that are no decoding of prompts: verifiers on the same contexts, peak memory, and growth of trees alone."""

from collections.abc import Callable, Sequence

from drafttree.engine.decoder import Decoder
from drafttree.loading import policy_spec
from drafttree.measure.method import Method
from drafttree_lab.bench import acceptance
from drafttree_lab.bench.memory import measure_memory as measure_method
from drafttree_lab.bench.micro import time_growth
from drafttree_lab.replay.plan import Task
from drafttree_lab.replay.text_cell import Fractions

MIB = 2**20


def measure_acceptance(
    task: Task, ids: Sequence[int], make_decoder: Callable[[Method], Decoder], seed: int
) -> Fractions:
    """Tokens per round of every way of a block, expected on contexts of the target's own text after a prompt.

    Trees are drawn once for all verifiers that take them, so verifiers are compared on the same ones; plain decoding
    has one token per round.
    """
    found: Fractions = {}
    setting = task.block.setting
    for drafter in dict.fromkeys(way.drafter for way in task.block.ways.values()):
        own = {name: way for name, way in task.block.ways.items() if way.drafter == drafter}
        if drafter is None:
            found |= dict.fromkeys(own, (1.0, 1.0))
            continue
        first = next(iter(own.values()))
        result = acceptance.measure_acceptance(
            make_decoder(Method(drafter, first.policy)),
            [list(ids)],
            temperatures=[setting.temperature],
            rounds=task.experiment.contexts,
            shapes=[way.policy for way in own.values()],
            verifiers=list(dict.fromkeys(way.verifier_name for way in own.values())),
            seed=seed,
        )
        tokens = {row["shape"]: row["tokens"] for row in result["rows"]}
        found |= {name: (tokens[policy_spec(way.policy)][way.verifier_name].mean, 1.0) for name, way in own.items()}
    return found


def measure_memory(task: Task, ids: Sequence[int], target: str, dtype: str, device: str, seed: int) -> Fractions:
    """Peak memory of every way of a block in MiB, each in a process of its own."""
    setting = task.block.setting
    options = {"temperature": setting.temperature, "max_new_tokens": setting.max_new_tokens, "seed": seed}
    texts = {"target": target, "dtype": dtype, "device": device, "prompts": [list(ids)], "options": options}
    used = {name: measure_method(way.spec, texts) for name, way in task.block.ways.items()}
    return {name: ((use["device_peak"] or use["peak"]) / MIB, 1.0) for name, use in used.items()}


def measure_expansion(task: Task) -> Fractions:
    """Milliseconds of growing a tree from synthetic rows, without draft passes, of every way of a block."""
    kind = dict(part.split("=") for part in str(task.block.value).split(","))
    ways = {name: way for name, way in task.block.ways.items() if way.drafter}
    policies = {name: way.policy for name, way in ways.items()}
    found = time_growth(list(policies.values()), vocabs=[int(kind["vocab"])], alphas=[float(kind["alpha"])])
    seconds = {row["policy"]: row["mean_seconds"] for row in found}
    times = {name: (1e3 * seconds[policy_spec(policy)], 1.0) for name, policy in policies.items()}
    return times | {name: (0.0, 1.0) for name in task.block.ways if name not in times}
