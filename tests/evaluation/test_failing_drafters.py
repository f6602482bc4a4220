"""Where a drafter fails, or memory runs out while it drafts, what was drawn stays, and texts keep their law."""

import pytest
import torch

from drafttree.engine.batching import Engine
from drafttree.errors import ConfigError
from drafttree.evaluation.toy_models import TabularSession
from drafttree.exactness import TabularModel, Texts, text_law
from drafttree.policies import Chain, Talon, Template
from drafttree.verifiers import Greedy, KSeq, PointMass, RRSw, Traversal
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import Table, ToyDrafter, ToyModel
from testing.toy_pairs import EXACT

ERRORS = {
    "broken": lambda: ArithmeticError("the draft broke"),
    "CUDA's memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "CPU's memory": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory"),
    "Python's memory": MemoryError,
}
MEMORY = {name: error for name, error in ERRORS.items() if name != "broken"}
PAIRS = [(Chain(depth=2), Traversal), (Chain(depth=2), KSeq), (Template(paths=((0,), (1,), (0, 0))), RRSw)]
PAIRS += [(Template(paths=((0,), (1,), (0, 0))), PointMass)]


class Failing(TabularModel):
    """Fails after texts of at least two tokens that end in token 1, drafted ones too."""

    def __init__(self, error) -> None:
        super().__init__(2, 2, 1, near=TabularModel(2, 2, 0))
        self.error = error

    def logits(self, context):
        if len(context) > 1 and context[-1] == 1:
            raise self.error()
        return super().logits(context)


def check_law(draft: TabularModel, policy, verifier, batch: int | None, length: int = 4) -> None:
    count = batch or 1
    texts = Texts(((0,), (1,))[:count], (0, 1)[:count], length=length, batch=batch, levels=2)
    found = text_law(TabularModel(2, 2, 0), draft, policy, verifier, texts)
    assert found.total_variation < EXACT
    assert found.expected_accepted > 0


@pytest.mark.few(2)
@pytest.mark.parametrize(("policy", "verifier"), PAIRS, ids=lambda each: getattr(each, "__name__", None))
@pytest.mark.parametrize(
    ("error", "batch"), [("broken", 1), *((name, batch) for name in MEMORY for batch in (None, 1))]
)
def test_a_level_that_was_drawn_stays_where_the_next_one_fails(policy, verifier, error, batch):
    check_law(Failing(ERRORS[error]), policy, verifier, batch)


@pytest.mark.slow
def test_so_does_one_of_several_texts():
    check_law(Failing(ERRORS["broken"]), Chain(depth=2), Traversal, 2, length=3)


@pytest.mark.parametrize("batch", [None, 1])
def test_tokens_that_were_drawn_stay_where_memory_runs_out_behind_them(batch, monkeypatch):
    """The drafter is told of them, and has no memory to take note."""
    commit = TabularSession.commit

    def failing(session, tokens, hidden_states):
        if tokens[-1] == 1:
            raise MemoryError
        commit(session, tokens, hidden_states)

    monkeypatch.setattr(TabularSession, "commit", failing)
    check_law(TabularModel(2, 2, 1, near=TabularModel(2, 2, 0)), Chain(depth=2), Traversal, batch)


class FailsAfter(Table):
    """A law that fails after texts that end in tokens 3 and 4."""

    def __init__(self, error) -> None:
        super().__init__(DRAFT.vocab, DRAFT.depth, near=DRAFT, scale=0.0)
        self.error = error

    def __call__(self, prefix):
        if [*prefix[-2:]] == [3, 4]:
            raise self.error()
        return super().__call__(prefix)


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 1}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("error", MEMORY)
def test_memory_that_runs_out_while_it_is_drafted_ends_no_text(error, options, caplog):
    prompts, options = [[place % 8, 1 + place % 7, place % 5] for place in range(16)], {"max_new_tokens": 24, **options}
    decoder = toy_decoder(ToyModel(TARGET), ToyDrafter(FailsAfter(MEMORY[error])), Talon(width=4, budget=12))
    expected = [decoder.plain().generate(prompt, **options).tokens for prompt in prompts]
    alone = [decoder.generate(prompt, **options) for prompt in prompts]
    assert [text.tokens for text in alone] == expected
    with Engine(decoder, max_batch=16, budget=6) as engine:
        handles = [engine.submit(prompt, **options) for prompt in prompts]
        assert [handle.result(20).tokens for handle in handles] == expected
    assert (engine.metrics.failed, engine.metrics.preempted) == (0, 0)
    assert engine.metrics.drafter_failures > 0
    assert "the drafter failed, so texts go on without drafts" in caplog.text
    # Rounds draft, then memory runs out, the next one is plain, and then they draft again.
    assert all(any(text.drafted) for text in alone)
    assert engine.metrics.accepted > 0


def test_the_round_after_memory_ran_out_is_plain():
    calls = []

    class Once(Table):
        def __call__(self, prefix):
            calls.append(prefix)
            if len(calls) == 2:
                raise MemoryError
            return DRAFT(prefix)

    decoder = toy_decoder(ToyModel(TARGET), ToyDrafter(Once(8, 0)), Chain(depth=4))
    rounds = decoder.generate([3, 1, 4], max_new_tokens=24).metrics.rounds
    assert [turn.levels for turn in rounds[:3]] == [1, 0, 4]


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        (
            "draft_root",
            lambda rows: rows[0],
            "torch.float32 [1, 8]; it must return floating-point logits [1, 1, vocab]",
        ),
        (
            "draft_level",
            lambda rows: rows.long(),
            "torch.int64 [1, 3, 8]; it must return floating-point logits [1, 3, vocab]",
        ),
        (
            "draft_level",
            lambda rows: rows[:, 1:],
            "torch.float32 [1, 2, 8]; it must return floating-point logits [1, 3, vocab]",
        ),
        ("draft_root", lambda rows: None, "NoneType; it must return a tensor of logits [1, 1, vocab]"),
    ],
)
def test_what_is_no_logits(name, answer, message):
    class Wrong(ToyDrafter):
        def start(self, prompt, capacity):
            session = super().start(prompt, capacity)
            right = getattr(session, name)
            setattr(session, name, lambda *given: answer(right(*given)))
            return session

    tree = Template(paths=((0,), (1,), (2,), (0, 0), (1, 0), (2, 0)))
    decoder = toy_decoder(ToyModel(TARGET), Wrong(DRAFT), tree, Greedy)
    with pytest.raises(ConfigError) as told:
        decoder.generate([1, 2], max_new_tokens=12)
    assert str(told.value) == f"ToyDraft.{name} returns {message}"
    with pytest.raises(ConfigError, match=rf"ToyDraft\.{name} returns"):
        decoder.generate([[1, 2], [2, 3]], max_new_tokens=12)
