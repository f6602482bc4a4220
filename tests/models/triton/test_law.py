"""The table of `helpers.triton_law` says what it should of right and of wrong kernels."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

from typing import Any

import torch
from torch import Tensor

from drafttree.models.families import LLAMAS, NEOX
from drafttree.models.fused.fused_backend import FusedBackend
from helpers import triton_law

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


class DependentBackend(FusedBackend):
    """A token's logits depend on the number of rows of its pass."""

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x) * (1 + 1e-6 * x.shape[1])


def as_given(module: Any) -> FusedBackend:
    """The backend of another model, whose weights are a twentieth larger."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= 1.05
    return FusedBackend(module)


@pytest.mark.parametrize(("family", "weights"), [("llama", "float32"), ("gemma3_text", "int8")])
def test_the_law_holds(family, weights):
    law = triton_law.measure(family, weights, passes=2)
    assert law.holds, law
    assert law.equal == 2


def test_sums_that_depend_on_the_rows_break_it():
    law = triton_law.measure("llama", "float32", 4, make_backend=DependentBackend)
    assert law.equal < 4
    assert not law.holds
    assert f"bits equal in {law.equal} of 4 random passes" in str(law)
    assert str(law).endswith("BROKEN")


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_other_logits_break_it(weights):
    assert not triton_law.measure("llama", weights, 1, make_backend=as_given).holds
    assert triton_law.measure("llama", weights, 1, make_backend=FusedBackend).gap < triton_law.LARGEST_GAPS[weights]


def test_float64_is_reached():
    """The reference of a model in float32 is nearer to itself in another order of sums than float32 allows."""
    module = triton_law.make_module("llama", "float32")
    exact_logits = triton_law.float64_logits(module)
    fused_logits = triton_law.logits_in_company(FusedBackend(module), triton_law.ALONE)
    assert exact_logits.dtype == torch.float64
    assert 1e-9 < (fused_logits - exact_logits).abs().max() < 1e-4
    assert not torch.equal(exact_logits, exact_logits.float().double())


def test_all_families_are_in_the_table(monkeypatch, capsys):
    """Those of vision models have the text layers of others, and layers of experts have no kernels."""
    others = {name for name in LLAMAS if "_vl_" in name or name.endswith("moe")}
    assert set(triton_law.FAMILIES) == (LLAMAS | {NEOX}) - others
    rows = []
    monkeypatch.setattr(triton_law, "measure", lambda *row: rows.append(row) or triton_law.Law(*row[:2], 0.0, 5, 5))
    assert triton_law.main(["--passes", "5"]) == 0
    assert len(rows) == 3 * len(triton_law.FAMILIES)
    monkeypatch.setattr(triton_law, "measure", lambda *row: triton_law.Law(*row[:2], 0.0, 4, 5))
    assert triton_law.main(["llama"]) == 1
    assert "| llama | int8 | 0.0e+00 | bits equal in 4 of 5 random passes | BROKEN" in capsys.readouterr().out
