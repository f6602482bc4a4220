"""A paper of toy models: two methods on two sets, and decoders for them."""

import pytest

from drafttree.policies import Chain, Talon
from drafttree_lab.replay.paper import Result
from drafttree_lab.replay.plan import Block, Experiment, ReplayMethod, Setting
from testing.command_line_fixtures import embedded
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel

__all__ = ["embedded"]
WAYS = {
    "AR": ReplayMethod(None, Chain()),
    "chain": ReplayMethod("toy", Chain(depth=3)),
    "tree": ReplayMethod("toy", Talon(width=3, budget=10)),
}
CLAIM = {"line": 1, "metric": "tau", "text": "a tree commits more than a chain"}


@pytest.fixture
def prompts():
    """Token ids by paper and set."""
    return {
        ("toy", "a"): [[1, 2, 3], [4, 5, 6], [7, 1, 2], [3, 3, 1], [2, 7, 4]],
        ("toy", "b"): [[2, 2], [5, 3], [6, 1], [4, 1], [1, 7]],
    }


@pytest.fixture
def experiment():
    """A table with a claim on trees over chains."""
    result = Result(
        title="trees over chains",
        line=1,
        methods=["chain", "tree"],
        sets=["a", "b"],
        metrics=["tau", "speedup"],
        claims=[{**CLAIM, "kind": "comparison", "id": "tree", "left": "tree", "right": "chain", "sign": ">"}],
    )
    blocks = [Block(Setting(name, 0.0, 24, None), None, WAYS) for name in ("a", "b")]
    return Experiment("toy", "1", result, blocks, {})


@pytest.fixture
def make_decoder():
    """Decoders of methods; every one is noted."""
    made = []

    def make(method: ReplayMethod):
        made.append(method.spec)
        drafter = ToyDrafter(DRAFT) if method.drafter else None
        return toy_decoder(ToyModel(TARGET), drafter, method.policy, method.verifier)

    make.made = made
    return make
