"""A model that does not fit into memory is refused before it is read."""

import json

import pytest
import torch

from drafttree.errors import ModelError
from drafttree.loading import load_model, memory
from helpers.refusals import told
from testing import gguf_files, tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama():
    return tiny.from_config(gguf_files.CONFIGS["llama"]())


def test_weights_that_do_not_fit_are_told_with_their_size(llama, tmp_path, monkeypatch):
    llama.save_pretrained(tmp_path)
    file = gguf_files.write(llama, tmp_path / "model.gguf", "Q8_0")
    numbers = sum(each.numel() for each in llama.parameters())
    for source in (tmp_path, file):
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            monkeypatch.setattr(memory, "free_bytes", lambda needed=numbers * size: needed - 1)
            message = told(ModelError, load_model, source, getattr(torch, dtype), CPU)
            assert message.startswith(
                f"the weights of '{source}' take 0.0 GB in {dtype}, and 0.0 GB of memory are free;"
            )
            monkeypatch.setattr(memory, "free_bytes", lambda needed=numbers * size: needed)
            assert load_model(source, getattr(torch, dtype), CPU)
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    assert load_model(tmp_path, torch.float32, CPU)


def test_memory_is_what_linux_and_a_container_leave(tmp_path, monkeypatch):
    meminfo, limit, used, statistics = (tmp_path / name for name in ("meminfo", "max", "current", "stat"))
    for name, path in (("MEMORY", meminfo), ("LIMIT", limit), ("USED", used), ("STATISTICS", statistics)):
        monkeypatch.setattr(memory, name, path)
    assert memory.free_bytes() is None
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable:   500 kB\nSwapFree:   100 kB\n")
    assert memory.free_bytes() == 600 * 1024
    limit.write_text("max\n")
    used.write_text("1000\n")
    statistics.write_text("anon 500\ninactive_file 200\n")
    assert memory.free_bytes() == 600 * 1024
    limit.write_text("5000\n")
    assert memory.free_bytes() == 4200


@pytest.mark.parametrize(
    "header", [b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"[1, 2, 3]", b"\x02" + bytes(7) + b"no"]
)
def test_a_header_that_is_none_is_left_to_those_who_read_the_file(llama, header, tmp_path):
    llama.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(header)
    told(ModelError, load_model, tmp_path, torch.float32, CPU)


def test_a_file_that_is_too_large_to_be_mapped_is_told(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    numbers = 2**45
    entry = {"lm_head.weight": {"dtype": "F32", "shape": [2**20, 2**25], "data_offsets": [0, 4 * numbers]}}
    header = json.dumps(entry).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU)
    assert f"take {4 * numbers / 1e9:.1f} GB in float32" in message
