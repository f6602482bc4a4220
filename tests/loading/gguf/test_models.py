"""Models in GGUF files are those that were written, as transformers itself computes them."""

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import drafttree
from drafttree.loading import load_model
from drafttree.loading.gguf.reader import GGUFFile
from drafttree.loading.inspect import inspect
from drafttree.loading.names import PartNames
from testing import gguf_files, tiny

CPU = torch.device("cpu")
LATE = 60_000
PROMPT = "The old man looked at the sea"


@pytest.mark.parametrize("family", gguf_files.CONFIGS)
def test_the_model_of_a_file_is_the_one_that_was_written(family, tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS[family]())
    read = load_model(gguf_files.write(model, tmp_path / "model.gguf"), torch.float32, CPU)
    weights = read.state_dict()
    assert weights.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=3e-7)  # a norm's 1 is added and taken off
    tokens = torch.randint(0, 4096, (1, 200), generator=torch.Generator().manual_seed(0))
    for start in (0, LATE):
        positions = start + torch.arange(200)[None]
        with torch.no_grad():
            expected, logits = (each(tokens, position_ids=positions).logits for each in (model, read))
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 128}),
        ("gemma3", {"head_dim": 256, "query_pre_attn_scalar": 256}),
    ],
)
def test_the_text_is_that_of_transformers_on_the_same_file(family, sizes, tmp_path):
    """At sizes and without the scaling that transformers' reader takes as given."""
    scaled = gguf_files.CONFIGS[family]().to_dict()
    config = type(gguf_files.CONFIGS[family]())(**{**scaled, "rope_parameters": None, **sizes})
    unscaled = tiny.from_config(config)
    path = gguf_files.write(unscaled, tmp_path / "model.gguf", "Q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with drafttree.load(path, "lookup", dtype="float32", quantize="none") as decoder:
        assert decoder.tokenizer(PROMPT).input_ids == ids[0].tolist()
        ours = decoder.generate(PROMPT, max_new_tokens=40, temperature=0)
    expected = theirs.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=0)
    assert ours.tokens == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_quantised_weights_are_unpacked_as_gguf_does(kind, llama, tmp_path):
    path = gguf_files.write(llama, tmp_path / "model.gguf", kind)
    read = load_model(path, torch.float32, CPU).state_dict()
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    own = theirs["blk.1.ffn_down.weight"]
    assert own.tensor_type.name == kind
    expected = torch.from_numpy(gguf.quants.dequantize(own.data, own.tensor_type))
    assert torch.equal(read["model.layers.1.mlp.down_proj.weight"], expected)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "IQ2_XS", "MXFP4"])
def test_a_weight_is_unpacked_in_parts_as_at_once(kind, tmp_path):
    """Random bytes, since gguf packs none of these; more values than are unpacked at a time."""
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    shape = (3, 700, 1024)
    packed = np.random.default_rng(0).integers(0, 64, (*shape[:2], shape[2] // block * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("weight", packed, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = GGUFFile(tmp_path / "one.gguf").read("weight", torch.bfloat16)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.quants.dequantize(packed, number)).bfloat16()
    assert read.shape == shape
    assert torch.equal(read.view(torch.int16), expected.view(torch.int16))


def test_a_gguf_file_is_target_and_drafter(path, llama):
    plain = drafttree.load(path, "none", dtype="float32")
    expected = plain.generate(PROMPT, max_new_tokens=32, temperature=0).text
    for drafter in (path, f"mixed:{path}", "lookup", "auto"):
        with drafttree.load(str(path), drafter, "chain", dtype="float32") as decoder:
            result = decoder.generate(PROMPT, max_new_tokens=32, temperature=0)
            assert result.text == expected
    with drafttree.load(path, path, "chain", dtype="float32") as decoder:
        assert decoder.generate(PROMPT, max_new_tokens=32, temperature=0).metrics.tau > 1.5
        assert PartNames.of(decoder)[:2] == ("model.gguf", "model.gguf")


def test_the_ends_of_texts_and_the_sampling_of_a_file_are_used(llama, tmp_path):
    ends = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9, "general.sampling.temp": 0.5}
    path = gguf_files.write(llama, tmp_path / "model.gguf", metadata=ends | {"general.sampling.top_k": 12})
    decoder = drafttree.load(path, "none", dtype="float32")
    assert decoder.eos == (7, 9, 0)  # the last is <|endoftext|>, which ends texts wherever there is one
    assert decoder.defaults["temperature"] == 0.5
    assert decoder.defaults["top_k"] == 12


def test_a_factor_alone_scales_linearly_as_in_llama_cpp(llama, tmp_path):
    path = gguf_files.write(llama, tmp_path / "model.gguf", metadata={"llama.rope.scaling.factor": 4.0})
    rope = load_model(path, torch.float32, CPU).config.rope_parameters
    assert (rope["rope_type"], rope["factor"]) == ("linear", 4.0)


def test_inspect_tells_of_a_file(path):
    found = inspect(str(path))
    assert found.kind == "language-model"
    assert found.details["architecture"] == "llama"
    assert found.details["max position embeddings"] == 131072
    assert found.details["native passes"] == "yes"
    assert found.parameters == sum(each.numel() for each in load_model(path, torch.float32, CPU).parameters())
    assert found.dtypes == "F32"
    assert found.problems == ()


def test_inspect_names_the_tensors_that_a_file_lacks(llama, tmp_path):
    path = gguf_files.write(llama, tmp_path / "model.gguf", without=["blk.1.ffn_up.weight"])
    assert "model.layers.1.mlp.up_proj.weight" in str(inspect(str(path)).problems)
