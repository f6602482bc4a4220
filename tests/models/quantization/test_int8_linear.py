"""Eight-bit weights: products against float64, what is quantised and what is refused, and trees on fused layers."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.fused_linear import fuse
from drafttree.models.quantization.int8_linear import INT8_MAX, LARGEST, Int8Linear, rounded_product
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.quantization.quantized_linear import quantization
from helpers.refusals import told
from testing import tiny

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-4}
ROWS = (1, 3, 16, 17, 40)


def make(width: int, out: int, dtype: torch.dtype, biased: bool = False) -> tuple[nn.Linear, Int8Linear]:
    torch.manual_seed(0)
    layer = nn.Linear(width, out, bias=biased).to(dtype).eval()
    return layer, Int8Linear(layer)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("width", "out"), [(64, 40), (17, 30), (1, 5), (2100, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_rounded_weight(dtype, width, out, biased):
    layer, quantized = make(width, out, dtype, biased)
    weight = quantized.quantized.double() * quantized.scale.double()[:, None]
    assert ((weight - layer.weight.detach().double()).abs() <= 0.51 * quantized.scale.double()[:, None]).all()
    for rows in ROWS:
        x = torch.randn(2, rows, width).to(dtype)
        expected = x.double() @ weight.T + (layer.bias.detach().double() if biased else 0)
        scale = TOLERANCES[dtype] * float(expected.abs().max())
        torch.testing.assert_close(quantized(x).double(), expected, atol=scale, rtol=TOLERANCES[dtype])


def test_integers_of_rows_of_sixteen_bits_are_added_up_exactly():
    """The product on CUDA, whose operations are here too."""
    weight = torch.randint(-INT8_MAX, INT8_MAX + 1, (16, 2048), dtype=torch.int8)
    weight[0], weight[1, ::2], weight[1, 1::2] = INT8_MAX, INT8_MAX, -INT8_MAX
    x = torch.randint(-LARGEST, LARGEST + 1, (5, 2048)).double()
    x[:, 0], x[4], x[3, ::2] = LARGEST, LARGEST, -LARGEST
    found = rounded_product(x.float(), weight, torch.ones(16)).double()
    expected = x @ weight.double().T
    # the sums of the upper and of the lower bytes are rounded to float32, and so is what they amount to
    assert ((found - expected).abs() <= 3 * 2.0**-24 * (expected.abs() + 128 * 2048 * 128)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [96, 17, 3000])
def test_a_row_of_sixteen_bits_does_not_depend_on_the_others_in_its_pass(dtype, width):
    x, (_, layer) = torch.randn(40, width).to(dtype), make(width, 50, dtype)
    x[7] *= 100
    weight = layer.quantized, layer.scale
    for rows in ROWS:
        alone = torch.cat([rounded_product(row[None], *weight) for row in x[:rows]])
        assert torch.equal(rounded_product(x[:rows], *weight), alone)


def test_zeros_stay_zeros_and_damage_shows():
    layer = nn.Linear(8, 3, bias=False)
    layer.weight.data[0] = 0
    layer.weight.data[1, 2] = torch.nan
    quantized = Int8Linear(layer)
    for product in (
        quantized(torch.ones(1, 8)),
        rounded_product(torch.ones(1, 8), quantized.quantized, quantized.scale),
    ):
        assert product[0, 0] == 0
        assert product[0, 1].isnan()
        assert product[0, 2].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_layers_are_one_product_of_one_weight(dtype):
    layers = [make(32, out, dtype, biased=True)[1] for out in (8, 24)]
    x, residual = torch.randn(5, 32).to(dtype), torch.randn(5, 32).to(dtype)
    expected, states = torch.cat([layer(x) for layer in layers], 1), [deepcopy(layer.state_dict()) for layer in layers]
    with torch.inference_mode():
        for _ in range(2):  # the second time they have one weight already
            fused = fuse(*layers)
            torch.testing.assert_close(fused(x), expected)
            torch.testing.assert_close(fused.add_to(residual, x), expected + residual)
    memory = {layer.quantized.untyped_storage().data_ptr() for layer in layers}
    assert len(memory) == 1
    torch.testing.assert_close(torch.cat([layer(x) for layer in layers], 1), expected)
    for layer, state in zip(layers, states, strict=True):
        assert all(torch.equal(part, state[name]) for name, part in layer.state_dict().items())


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "qwen2", "gemma3"])
def test_fused_layers_give_the_quantised_modules_logits(name):
    module, clone = tiny.build(name), tiny.build(name)
    quantize_int8(module)
    quantize_int8(clone)
    model = TargetModel(module, choose_backend)
    assert isinstance(model.backend, FusedBackend)
    prefix, tree = tiny.random_tokens(9, 1), tiny.random_tree((3, 5, 4), 2)
    cache = model.new_cache(40)
    prefill(model, cache, prefix)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "qwen2", "gemma3"])
def test_fused_layers_are_trusted_in_bfloat16(name):
    module = tiny.build(name).bfloat16()
    quantize_int8(module)
    assert isinstance(choose_backend(module), FusedBackend)


@pytest.mark.parametrize("head", [False, True])
def test_memory_is_a_quarter(head):
    module = tiny.build("llama")
    linear = [part for part in module.modules() if type(part) is nn.Linear]
    assert linear[-1] is module.get_output_embeddings()
    linear = linear if head else linear[:-1]
    before = sum(each.weight.nbytes for each in linear)
    rest = sum(each.nbytes for each in module.parameters()) - before
    scales = 4 * sum(each.out_features for each in linear)
    quantize_int8(module, head=head)
    model = TargetModel(module, choose_backend)
    assert model.nbytes == rest + before // 4 + scales
    assert repr(model).startswith(f"TargetModel(LlamaForCausalLM, {model.nbytes / 1e6:.1f} MB")
    assert ", float32 with int8 weights, cpu" in repr(model)
    assert quantization(module) == "int8"
    assert quantization(tiny.build("llama")) is None


def test_what_cannot_be_quantised_is_told():
    module = tiny.build("llama")
    quantize_int8(module)
    assert "is quantised already (int8); leave out quantize" in told(ModelError, quantize_int8, module)
    assert "has no linear layers to quantise but its head" in told(ModelError, quantize_int8, tiny.build("gpt2"))
    module = tiny.build("llama")
    module.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert "is quantised already (gptq)" in told(ModelError, quantize_int8, module)
    module = tiny.build("llama").to("meta")
    assert "is on meta, where no kernel multiplies int8 weights; leave out quantize" in told(
        ModelError, quantize_int8, module
    )


def test_a_layer_that_reads_weights_itself_is_told():
    module = tiny.build("llama")
    quantize_int8(module)
    mlp = module.model.layers[0].mlp
    mlp.forward = lambda x: nn.functional.linear(x, mlp.up_proj.weight)
    assert "cannot compute its own logits ('Int8Linear' object has no" in told(ModelError, choose_backend, module)
