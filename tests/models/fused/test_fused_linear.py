"""Products of linear layers on their own weights, and which devices multiply bfloat16 fast."""

import pytest
import torch
from torch import nn

from drafttree.models.fused.fused_linear import fuse, multiplies_bfloat16_fast


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_products_are_those_of_the_layer(biased, rows):
    layer = nn.Linear(24, 40, bias=biased)
    x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
    expected = (x.double() @ layer.weight.double().T + (layer.bias.double() if biased else 0)).float()
    fused = fuse(layer)
    with torch.inference_mode():
        torch.testing.assert_close(fused(x), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fused.add_to(residual, x), expected + residual, atol=1e-5, rtol=1e-5)


def test_on_cuda_emulated_bfloat16_is_not_fast(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **given: bool(asked.append(given)))
    assert not multiplies_bfloat16_fast(torch.device("cuda"))
    assert asked == [{"including_emulation": False}]
