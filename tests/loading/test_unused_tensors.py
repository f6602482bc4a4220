"""Tensors of a checkpoint that its config.json has no place for are refused, named, or known to decide no text."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3MoeConfig

import drafttree
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import words

LAYER = "model.layers.1."
SCALES = (
    *("mlp.up_proj.weight_scale", "mlp.up_proj.weight_scale_inv", "mlp.up_proj.input_scale"),
    *("mlp.up_proj.smooth_factor", "mlp.up_proj.awq_pre_quant", "mlp.up_proj.weight_scaling_factor"),
    *("self_attn.q_proj.weight_zero_point", "mlp.up_proj.qzeros", "mlp.up_proj.SCB", "mlp.up_proj.weight.absmax"),
)
ADAPTERS = (
    *("self_attn.q_proj.lora_A.weight", "self_attn.q_proj.lora_B.default.weight", "mlp.up_proj.hada_w1_a"),
    *(
        "mlp.down_proj.ia3_l",
        "self_attn.q_proj.dora_scale",
        "self_attn.v_proj.vera_lambda_b",
        "self_attn.q_proj.base_layer.weight",
    ),
)
NAMED = ("self_attn.k_scale", "self_attn.q_norm.weight", "self_attn.q_proj.bias", "self_attn.sinks")
SILENT = (
    *(f"{LAYER}self_attn.rotary_emb.inv_freq", f"{LAYER}attn.masked_bias", "model.vision_tower.blocks.0.weight_scale"),
    *("visual.patch_embed.proj.weight", "multi_modal_projector.linear.bias", "audio_tower.conv.weight"),
    *("mtp.layers.0.mlp.up_proj.weight_scale_inv", "model.mtp_emb_norm.0.weight"),
    *(f"model.layers.{tiny.LAYERS}.{part}" for part in ("eh_proj.weight", "mlp.up_proj.weight_scale_inv")),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a model and its tensors."""
    folder = tmp_path_factory.mktemp("plain")
    tiny.from_config(LlamaConfig(**tiny.GROUPED, tie_word_embeddings=True)).save_pretrained(folder)
    words("a", "b", "c").save_pretrained(folder)
    return folder, load_file(folder / "model.safetensors")


def load(plain, *names):
    """Load the model with tensors of these names added to its files."""
    folder, tensors = plain
    save_file(tensors | {name: torch.ones(1) for name in names}, folder / "model.safetensors", {"format": "pt"})
    drafttree.load(folder, "none", dtype="float32")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_scales_without_a_quantisation_are_refused(plain):
    for name in SCALES:
        message = told(ModelError, load, plain, LAYER + name)
        assert f"are quantised, and config.json has no place for their {LAYER}{name}: it gives no" in message


def test_scales_of_a_method_that_transformers_does_not_run_are_refused_by_its_name(plain, tmp_path):
    folder, tensors = plain
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "modelopt"}}))
    message = told(ModelError, load, (copy, tensors), f"{LAYER}mlp.up_proj.weight_scale")
    assert "transformers does not run modelopt, which it gives" in message


def test_adapters_beside_the_weights_are_refused(plain):
    for name in ADAPTERS:
        message = told(ModelError, load, plain, LAYER + name)
        assert f"hold an adapter beside the weights, which config.json does not name: {LAYER}{name}; merge" in message


@pytest.mark.parametrize("name", [f"{LAYER}mtp_gate.weight", "model.img_gate.weight", "model.audio_bias"])
def test_parts_of_the_text_model_that_are_called_like_others_are_named(plain, caplog, name):
    load(plain, name)
    assert f"config.json has no place for the tensors {name}, so they are left out" in caplog.text


def test_other_tensors_are_named_once(plain, caplog):
    names = [LAYER + name for name in NAMED]
    load(plain, *names)
    (message,) = warnings(caplog)
    assert f"config.json has no place for the tensors {', '.join(names)}, so they are left out" in message


def test_tensors_that_differ_in_numbers_alone_are_named_by_the_first(plain, caplog):
    load(plain, *(f"model.layers.{layer}.self_attn.{name}_proj.bias" for layer in range(3) for name in "qk"))
    (message,) = warnings(caplog)
    first = "model.layers.0.self_attn.k_proj.bias, model.layers.0.self_attn.q_proj.bias and 4 more"
    assert f"the tensors {first}, so they" in message


def test_what_decides_no_text_is_not_named(plain, caplog):
    folder, tensors = plain
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    load((folder, tensors | head), *SILENT)
    assert warnings(caplog) == []


def test_scales_of_experts_are_refused_though_transformers_stacks_experts(tmp_path):
    config = Qwen3MoeConfig(**tiny.GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    tiny.from_config(config).save_pretrained(tmp_path)
    words("a", "b", "c").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv"
    message = told(ModelError, load, (tmp_path, tensors), name)
    assert re.search(r"no place for their model\.layers\.0\.mlp\.experts\.\S*scale_inv: it gives no", message)


def test_inspect_names_what_would_be_refused(plain):
    folder, tensors = plain
    names = f"{LAYER}mlp.up_proj.weight_scale", f"{LAYER}self_attn.q_proj.lora_A.weight"
    save_file(tensors | {name: torch.ones(1) for name in names}, folder / "model.safetensors", {"format": "pt"})
    assert inspect(str(folder)).problems == (f"unread {', '.join(names)}",)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_of_eight_bits_without_their_scales_are_refused(plain, dtype):
    folder, tensors = plain
    codes = {name: torch.ones_like(each).to(dtype) for name, each in tensors.items() if "up_proj" in name}
    save_file(tensors | codes, folder / "model.safetensors", {"format": "pt"})
    message = told(ModelError, drafttree.load, folder, "none")
    kind = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}[dtype]
    assert f"are stored in eight bits ({kind}: model.layers.0.mlp.up_proj.weight and 2 more), and neither" in message
