"""A kernel that does not compile for the sizes of a later pass: texts go on without it, and one line says why."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

import ast
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.drafters.formats import eagle3
from drafttree.drafters.head_backend import HeadBackend, choose_head_backend
from drafttree.loading import make_policy
from drafttree.models import Segment, TargetModel, TreeCache, backend_choice
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import Backend, append
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.triton import products
from drafttree.models.triton.triton_backend import TritonBackend
from drafttree.models.triton.kernel_failures import fail
from drafttree.models.triton.triton_support import why_not_triton
from helpers import checkpoints
from helpers.triton_launches import Launches
from testing import tiny
from testing.fused_families import CONFIGS

MOST_ROWS = 16
"""The largest pass whose kernels compile."""
ERRORS = {
    "CompilationError: no tile of 64 rows": CompilationError(
        "def kernel", ast.parse("kernel"), "no tile of 64 rows\nmore"
    ),
    "OutOfResources: out of resource: shared memory, Required: 2, Hardware limit: 1. "
    "Reducing block sizes or `num_stages` may help.": OutOfResources(2, 1, "shared memory"),
    "RuntimeError: PassManager::run failed": RuntimeError("PassManager::run failed\nmore"),
}
"""What Triton raises, by what is told of it."""
TREES = [tiny.random_tree((2, 3, 4), seed) for seed in range(2)]
PREFIXES = [tiny.random_tokens(length, length) for length in (9, 12)]


@pytest.fixture(autouse=True)
def _prefers_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTTREE_TRITON", "1")


def refuse_products(monkeypatch: pytest.MonkeyPatch, error: Exception, outputs: int | None = None) -> None:
    """Raise an error where a product of more than `MOST_ROWS` rows is launched; of all products or of one width."""
    launch = products._launch_product

    def launch_or_fail(x: Tensor, weight: Any, *arguments: Any, **options: Any) -> None:
        if len(x) > MOST_ROWS and outputs in (None, weight.outputs):
            raise error
        launch(x, weight, *arguments, **options)

    monkeypatch.setattr(products, "_launch_product", launch_or_fail)


def build(layers: int = 1) -> PreTrainedModel:
    config = CONFIGS["llama"]()
    config.num_hidden_layers = layers
    return tiny.from_config(config)


def on_triton(module: PreTrainedModel) -> Backend:
    return FusedBackend(module) if why_not_triton(module) else TritonBackend(module)


def recorded_on_triton(module: PreTrainedModel) -> Backend:
    return FusedBackend(module) if why_not_triton(module) else RecordedBackend(TritonBackend(module), Launches())


@torch.inference_mode()
def logits_of_rounds(target: TargetModel) -> list[Tensor]:
    """Logits of a tree behind each of two texts in one pass, and of a token after a path of it was accepted."""
    caches: list[TreeCache] = []
    for prefix in PREFIXES:
        caches.append(target.new_cache(32))
        append(target, caches[-1], prefix)
    segments = []
    for cache, tree in zip(caches, TREES, strict=True):
        segments.append(Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors))
    logits = [output.logits[0] for output in target.forward(segments)]
    for cache, tree in zip(caches, TREES, strict=True):
        assert cache.drafted == tree.size
        path = tiny.leaf_paths(tree)[-1]
        cache.commit(path)
        logits.append(append(target, cache, [7]).logits[0])
    return logits


@pytest.mark.few(4)
@pytest.mark.parametrize("select", [on_triton, recorded_on_triton])
@pytest.mark.parametrize("outputs", [None, tiny.VOCAB], ids=["any product", "the head"])
@pytest.mark.parametrize("reason", ERRORS)
def test_texts_go_on_where_a_larger_pass_does_not_compile(
    reason: str, outputs: int | None, select: Callable[[PreTrainedModel], Backend], monkeypatch, caplog
):
    wanted = logits_of_rounds(TargetModel(build(), FusedBackend))
    refuse_products(monkeypatch, ERRORS[reason], outputs)
    target = TargetModel(build(), select)
    former = target.backend.name
    assert former.endswith("TritonBackend")
    found = logits_of_rounds(target)
    for found_logits, wanted_logits in zip(found, wanted, strict=True):
        torch.testing.assert_close(found_logits, wanted_logits, atol=1e-5, rtol=1e-5)
    assert target.backend.name == "FusedBackend"
    assert why_not_triton(target.module) == f"a kernel does not run ({reason})"


def test_another_error_is_no_matter_of_kernels(monkeypatch):
    refuse_products(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))
    target = TargetModel(build(), on_triton)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        logits_of_rounds(target)
    assert target.backend.name == "TritonBackend"


def test_generated_texts_are_those_without_kernels(monkeypatch, caplog):
    """A long prompt joins a short one, so that a pass of the trial's size is followed by a larger one."""

    def decoder() -> Decoder:
        target = TargetModel(build(), choose_backend)
        return Decoder(target, LanguageModelDrafter(TargetModel(build(), FusedBackend)), make_policy("talon:budget=8"))

    prompts = [tiny.random_tokens(3, 3), tiny.random_tokens(21, 4)]
    with monkeypatch.context() as patch:
        patch.delenv("DRAFTTREE_TRITON")
        wanted = [text.tokens for text in decoder().generate(prompts, max_new_tokens=8)]
    refuse_products(monkeypatch, OutOfResources(2, 1, "shared memory"))
    caplog.set_level(logging.INFO, "drafttree")
    speculative = decoder()
    assert speculative.target.backend.name == "TritonBackend"
    assert [text.tokens for text in speculative.generate(prompts, max_new_tokens=8)] == wanted
    (line,) = [record for record in caplog.records if "runs on" in record.message]
    assert line.levelno == logging.WARNING
    kernel_reason = "no TritonBackend: a kernel does not run (OutOfResources: out of resource: shared memory"
    assert line.message.startswith(f"LlamaForCausalLM runs on {speculative.target.backend.name}: {kernel_reason}")


def test_a_backend_whose_recorded_passes_do_not_compile_is_not_chosen(monkeypatch):
    """On CUDA, passes are recorded and repeated after the trial; their sizes are rounded up."""
    record = backend_choice._recorded

    def record_or_fail(backend: Backend, module_logits: Any) -> Backend:
        if isinstance(backend, TritonBackend):
            raise fail(module_logits.module, OutOfResources(2, 1, "shared memory"))
        return record(backend, module_logits)

    monkeypatch.setattr(backend_choice, "_recorded", record_or_fail)
    for wants in (backend_choice.EVERY_TEXT, backend_choice.Wants(exact_text=True)):
        backend = choose_backend(build(), wants)
        assert "Triton" not in backend.name
        assert str(backend.fallback_reason).startswith("no TritonBackend: a kernel does not run (OutOfResources")


@torch.inference_mode()
def test_a_draft_head_goes_on_with_fused_layers(monkeypatch, caplog):
    def make_head() -> Any:
        kind = checkpoints.FORMATS["SafeAILab"]
        return eagle3.FORMAT.load(kind.tensors(), kind.fields(), checkpoints.target()).modules[0]

    head = make_head()
    refuse_products(monkeypatch, OutOfResources(2, 1, "shared memory"))
    backend: Any = choose_head_backend(head)
    assert isinstance(backend.backend, TritonBackend)
    states = torch.randn(1, 2 * TREES[0].size, head.fc.out_features, generator=torch.Generator().manual_seed(0))

    def logits_of(runner: HeadBackend) -> Tensor:
        segments = []
        for tree in TREES:
            cache = runner.new_cache(16)
            segments.append(Segment(cache, tree.tokens % head.config.vocab, tree.depths, tree.ancestors))
        logits, _ = runner(segments, states)
        assert {segment.cache.drafted for segment in segments} == {TREES[0].size}
        return logits

    found = logits_of(backend)
    torch.testing.assert_close(found, logits_of(HeadBackend(head, FusedBackend(make_head()))), atol=1e-4, rtol=1e-4)
    assert isinstance(backend.backend, FusedBackend)
    (line,) = [record.message for record in caplog.records]
    reason = "a kernel does not run (OutOfResources: out of resource: shared memory"
    assert line.startswith(f"a draft head goes on without the kernels in Triton: {reason}")


def test_a_draft_head_whose_trial_does_not_compile(monkeypatch, caplog):
    kind = checkpoints.FORMATS["SafeAILab"]
    head = eagle3.FORMAT.load(kind.tensors(), kind.fields(), checkpoints.target()).modules[0]
    monkeypatch.setattr(__name__ + ".MOST_ROWS", 0)
    refuse_products(monkeypatch, OutOfResources(2, 1, "shared memory"))
    chosen: Any = choose_head_backend(head)
    monkeypatch.delenv("DRAFTTREE_TRITON")
    assert type(chosen.backend) is type(choose_head_backend(head).backend)
    assert len(caplog.records) == 1
