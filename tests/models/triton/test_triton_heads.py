"""Medusa's heads on kernels in Triton: their own logits, and the same bits for a text whoever drafts beside it."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from triton.runtime.errors import OutOfResources

from drafttree.drafters.head_logits import CompiledHeads, choose_head_logits
from drafttree.drafters.heads import MedusaHeads
from drafttree.models.quantization.quantize import quantize_head
from drafttree.models.triton import products, triton_heads
from testing import tiny

ROWS, HEADS, BLOCKS = 19, 3, 2
shared_or_own = pytest.mark.parametrize("shares_output", [False, True], ids=("own projections", "the target's"))
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def _prefers_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTTREE_TRITON", "1")


def build(dtype: torch.dtype, *, shares_output: bool) -> tuple[MedusaHeads, PreTrainedModel]:
    target = tiny.build("llama").to(dtype)
    config = target.config
    heads = MedusaHeads(HEADS, BLOCKS, config.hidden_size, config.vocab_size, shares_output=shares_output)
    return heads.to(dtype).requires_grad_(False), target


def contexts_of(target: PreTrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, target.config.hidden_size, generator=generator).to(target.dtype)


@torch.no_grad()
def expected_logits(heads: MedusaHeads, target: PreTrainedModel, contexts: Tensor) -> Tensor:
    """Medusa's formula in float64 (Cai et al. 2024, equation 1), with each block as x + SiLU(W x + b)."""
    logits = []
    for head in heads:
        x = contexts.double()
        for block in head[:BLOCKS]:
            x = x + F.silu(F.linear(x, block.linear.weight.double(), block.linear.bias.double()))
        weight = target.lm_head.weight if heads.shares_output else head[-1].weight
        logits.append(x @ weight.double().T)
    return torch.stack(logits, 1)


@shared_or_own
@every_dtype
def test_logits_are_those_of_the_formula(dtype: torch.dtype, shares_output: bool):
    heads, target = build(dtype, shares_output=shares_output)
    contexts = contexts_of(target)
    logits = choose_head_logits(heads, target)(contexts)
    assert logits.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    expected = expected_logits(heads, target, contexts)
    assert float((logits - expected).abs().max()) < tolerance * float(expected.abs().max())


@shared_or_own
@every_dtype
def test_a_text_has_the_same_bits_whoever_drafts_beside_it(dtype: torch.dtype, shares_output: bool):
    heads, target = build(dtype, shares_output=shares_output)
    head_logits = choose_head_logits(heads, target)
    assert isinstance(head_logits, CompiledHeads)
    contexts = contexts_of(target)
    together = head_logits(contexts)
    for rows in ([0], [4, 3], [*range(17)], [*reversed(range(ROWS))]):
        assert torch.equal(head_logits(contexts[rows]), together[rows])


def test_a_shared_projection_of_eight_bits():
    heads, target = build(torch.float32, shares_output=True)
    quantize_head(target)
    contexts = contexts_of(target)
    own = target.lm_head(heads(contexts))
    torch.testing.assert_close(choose_head_logits(heads, target)(contexts), own, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda *_, **__: 1 / 0, r"a kernel does not run \(ZeroDivisionError: division by zero\)"),
        (lambda x, *_, residual: residual.new_zeros(x.shape), "their logits differ from the heads' own"),
    ],
)
def test_what_the_kernels_cannot_run_is_told_and_runs_without_them(monkeypatch, caplog, fault, reason):
    heads, target = build(torch.float32, shares_output=False)
    monkeypatch.setattr(triton_heads, "activate_linear", fault)
    head_logits = choose_head_logits(heads, target)
    contexts = contexts_of(target)
    assert torch.equal(head_logits(contexts), heads(contexts))
    (record,) = caplog.records
    assert record.getMessage().startswith("Medusa's heads run without the kernels in Triton: ")
    assert re.search(reason, record.getMessage())


def test_heads_go_on_without_a_kernel_that_does_not_compile_for_more_rows(monkeypatch, caplog):
    heads, target = build(torch.float32, shares_output=False)
    head_logits = choose_head_logits(heads, target)
    launch = products._launch_product

    def launch_or_fail(x: Tensor, *arguments: Any, **options: Any) -> None:
        if len(x) > 16:
            raise OutOfResources(2, 1, "shared memory")
        launch(x, *arguments, **options)

    monkeypatch.setattr(products, "_launch_product", launch_or_fail)
    contexts = contexts_of(target)
    for rows in (contexts[:3], contexts, contexts[:3]):
        torch.testing.assert_close(head_logits(rows), heads(rows))
    (record,) = caplog.records
    reason = "a kernel does not run (OutOfResources: out of resource: shared memory"
    assert record.getMessage().startswith(f"Medusa's heads go on without the kernels in Triton: {reason}")
