"""Folders of quantised weights are read as their methods' own packages read them, and multiplied as they are stored."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import drafttree
from drafttree.errors import ModelError
from drafttree.loading import load_model
from drafttree.loading.inspect import inspect
from drafttree.loading.target_options import AS_STORED
from drafttree.models.native import kernels
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.block_linear import BlockLinear
from helpers.refusals import told
from testing import gguf_files, quantized_folders, tiny
from testing.marks import needs_native

pytestmark = needs_native
CPU = torch.device("cpu")
PROMPT = "The old man looked at the sea, and the old man"
WAYS = [
    ("gptq", {}, "q4_zero"),
    ("gptq", {"symmetric": True}, "q4_0"),
    ("gptq", {"bits": 8, "symmetric": True}, "q8_0"),
    ("gptq_v2", {}, "q4_zero"),
    ("gptq_v2", {"symmetric": True}, "q4_0"),
    ("awq", {}, "q4_zero"),
    ("compressed-tensors", {}, "q4_zero"),
    ("compressed-tensors", {"symmetric": True}, "q4_0"),
    ("compressed-tensors", {"bits": 8, "symmetric": True}, "q8_0"),
    ("compressed-tensors of 2024", {}, "q4_zero"),
    ("mlx", {}, "q4_1"),
]
"""Methods, what is special, and the blocks that hold their weights."""
UNPACKED = [
    ("gptq", {"act_order": True}),
    ("gptq", {"bits": 2}),
    ("gptq", {"bits": 8}),
    ("compressed-tensors", {"act_order": True}),
    ("compressed-tensors", {"bits": 3}),
    ("compressed-tensors", {"bits": 6, "symmetric": True}),
    ("mlx", {"bits": 5}),
    ("mlx", {"bits": 8}),
    ("awq", {"group_size": 16}),
]
"""Those that nothing multiplies as they are stored."""


def llama() -> Any:
    return tiny.from_config(gguf_files.CONFIGS["llama"]())


def weights(module: Any) -> dict[str, Tensor]:
    """The weights of all linear layers but the head, by name."""
    blocks = {name: part.dequantized() for name, part in module.named_modules() if isinstance(part, BlockLinear)}
    others = {name: part.weight for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)}
    return {
        f"{name}.weight": weight.detach().float() for name, weight in (blocks | others).items() if name != "lm_head"
    }


@pytest.mark.parametrize(("method", "special", "form"), WAYS)
def test_weights_stay_as_they_are_stored(method, special, form, tmp_path):
    expected = quantized_folders.write(llama(), tmp_path, method, **special)
    module: Any = load_model(tmp_path, torch.float32, CPU, AS_STORED)
    assert module.get_submodule("model.layers.1.mlp.down_proj").blocks == form
    assert_weights(module, expected)
    assert_weights(load_model(tmp_path, torch.float32, CPU), expected)


@pytest.mark.parametrize(("method", "special"), UNPACKED)
def test_what_nothing_multiplies_is_unpacked_which_is_told(method, special, tmp_path, caplog):
    expected = quantized_folders.write(llama(), tmp_path, method, **special)
    with caplog.at_level(logging.INFO, "drafttree"):
        module = load_model(tmp_path, torch.float32, CPU, AS_STORED)
    assert_weights(module, expected)
    told_of = "21 quantised weights are unpacked to float32, since no kernel multiplies them as they are stored: model."
    assert told_of in caplog.text


@pytest.mark.parametrize("method", quantized_folders.METHODS)
def test_texts_with_drafts_are_those_of_plain_decoding_and_of_the_unpacked_model(method, tmp_path):
    quantized_folders.write(llama(), tmp_path, method)
    with drafttree.load(tmp_path, f"mixed:{tmp_path}", "talon") as decoder:
        target: Any = decoder.target
        assert isinstance(target.backend, NativeBackend), target.runs_on
        assert target.dtype == torch.bfloat16
        text = decoder.generate(PROMPT, max_new_tokens=32, temperature=0)
        assert text.tokens == decoder.plain().generate(PROMPT, max_new_tokens=32, temperature=0).tokens
        assert text.metrics.tau > 1.5
    unpacked = drafttree.load(tmp_path, "none", dtype="float32", quantize="none")
    assert unpacked.target.quantization is None
    prompt = unpacked.tokenizer.encode(PROMPT)
    expected = unpacked.target.module.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)
    assert unpacked.generate(prompt, max_new_tokens=32, temperature=0).tokens == expected[0, len(prompt) :].tolist()


def test_experts_of_groups_out_of_order_are_unpacked(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]())
    expected = quantized_folders.write(model, tmp_path, "gptq", group_size=16, act_order=True)
    module: Any = load_model(tmp_path, torch.float32, CPU, AS_STORED)
    experts, name = module.model.layers[1].mlp.experts, "model.layers.1.mlp.experts.5"
    gate_up = torch.cat([expected.pop(f"{name}.{part}_proj.weight") for part in ("gate", "up")])
    torch.testing.assert_close(experts.gate_up_proj[5], gate_up, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(experts.down_proj[5], expected[f"{name}.down_proj.weight"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_experts_stay_as_they_are_stored(method, tmp_path):
    expected = quantized_folders.write(tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]()), tmp_path, method)
    module: Any = load_model(tmp_path, torch.bfloat16, CPU, AS_STORED)
    for layer, block in enumerate(module.model.layers):
        for part in ("gate_proj", "up_proj", "down_proj"):
            for index, own in enumerate(getattr(block.mlp.experts, part)):
                weight = expected[f"model.layers.{layer}.mlp.experts.{index}.{part}.weight"]
                torch.testing.assert_close(own.dequantized(), weight, rtol=1e-6, atol=1e-7)
    decoder = drafttree.load(tmp_path, "lookup", "talon", dtype="bfloat16")
    assert isinstance(decoder.target.backend, NativeBackend), decoder.target.runs_on
    text = decoder.generate(PROMPT, max_new_tokens=32, temperature=0)
    assert text.tokens == decoder.plain().generate(PROMPT, max_new_tokens=32, temperature=0).tokens


def test_mlx_quantises_embeddings_too_and_names_layers_of_other_sizes(tmp_path):
    model = llama()
    own = {"group_size": 64, "bits": 8}
    quantized_folders.write(model, tmp_path, "mlx", **{"model.embed_tokens": own})
    numbers = quantized_folders.random_numbers(4096, 64, 8, 64, 5, symmetric=False)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    packed = quantized_folders.METHODS["mlx"][0](numbers, 8, torch.zeros(64).long().numpy(), False)
    tensors |= {f"model.embed_tokens.{part}": value for part, value in packed.items()}
    save_file(tensors, path)
    module: Any = load_model(tmp_path, torch.float32, CPU, AS_STORED)
    expected = numbers.weight(torch.zeros(64).long().numpy(), has_minima=True)
    assert torch.equal(module.get_input_embeddings()(torch.tensor([[7, 4000]]))[0], expected[[7, 4000]])


def test_without_drafttree_native_weights_are_unpacked_which_is_told(tmp_path, monkeypatch, caplog):
    expected = quantized_folders.write(llama(), tmp_path, "awq")
    monkeypatch.setattr(kernels, "native", None)
    with caplog.at_level(logging.INFO, "drafttree"):
        assert_weights(load_model(tmp_path, torch.float32, CPU, AS_STORED), expected)
    assert "weights are unpacked, since they cannot be multiplied as they are stored: drafttree-nat" in caplog.text


def test_a_config_that_says_another_method_than_the_tensors_is_refused(tmp_path):
    quantized_folders.write(llama(), tmp_path, "gptq")
    change(tmp_path, quant_method="awq", version="gemm")
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert (
        "config.json says AWQ with 4 bits in groups of 32 inputs and zeros, which the tensors of model.layers.0"
        in message
    )
    change(tmp_path, quant_method="gptq", group_size=64)
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert "config.json says GPTQ with 4 bits in groups of 64 inputs and zeros, which the tensors of" in message
    change(tmp_path, group_size=32, sym=True)
    message = told(ModelError, drafttree.load, tmp_path, "none")
    assert "config.json says that weights are symmetric, and model.layers.0.mlp.down_proj.qzeros says" in message
    change(
        tmp_path, quant_method="compressed-tensors", format="pack-quantized", config_groups={"a": {"weights": GROUP}}
    )
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert f"config.json says compressed-tensors, and no tensor in {tmp_path} is packed so; download" in message


@pytest.mark.parametrize("method", quantized_folders.METHODS)
def test_folders_are_inspected_without_reading_weights(method, tmp_path):
    model = llama()
    quantized_folders.write(model, tmp_path, method)
    found = inspect(str(tmp_path))
    assert found.problems == ()
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert found.details["native passes"] == "yes"
    name = {"gptq_v2": "GPTQ", "compressed-tensors of 2024": "compressed-tensors"}.get(method, method)
    assert str(found.details["quantised"]).lower() == name.lower()
    assert found.dtypes == ("21 q4_1" if method == "mlx" else "21 q4_zero")


def test_inspection_tells_tensors_that_are_not_as_the_config_says(tmp_path):
    quantized_folders.write(llama(), tmp_path, "gptq")
    change(tmp_path, group_size=64)
    (problem,) = inspect(str(tmp_path)).problems
    assert "config.json says GPTQ with 4 bits in groups of 64 inputs" in problem


GROUP = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scales_that_are_not_finite_are_refused(value, tmp_path):
    quantized_folders.write(llama(), tmp_path, "compressed-tensors")
    spoil(tmp_path, "model.layers.2.mlp.up_proj.weight_scale", value)
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert (
        "the weights of model.layers.2.mlp.up_proj cannot be used: a scale is not finite; download or copy" in message
    )


def test_scales_that_are_no_float16_are_told(tmp_path):
    quantized_folders.write(llama(), tmp_path, "compressed-tensors")
    spoil(tmp_path, "model.layers.2.mlp.up_proj.weight_scale", 1.2e-7)
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert message.endswith('up_proj cannot be used: a scale is not a float16; load it with quantize="none"')
    load_model(tmp_path, torch.float32, CPU)


def test_groups_that_there_are_not_are_refused(tmp_path):
    quantized_folders.write(llama(), tmp_path, "gptq", act_order=True)
    spoil(tmp_path, "model.layers.1.mlp.up_proj.g_idx", 7)
    message = told(ModelError, load_model, tmp_path, torch.float32, CPU, AS_STORED)
    assert "model.layers.1.mlp.up_proj.g_idx names groups that there are not; there are 2" in message


def assert_weights(module: Any, expected: dict[str, Tensor]) -> None:
    found = weights(module)
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-7, msg=name)


def change(folder: Any, **settings: Any) -> None:
    """Change what the config says of quantised weights."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= settings
    path.write_text(json.dumps(config))


def spoil(folder: Any, name: str, value: float) -> None:
    """Change the first number of a tensor."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name].view(-1)[0] = value
    save_file(tensors, path)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a folder."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


QUERY = "model.layers.1.self_attn.q_proj"
GATE = "model.layers.1.mlp.experts.3.gate_proj"


def reconfigure(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))


def test_zeros_that_the_config_denies_are_refused(tmp_path):
    quantized_folders.write(llama(), tmp_path, "compressed-tensors")

    def deny(settings: dict[str, Any]) -> None:
        settings["config_groups"]["group_0"]["weights"]["symmetric"] = True

    reconfigure(tmp_path, deny)
    assert "config.json says compressed-tensors with 4 bits in groups of 32 inputs, which the tensors of" in told(
        ModelError, load_model, tmp_path, torch.float32, CPU
    )


def test_a_layer_is_of_the_group_that_has_its_tensors(tmp_path):
    expected = quantized_folders.write(llama(), tmp_path, "compressed-tensors")

    def add_symmetric(settings: dict[str, Any]) -> None:
        group = settings["config_groups"].pop("group_0")
        symmetric = {**group, "weights": {**group["weights"], "symmetric": True}}
        settings["config_groups"] = {"group_0": symmetric, "group_1": group}

    reconfigure(tmp_path, add_symmetric)
    assert_weights(load_model(tmp_path, torch.float32, CPU, AS_STORED), expected)


@pytest.mark.parametrize(
    ("method", "part", "dtype"),
    [
        ("gptq", "qweight", torch.int64),
        ("gptq", "qweight", torch.float32),
        ("gptq", "qzeros", torch.int64),
        ("gptq", "scales", torch.int32),
        ("gptq", "g_idx", torch.float32),
        ("awq", "qweight", torch.int64),
        ("compressed-tensors", "weight_packed", torch.int64),
        ("mlx", "weight", torch.int64),
        ("mlx", "biases", torch.int32),
    ],
)
def test_tensors_in_other_dtypes_are_refused(method, part, dtype, tmp_path):
    quantized_folders.write(llama(), tmp_path, method)
    name = f"{QUERY}.{part}"
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    message = f"{name} is stored in "
    assert message in told(ModelError, load_model, tmp_path, torch.float32, CPU)
    assert any(message in problem for problem in inspect(str(tmp_path)).problems)


@pytest.mark.parametrize(
    ("method", "part", "shape", "message"),
    [
        ("compressed-tensors", "weight_shape", (1,), "have no weight_shape of two numbers"),
        ("compressed-tensors", "weight_shape", (3,), "have no weight_shape of two numbers"),
        ("gptq", "qweight", (64,), f"{QUERY}.qweight is [64], and no matrix"),
        ("awq", "qweight", (64,), f"{QUERY}.qweight is [64], and no matrix"),
        ("mlx", "weight", (64,), f"{QUERY}.weight is [64], and no matrix"),
    ],
)
def test_tensors_of_other_dimensions_are_refused(method, part, shape, message, tmp_path):
    quantized_folders.write(llama(), tmp_path, method)
    name = f"{QUERY}.{part}"
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].new_ones(shape)}))
    assert message in told(ModelError, load_model, tmp_path, torch.float32, CPU)
    assert any(message in problem for problem in inspect(str(tmp_path)).problems)


def test_a_weight_that_is_there_twice_is_refused(tmp_path):
    quantized_folders.write(llama(), tmp_path, "gptq")
    rewrite(tmp_path, lambda tensors: tensors.update({f"{QUERY}.weight": torch.ones(64, 64)}))
    message = f"holds {QUERY}.weight both whole and packed"
    assert message in told(ModelError, load_model, tmp_path, torch.float32, CPU)


def halve(tensors: dict[str, Tensor]) -> None:
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(GATE)}
    tensors |= {name: tensor[: len(tensor) // 2] for name, tensor in own.items() if "shape" not in name}
    tensors[f"{GATE}.weight_shape"] = torch.tensor([16, 64])


def leave_out(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith(GATE)]:
        del tensors[name]


def add_stacked(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.1.mlp.experts.down_proj"] = torch.ones(8, 64, 32)


@pytest.mark.parametrize("quantize", [AS_STORED, None])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (halve, f"{GATE}.weight is [16, 64] and should be [32, 64]"),
        (leave_out, f"missing {GATE}.weight"),
        (add_stacked, "experts lie apart, and there are model.layers.1.mlp.experts.down_proj"),
    ],
)
def test_experts_that_are_not_those_of_the_config_are_named(change, message, quantize, tmp_path):
    quantized_folders.write(tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]()), tmp_path, "compressed-tensors")
    rewrite(tmp_path, change)
    assert message in told(ModelError, load_model, tmp_path, torch.float32, CPU, quantize)
    assert any(message in problem for problem in inspect(str(tmp_path)).problems)


def test_inspection_counts_what_stays(tmp_path, caplog):
    quantized_folders.write(llama(), tmp_path, "gptq")

    def unpack_keys(tensors: dict[str, Tensor]) -> None:
        for layer in range(3):
            name = f"model.layers.{layer}.self_attn.k_proj"
            for part in ("qweight", "qzeros", "scales", "g_idx"):
                del tensors[f"{name}.{part}"]
            tensors[f"{name}.weight"] = torch.ones(32, 64)

    rewrite(tmp_path, unpack_keys)
    with caplog.at_level(logging.INFO, "drafttree"):
        load_model(tmp_path, torch.float32, CPU, AS_STORED)
    assert "12 weights stay as they are stored" in caplog.text
    assert inspect(str(tmp_path)).dtypes == "12 q4_zero, 6 unpacked"
