"""Products of linear layers: right by either library, packed where that pays, and the memory of packed copies told."""

import pytest
import torch
from torch import nn

from drafttree.core.machine_memory import MachineMemory
from drafttree.models import TargetModel, select_backend
from drafttree.models.fused import fused_linear
from drafttree.models.fused.fused_linear import fuse, multiplies_bfloat16_fast
from testing import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_large_products_are_those_of_the_layer(biased, rows, monkeypatch):
    layer = nn.Linear(24, 40, bias=biased)
    x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
    expected = (x.double() @ layer.weight.double().T + (layer.bias.double() if biased else 0)).float()
    for size in (1, 1 << 30):
        monkeypatch.setattr(fused_linear, "PACKED_FROM", size)
        fused = fuse(layer)
        with torch.inference_mode():
            torch.testing.assert_close(fused(x), expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(fused.add_to(residual, x), expected + residual, atol=1e-5, rtol=1e-5)


@pytest.fixture
def packs(monkeypatch):
    """A CPU with products in bfloat16: what it packs, and the rows of its packed products."""
    made, rows = [], []

    def pack(weight, _):
        made.append(weight.dtype)
        return weight

    def product(x, weight, bias, *_):
        rows.append(len(x))
        return nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    fakes = {"_is_mkldnn_bf16_supported": lambda: True, "_reorder_linear_weight": pack, "_linear_pointwise": product}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.ops.mkldnn, name, fake)
    monkeypatch.setattr(fused_linear, "PACKED_FROM", 1)
    return made, rows


@pytest.mark.parametrize(("vendor", "threads", "first"), [("Intel", 4, 2), ("AMD", 1, 2), ("AMD", 2, 1)])
def test_one_float32_row_is_left_to_mkl_where_all_threads_read_it(vendor, threads, first, packs, monkeypatch):
    _, rows = packs
    monkeypatch.setattr(fused_linear, "_is_intel", lambda: vendor == "Intel")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    fused = fuse(nn.Linear(24, 40))
    for count in (1, 2):
        fused(torch.randn(count, 24))
    assert rows == [count for count in (1, 2) if count >= first]


@pytest.mark.parametrize(("dtype", "first"), [(torch.float32, 2), (torch.bfloat16, 1), (torch.float16, None)])
def test_packed_from_the_rows_where_it_pays(dtype, first, packs, monkeypatch):
    made, rows = packs
    monkeypatch.setattr(fused_linear, "_is_intel", lambda: True)
    layer = nn.Linear(24, 40).to(dtype)
    with torch.inference_mode():
        fused = fuse(layer)
        for count in (1, 2, 7):
            x = torch.randn(count, 24).to(dtype)
            torch.testing.assert_close(fused(x), layer(x))
    assert made == ([dtype] if first else [])
    assert rows == [count for count in (1, 2, 7) if first and count >= first]


@pytest.mark.parametrize("lacking", ["amx", "mkldnn"])
def test_bfloat16_stays_as_it_is_without_the_instructions(lacking, packs, monkeypatch):
    if lacking == "amx":
        for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda: False)
    else:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert fuse(nn.Linear(24, 40).bfloat16()).packed_nbytes == 0
    assert packs[0] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_memory_of_packed_copies_is_told(dtype, packs):
    module = tiny.build("llama").to(dtype)
    linear = [layer.weight for layer in module.modules() if isinstance(layer, nn.Linear)]
    model = TargetModel(module, select_backend)
    assert model.packed_nbytes == sum(weight.nbytes for weight in linear) > 0
    assert model.nbytes == sum(weight.nbytes for weight in module.parameters())
    assert f" MB + {model.packed_nbytes / 1e6:.1f} MB packed, " in repr(model)


def test_without_packed_copies_none_are_told():
    assert "packed" not in repr(TargetModel(tiny.build("llama"), select_backend))


@pytest.mark.skipif(not multiplies_bfloat16_fast(CPU), reason="no instructions for products in bfloat16")
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_packed_bfloat16_products_are_those_of_the_layer(rows, monkeypatch):
    monkeypatch.setattr(fused_linear, "PACKED_FROM", 1)
    layer = nn.Linear(256, 384).bfloat16()
    x = torch.randn(rows, 256).bfloat16()
    fused = fuse(layer)
    with torch.inference_mode():
        torch.testing.assert_close(fused(x), layer(x))
    assert fused.packed_nbytes == layer.weight.nbytes


def test_on_cuda_emulated_bfloat16_is_not_fast(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **given: bool(asked.append(given)))
    assert not multiplies_bfloat16_fast(torch.device("cuda"))
    assert asked == [{"including_emulation": False}]


def test_weights_are_left_as_they_are_where_memory_is_short(monkeypatch, caplog):
    monkeypatch.setattr(fused_linear, "PACKED_FROM", 1)
    monkeypatch.setattr(fused_linear, "machine_memory", lambda: MachineMemory(total=1000, free=100))
    module = tiny.build("llama")
    model = TargetModel(module, select_backend)
    linear = [part.weight for part in module.modules() if type(part) is nn.Linear]
    assert model.packed_nbytes == 0
    size = sum(weight.nbytes for weight in linear) / 1e6
    assert f"memory is short: {size:.1f} MB of weights have no packed copy" in caplog.text
    fused = fuse(nn.Linear(24, 40))
    assert fused.unpacked_nbytes == 4 * 24 * 40
    monkeypatch.setattr(fused_linear, "machine_memory", lambda: MachineMemory(total=1000, free=100 + 4 * 24 * 40))
    assert fuse(nn.Linear(24, 40)).packed_nbytes == 4 * 24 * 40
