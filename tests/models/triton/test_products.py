"""Products in Triton are near to float64, round as modules do, and give a row the same bits in any company."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.triton.norms import RowNorm, norm_rows
from drafttree.models.triton.products import (
    ACTIVATIONS,
    Addition,
    LinearWeight,
    Tiling,
    activate_linear,
    activation_of,
    add_linear,
    linear,
    workspace_elements,
)

DTYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}
"""The dtypes, each with the largest relative gap to float64 of a product that is rounded once."""
SHAPES = {"one split": (70, 130), "splits": (70, 1030)}
"""Outputs and inputs of weights, none a multiple of a block."""
INT8 = {f"int8 {name}": getattr(torch, name) for name in ("bfloat16", "float32")}
"""Weights of int8, each with the dtype of its rows."""


class Case(NamedTuple):
    """Rows and a weight.

    Attributes:
        x: the rows.
        layer: the layer with the weight.
        residual: rows to which the product may be added.
    """

    x: Tensor
    layer: nn.Module
    residual: Tensor

    @classmethod
    def random(cls, rows: int, shape: str, dtype: torch.dtype, int8: bool = False, bias: bool = True) -> "Case":
        outputs, inputs = SHAPES[shape]
        torch.manual_seed(0)
        layer = nn.Linear(inputs, outputs, bias).to(dtype)
        x = torch.randn(rows, inputs).to(dtype)
        return cls(x, Int8Linear(layer) if int8 else layer, torch.randn(rows, outputs).to(dtype))

    @classmethod
    def whole(cls, rows: int, shape: str, dtype: torch.dtype) -> "Case":
        """Small integers, whose products no order of sums changes: what follows can be compared bit by bit."""
        case = cls.random(rows, shape, dtype)
        x = torch.randint(-2, 3, case.x.shape).to(dtype)
        for parameter in case.layer.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).to(dtype) / 64
        return cls(x, case.layer, case.residual)

    @property
    def weight(self) -> LinearWeight:
        return LinearWeight.of(self.layer)

    def exact(self) -> Tensor:
        """The layer's output in float64."""
        layer = self.layer
        values = layer.dequantized() if isinstance(layer, Int8Linear) else layer.weight
        y = self.x.double() @ values.detach().double().t()
        return y if layer.bias is None else y + layer.bias.double()


def norm(width: int, module: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    """A norm with random weights."""
    made = module(width).to(dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter, mean=0.5)
    return made


def calls(weight: LinearWeight) -> dict[str, object]:
    """Functions of rows and their residual, each a kind of product, by name; their norms are always the same."""
    torch.manual_seed(1)
    width = weight.outputs
    early = RowNorm(torch.rand(width), None, 1e-6, rounds_early=True)
    centred = RowNorm(torch.rand(width), torch.rand(width), 1e-5, is_centred=True)

    def add(addition, x, residual):
        return torch.cat([tensor for tensor in add_linear(x, weight, residual, addition) if tensor is not None], 1)

    return {
        "linear": lambda x, _: linear(x, weight),
        "gated": lambda x, _: activate_linear(x, weight, "silu", gated=True),
        "factors": lambda x, residual: activate_linear(x, weight, "gelu", factors=residual),
        "add": partial(add, Addition()),
        "add and norm": partial(add, Addition(norm=early)),
        "norm, add and norm": partial(add, Addition(0.3, centred, 0.7, early)),
    }


CALLS = ["linear", "gated", "factors", "add", "add and norm", "norm, add and norm"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8", [False, True])
@torch.inference_mode()
def test_products_are_near_to_float64(dtype, shape, int8):
    case = Case.random(21, shape, dtype, int8, bias=not int8)
    y = linear(case.x, case.weight)
    torch.testing.assert_close(y.double(), case.exact(), rtol=DTYPES[dtype], atol=2e-6)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [*DTYPES, *INT8])
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_company(dtype, shape, name):
    case = Case.random(70, shape, INT8.get(dtype, dtype), dtype in INT8)
    call = calls(case.weight)[name]
    expected = call(case.x, case.residual)
    for rows in (1, 17, 40):  # one tile of each width
        chosen = torch.randperm(70)[:rows]
        assert torch.equal(call(case.x[chosen], case.residual[chosen]), expected[chosen])
    others = torch.arange(70) % 3 != 0
    case.x[others] = torch.nan
    case.residual[others] = torch.inf
    assert torch.equal(call(case.x, case.residual)[::3], expected[::3])
    repeated = case.x[:1].expand(33, -1).contiguous()
    residual = case.residual[:1].expand(33, -1).contiguous()
    assert torch.equal(call(repeated, residual), expected[:1].expand(33, -1))


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_given_memory_is_used_whatever_it_contains(shape):
    case = Case.random(5, shape, torch.bfloat16)
    weight = case.weight
    addition = Addition(norm=RowNorm(None, None, 1e-6))
    elements = workspace_elements(weight, 5, torch.bfloat16, addition)
    assert elements >= workspace_elements(weight, 5, torch.bfloat16) == (5 * 70 * 2 if shape == "splits" else 0)
    workspace = torch.full((elements + 7,), torch.nan)
    out, normed_out = torch.full((2, 5, weight.outputs + 3), torch.nan, dtype=torch.bfloat16)[..., 1:-2]
    expected = add_linear(case.x, weight, case.residual, addition)
    added = add_linear(case.x, weight, case.residual, addition, out=out, normed_out=normed_out, workspace=workspace)
    assert added.residual is out
    assert added.normed is normed_out
    assert torch.equal(out, expected.residual)
    assert torch.equal(normed_out, expected.normed)
    assert workspace[elements:].isnan().all()
    workspace.fill_(torch.inf)
    assert torch.equal(linear(case.x, weight, out=out, workspace=workspace), linear(case.x, weight))
    residual = case.residual.clone()
    add_linear(case.x, weight, residual, addition, out=residual)
    assert torch.equal(residual, expected.residual)
    add_linear(case.x, weight, case.residual, out=case.residual)
    assert torch.equal(case.residual, expected.residual)


@torch.inference_mode()
def test_rows_may_lie_in_wider_ones():
    case = Case.random(6, "splits", torch.float32)
    wide = torch.full((6, 1030 + 50), torch.nan)
    wide[:, 20:-30] = case.x
    assert torch.equal(linear(wide[:, 20:-30], case.weight), linear(case.x, case.weight))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
@torch.inference_mode()
def test_activations_are_those_of_transformers(activation, dtype, shape):
    case = Case.whole(7, shape, dtype)
    y = case.exact().to(dtype)
    function = ACT2FN[activation]
    gate, up = y.chunk(2, -1)
    assert_rounded_alike(activate_linear(case.x, case.weight, activation), function(y))
    gated = activate_linear(case.x, case.weight, activation, gated=True)
    assert_rounded_alike(gated, function(gate) * up)
    with_factors = activate_linear(case.x, case.weight, activation, factors=case.residual)
    assert_rounded_alike(with_factors, function(y) * case.residual)


def assert_rounded_alike(result: Tensor, expected: Tensor) -> None:
    """Check that nearly all numbers are the same bits, since an exponential in its last place moves few roundings."""
    torch.testing.assert_close(result, expected, rtol=1e-2 if result.itemsize == 2 else 1e-5, atol=2e-6)
    if result.itemsize == 2:
        assert (result == expected).float().mean() > 0.98


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_inner", [False, True])
@torch.inference_mode()
def test_additions_round_as_modules_do(dtype, shape, has_inner):
    case = Case.whole(9, shape, dtype)
    width = case.weight.outputs
    inner = norm(width, Gemma3RMSNorm, dtype) if has_inner else nn.Identity()
    after = norm(width, LlamaRMSNorm, dtype)
    y = inner(case.exact().to(dtype))
    for multiplier, scalar in ((1.0, 1.0), (0.22, 1.0), (0.22, 0.37)):
        residual = case.residual + (y if multiplier == 1 else y * multiplier)
        residual = residual if scalar == 1 else residual * scalar
        addition = Addition(multiplier, RowNorm.of(inner), scalar, RowNorm.of(after))
        added = add_linear(case.x, case.weight, case.residual, addition)
        assert_rounded_alike(added.residual, residual)
        assert_rounded_alike(added.normed, after(added.residual))
        assert torch.equal(added.normed, norm_rows(added.residual, RowNorm.of(after)))
        without_norm = add_linear(case.x, case.weight, case.residual, addition._replace(norm=None))
        assert torch.equal(without_norm.residual, added.residual)
        assert without_norm.normed is None
        if not has_inner:
            assert torch.equal(added.residual, residual)


@torch.inference_mode()
def test_a_bias_of_int8_is_added_to_the_rounded_product():
    case = Case.random(4, "splits", torch.bfloat16, int8=True)
    y = (case.exact() - case.layer.bias.double()).bfloat16() + case.layer.bias
    assert (linear(case.x, case.weight) == y).float().mean() > 0.99


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_what_lies_beside_int8_weights_is_not_read(dtype, shape):
    """NaN lies around the rows, scales and biases, and in all memory that is given."""
    case = Case.random(19, shape, dtype, int8=True)
    weight = case.weight
    assert weight.bias is not None
    assert weight.scale is not None
    outputs, inputs = SHAPES[shape]

    def amid_nan(tensor: Tensor) -> Tensor:
        wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 80), torch.nan)
        wide[..., 13:-67] = tensor
        return wide[..., 13:-67]

    values = torch.full((outputs + 2, inputs), 127, dtype=torch.int8)
    values[1:-1] = weight.values
    beside = LinearWeight(values[1:-1], amid_nan(weight.bias), amid_nan(weight.scale))
    addition = Addition(norm=RowNorm(None, None, 1e-6))
    x = amid_nan(case.x)
    out = torch.full((19, outputs), torch.nan, dtype=dtype)
    workspace = torch.full((workspace_elements(weight, 19, dtype, addition),), torch.nan)
    assert torch.equal(linear(x, beside, out=out, workspace=workspace), linear(case.x, weight))
    for call, wanted in zip(calls(beside).values(), calls(weight).values(), strict=True):
        assert torch.equal(call(x, amid_nan(case.residual)), wanted(case.x, case.residual))
    added = add_linear(x, beside, case.residual, addition, workspace=workspace.fill_(torch.nan))
    for found, wanted in zip(added, add_linear(case.x, weight, case.residual, addition), strict=True):
        assert torch.equal(found, wanted)


@torch.inference_mode()
def test_true_widths():
    torch.manual_seed(4)
    case = Case(
        torch.randn(3, 4096).bfloat16(), nn.Linear(4096, 1536, dtype=torch.bfloat16), torch.randn(3, 1536).bfloat16()
    )
    added = add_linear(case.x, case.weight, case.residual, Addition(norm=RowNorm(torch.rand(1536), None, 1e-6)))
    expected = case.residual + case.exact().bfloat16()
    assert_rounded_alike(added.residual, expected)
    assert torch.equal(add_linear(case.x[1:2], case.weight, case.residual[1:2]).residual, added.residual[1:2])


@pytest.mark.parametrize(
    ("outputs", "inputs", "splits"),
    [(6144, 4096, 4), (4096, 4096, 8), (28672, 4096, 1), (4096, 14336, 8), (128256, 4096, 1), (256, 256, 1)],
)
def test_splits_follow_from_the_weight(outputs, inputs, splits):
    tiling = Tiling.of(outputs, inputs, torch.bfloat16)
    assert tiling.splits == splits
    assert tiling.split_length % tiling.block_k == 0
    assert 0 <= splits * tiling.split_length - inputs < tiling.split_length


def test_activations_by_module():
    for name, kind in ACTIVATIONS.items():
        assert ACTIVATIONS[activation_of(ACT2FN[name])] == kind
    assert ACTIVATIONS[activation_of(nn.GELU("tanh"))] == "gelu_tanh"
    with pytest.raises(AttributeError, match="Mish is not a known activation"):
        activation_of(nn.Mish())


def test_what_does_not_fit_is_refused():
    case = Case.random(4, "splits", torch.float32)
    weight = case.weight
    for x, message in (
        (case.x[:0], r"rows \[0, 1030\]"),
        (case.x[:, :1000], "do not fit 1030 inputs"),
        (case.x.t().contiguous().t(), "with strides"),
        (case.x.double(), "torch.float64 cannot be multiplied"),
        (case.x.bfloat16(), "torch.bfloat16 cannot be multiplied by a weight of torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            linear(x, weight)
    with pytest.raises(ValueError, match=r"9 elements of torch\.float32 do not hold \d+ sums"):
        linear(case.x, weight, workspace=torch.empty(9))
    with pytest.raises(ValueError, match=r"is not \[4, 70\] of torch.float32"):
        linear(case.x, weight, out=torch.empty(70, 4).t())
    with pytest.raises(ValueError, match=r"is not \[4, 35\]"):
        activate_linear(case.x, weight, "silu", gated=True, out=torch.empty(4, 70))
    with pytest.raises(ValueError, match="'mish' is not known; known are silu"):
        activate_linear(case.x, weight, "mish")
    with pytest.raises(ValueError, match="as many gates as values"):
        activate_linear(case.x, weight, "silu", gated=True, factors=case.residual)
    with pytest.raises(ValueError, match="cannot norm rows"):
        add_linear(case.x, weight, case.residual, Addition(norm=RowNorm(torch.ones(7), None, 1e-6)))
    with pytest.raises(ValueError, match="lie row by row"):
        LinearWeight(torch.empty(8, 4).t())
    with pytest.raises(ValueError, match="needs a scale"):
        LinearWeight(torch.empty(8, 4, dtype=torch.int8))
    with pytest.raises(ValueError, match="do not fit the rows"):
        LinearWeight(torch.empty(8, 4), torch.empty(4))
    with pytest.raises(ValueError, match=r"torch\.float64 are not known"):
        LinearWeight(torch.empty(8, 4, dtype=torch.float64))


COMPILE = """
import re
import sys
import torch
from helpers.triton_compiler import MOST_SHARED_MEMORY, launches_of
from drafttree.models.triton.norms import RowNorm
from drafttree.models.triton.products import Addition, LinearWeight, activate_linear, add_linear, linear

capability, dtype, int8 = int(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3] == "int8"

def weight(outputs, inputs, has_bias):
    bias = torch.zeros(outputs, dtype=dtype) if has_bias else None
    values = torch.zeros(outputs, inputs, dtype=torch.int8 if int8 else dtype)
    return LinearWeight(values, bias, torch.ones(outputs) if int8 else None)

def layer(rows):
    x = torch.zeros(rows, 1024, dtype=dtype)
    early = RowNorm(torch.ones(1024), None, 1e-6, rounds_early=True)
    centred = RowNorm(torch.ones(1024), torch.ones(1024), 1e-6, is_centred=True)
    linear(x, qkv)
    activate_linear(x, gate_up, "silu", gated=True)
    activate_linear(x, out, "gelu")
    add_linear(x, out, x, Addition(norm=early))
    add_linear(x, out, x, Addition(0.3, early, 0.4, centred))
    linear(x, head)

qkv, gate_up = weight(1536, 1024, True), weight(33000, 1024, False)
out, head = weight(1024, 1024, False), weight(32999, 1024, False)
kinds, launches = set(), 0
for rows in map(int, sys.argv[4].split(",")):
    for kernel in launches_of(capability, lambda: layer(rows)):
        launches += 1
        assert kernel.shared <= MOST_SHARED_MEMORY[capability], kernel[:6]
        assert kernel.stack <= (64 if dtype == torch.float32 else 0), kernel[:6]
        assert kernel.has_loads_ahead or kernel.name != "_product_kernel", kernel[:6]
        kinds |= {re.sub(r"m64n\\d+", "m64n", product) for product in kernel.products}
print(launches, *sorted(kinds))
"""


def compiled(tmp_path: Path, capability: int, dtype: str, int8: str, rows: str) -> list[str]:
    """Number of launches and kinds of matrix instructions of all products of a layer, compiled for a GPU."""
    root = Path(__file__).parents[3]
    places = [*(str(root / folder) for folder in ("src", "tests")), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(places)}
    environment.pop("TRITON_INTERPRET", None)
    arguments = [sys.executable, "-c", COMPILE, str(capability), dtype, int8, rows]
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:4000]
    return result.stdout.split()


LAUNCHES = 10
"""Launches of these products: two for each of the four whose inputs are split, one for each of the others."""
MMA = {"bfloat16": "bf16", "float16": "f16"}


@pytest.mark.parametrize(
    ("capability", "dtype", "int8", "rows"),
    [
        (90, "bfloat16", "", "40"),
        *(
            pytest.param(*case, "1,17,40,100", marks=pytest.mark.slow)
            for case in (
                (80, "float16", ""),
                (89, "bfloat16", ""),
                (89, "bfloat16", "int8"),
                (90, "bfloat16", "int8"),
                (89, "float32", ""),
                (90, "float32", ""),
            )
        ),
    ],
)
def test_gpus_multiply_any_number_of_rows_by_the_same_instruction(tmp_path, capability, dtype, int8, rows):
    launches, *kinds = compiled(tmp_path, capability, dtype, int8, rows)
    assert int(launches) == LAUNCHES * len(rows.split(","))
    kind = MMA.get(dtype)
    if kind is None:
        assert kinds == []
    elif capability == 90:
        assert kinds == [f"wgmma.mma_async.sync.aligned.m64nk16.f32.{kind}.{kind}"]
    else:
        assert kinds == [f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"]
