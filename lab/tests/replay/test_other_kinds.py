"""Results that are no decoding of prompts, on toy models."""

from dataclasses import replace

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.measure.method import Method
from drafttree.policies import Chain, Fixed
from drafttree.verifiers import RRSw, Traversal
from drafttree_lab.bench.acceptance import measure_acceptance as bench_acceptance
from drafttree_lab.replay import other_kinds
from drafttree_lab.replay.other_kinds import measure_acceptance, measure_expansion, measure_memory
from drafttree_lab.replay.plan import Block, Setting, Task
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyModel

POLICY = Fixed(depth=3, breadth=2)
WAYS = {
    "AR": Method(None, Chain()),
    "token": Method("toy", POLICY, RRSw),
    "traversal": Method("toy", POLICY, Traversal),
    "chain": Method("toy", Chain(depth=2), RRSw),
}


def make_decoder(method):
    return Decoder(ToyModel(TARGET), LanguageModelDrafter(ToyModel(DRAFT)), method.policy)


def task(experiment, ways, value=None, kind="acceptance"):
    result = experiment.result.model_copy(update={"kind": kind})
    block = Block(Setting("a", 1.0, 24, None), value, ways)
    return Task(replace(experiment, result=result), block, 0, "x", 0)


def test_accepted_tokens_are_those_of_the_bench(experiment):
    prompt = [1, 2, 3]
    found = measure_acceptance(task(replace(experiment, contexts=4), WAYS), prompt, make_decoder, seed=5)
    decoder, options = make_decoder(WAYS["token"]), {"temperatures": [1.0], "rounds": 4, "seed": 5}
    shapes = {"fixed:depth=3,breadth=2": POLICY, "chain:depth=2": Chain(depth=2)}
    result = bench_acceptance(decoder, [prompt], shapes=[*shapes.values()], verifiers=["rrsw", "traversal"], **options)
    fixed, chain = (row["tokens"] for row in result["rows"])
    assert found == {
        "AR": (1.0, 1.0),
        "token": (fixed["rrsw"].mean, 1.0),
        "traversal": (fixed["traversal"].mean, 1.0),
        "chain": (chain["rrsw"].mean, 1.0),
    }
    assert found["traversal"] > found["token"]


def test_growth_is_told_in_milliseconds(experiment, monkeypatch):
    asked = []
    bench = other_kinds.time_growth

    def short(policies, **options):
        asked.append(options)
        return bench(policies, repeats=2, **options)

    monkeypatch.setattr(other_kinds, "time_growth", short)
    ways = {name: WAYS[name] for name in ("AR", "chain")}
    found = measure_expansion(task(experiment, ways, "vocab=30,alpha=0.7", "expansion"))
    assert asked == [{"vocabs": [30], "alphas": [0.7]}]
    assert found["AR"] == (0.0, 1.0)
    assert 0.01 < found["chain"][0] < 1000


def test_memory_is_told_in_mebibytes_each_method_in_its_own_process(experiment, monkeypatch):
    asked = []

    def measure(spec, task):
        asked.append((task["target"], task["options"]["max_new_tokens"], spec))
        return {"loaded": 0, "peak": 2**21, "device_loaded": 0, "device_peak": 0, "tokens": 24}

    monkeypatch.setattr(other_kinds, "measure_method", measure)
    ways = {name: WAYS[name] for name in ("AR", "chain")}
    found = measure_memory(task(experiment, ways, kind="memory"), [1, 2], "their/model", "float32", "cpu", 0)
    assert found == {"AR": (2.0, 1.0), "chain": (2.0, 1.0)}
    assert asked == [("their/model", 24, "none"), ("their/model", 24, "toy|chain:depth=2|rrsw")]
