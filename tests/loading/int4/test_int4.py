"""Models rounded to four bits: kept in a folder, gone on from, and run as other models are."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config

import drafttree
from drafttree.errors import ModelError
from drafttree.loading import load_model, load_tokenizer
from drafttree.loading.int4 import quantize as int4
from drafttree.loading.int4.folder import Int4Folder
from drafttree.loading.int4.quantize import Progress, quantize_int4
from drafttree.loading.int4.rounding import round_layers
from drafttree.loading.model_files import ModelFiles
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.int8_linear import Int8Linear
from helpers.refusals import told
from testing import gguf_files, quantized_folders, tiny
from testing.command_line import complaint, run
from testing.marks import needs_native
from testing.tokenizers import words

pytestmark = needs_native
CPU = torch.device("cpu")
PROMPT = [3, 1, 4, 1, 5]
FAMILIES = ["llama", "llama_tied", "llama_biases", "qwen2", "qwen3", "gemma3", "phi3", "smollm3", "olmo2", "qwen3_moe"]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch, tmp_path):
    monkeypatch.setattr(int4, "TEXTS", 5)
    monkeypatch.setattr(int4, "LENGTH", 24)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    """A folder with a small model."""
    return write("llama", tmp_path / "model")


def write(family: str, folder: Any) -> Any:
    tiny.from_config(gguf_files.CONFIGS[family]()).save_pretrained(folder)
    words(*map(str, range(40))).save_pretrained(folder)
    return folder


def blocks_of(module: Any) -> dict[str, Any]:
    return {name: part.quantized for name, part in module.named_modules() if isinstance(part, BlockLinear)}


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_with_drafts_are_those_of_plain_decoding(family, tmp_path):
    folder = write(family, tmp_path / "model")
    decoder = drafttree.load(folder, folder, "talon", quantize="int4")
    target: Any = decoder.target
    assert isinstance(target.backend, NativeBackend), target.runs_on
    assert target.precision == "bfloat16 with int8, q4_zero weights"
    assert isinstance(target.module.get_output_embeddings(), Int8Linear)
    text = decoder.generate(PROMPT, max_new_tokens=20, ignore_eos=True).tokens
    assert text == decoder.plain().generate(PROMPT, max_new_tokens=20, ignore_eos=True).tokens


@pytest.mark.parametrize("family", ["llama", "llama_tied", "qwen3_moe"])
def test_what_is_kept_is_what_was_rounded(family, tmp_path):
    source = write(family, tmp_path / "model")
    assert run("quantize", source).exit_code == 0
    kept: Any = drafttree.load(source, "none", quantize="int4").target.module
    rounded: Any = load_model(source, torch.bfloat16, CPU)
    quantize_int4(rounded, load_tokenizer(source))
    expected = blocks_of(rounded)
    assert blocks_of(kept).keys() == expected.keys()
    for name, blocks in blocks_of(kept).items():
        assert torch.equal(blocks, expected[name]), name


def test_a_folder_of_ones_own_is_a_model_like_others(source, tmp_path):
    result = run("quantize", source, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert f"drafttree chat --target {tmp_path / 'out'} --quantize int4" in result.stdout
    stored: Any = drafttree.load(tmp_path / "out", "none").target
    assert stored.quantization == "q4_zero"  # whose head is as it was
    assert drafttree.load(tmp_path / "out", "none", quantize="int4").target.quantization == "int8, q4_zero"
    assert "It was there already, so nothing was rounded." in run("quantize", source, "--out", tmp_path / "out").stdout


def test_the_folder_is_one_of_compressed_tensors(source, tmp_path):
    assert run("quantize", source, "--out", tmp_path / "out").exit_code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = load_file(tmp_path / "out" / index["model.layers.1.mlp.down_proj.weight_packed"])
    parts = {name.rpartition(".")[2]: value for name, value in tensors.items() if ".down_proj." in name}
    shapes = {part: [*value.shape] for part, value in parts.items()}
    assert shapes == {
        "weight_packed": [64, 96 // 8],
        "weight_scale": [64, 3],
        "weight_zero_point": [64 // 8, 3],
        "weight_shape": [2],
    }


def test_a_rounding_that_was_stopped_goes_on_from_its_last_layer(source, tmp_path):
    folder, layers = Int4Folder(ModelFiles.of_model(source), tmp_path / "out"), []

    def stop(layer: Any) -> None:
        layers.append(layer.number)
        if len(layers) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_int4(load_model(source, torch.bfloat16, CPU), folder=folder, progress=Progress(layer=stop))
    assert not folder.is_whole
    before = (folder.path / "layer-00001.safetensors").stat().st_mtime_ns
    rounding = []
    module: Any = load_model(source, torch.bfloat16, CPU)
    progress = Progress(layer=lambda layer: rounding.append(layer.rounding > 0))
    quantize_int4(module, folder=folder, progress=progress)
    assert rounding == [False, False, True]
    assert (folder.path / "layer-00001.safetensors").stat().st_mtime_ns == before
    at_once: Any = load_model(source, torch.bfloat16, CPU)
    quantize_int4(at_once)
    for name, blocks in blocks_of(module).items():
        assert torch.equal(blocks, blocks_of(at_once)[name]), name


def test_without_a_kept_one_it_is_told_how_to_keep_it(source, caplog):
    with caplog.at_level("INFO", "drafttree"):
        drafttree.load(source, "none", quantize="int4")
    assert f"{source}: rounding to four bits for this run only; `drafttree quantize` would keep" in caplog.text
    assert "layer 3 of 3 is in four bits" in caplog.text


def test_an_edited_model_is_another_one(source):
    assert run("quantize", source).exit_code == 0
    model = tiny.from_config(gguf_files.CONFIGS["llama"](), seed=1)
    model.save_pretrained(source)
    kept: Any = load_model(source, torch.bfloat16, CPU, "int4")
    expected: Any = load_model(source, torch.bfloat16, CPU)
    weight = expected.model.layers[0].mlp.up_proj.weight.float()
    error = (kept.model.layers[0].mlp.up_proj.dequantized() - weight).norm() / weight.norm()
    assert error < 0.2


def test_a_drafter_may_be_in_four_bits(source):
    decoder = drafttree.load(source, source, quantize_drafter="int4")
    drafter: Any = decoder.drafter
    assert drafter.model.precision.endswith("with int8, q4_zero weights")


def test_what_cannot_be_rounded_is_refused_by_name(tmp_path):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), tmp_path / "model.gguf", "Q8_0")
    message = told(ModelError, drafttree.load, path, "none", quantize="int4")
    assert (
        message
        == f"{str(path)!r} is a GGUF file, whose weights are in few bits already; load it as it is, without int4"
    )
    tiny.from_config(GPT2Config(**tiny.SIZES)).save_pretrained(tmp_path / "gpt2")
    words("a", "b").save_pretrained(tmp_path / "gpt2")
    message = told(ModelError, drafttree.load, tmp_path / "gpt2", "none", quantize="int4")
    assert "cannot be rounded to four bits: layers of the family gpt2 are not known; leave out quantize" in message
    config = gguf_files.CONFIGS["llama"]()
    config.intermediate_size = 100
    tiny.from_config(config).save_pretrained(tmp_path / "odd")
    words("a", "b").save_pretrained(tmp_path / "odd")
    message = told(ModelError, drafttree.load, tmp_path / "odd", "none", quantize="int4")
    assert "has linear layers with 100 inputs, and four bits need a multiple of 32; leave out quantize" in message


def test_a_folder_with_other_files_or_of_another_model_is_not_written_into(source, tmp_path, capsys):
    message = complaint(capsys, "quantize", source, "--out", source)
    assert message == f"drafttree: error: {source} holds other files, or damaged ones; name a new one\n"
    assert run("quantize", source, "--out", tmp_path / "out").exit_code == 0
    other = write("qwen2", tmp_path / "other")
    capsys.readouterr()
    message = complaint(capsys, "quantize", other, "--out", tmp_path / "out")
    assert message == f"drafttree: error: {tmp_path / 'out'} holds other files, or damaged ones; name a new one\n"


def test_a_damaged_file_of_a_rounding_is_written_anew(source, tmp_path, caplog):
    out = tmp_path / "out"
    assert run("quantize", source, "--out", out).exit_code == 0
    whole = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    (out / "config.json").unlink()
    layer = out / "layer-00001.safetensors"
    layer.write_bytes(whole[layer.name][:2000])
    assert run("quantize", source, "--out", out).exit_code == 0
    assert f"{layer} is damaged" in caplog.text
    assert {path.name: path.read_bytes() for path in out.glob("*.safetensors")} == whole


def test_a_rounding_that_was_stopped_in_its_texts_goes_on(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "texts.safetensors.part").write_bytes(b"half")
    assert run("quantize", source, "--out", out).exit_code == 0


def test_what_is_in_few_bits_already_is_not_rounded_again(source, tmp_path, capsys):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), tmp_path / "model.gguf", "Q8_0")
    assert "is a GGUF file, whose weights are in few bits already" in complaint(capsys, "quantize", path)
    assert run("quantize", source, "--out", tmp_path / "out").exit_code == 0
    assert "is quantised already (compressed-tensors)" in complaint(capsys, "quantize", tmp_path / "out")


def test_a_folder_of_eight_bits_is_not_taken_for_four(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["llama"]())
    quantized_folders.write(model, tmp_path, "gptq", bits=8, symmetric=True)
    message = told(ModelError, drafttree.load, tmp_path, "none", quantize="int4")
    assert message == f"{str(tmp_path)!r} is quantised already (GPTQ); leave out quantize"


def test_a_folder_without_weights_is_told(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "holds no weights" in complaint(capsys, "quantize", tmp_path / "empty")


def test_what_layers_read_must_be_finite(source):
    module: Any = load_model(source, torch.float32, CPU)
    module.model.layers[0].mlp.down_proj.weight.data[0, 0] = float("nan")
    message = told(ModelError, round_layers, module, torch.zeros(2, 8, dtype=torch.long))
    assert message == (
        "the input of model.layers.1.self_attn.q_proj has values that are not finite; load the model in float32"
    )
