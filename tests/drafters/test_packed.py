"""Requests that draft in shared passes get the logits that each gets alone, whoever joins and leaves."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from drafttree.drafters import Drafter, Eagle3Drafter
from drafttree.drafters.eagle3 import PackedEagle3
from drafttree.drafters.hydra import PackedHydra
from drafttree.drafters.language_model import LanguageModelSession, PackedLanguageModel
from drafttree.drafters.medusa import PackedMedusa
from drafttree.drafters.packed import DraftEach, pack
from drafttree.evaluation.bench.inflation import NarrowSession
from drafttree.models import TargetModel
from helpers.drafter_kinds import DRAFTERS, drafter_of, random_states, random_text

PACKED = {
    "language model": PackedLanguageModel,
    "a user's model": PackedLanguageModel,
    "eagle3": PackedEagle3,
    "eagle3, module": PackedEagle3,
    "eagle3, paged": PackedEagle3,
    "medusa": PackedMedusa,
    "hydra": PackedHydra,
    "hydra++": PackedHydra,
    "lookup": DraftEach,
    "suffix": DraftEach,
    "mixed": DraftEach,
}
MOST_LEVELS = 3


@dataclass
class Request:
    """One text, drafted for by two sessions: by one always alone, by the other also with those of other requests."""

    drafter: Drafter
    rng: random.Random
    prompt: int
    nodes: list[list[tuple[int, int]]] = field(default_factory=list)

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
        choose = getattr(self.packed, "choose", None)
        return choose() if choose else self.packed

    def next_level(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and origins `[1, width]` of some nodes below those of the level before; of none, sometimes."""
        above = len(self.nodes[-1]) if self.nodes else 1
        width = self.rng.choice([0, 1, 2, 4]) if above else 0
        level = [(self.rng.randrange(9), self.rng.randrange(above)) for _ in range(width)]
        self.nodes.append(level)
        return torch.tensor([[token for token, _ in level]]).long(), torch.tensor([[up for _, up in level]]).long()

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


def assert_same(logits: torch.Tensor, alone: torch.Tensor) -> None:
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)
    best = alone.max(-1).values
    assert torch.all((logits.argmax(-1) == alone.argmax(-1)) | (best - alone.topk(2).values[..., 1] < 1e-5))


def draft(requests: list[Request], levels: int) -> int:
    """Draft a round together and compare all logits with those of each alone; how many were compared."""
    together, compared = pack([request.drafting for request in requests]), len(requests)
    for request, logits in zip(requests, together.root().split(1), strict=True):
        assert_same(logits, request.alone.root()[0])
    for _ in range(levels):
        own = [request.next_level() for request in requests]
        widths = [tokens.shape[1] for tokens, _ in own]
        if not any(widths):
            break
        tokens, origins = (torch.zeros(len(requests), max(widths)).long() for _ in range(2))
        for place, (ids, above) in enumerate(own):
            tokens[place, : ids.shape[1]], origins[place, : ids.shape[1]] = ids[0], above[0]
        drafted = together.expand(tokens, origins, widths)
        assert len(drafted) == sum(widths)
        assert not drafted.isnan().any()
        for request, logits, nodes, width in zip(requests, drafted.split(widths), own, widths, strict=True):
            if width:
                assert_same(logits, request.alone.expand(*nodes)[0])
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


@pytest.mark.parametrize("kind", DRAFTERS)
def test_logits_are_those_of_each_request_alone(kind):
    for seed in range(3):
        requests, compared = run(kind, seed)
        assert compared > 50
        for request in requests:
            assert request.packed.passes == request.alone.passes
            assert (request.packed.seconds > 0) == (request.alone.seconds > 0)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_kind_of_session_is_packed_in_its_own_form(kind):
    assert type(pack([drafter_of(kind).start([1, 2], 9) for _ in range(3)])) is PACKED[kind]


def test_mixed_requests_are_drafted_for_by_both_of_their_drafters():
    requests, _ = run("mixed", seed=1, rounds=12)
    lookups = sum(request.packed.lookup_rounds for request in requests)
    assert lookups == sum(request.alone.lookup_rounds for request in requests)
    assert 0 < lookups < sum(request.packed.passes for request in requests)


def counting(monkeypatch, owner: type, name: str) -> list[Any]:
    """The first argument of each call of a method."""
    method, calls = getattr(owner, name), []

    def counted(self, first, *others, **named):
        calls.append(first)
        return method(self, first, *others, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def two_levels(kind: str) -> None:
    sessions = [drafter_of(kind).start(random_text(5, seed), 32) for seed in range(4)]
    for seed, session in enumerate(sessions):
        session.prefill(random_states(drafter_of(kind), 4, seed), 4)
    together = pack(sessions)
    together.root()
    nodes = torch.ones(4, 2).long()
    together.expand(nodes, 0 * nodes, [2, 0, 1, 2])


@pytest.mark.parametrize("kind", ["language model", "eagle3", "eagle3, module", "eagle3, paged"])
def test_a_level_is_one_pass_for_all_requests_that_go_on(kind, monkeypatch):
    drafter: Any = drafter_of(kind)
    owner = TargetModel if kind == "language model" else type(drafter.backend)
    passes = counting(monkeypatch, owner, "forward_packed")
    two_levels(kind)
    assert [len(segments) for segments in passes] == [4, 3]


@pytest.mark.parametrize(("kind", "products"), [("medusa", 1), ("hydra", 2), ("hydra++", 2)])
def test_heads_make_one_product_for_all_requests(kind, products, monkeypatch):
    calls = counting(monkeypatch, type(drafter_of(kind)), "logits")
    two_levels(kind)
    assert len(calls) == products


def test_the_hidden_states_of_all_requests_are_fused_in_one_product(monkeypatch):
    drafter = drafter_of("eagle3")
    assert isinstance(drafter, Eagle3Drafter)
    sessions = [drafter.start(random_text(length, length), 32) for length in (1, 4, 9)]
    for session, length in zip(sessions, (1, 4, 9), strict=True):
        session.prefill(random_states(drafter, length - 1, length), length - 1)
    calls = counting(monkeypatch, type(drafter.backend), "fuse")
    products = counting(monkeypatch, type(drafter.backend), "draft_logits")
    pack(sessions).root()
    assert (len(calls), len(products)) == (1, 1)


class Custom(LanguageModelSession):
    """A session of a user's own that drafts in another way than its base."""

    def root(self):
        return super().root() + 1


def test_a_subclass_without_a_packed_form_of_its_own_drafts_by_its_own_calls():
    drafter: Any = drafter_of("language model")
    sessions = [Custom(drafter.model, [1, 2, 3], 9) for _ in range(2)]
    logits = pack(sessions).root()
    expected = LanguageModelSession(drafter.model, [1, 2, 3], 9).root() + 1
    torch.testing.assert_close(logits, expected[0].expand(2, -1))


def test_sessions_of_different_models_draft_one_after_the_other():
    drafters = [drafter_of("language model"), drafter_of("a user's model")]
    assert type(pack([drafter.start([1, 2], 9) for drafter in drafters])) is DraftEach
    backends = [drafter_of("eagle3"), drafter_of("eagle3, module")]
    assert type(pack([drafter.start([1, 2], 9) for drafter in backends])) is DraftEach


def test_sessions_of_a_head_for_an_inflated_target_are_packed_as_the_heads_own():
    drafter = drafter_of("eagle3")
    sessions = [NarrowSession(drafter.start([1, 2], 9), 256) for _ in range(2)]
    assert type(pack(sessions)) is PackedEagle3


def test_every_request_is_told_the_whole_time_of_a_shared_pass(monkeypatch):
    drafter: Any = drafter_of("language model")
    sessions = [drafter.start([1, 2, 3], 9) for _ in range(3)]
    ticks = iter([10.0, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    pack(sessions).root()
    assert [session.seconds for session in sessions] == [2.5, 2.5, 2.5]
    assert [session.passes for session in sessions] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["language model", "eagle3"])
@pytest.mark.parametrize("failing", [1, 2])
@torch.inference_mode()
def test_a_round_whose_pass_fails_leaves_the_sessions_ready_for_the_next_one(kind, failing, monkeypatch):
    drafter: Any = drafter_of(kind)
    requests = [Request(drafter, random.Random(seed), prompt=4 + seed) for seed in range(3)]
    owner = TargetModel if kind == "language model" else type(drafter.backend)
    method, calls = owner.forward_packed, iter(range(1, 99))

    def fails(self, segments, *others, **named):
        if next(calls) == failing:
            if kind == "language model":  # some requests' rows have been computed
                method(self, segments[:1], *others, **named)
            raise torch.OutOfMemoryError
        return method(self, segments, *others, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, "forward_packed", fails)
        together = pack([request.packed for request in requests])
        nodes = torch.full((3, 1), 5)
        with pytest.raises(torch.OutOfMemoryError):  # noqa: PT012
            together.root()
            together.expand(nodes, 0 * nodes, [1, 1, 1])
    for request in requests:
        request.nodes = [[(5, 0)]]
        request.commit()
    assert draft(requests, levels=2) >= 3
