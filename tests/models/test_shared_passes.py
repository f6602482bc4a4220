"""A packed pass gives every request what a pass of its own gives it, and leaves its KV cache the same."""

from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import Phi3Config, PreTrainedModel

from drafttree.models import LossyWindow, Output, Segment, TargetModel, TreeCache
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import append
from drafttree.models.exact_text import ExactTextBackend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.recorded.recorded_passes import RecordedBackend
from helpers.replays import Operations, Replays, unrecorded
from helpers.varlen import packed
from testing import families, tiny

TOLERANCE = 1e-5
LAYERS = (0, 2)


@dataclass
class Request:
    """One text, decoded twice: packed with others, and alone."""

    packed: TreeCache
    alone: TreeCache
    random: Random
    rows: list[int] = field(default_factory=list)

    def next_segment(self) -> Segment:
        """A tree, a single node or a part of a prompt, and what to commit of it afterwards."""
        kind, seed = self.random.randrange(3), self.random.randrange(1000)
        tree = tiny.random_tree([(3, 4, 2), (), (1,) * self.random.randrange(2, 9)][kind], seed)
        paths = tiny.leaf_paths(tree)
        self.rows = self.random.choice(paths)
        wanted = [slice(None), slice(None), self.random.choice((slice(0, 0), slice(-1, None)))][kind]
        positions = tree.depths + self.packed.next_position
        return Segment(self.packed, tree.tokens, positions, tree.ancestors, wanted)

    def commit(self) -> None:
        for cache in (self.packed, self.alone):
            cache.commit(self.rows)


def request(model: TargetModel, seed: int) -> Request:
    return Request(*(model.new_cache(16) for _ in range(2)), Random(seed))


def assert_same(ours: Output, own: Output, wanted: slice, tolerance: float) -> None:
    for one, other in zip((ours.logits, *ours.hidden), (own.logits[:, wanted], *own.hidden), strict=True):
        close(one, other, tolerance)


def close(one: Tensor, other: Tensor, tolerance: float) -> None:
    scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
    torch.testing.assert_close(one, other, atol=tolerance * scale, rtol=0)


@torch.inference_mode()
def check_rounds(model: TargetModel, tolerance: float = TOLERANCE, hidden_layers: tuple[int, ...] = LAYERS) -> None:
    """Rounds in which requests join and leave; every one of them is also run alone."""
    requests = [request(model, seed) for seed in range(5)]
    for running in (requests[:1], requests[:3], requests[1:], requests[2:], [requests[4], requests[0]]):
        segments = [each.next_segment() for each in running]
        outputs = model.forward(segments, hidden_layers=hidden_layers)
        for each, segment, output in zip(running, segments, outputs, strict=True):
            own = tiny.run(model, each.alone, *segment[1:4], hidden_layers=hidden_layers)
            assert_same(output, own, segment.wanted, tolerance)
            each.commit()
            for ours, alone in zip(each.packed.committed(), each.alone.committed(), strict=True):
                for one, other in zip(ours, alone, strict=True):
                    close(one, other, tolerance)


def windowed(module, window: LossyWindow) -> TargetModel:
    return TargetModel(module, partial(choose_backend, wants=Wants(lossy_window=window)))


def quantized(module: PreTrainedModel) -> PreTrainedModel:
    quantize_int8(module)
    return module


def exact_text(module: PreTrainedModel, limits: tuple[int, int | None]) -> ExactTextBackend:
    return ExactTextBackend(FusedBackend(module), *limits)


BACKENDS = {
    "module": TargetModel,
    "fused": lambda module: TargetModel(module, FusedBackend),
    "recorded": lambda module: TargetModel(module, lambda each: RecordedBackend(FusedBackend(each), Replays())),
    "packed": lambda module: packed(module, unrecorded),
    "packed and recorded": lambda module: packed(module, Operations()),
    "windowed": partial(windowed, window=LossyWindow(6, 2)),
    "int8": lambda module: TargetModel(quantized(module), choose_backend),
}


WITHOUT_WINDOWS = ["llama", "gpt_neox"]
PAIRS = [(name, backend) for name in WITHOUT_WINDOWS for backend in BACKENDS] + [("gemma3", "fused")]


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_rounds_of_requests_that_join_and_leave(name, backend):
    check_rounds(BACKENDS[backend](tiny.build(name)))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [*families.known(), *tiny.CONFIGS])
def test_every_family_runs_packed_or_one_by_one(name):
    built = tiny.build(name) if name in tiny.CONFIGS else tiny.from_config(families.config(name))
    check_rounds(TargetModel(built), 1e-4 if name in families.HYBRIDS else TOLERANCE)


@pytest.mark.parametrize(
    ("name", "shares"), {"gpt_oss": True, "deepseek_v3": True, "gptj": False, "lfm2": True}.items()
)
def test_layers_that_cannot_be_packed_are_found(name, shares):
    model = TargetModel(tiny.from_config(families.config(name)))
    assert model.shares_passes is shares


def test_layers_that_look_at_neighbouring_tokens_are_found():
    """They would take the last token of one request for the one before the first token of the next."""
    module = tiny.build("llama")
    mlp = module.model.layers[1].mlp
    mlp.register_forward_pre_hook(lambda _, given: (given[0] + given[0].roll(1, 1),))
    assert TargetModel(tiny.build("llama")).shares_passes
    assert not TargetModel(module).shares_passes


@torch.inference_mode()
def test_one_pass_serves_all_requests_and_its_head_the_wanted_nodes():
    module = tiny.build("llama")
    model, rows = TargetModel(module, FusedBackend), []
    assert isinstance(model.backend, FusedBackend)
    head = model.backend._head
    model.backend._head = lambda x: rows.append(len(x)) or head(x)
    tree = tiny.random_tree((3, 2), 1)
    wanted = (slice(None), slice(0, 0), slice(-1, None))
    segments = [Segment(model.new_cache(8), tree.tokens, tree.depths, tree.ancestors, each) for each in wanted]
    assert [output.logits.shape[1] for output in model.forward(segments)] == [6, 0, 1]
    assert rows == [7]


@pytest.mark.parametrize("backend", BACKENDS)
def test_segments_of_which_no_logits_are_wanted(backend):
    model, tree = BACKENDS[backend](tiny.build("llama")), tiny.random_tree((3, 2), 1)
    for count in (1, 2):
        caches = [model.new_cache(8) for _ in range(count)]
        outputs = model.forward(
            [Segment(each, tree.tokens, tree.depths, tree.ancestors, slice(0, 0)) for each in caches]
        )
        assert [output.logits.shape for output in outputs] == [(1, 0, tiny.VOCAB)] * count
        assert [cache.drafted for cache in caches] == [tree.size] * count


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_segments_are_no_pass(backend):
    assert BACKENDS[backend](tiny.build("llama")).forward([]) == []


def test_texts_with_other_rotary_frequencies_run_in_another_pass():
    """Phi-3 has other frequencies for long texts: all of a text are computed with one of the two sets."""
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    options = {**tiny.GROUPED, "pad_token_id": 0, "original_max_position_embeddings": 32}
    module = tiny.from_config(Phi3Config(**options, rope_parameters={**factors, "rope_theta": 1e4}))
    model, tree = TargetModel(module), tiny.random_tree((3, 2), 1)
    assert model.shares_passes
    outputs = []
    for run in (model.forward, lambda segments: [tiny.run(model, *each[:4]) for each in segments]):
        segments = [Segment(model.new_cache(8), tree.tokens, tree.depths + 3, tree.ancestors) for _ in range(4)]
        for each, is_long in zip(segments, (False, True, True, False), strict=True):
            each.cache.long_rope = is_long
        outputs.append([output.logits for output in run(segments)])
    torch.testing.assert_close(*outputs, atol=TOLERANCE, rtol=TOLERANCE)
    assert not torch.allclose(outputs[0][0], outputs[0][1], atol=1e-3)


@pytest.mark.few(3)
@pytest.mark.parametrize("limits", [None, (16, 16), (4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_exact_texts_have_plain_decodings_logits_bit_for_bit_among_other_requests(dtype, limits):
    module = tiny.build("llama").to(dtype)
    model = TargetModel(
        module,
        partial(choose_backend, wants=Wants(exact_text=True))
        if limits is None
        else lambda each: exact_text(each, limits),
    )
    path = tiny.random_tokens(12, 3)
    cache, others = model.new_cache(32), [request(model, seed) for seed in range(3)]
    own = torch.cat([append(model, cache, [token]).logits[0] for token in path])
    cache, found = model.new_cache(32), []
    for token in path:
        segment = Segment.of_text(cache, [token])
        segments = [others[0].next_segment(), segment, *(each.next_segment() for each in others[1:])]
        found.append(model.forward(segments)[1].logits[0])
        cache.commit([0])
        for other in others:
            other.packed.commit(other.rows)
    assert torch.equal(torch.cat(found), own)


@torch.inference_mode()
def test_passes_of_exact_texts_keep_to_their_numbers_of_rows():
    sizes = []

    class Counted(FusedBackend):
        def run_layers(self, inputs, hidden_layers, long_rope=False):
            sizes.append(inputs.tokens.shape[1])
            return super().run_layers(inputs, hidden_layers, long_rope)

        def logits(self, x):
            sizes.append(x.shape[1])
            return super().logits(x)

    model = TargetModel(tiny.build("llama"), lambda module: ExactTextBackend(Counted(module), 4, 7))
    check_rounds(model)
    assert {4, 7} <= set(sizes) <= {0, 4, 5, 6, 7}
