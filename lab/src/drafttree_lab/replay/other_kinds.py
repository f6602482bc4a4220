"""Results that are not about decoding: acceptance of verifiers, peak memory, and the time to grow a tree."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from drafttree.engine.decoder import Decoder
from drafttree.loading import policy_spec
from drafttree.measure.method import Method
from drafttree_lab.bench import acceptance
from drafttree_lab.bench.memory import measure_memory as measure_method
from drafttree_lab.bench.micro import time_growth
from drafttree_lab.replay.plan import ReplayMethod, Task
from drafttree_lab.replay.text_cell import Fractions

MIB = 2**20


def measure_acceptance(
    task: Task, ids: Sequence[int], make_decoder: Callable[[Method], Decoder], seed: int
) -> Fractions:
    """Expected tokens per round of every way of a block, on contexts of the target's own text after a prompt.

    Verifiers that accept the same kind of tree judge the same drawn tree. Plain decoding has one token per round.
    """
    fractions: Fractions = {}
    setting = task.block.setting
    ways_by_drafter: dict[str | None, dict[str, ReplayMethod]] = {}
    for name, way in task.block.ways.items():
        ways_by_drafter.setdefault(way.drafter, {})[name] = way
    for drafter, ways in ways_by_drafter.items():
        if drafter is None:
            fractions |= dict.fromkeys(ways, (1.0, 1.0))
            continue
        first_way = next(iter(ways.values()))
        result = acceptance.measure_acceptance(
            make_decoder(Method(drafter, first_way.policy)),
            [list(ids)],
            temperatures=[setting.temperature],
            rounds=task.experiment.contexts,
            shapes=list(map(attrgetter("policy"), ways.values())),
            verifiers=list(dict.fromkeys(map(attrgetter("verifier_name"), ways.values()))),
            seed=seed,
        )
        tokens = {row["shape"]: row["tokens"] for row in result["rows"]}
        for name, way in ways.items():
            fractions[name] = (tokens[policy_spec(way.policy)][way.verifier_name].mean, 1.0)
    return fractions


def measure_memory(task: Task, ids: Sequence[int], target: str, dtype: str, device: str, seed: int) -> Fractions:
    """Peak memory in MiB of every way of a block, each measured in its own process."""
    setting = task.block.setting
    options = {"temperature": setting.temperature, "max_new_tokens": setting.max_new_tokens, "seed": seed}
    texts = {"target": target, "dtype": dtype, "device": device, "prompts": [list(ids)], "options": options}
    fractions: Fractions = {}
    for name, way in task.block.ways.items():
        use = measure_method(way.spec, texts)
        fractions[name] = ((use["device_peak"] or use["peak"]) / MIB, 1.0)
    return fractions


def measure_expansion(task: Task) -> Fractions:
    """Milliseconds that every way of a block takes to grow a tree from synthetic logits, without draft passes."""
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
