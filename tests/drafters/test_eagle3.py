"""The EAGLE-3 drafter: logits equal the formulas in every format and round, one pass per level, the text unchanged."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from drafttree import Decoder
from drafttree.drafters import HeadDrafter, head_backend
from drafttree.drafters.eagle import Eagle3Head, eagle_drafter
from drafttree.drafters.formats.eagle3 import FORMAT
from drafttree.drafters.head import Head
from drafttree.drafters.head_backend import HeadBackend, choose_head_backend
from drafttree.models import Segment, TargetModel, TreeCache
from drafttree.models.cache.buffer_pool import Recorder
from drafttree.models.fused import fused_backend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.native import kernels, packing_plan
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.norms import Norm
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.policies import POLICIES, Chain, Talon
from drafttree.verifiers import VERIFIERS
from helpers import checkpoints
from helpers.checkpoints import FORMATS, HIDDEN, VOCAB
from helpers.replays import Replays, frozen
from testing import tiny
from testing.marks import needs_native

TOLERANCE = 1e-5
NAMES = checkpoints.names("eagle3")
WINDOWED = [name for name in NAMES if any(FORMATS[name].facts.get("windows", ()))]
every_fused_format = pytest.mark.parametrize("name", [name for name in NAMES if name not in WINDOWED])


def fused_head(head: Eagle3Head) -> HeadBackend:
    return HeadBackend(head, FusedBackend(head))


def recorded_head(head: Eagle3Head, recorder: Recorder) -> HeadBackend:
    return HeadBackend(head, RecordedBackend(FusedBackend(head), recorder))


@pytest.fixture(params=[FusedBackend, NativeBackend], ids=["fused", "native"])
def fast(request, monkeypatch) -> type:
    """The fastest backend of a head, where drafttree-native is installed and where it is not."""
    if request.param is FusedBackend:
        monkeypatch.setattr(kernels, "native", None)
    elif kernels.native is None:
        pytest.skip("drafttree-native is not installed")
    return request.param


def loaded(name: str = "SafeAILab", target: PreTrainedModel | None = None) -> Any:
    """The drafter of a format, for its target or a given one."""
    return FORMAT.load(FORMATS[name].tensors(), FORMATS[name].fields(), target or checkpoints.target())


class Counted:
    """A backend that notes how many rows each pass forwards, and whether it computes logits."""

    def __init__(self, inner: Head) -> None:
        self.inner, self.forwarded, self.kinds = inner, [], set()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def __call__(self, segments, hidden):
        self.forwarded.append(hidden.shape[1])
        bucket = 1 << (hidden.shape[1] - 1).bit_length()
        self.kinds.add((bucket, any(segment.wanted_nodes for segment in segments)))
        return self.inner(segments, hidden)

    def draft_chains(self, segments, count, allowed, hidden):
        self.forwarded += [hidden.shape[1]] * count
        return self.inner.draft_chains(segments, count, allowed, hidden)


def recorded_by(recorder: Recorder):
    """What selects a backend whose passes are recorded."""
    return lambda head: recorded_head(head, recorder)


def counted(drafter: HeadDrafter, select=choose_head_backend) -> HeadDrafter:
    """The same drafter on a backend that is `Counted`."""
    (head,) = drafter.modules
    return eagle_drafter(head, drafter.hidden_layers, drafter.nbytes, lambda head: Counted(select(head)))


class Session:
    """A draft session and the rows its cache should hold; compares all its logits with the formulas.

    The target's hidden states are random, which makes no difference to the head.
    """

    def __init__(self, name: str = "SafeAILab", prompt: int = 5, recorder: Recorder | None = None) -> None:
        self.format, self.tensors, self.target = FORMATS[name], FORMATS[name].tensors(), checkpoints.target()
        drafter = loaded(name, self.target)
        self.drafter = counted(drafter, recorded_by(recorder) if recorder else choose_head_backend)
        self.generator = torch.Generator().manual_seed(1)
        self.tokens = self.draw(prompt)
        self.draft = self.drafter.start(self.tokens, capacity=12)
        self.hidden_states = self.states(prompt - 1)
        self.forwarded = self.drafter.heads[0].forwarded
        del self.forwarded[:]
        self.draft.prefill(self.hidden_states, prompt - 1)
        self.calls = 0

    def draw(self, count: int) -> list[int]:
        return torch.randint(VOCAB, (count,), generator=self.generator).tolist()

    def states(self, count: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(1, count, HIDDEN, generator=self.generator) for _ in self.format.states)

    def check(self, logits: torch.Tensor, path: list[int]) -> None:
        states = [state[0] for state in self.hidden_states]
        expected = self.format.logits(self.tensors, self.target, states, self.tokens, path)
        scale = float(expected[expected.isfinite()].abs().max())
        torch.testing.assert_close(logits.double(), expected, atol=TOLERANCE * scale, rtol=TOLERANCE)

    def draft_root(self) -> None:
        logits = self.draft.draft_root()
        self.calls += 1
        self.frontier: list[list[int]] = [[]]
        assert logits.shape == (1, 1, VOCAB)
        self.check(logits[0, 0], [])

    def draft_level(self, tokens: list[int], origins: list[int]) -> None:
        logits = self.draft.draft_level(torch.tensor([tokens]), torch.tensor([origins]))
        self.calls += 1
        self.frontier = [[*self.frontier[origin], token] for token, origin in zip(tokens, origins, strict=True)]
        for row, path in zip(logits[0], self.frontier, strict=True):
            self.check(row, path)

    def commit(self, tokens: list[int]) -> None:
        new = self.states(len(tokens))
        self.draft.commit(tokens, new)
        self.tokens += tokens
        self.hidden_states = tuple(torch.cat(pair, 1) for pair in zip(self.hidden_states, new, strict=True))

    def round(self, committed: list[int]) -> None:
        self.draft_root()
        self.draft_level([1, 2, 3], [0, 0, 0])
        self.draft_level([4, 5, 4, 6], [0, 0, 1, 2])
        self.draft_level([7, 8], [3, 0])
        self.commit(committed)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_moves_with_the_drafted_rows(name):
    """As vLLM serves these heads; speculators' training mask leaves the window where the committed rows end."""
    session = Session(name)
    session.draft_root()
    session.draft_level([1], [0])
    session.draft_level([2], [0])
    moving = session.format
    session.format = moving.but(facts={"windows": tuple(window and window + 2 for window in moving.facts["windows"])})
    with pytest.raises(AssertionError):
        session.draft_level([3], [0])
    session.format = moving
    session.draft_level([4], [0])


@pytest.mark.few(3)
@needs_native
@pytest.mark.parametrize("name", NAMES)
def test_passes_in_one_call_are_the_formulas_over_rounds(name):
    session = Session(name)
    assert isinstance(session.drafter.heads[0].inner.backend, NativeBackend)
    for committed in ([9], [1, 5, 9], [3, 6, 7, 11], [22, 2]):
        session.round(committed)


@pytest.mark.few(3)
@every_fused_format
def test_recorded_passes_are_the_formulas_over_rounds(name):
    recorder = Replays()
    session = Session(name, recorder=recorder)
    for committed in ([9], [1, 5, 9], [3, 6, 7, 11], [22, 2]):
        session.round(committed)
    assert recorder.recorded == len(session.drafter.heads[0].kinds)


def test_every_committed_row_is_read_once_and_drafted_rows_are_dropped(fast):
    session = Session(prompt=7)
    for committed in ([9], [1, 5, 9], [3, 6, 7, 11]):
        session.round(committed)
    session.draft_root()
    assert session.forwarded == [5, *(1, 3, 4, 2), *(1, 3, 4, 2), *(3, 3, 4, 2), 4]
    assert session.draft.cache.length == len(session.tokens) - 1
    assert session.draft.passes == session.calls == 13
    assert session.draft.seconds > 0


def test_long_prompts_are_read_in_chunks(fast, monkeypatch):
    monkeypatch.setattr("drafttree.drafters.head.PREFILL_CHUNK", 4)
    session = Session(prompt=11)
    assert session.forwarded == [4, 4, 1]
    session.round([9, 1])
    session.draft_root()


def test_the_first_draft_after_a_prompt_of_one_token_keeps_no_row(fast):
    session = Session(prompt=1)
    assert session.draft.draft_root().isfinite().any()
    session.draft.draft_level(torch.tensor([[1, 2]]), torch.tensor([[0, 0]]))
    session.commit([5, 6])
    session.round([3])
    session.draft_root()


def small() -> Decoder:
    target = TargetModel(checkpoints.target())
    return Decoder(target, loaded(target=target.module))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [name for name in VERIFIERS if name not in ("greedy", "coupled")])
def test_trees_for_sampling_verifiers_have_tokens_of_the_draft_vocabulary(name):
    verifier = VERIFIERS[name]
    plain = small()
    policy = Chain(depth=4) if verifier.chains_only else POLICIES["fixed"](depth=3, breadth=3)
    decoder = Decoder(plain.target, plain.drafter, policy, verifier)
    known = set(FORMATS["SafeAILab"].draft_ids)
    sequence = decoder.new_request([3, 1, 4], max_new_tokens=30, temperature=1.0, seed=3)
    seen, draft = [], decoder.loop.trees.draft

    def noted(requests, prefill_rows):
        drafts = draft(requests, prefill_rows)
        seen.extend(token for tree in drafts.trees for token in tree.tokens[1:])
        return drafts

    decoder.loop.trees.draft = noted
    while not sequence.finish_reason:
        decoder.step(sequence)
    assert seen
    assert set(seen) <= known
    assert len(sequence.tokens) == 33


@needs_native
@pytest.mark.parametrize("policy", [Chain(depth=5), Talon(width=4, budget=16)])
def test_one_head_pass_per_level(policy):
    decoder = small().with_policy(policy)
    decoder = decoder.with_drafter(counted(decoder.drafter))
    passes = decoder.drafter.heads[0].forwarded
    metrics = decoder.generate([3, 1, 4, 1, 5], max_new_tokens=30).metrics
    assert [turn.draft_passes for turn in metrics.rounds] == [turn.levels for turn in metrics.rounds]
    assert len(passes) == 1 + sum(turn.draft_passes for turn in metrics.rounds)
    assert all(turn.draft_seconds > 0 for turn in metrics.rounds if turn.levels)


def test_any_architecture_can_be_the_target():
    target = TargetModel(tiny.build("gpt_neox"))
    head = FORMATS["SafeAILab"].but(sizes={"V": tiny.VOCAB})
    decoder = Decoder(target, FORMAT.load(head.tensors(), head.fields(), target.module), Talon())
    assert decoder.drafter.kind == "eagle3"
    assert decoder.drafter.hidden_layers == (2, 1, 0)
    generation = decoder.generate([5, 6, 7], max_new_tokens=16)
    assert generation.tokens == decoder.plain().generate([5, 6, 7], max_new_tokens=16).tokens


def test_the_targets_embedding_is_shared_not_copied():
    decoder = small()
    own = decoder.target.module.get_input_embeddings().weight
    assert decoder.drafter.modules[0].embed_tokens.weight.data_ptr() == own.data_ptr()


@every_fused_format
def test_a_fused_head_is_the_module_it_stands_in_for(name):
    head = loaded(name).modules[0]
    results, levels = [], 3
    for each in (fused_head(head), head):
        cache, generator = TreeCache(head.layout, 8), torch.Generator().manual_seed(3)
        for level in range(levels):
            tokens = torch.randint(VOCAB, (2,), generator=generator).numpy()
            states = tuple(torch.randn(1, 2, HIDDEN, generator=generator) for _ in FORMATS[name].states)
            visible = np.tile(np.eye(2, dtype=bool), (1, level + 1))
            segment = Segment(cache, tokens, np.full(2, level), visible)
            with torch.inference_mode():
                results.append(each([segment], each.fuse(states)))
    for ours, theirs in zip(results[:levels], results[levels:], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def _levels(backend: Head, head: Eagle3Head, seed: int):
    """Outputs of a prefix and three levels of two nodes, all kept until the last is made."""
    generator, cache, device = torch.Generator().manual_seed(seed), backend.new_cache(8), head.fc.weight.device
    for rows, kept in ((3, range(3)), (2, None), (2, None), (2, None)):
        if kept or not cache.drafted:
            visible = np.ones((rows, 0), dtype=bool)
        added = np.tri(rows, dtype=bool) if kept else np.eye(rows, dtype=bool)
        visible = np.concatenate((visible, added), 1)
        tokens = torch.randint(VOCAB, (rows,), generator=generator).numpy()
        states = tuple(torch.randn(1, rows, HIDDEN, generator=generator).to(device) for _ in range(head.config.states))
        positions = cache.next_position + visible.sum(1) - 1
        segment = Segment(cache, tokens, positions, visible)
        yield backend([segment], backend.fuse(states))
        if kept:
            cache.commit(kept)


@needs_native
@torch.inference_mode()
def test_hidden_states_of_many_rows_are_fused_by_few_numbers_of_them(monkeypatch):
    head = loaded().modules[0]
    found, fused = HeadBackend(head, NativeBackend(head)), set[int]()
    states = [torch.randn(1, 100, HIDDEN, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    expected = head.fuse(tuple(states))
    forward = head.fc.forward
    monkeypatch.setattr(head.fc, "forward", lambda rows: (fused.add(rows.shape[1]), forward(rows))[1])
    for rows in range(1, 101):
        fewer = found.fuse(tuple(state[:, :rows] for state in states))
        torch.testing.assert_close(fewer, expected[:, :rows], atol=TOLERANCE, rtol=TOLERANCE)
    assert fused == {*range(1, 17), 32, 48, 64, 80, 96, 112}


@torch.inference_mode()
def test_nan_hidden_states_of_one_pass_do_not_affect_the_next():
    head = loaded().modules[0]
    fused, recorded = fused_head(head), recorded_head(head, Replays())
    damaged = torch.full((1, 4, head.config.hidden), torch.nan)
    recorded([Segment.of_text(recorded.new_cache(8), range(4))], damaged)
    results = [list(_levels(each, head, 1)) for each in (fused, recorded)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.cuda
@every_fused_format
@torch.inference_mode()
def test_graphs_are_the_fused_heads_passes(name):
    drafter = loaded(name, checkpoints.target().cuda())
    recorded, head = drafter.heads[0], drafter.modules[0]
    assert isinstance(recorded.backend, RecordedBackend)
    for seed in (1, 2):
        results = [list(_levels(each, head, seed)) for each in (fused_head(head), recorded)]
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_head_recorded_as_something_else_is_not_trusted():
    head = loaded().modules[0]
    own = head_backend._probe(head, head)
    assert head_backend._repeats(recorded_head(head, Replays()), head, own)
    assert not head_backend._repeats(recorded_head(head, frozen), head, own)


@torch.inference_mode()
def test_a_head_whose_packed_form_says_something_else_is_not_trusted(monkeypatch):
    monkeypatch.setattr(packing_plan, "norm_of", lambda *_: Norm(torch.ones(HIDDEN), None, 1e-6, False))
    drafter = loaded()
    assert isinstance(drafter.heads[0].backend, FusedBackend)


@torch.inference_mode()
def test_a_head_whose_fused_form_says_something_else_runs_as_it_is(on_torch, monkeypatch):
    monkeypatch.setattr(fused_backend, "norm_call", lambda norm: lambda x: x)
    drafter = loaded()
    assert drafter.heads[0] is drafter.modules[0]


def test_a_hook_on_the_head_is_called(fast):
    decoder, called = small(), []
    assert isinstance(decoder.drafter.heads[0].backend, fast)
    handle = decoder.drafter.modules[0].layers[0].mlp.register_forward_hook(lambda *_: called.append(1))
    rounds = decoder.generate([3, 1, 4, 1, 5], max_new_tokens=8).metrics.rounds
    assert len(called) >= len(rounds) > 0
    handle.remove()
    decoder.generate([3, 1], max_new_tokens=2)
    assert isinstance(decoder.drafter.heads[0].backend, fast)


def test_weights_of_a_head_edited_in_place_are_the_ones_that_draft(fast):
    drafter = loaded()
    with torch.no_grad():
        for weight in drafter.modules[0].layers.parameters():
            weight.mul_(1.5)
    drafter.start([1, 2], capacity=8)
    with torch.inference_mode():
        found, expected = (
            list(_levels(each, drafter.modules[0], 1)) for each in (drafter.heads[0], drafter.modules[0])
        )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
