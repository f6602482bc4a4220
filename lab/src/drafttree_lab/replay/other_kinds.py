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
    fractions: Fractions = {}
    setting = task.block.setting
    for drafter in dict.fromkeys(way.drafter for way in task.block.ways.values()):
        ways = {name: way for name, way in task.block.ways.items() if way.drafter == drafter}
        if drafter is None:
            fractions |= dict.fromkeys(ways, (1.0, 1.0))
            continue
        first_way = next(iter(ways.values()))
        result = acceptance.measure_acceptance(
            make_decoder(Method(drafter, first_way.policy)),
            [list(ids)],
            temperatures=[setting.temperature],
            rounds=task.experiment.contexts,
            shapes=[way.policy for way in ways.values()],
            verifiers=list(dict.fromkeys(way.verifier_name for way in ways.values())),
            seed=seed,
        )
        tokens = {row["shape"]: row["tokens"] for row in result["rows"]}
        for name, way in ways.items():
            fractions[name] = (tokens[policy_spec(way.policy)][way.verifier_name].mean, 1.0)
    return fractions


def measure_memory(task: Task, ids: Sequence[int], target: str, dtype: str, device: str, seed: int) -> Fractions:
    """Peak memory of every way of a block in MiB, each in a process of its own."""
    setting = task.block.setting
    options = {"temperature": setting.temperature, "max_new_tokens": setting.max_new_tokens, "seed": seed}
    texts = {"target": target, "dtype": dtype, "device": device, "prompts": [list(ids)], "options": options}
    fractions: Fractions = {}
    for name, way in task.block.ways.items():
        use = measure_method(way.spec, texts)
        fractions[name] = ((use["device_peak"] or use["peak"]) / MIB, 1.0)
    return fractions


def measure_expansion(task: Task) -> Fractions:
    """Milliseconds of growing a tree from synthetic rows, without draft passes, of every way of a block."""
    parameters = dict(assignment.split("=") for assignment in str(task.block.value).split(","))
    policies = {name: way.policy for name, way in task.block.ways.items() if way.drafter}
    rows = time_growth(list(policies.values()), vocabs=[int(parameters["vocab"])], alphas=[float(parameters["alpha"])])
    seconds = {row["policy"]: row["mean_seconds"] for row in rows}
    fractions: Fractions = {}
    for name, policy in policies.items():
        fractions[name] = (1e3 * seconds[policy_spec(policy)], 1.0)
    for name in task.block.ways:
        fractions.setdefault(name, (0.0, 1.0))
    return fractions
