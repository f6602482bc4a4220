"""Weights in FP8 are multiplied out as they are read, and what cannot be is told by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafttree.drafters.formats import read_weights
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from helpers.checkpoints import FORMATS, in_fp8
from helpers.refusals import told


def written(folder: Path, tensors, **settings) -> Path:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings} if settings else {}))
    return folder


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_are_of_128_where_the_config_does_not_tell(dtype, scale_dtype, tmp_path):
    given, scale = weight(200, 300), torch.tensor([[1.0, 0.5, 4.0], [8.0, 0.25, 2.0]])
    tensors = {"a.weight": given, "a.weight_scale_inv": scale.to(scale_dtype), "b.weight": torch.ones(2).half()}
    read = read_weights(written(tmp_path, tensors), dtype)
    assert read.keys() == {"a.weight", "b.weight"}
    assert read["a.weight"].dtype == dtype
    assert read["b.weight"].dtype == torch.float16
    for row, column in [(0, 0), (127, 127), (127, 128), (128, 127), (0, 255), (0, 256), (199, 299), (130, 140)]:
        expected = float(given[row, column].double() * scale[row // 128, column // 128])
        assert float(read["a.weight"][row, column]) == expected


SCALED = {"a.weight": weight(200, 300)}
SHAPES = "should be [2, 3] for blocks of 128 x 128, [200, 1] for rows, or [1]"
INT8 = torch.ones(4, 4, dtype=torch.int8)
INT32 = torch.ones(4, 4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        (SCALED, {}, "a.weight is in FP8, and a.weight_scale_inv or a.weight_scale is missing"),
        (
            SCALED | {"a.weight_scale_inv": torch.ones(3, 2)},
            {},
            f"of a.weight in FP8 are [3, 2] and {SHAPES}",
        ),
        (SCALED | {"a.weight_scale": torch.ones(1, 300)}, {}, f"are [1, 300] and {SHAPES}"),
        (SCALED | {"a.weight_scale": torch.ones(200)}, {}, f"are [200] and {SHAPES}"),
        (SCALED | {"a.weight_scale_inv": torch.ones(2, 3)}, {"weight_block_size": [64, 128]}, "should be [4, 3]"),
        (
            SCALED | {"a.weight_scale_inv": torch.ones(2, 3)},
            {"weight_block_size": 128},
            "must be two positive integers",
        ),
        ({"a.qweight": INT32, "a.scales": torch.ones(4)}, {"quant_method": "gptq"}, "a.qweight quantised by gptq;"),
        ({"a.qweight": INT32, "a.qzeros": INT8}, {"quant_method": "awq"}, "a.qweight, a.qzeros quantised by awq;"),
        (
            {"a.weight_packed": INT32},
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "a.weight_packed quantised by compressed-tensors pack-quantized;",
        ),
        ({"a.weight": INT8, "a.weight_scale": torch.ones(4, 1)}, {}, "a.weight quantised by a method that config.json"),
    ],
)
def test_what_is_not_read_is_told_by_name(tensors, settings, message, tmp_path):
    assert message in told(ModelError, read_weights, written(tmp_path, tensors, **settings), torch.float32)


def test_scales_that_are_no_numbers_are_told_by_the_weight_they_belong_to(tmp_path):
    tensors, settings = in_fp8(FORMATS["SafeAILab"].tensors(), "rows")
    tensors["fc.weight_scale"] *= torch.nan
    FORMATS["SafeAILab"].write(tmp_path, tensors, quantization_config=settings)
    assert inspect(str(tmp_path)).problems == ("fc.weight holds numbers that are not finite",)
