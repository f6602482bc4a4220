"""The ways of the bench of kernels compute the same: our kernels, in Triton's interpreter, and torch."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

import torch

from drafttree_lab.kernel_calls import AttentionPoint, ProductPoint

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("ending", ["", "add", "gate"])
@torch.inference_mode()
def test_products(ending, int8):
    calls = ProductPoint("some", 80, 600, ending, 3, int8).make(CPU, 2)
    for own_call, torch_call in zip(calls["triton"](), calls["torch"](), strict=True):
        own, wanted = own_call(), torch_call()
        for found, result in zip(own if isinstance(own, tuple) else (own,), wanted, strict=True):
            torch.testing.assert_close(found, result, atol=0.06, rtol=0.02)


@pytest.mark.parametrize("nodes", [1, 6])
@torch.inference_mode()
def test_attention(nodes):
    calls = AttentionPoint(40, nodes, 4, 2, 16).make(CPU, 2)
    for own_call, torch_call in zip(calls["triton"](), calls["torch"](), strict=True):
        torch.testing.assert_close(own_call(), torch_call().flatten(1), atol=0.02, rtol=0.02)
