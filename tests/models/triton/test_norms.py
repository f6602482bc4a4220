"""Norms in Triton round as the modules of transformers do, and a row's numbers depend on that row alone."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from drafttree.models.norms import Norm
from drafttree.models.triton.norms import RowNorm, join_head_norms, norm_rows, rms_norm

DTYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-7}
"""The dtypes, each with the largest rounding of one operation."""
MODULES = {
    "llama": LlamaRMSNorm,
    "gemma3": Gemma3RMSNorm,
    "gemma4": Gemma4RMSNorm,
    "gemma4_values": lambda width: Gemma4RMSNorm(width, with_scale=False),
    "olmo2": Olmo2RMSNorm,
    "layer_norm": nn.LayerNorm,
    "layer_norm_without_bias": lambda width: nn.LayerNorm(width, bias=False),
}


def module_of(name: str, width: int, dtype: torch.dtype) -> nn.Module:
    """A norm of transformers with random weights."""
    module = MODULES[name](width)
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.5)
    return module.to(dtype)


def exact(x: torch.Tensor, norm: RowNorm) -> torch.Tensor:
    """The norm of rows in float64, without rounding."""
    numbers = x.double()
    if norm.is_centred:
        numbers = numbers - numbers.mean(-1, keepdim=True)
    numbers = numbers / (numbers.square().mean(-1, keepdim=True) + norm.epsilon).sqrt()
    numbers = numbers if norm.scale is None else numbers * norm.scale.double()
    return numbers if norm.shift is None else numbers + norm.shift.double()


@torch.inference_mode()
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_rounded_as_the_module_rounds_them(name, dtype):
    torch.manual_seed(0)
    module = module_of(name, 515, dtype)
    x = (torch.randn(21, 515) * torch.logspace(-3, 2, 21)[:, None]).to(dtype)
    norm = RowNorm.of(module, 515)
    assert norm is not None
    assert norm.rounds_early == (name == "llama" and dtype != torch.float32)
    normed = norm_rows(x, norm)
    expected = module(x)
    if dtype == torch.float32:
        torch.testing.assert_close(normed, expected, rtol=2e-6, atol=2e-6)
    else:  # a sum in another order moves one number in thousands across a tie
        assert (normed == expected).float().mean() > 0.998
    torch.testing.assert_close(normed.double(), exact(x, norm), rtol=2.1 * DTYPES[dtype], atol=2e-6)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_others(dtype):
    torch.manual_seed(1)
    x = torch.randn(40, 300).to(dtype)
    norm = RowNorm(torch.randn(300), torch.randn(300), 1e-5, is_centred=True)
    normed = norm_rows(x, norm)
    for _ in range(8):
        chosen = torch.randperm(40)[: int(torch.randint(1, 40, ()))]
        assert torch.equal(norm_rows(x[chosen], norm), normed[chosen])
    x[1::2] = torch.nan
    assert torch.equal(norm_rows(x, norm)[::2], normed[::2])


@torch.inference_mode()
@pytest.mark.parametrize("width", [1, 31, 4096, 5120])
def test_widths(width):
    torch.manual_seed(2)
    x = torch.randn(3, width, dtype=torch.bfloat16)
    weight = torch.rand(width, dtype=torch.bfloat16)
    normed = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(normed.double(), exact(x, RowNorm(weight, None, 1e-6)), rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(
        rms_norm(x, None, 1e-6).double(), exact(x, RowNorm(None, None, 1e-6)), rtol=2**-8, atol=0
    )


@torch.inference_mode()
def test_heads_are_normed_in_place_in_one_launch():
    torch.manual_seed(3)
    query, key = (module_of("llama", 80, torch.bfloat16) for _ in range(2))
    qkv = torch.randn(5, 12, 80, dtype=torch.bfloat16)
    expected = torch.cat([query(qkv[:, :6]), key(qkv[:, 6:9]), qkv[:, 9:]], 1)
    norms = [(RowNorm.of(query), 6), (RowNorm.of(key), 3)]
    heads = qkv[:, :9]
    assert norm_rows(heads, join_head_norms(norms, 80), heads) is heads
    assert (qkv == expected).float().mean() > 0.998
    assert torch.equal(qkv[:, 9:], expected[:, 9:])


@torch.inference_mode()
def test_values_of_gemma4_join_queries_and_keys():
    modules = [module_of(name, 64, torch.bfloat16) for name in ("gemma4", "gemma4", "gemma4_values")]
    qkv = torch.randn(4, 8, 64, dtype=torch.bfloat16)
    counts = [4, 2, 2]
    parts = zip(modules, qkv.split(counts, 1), strict=True)
    expected = torch.cat([module(part) for module, part in parts], 1)
    joined = join_head_norms(
        [(RowNorm.of(module, 64), count) for module, count in zip(modules, counts, strict=True)], 64
    )
    assert (norm_rows(qkv, joined) == expected).float().mean() > 0.998


@torch.inference_mode()
def test_heads_normed_together_are_a_part_of_a_row():
    module = module_of("olmo2", 4 * 48, torch.bfloat16)
    qkv = torch.randn(5, 10 * 48, dtype=torch.bfloat16)
    expected = module(qkv[:, : 4 * 48])
    keys = qkv[:, 4 * 48 :].clone()
    part = qkv[:, : 4 * 48]
    norm_rows(part, RowNorm.of(module), part)
    assert (part == expected).float().mean() > 0.998
    assert torch.equal(qkv[:, 4 * 48 :], keys)


def test_norms_that_do_nothing_or_are_numbers():
    assert RowNorm.of(None) is None
    assert RowNorm.of(nn.Identity()) is None
    scale = torch.rand(8)
    assert RowNorm.of(Norm(scale, None, 1e-6, False)) == RowNorm(scale, None, 1e-6)
    with pytest.raises(AttributeError, match="PReLU is not a known norm"):
        RowNorm.of(nn.PReLU(1))


def test_ones_round_alike_early_and_late():
    module = LlamaRMSNorm(64).bfloat16()
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    assert (norm_rows(x, RowNorm.of(module)) == module(x)).float().mean() > 0.99


def test_what_does_not_fit_is_refused():
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match="next to each other"):
        rms_norm(x.t(), None, 1e-6)
    with pytest.raises(ValueError, match=r"a norm of \[7\] numbers cannot norm rows of \[8\]"):
        rms_norm(x, torch.ones(7), 1e-6)
    with pytest.raises(ValueError, match="cannot be normed into"):
        rms_norm(x, None, 1e-6, out=torch.empty(4, 8, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="differ in more than their scale"):
        join_head_norms([(RowNorm(x[0], None, 1e-6), 1), (RowNorm(x[1], None, 1e-5), 1)], 8)
    assert rms_norm(x[:0], None, 1e-6).shape == (0, 8)
