"""Torch calls of a round beside its passes: microseconds each on a CPU, and kernels or copies on a GPU."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import drafttree
from drafttree.drafters import head, language_model
from drafttree.engine.drafting.tree_drafter import TreeDrafter
from drafttree.engine.round_loop import RoundLoop
from drafttree.evaluation.toy_decoder import SteppedEngine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.verifiers import Greedy
from testing.marks import needs_native

PROMPT = "The old keeper told the children that the storm would come before the night, and that the old keeper told"
TALON = "talon:budget=16,width=4"
CEILINGS = [
    ("none", "chain", 0.0, 1, 6),
    ("none", "chain", 0.0, 16, 91),
    ("none", "chain", 1.0, 1, 13.5),
    ("lookup", "chain", 0.0, 1, 7),
    ("lookup", TALON, 0.0, 1, 7),
    ("lookup", TALON, 1.0, 1, 22),
    ("auto", TALON, 0.0, 1, 21),
]
"""Drafter, policy, temperature, texts at once, and torch calls of a round at most, as they were counted."""


class CallCount(TorchDispatchMode):
    """Counts the torch calls of everything but what runs within `uncounted`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self._inside = Counter[str](), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self._inside:
            self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def uncounted(self):
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


def calls_of_a_round(decoder, temperature: float, batch: int, monkeypatch) -> float:
    """The mean over the rounds of some texts that begin alike."""
    count = CallCount()

    def leave_out(owner, name: str) -> None:
        run = getattr(owner, name)

        def uncounted(*given, **options):
            with count.uncounted():
                return run(*given, **options)

        monkeypatch.setattr(owner, name, uncounted)

    leave_out(decoder.target, "forward")
    for drafter in (language_model.LanguageModelDrafter, head.HeadDrafter):
        for name in ("draft_root", "draft_level", "draft_chain"):
            if hasattr(drafter, name):
                leave_out(drafter, name)
    engine = SteppedEngine(decoder, max_batch=batch, prefix_tokens=0)
    options = {"max_new_tokens": 48, "temperature": temperature, "ignore_eos": True}
    handles = [engine.submit(PROMPT, seed=seed, **options) for seed in range(batch)]
    with count:
        engine.run()
    return sum(count.calls.values()) / max(len(handle.result().metrics.rounds) for handle in handles)


@needs_native
@pytest.mark.parametrize(("drafter", "policy", "temperature", "batch", "most"), CEILINGS)
def test_a_round_makes_few_torch_calls_beside_its_passes(drafter, policy, temperature, batch, most, monkeypatch):
    decoder = drafttree.load(drafter=drafter, policy=policy, dtype="float32").with_costs(TOY_COSTS)
    found = calls_of_a_round(decoder, temperature, batch, monkeypatch)
    print(drafter, policy, temperature, batch, f"{found:.1f}")
    assert found <= most


@needs_native
@pytest.mark.parametrize(
    ("owner", "name"), [(TreeDrafter, "draft"), (RoundLoop, "score"), (Greedy, "verify"), (TreeCache, "commit")]
)
def test_a_number_that_is_read_anywhere_in_a_round_is_counted(owner, name, monkeypatch):
    run = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: (torch.ones(1).item(), run(*given, **more))[1])
    decoder = drafttree.load(drafter="none", dtype="float32").with_costs(TOY_COSTS)
    (most,) = (each[-1] for each in CEILINGS if each[:4] == ("none", "chain", 0.0, 1))
    assert calls_of_a_round(decoder, 0.0, 1, monkeypatch) > most
