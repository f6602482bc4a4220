"""dtype="auto" is bfloat16 where it is multiplied fast."""

import pytest
import torch

from drafttree import load
from drafttree.errors import ModelError
from drafttree.loading import placement
from helpers.refusals import told
from testing import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize(("multiplies", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_there_are_instructions_for_it(multiplies, dtype, folder, monkeypatch):
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: multiplies)
    assert placement.find_placement("auto", "cpu") == (CPU, dtype)
    assert f", {str(dtype).removeprefix('torch.')}, cpu" in repr(load(str(folder), "none").target)
    assert placement.find_placement("auto", "cpu", "int8") == (CPU, torch.bfloat16)


def test_a_loaded_target_keeps_its_own():
    assert placement.placement_of(tiny.build("llama"), "auto", "cpu") == (CPU, torch.float32)


def test_a_folder_that_cannot_be_read_is_refused_by_the_loader(folder):
    (folder / "config.json").write_text("{")
    assert "cannot load model" in told(ModelError, load, str(folder), "none")
