"""Best tokens that a recorded pass ranks are those of its logits, for heads, draft models and the target."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from drafttree import Decoder
from drafttree.core.vocab_ops import ranked
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.drafters.ranked_logits import RankedLogits, logits_of
from drafttree.engine import round_loop
from drafttree.engine.drafting.tree_growth import best_candidates
from drafttree.loading import make_policy
from drafttree.models import TargetModel
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded import recorded_passes
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.segment import Output, Segment
from drafttree.verifiers import Coupled, Greedy, Traversal, Verifier
from helpers.replays import Operations
from testing import tiny

VOCAB = 151_936


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 3, 64])
def test_what_is_ranked(dtype, count):
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    logprobs, ids = ranked(logits, count)
    precise = logits.double().log_softmax(-1)
    tokens = ids.long()
    assert torch.equal(ids, tokens.to(ids.dtype))
    gap = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(logprobs.double(), precise.gather(1, tokens), atol=gap, rtol=1e-2)
    assert torch.equal(logits.gather(1, tokens), logits.topk(count).values)
    assert all(len(set(row)) == count for row in tokens.tolist())


def test_equal_logits_give_the_first_token():
    """As the walk down a tree on a CPU takes it, so that greedy texts do not depend on the device."""
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [-math.inf, -math.inf, -math.inf, 0.0]])
    assert ranked(logits, 1)[1].tolist() == [[1], [3]]


def of(logits: Tensor, count: int, token_ids: list[int] | None = None) -> RankedLogits:
    """Ranked logits whose full ones must not be made."""

    def fail() -> Tensor:
        raise AssertionError("the logits of all tokens were asked for")

    return RankedLogits(ranked(logits, count), fail, None if token_ids is None else np.array(token_ids))


def test_what_was_ranked_is_read():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    for width in (1, 2, 10):
        logprobs, tokens = best_candidates(of(logits, 10), width, 50)
        wanted_logprobs, wanted_tokens = best_candidates(logits, width, 50)
        np.testing.assert_array_equal(tokens, wanted_tokens)
        np.testing.assert_allclose(logprobs, wanted_logprobs, rtol=1e-6)


def test_draft_ids_become_the_targets():
    logprobs, tokens = best_candidates(of(torch.tensor([[0.0, 3.0, 1.0]]), 2, [70, 5, 9]), 2)
    assert tokens.tolist() == [[5, 9]]
    assert logprobs[0, 0] > logprobs[0, 1]


@pytest.mark.parametrize(("width", "allowed"), [(11, 50), (3, 20)])
def test_what_was_not_ranked_is_read_from_the_logits(width, allowed):
    """Either more tokens than were ranked, or one of them may not be drafted."""
    logits = torch.arange(50.0)[None]
    ranked_logits = RankedLogits(ranked(logits, 10), lambda: logits)
    tokens = best_candidates(ranked_logits, width, allowed)[1]
    assert tokens.tolist() == [[*range(allowed - 1, allowed - 1 - width, -1)]]


def test_one_text_without_ranks_leaves_all_to_the_reader():
    logits = torch.randn(1, 2, 9)
    outputs = [Output(logits, ranks=ranked(logits[0], 3)), Output(logits)]
    assert isinstance(logits_of(outputs[:1]), RankedLogits)
    joined_logits = logits_of(outputs)
    assert isinstance(joined_logits, Tensor)
    assert joined_logits.shape == (4, 9)


@torch.inference_mode()
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 6)])
def test_a_replayed_pass_ranks_the_rows_that_are_wanted(sizes):
    fused = FusedBackend(tiny.build("llama"))
    recorded = RecordedBackend(FusedBackend(tiny.build("llama")), Operations())
    for seed in (1, 2):  # the second pass is replayed
        outputs, wanted_outputs = (
            backend.forward(
                [
                    Segment.of_text(backend.new_cache(16), tiny.random_tokens(size, seed + size))._replace(ranked=5)
                    for size in sizes
                ]
            )
            for backend in (recorded, fused)
        )
        for output, wanted in zip(outputs, wanted_outputs, strict=True):
            torch.testing.assert_close(output.logits, wanted.logits, atol=1e-5, rtol=1e-5)
            assert output.ranks is not None
            assert torch.equal(output.ranks, ranked(output.logits[0], 5))
            assert wanted.ranks is None


@torch.inference_mode()
def test_large_passes_leave_logits_to_the_rows_that_want_them(monkeypatch):
    monkeypatch.setattr(recorded_passes, "MOST_SCORED", 4)
    backend = RecordedBackend(FusedBackend(tiny.build("llama")), Operations())
    for length, is_ranked in ((4, True), (5, False)):
        segment = Segment.of_text(backend.new_cache(16), tiny.random_tokens(length, 0))._replace(ranked=2)
        (output,) = backend.forward([segment])
        assert output.logits.shape[1] == 1
        assert (output.ranks is not None) == is_ranked


@torch.inference_mode()
def test_outputs_stay_when_a_later_pass_runs():
    """All recorded passes write to the same memory."""
    backend = RecordedBackend(FusedBackend(tiny.build("llama")), Operations())

    def forward(tokens: list[int]) -> Output:
        (output,) = backend.forward([Segment.of_text(backend.new_cache(64), tokens)], hidden_layers=(1,))
        return output

    forward([1, 2])
    output = forward([1, 2])
    copies = [output.logits.clone(), output.hidden[0].clone()]
    for length in (2, 1, 30, 60):
        forward(tiny.random_tokens(length, length))
    assert torch.equal(output.logits, copies[0])
    assert torch.equal(output.hidden[0], copies[1])


@torch.inference_mode()
def test_hidden_states_do_not_keep_the_logits():
    """A text may keep its hidden states for many rounds."""
    backend = RecordedBackend(FusedBackend(tiny.build("llama")), Operations())
    segment = Segment.of_text(backend.new_cache(16), [1, 2, 3])._replace(ranked=4)
    (output,) = backend.forward([segment], hidden_layers=(1, 2))
    assert output.ranks is not None
    for state in output.hidden:
        assert state.untyped_storage().nbytes() <= 4 * state[:, :1].nbytes  # three nodes take a pass of four


def with_drafts(policy: str, verifier: type[Verifier]) -> Decoder:
    def select(module: object) -> RecordedBackend:
        return RecordedBackend(FusedBackend(module), Operations())

    target = TargetModel(tiny.build("llama"), select)
    draft = TargetModel(tiny.build("llama", seed=1), select)
    decoder = Decoder(target, LanguageModelDrafter(draft), make_policy(policy), verifier)
    decoder.loop.reads_at_once = True  # as on a device
    return decoder


@pytest.mark.parametrize("policy", ["chain:depth=4", "talon:budget=12"])
@pytest.mark.parametrize("options", [{}, {"draft_temperature": 0.5}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_texts_are_those_of_plain_decoding(policy, options):
    prompts = [tiny.random_tokens(length, length) for length in (5, 9)]
    verifier = Coupled if "temperature" in options else Greedy
    plain = Decoder(TargetModel(tiny.build("llama"), FusedBackend), verifier=verifier)
    decoder = with_drafts(policy, verifier)
    wanted = [plain.generate(prompt, max_new_tokens=16, **options).tokens for prompt in prompts]
    assert [decoder.generate(prompt, max_new_tokens=16, **options).tokens for prompt in prompts] == wanted
    assert [text.tokens for text in decoder.generate(prompts, max_new_tokens=16, **options)] == wanted


class Unguided(Traversal):
    """Draws children, and says that it changes no logits, as a verifier of a user may."""

    guides = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


@pytest.mark.parametrize(
    ("verifier", "options"),
    [
        (Greedy, {}),
        (Greedy, {"draft_temperature": 0.05}),
        (Greedy, {"suppress_tokens": [*range(0, tiny.VOCAB, 2)]}),
        (Unguided, {"temperature": 1.0, "seed": 3}),
        (Coupled, {"temperature": 0.8, "seed": 3}),
    ],
    ids=["greedy", "temperature", "constraint", "drawn", "coupled"],
)
def test_trees_are_those_of_the_logits(verifier, options):
    """Where logits are adjusted, ranks say nothing, and all logits are read."""
    recorded = with_drafts("talon:budget=12,width=2", verifier)
    target, draft = (TargetModel(tiny.build("llama", seed=seed), FusedBackend) for seed in (0, 1))
    plain = Decoder(target, LanguageModelDrafter(draft), make_policy("talon:budget=12,width=2"), verifier)
    texts = [decoder.generate(tiny.random_tokens(7, 7), max_new_tokens=16, **options) for decoder in (recorded, plain)]
    trees = [[(turn.widths, turn.accepted) for turn in text.metrics.rounds] for text in texts]
    assert texts[0].tokens == texts[1].tokens
    assert trees[0] == trees[1]
    assert any(len(widths) > 1 for widths, _ in trees[0])


@torch.inference_mode()
@pytest.mark.parametrize(("highest", "is_read"), [(1.0, True), (math.inf, False), (math.nan, False)])
def test_rows_with_infinite_or_no_numbers_are_read_from_the_logits(highest, is_read):
    """The log-probabilities of a row with +inf are NaN, but the row has a best token."""
    logits = torch.zeros(1, 1, 8)
    logits[0, 0, 5] = highest
    best_token = round_loop._best_ranked([Output(logits, ranks=ranked(logits[0], 1))])
    assert (best_token is not None) == is_read
    if best_token:
        assert best_token(0) == 5
