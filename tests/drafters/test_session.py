"""Requests that draft in shared passes get the logits that each gets alone, whoever joins and leaves."""

import copy
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from drafttree.core.candidates import Candidates
from drafttree.drafters import Drafter, HeadDrafter
from drafttree.drafters.language_model import LanguageModelSession
from drafttree.drafters.lookup import SuffixDrafter
from drafttree.drafters.mixed import MixedDrafter
from drafttree.drafters.session import (
    MAX_MISSED_PASSES,
    MAX_MISSED_TOKENS,
    Frontier,
    LateReader,
    draft_level,
    draft_root,
)
from drafttree.models import TargetModel
from drafttree.models.segment import causal
from helpers.drafter_kinds import DRAFTERS, drafter_of, random_states, random_text
from testing.toy import ToyDrafter

MOST_LEVELS, CPU = 3, torch.device("cpu")


@dataclass
class Request:
    """One text, drafted for by two sessions: by one always alone, by the other also with those of other requests."""

    drafter: Drafter
    rng: random.Random
    prompt: int
    nodes: list[list[tuple[int, int]]] = field(default_factory=list)
    source: int = 0

    def __post_init__(self) -> None:
        text = random_text(self.prompt, self.rng.randrange(1000))
        states = random_states(self.drafter, self.prompt - 1, self.rng.randrange(1000))
        self.alone: Any = self.drafter.start(text, 64)
        self.packed: Any = self.drafter.start(text, 64)
        for session in (self.alone, self.packed):
            session.prefill(states, self.prompt - 1)

    @property
    def drafting(self) -> Any:
        """The session whose passes may be shared."""
        return self.packed.choose(self.source)

    def next_level(self) -> Frontier:
        """Some nodes below those of the level before; none, sometimes."""
        above = len(self.nodes[-1]) if self.nodes else 1
        width = self.rng.choice([0, 1, 2, 4]) if above else 0
        level = [(self.rng.randrange(9), self.rng.randrange(above)) for _ in range(width)]
        self.nodes.append(level)
        return Frontier([token for token, _ in level], [up for _, up in level])

    def commit(self) -> None:
        """Commit some path of the nodes, and another token."""
        path, parent = [], 0
        for level in self.nodes:
            below = [place for place, (_, up) in enumerate(level) if up == parent]
            if not below or self.rng.random() < 0.2:
                break
            parent = self.rng.choice(below)
            path.append(level[parent][0])
        tokens = [*path, self.rng.randrange(9)]
        states = random_states(self.drafter, len(tokens), self.rng.randrange(1000))
        self.alone.commit(tokens, states)
        self.packed.commit(tokens, states)
        self.nodes = []
        if self.packed.mixes:
            self.source = self.rng.randrange(2)


def assert_same(logits: torch.Tensor, alone: torch.Tensor) -> None:
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)
    best = alone.max(-1).values
    assert torch.all((logits.argmax(-1) == alone.argmax(-1)) | (best - alone.topk(2).values[..., 1] < 1e-5))


def dense(rows: torch.Tensor | Candidates) -> torch.Tensor:
    return rows.dense(CPU) if isinstance(rows, Candidates) else rows


def draft(requests: list[Request], levels: int) -> int:
    """Draft a round together and compare all logits with those of each alone; how many were compared."""
    sessions, compared = [request.drafting for request in requests], len(requests)
    for request, logits in zip(requests, dense(draft_root(sessions)).split(1), strict=True):
        assert_same(logits, request.alone.choose(request.source).draft_root()[0])
    for _ in range(levels):
        own = [request.next_level() for request in requests]
        widths = [len(frontier.tokens) for frontier in own]
        if not any(widths):
            break
        drafted = dense(draft_level(sessions, own, CPU))
        assert len(drafted) == sum(widths)
        assert not drafted.isnan().any()
        for request, logits, nodes, width in zip(requests, drafted.split(widths), own, widths, strict=True):
            if width:
                alone = request.alone.choose(request.source)
                assert_same(logits, alone.draft_level(*torch.tensor(nodes)[:, None])[0])
                compared += width
    return compared


def groups(requests: list[Request]) -> list[list[Request]]:
    """Those of the same kind of session together."""
    kinds: dict[type, list[Request]] = {}
    for request in requests:
        kinds.setdefault(type(request.drafting), []).append(request)
    return list(kinds.values())


@torch.inference_mode()
def run(kind: str, seed: int, rounds: int = 8) -> tuple[list[Request], int]:
    """Rounds in which requests join, leave, pause and draft alone, all that took part, and the logits compared."""
    rng, drafter = random.Random(seed), drafter_of(kind)
    requests = [Request(drafter, rng, prompt) for prompt in (1, 7, 2)]
    everyone, compared = list(requests), 0
    levels = min(MOST_LEVELS, (drafter.levels or 99) - 1)
    for turn in range(rounds):
        if turn in (2, 3, 5):
            requests.append(Request(drafter, rng, rng.choice([1, 3, 20])))
            everyone.append(requests[-1])
        if turn in (4, 6):
            requests.pop(rng.randrange(len(requests)))
        drafting = [request for request in requests if rng.random() < 0.8]
        loner = drafting.pop() if drafting and rng.random() < 0.5 else None
        for group in groups(drafting) + ([[loner]] if loner else []):
            compared += draft(group, levels)
        for request in requests:
            request.commit()
    return everyone, compared


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_logits_are_those_of_each_request_alone(kind):
    for seed in range(2):
        requests, compared = run(kind, seed)
        assert compared > 50
        for request in requests:
            assert request.packed.passes == request.alone.passes
            assert (request.packed.seconds > 0) == (request.alone.seconds > 0)


def test_mixed_requests_are_drafted_for_by_both_of_their_drafters():
    requests, _ = run("mixed", seed=1, rounds=12)
    for model in ("_lookup", "_model"):
        passes = [(vars(each.packed)[model].passes, vars(each.alone)[model].passes) for each in requests]
        assert sum(own for own, _ in passes) > 0
        assert all(own == alone for own, alone in passes)


def counting(monkeypatch, owner: type, name: str) -> list[Any]:
    """The first argument of each call of a method."""
    method, calls = getattr(owner, name), []

    def counted(self, first, *others, **named):
        calls.append(first)
        return method(self, first, *others, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def pass_of(kind: str) -> str:
    """The method that runs a pass."""
    return "forward" if kind in ("language model", "eagle3, module") else "__call__"


def two_levels(kind: str) -> None:
    sessions = [drafter_of(kind).start(random_text(5, seed), 32) for seed in range(4)]
    for seed, session in enumerate(sessions):
        session.prefill(random_states(drafter_of(kind), 4, seed), 4)
    draft_root(sessions)
    draft_level(sessions, [Frontier([1] * width, [0] * width) for width in (2, 0, 1, 2)], CPU)


@pytest.mark.parametrize("kind", ["language model", "eagle3", "eagle3, module", "eagle3, packed"])
def test_a_level_is_one_pass_for_all_requests_that_go_on(kind, monkeypatch):
    drafter: Any = drafter_of(kind)
    owner = TargetModel if kind == "language model" else type(drafter.heads[0])
    passes = counting(monkeypatch, owner, pass_of(kind))
    two_levels(kind)
    assert [len(segments) for segments in passes if len(segments) > 1] == [4, 3]


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "products"), [("medusa", 1), ("hydra", 2), ("hydra++", 2)])
def test_heads_make_one_product_for_all_requests(kind, products, monkeypatch):
    drafter: Any = drafter_of(kind)
    calls = counting(monkeypatch, type(drafter.heads), "forward")
    two_levels(kind)
    assert len(calls) == products


def test_the_hidden_states_of_all_requests_are_fused_in_one_product(monkeypatch):
    drafter = drafter_of("eagle3")
    assert isinstance(drafter, HeadDrafter)
    sessions = [drafter.start(random_text(length, length), 32) for length in (1, 4, 9)]
    for session, length in zip(sessions, (1, 4, 9), strict=True):
        session.prefill(random_states(drafter, length - 1, length), length - 1)
    calls = counting(monkeypatch, type(drafter.heads[0]), "fuse")
    passes = counting(monkeypatch, type(drafter.heads[0]), "__call__")
    draft_root(sessions)
    assert (len(calls), [len(segments) for segments in passes]) == (1, [3])


class Custom(LanguageModelSession):
    """A session of a user's own that drafts in another way than its base."""

    def draft_root(self):
        return super().draft_root() + 1


def test_a_subclass_that_drafts_in_another_way_drafts_by_its_own_calls():
    drafter: Any = drafter_of("language model")
    sessions = [Custom(drafter, [1, 2, 3], 9) for _ in range(2)]
    logits = draft_root(sessions)
    expected = LanguageModelSession(drafter, [1, 2, 3], 9).draft_root() + 1
    torch.testing.assert_close(logits, expected[0].expand(2, -1))


@pytest.mark.parametrize("kind", ["language model", "eagle3"])
def test_sessions_of_different_drafters_draft_one_after_the_other(kind, monkeypatch):
    first: Any = drafter_of(kind)
    second = copy.copy(first) if kind == "language model" else drafter_of("eagle3, module")
    requests = [Request(drafter, random.Random(seed), 5) for seed, drafter in enumerate([first, second])]
    assert draft(requests, levels=2) > 2
    for request in requests:
        request.commit()
    calls = counting(monkeypatch, type(first), "draft_root")
    draft_root([request.packed for request in requests])
    assert [len(sessions) for sessions in calls] == [1, 1]


def test_every_request_is_told_the_whole_time_of_a_shared_pass(monkeypatch):
    drafter: Any = drafter_of("language model")
    sessions = [drafter.start([1, 2, 3], 9) for _ in range(3)]
    ticks = iter([10.0, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    draft_root(sessions)
    assert [session.seconds for session in sessions] == [2.5, 2.5, 2.5]
    assert [session.passes for session in sessions] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["language model", "eagle3"])
@pytest.mark.parametrize("failing", [1, 2])
@torch.inference_mode()
def test_a_round_whose_pass_fails_leaves_the_sessions_ready_for_the_next_one(kind, failing, monkeypatch):
    drafter: Any = drafter_of(kind)
    requests = [Request(drafter, random.Random(seed), prompt=4 + seed) for seed in range(3)]
    owner = TargetModel if kind == "language model" else type(drafter.heads[0])
    method, calls = getattr(owner, pass_of(kind)), iter(range(1, 99))

    def fails(self, segments, *others, **named):
        if next(calls) == failing:
            if kind == "language model":  # some requests' rows have been computed
                method(self, segments[:1], *others, **named)
            raise torch.OutOfMemoryError
        return method(self, segments, *others, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, pass_of(kind), fails)
        sessions = [request.packed for request in requests]
        with pytest.raises(torch.OutOfMemoryError):  # noqa: PT012
            draft_root(sessions)
            draft_level(sessions, [Frontier([5], [0])] * 3, CPU)
    for request in requests:
        request.nodes = [[(5, 0)]]
        request.commit()
    assert draft(requests, levels=2) >= 3


class Told:
    """A session that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def prefill(self, hidden_states, tokens: int) -> None:
        self.calls.append(("prefill", tokens))

    def commit(self, tokens: list[int], hidden_states) -> None:
        self.calls.append(("commit", tokens))


def test_a_session_is_told_at_once_unless_its_drafts_rest():
    told = Told()
    reader = LateReader(told)
    reader.prefill((), 3)
    assert told.calls == [("prefill", 3)]
    reader.resting = True
    reader.commit([1], ())
    reader.commit([2, 3], ())
    assert len(told.calls) == 1
    reader.catch_up()
    assert told.calls[1:] == [("commit", [1]), ("commit", [2, 3])]
    reader.catch_up()
    assert len(told.calls) == 3


def test_a_resting_session_falls_behind_by_so_many_tokens_at_most():
    told = Told()
    reader = LateReader(told)
    reader.resting = True
    reader.prefill((), MAX_MISSED_TOKENS)
    assert not told.calls
    reader.commit([1], ())
    assert told.calls == [("prefill", MAX_MISSED_TOKENS), ("commit", [1])]


def test_what_waits_does_not_keep_the_pass_of_all_requests_in_memory():
    whole, told = torch.arange(512.0)[None, :, None].expand(1, 512, 8).contiguous(), []
    session = SimpleNamespace(commit=lambda tokens, states: told.append((tokens, states[0])))
    reader = LateReader(session)  # pyright: ignore[reportArgumentType]
    reader.resting = True
    for token in range(2 * MAX_MISSED_PASSES - 1):
        reader.commit([token, -1], (whole,), [token, token + 2])
    reader.catch_up()
    assert [(tokens, states[0, :, 0].tolist()) for tokens, states in told] == [
        ([token, -1], [token, token + 2]) for token in range(2 * MAX_MISSED_PASSES - 1)
    ]
    kept = {states.untyped_storage().data_ptr(): states.untyped_storage().nbytes() for _, states in told}
    assert sum(kept.values()) <= whole.nbytes + 2 * 2 * MAX_MISSED_PASSES * 8 * 4


def test_a_mixture_in_a_mixture_drafts_by_its_own_choice():
    lookups = [SuffixDrafter(8) for _ in range(2)]
    outer = MixedDrafter(lookups[0], MixedDrafter(lookups[1], ToyDrafter(lambda context: [1.0] * 8)))
    session = outer.start([1, 2], 8)
    assert session.choose(1).mixes
    assert not session.choose(0).mixes


def test_a_long_chains_visibility_is_not_kept():
    assert causal(512) is causal(512)
    assert causal(513) is not causal(513)
    assert (causal(513) == np.tri(513, dtype=bool)).all()
