"""What `inspect` says of every kind of folder, whole and broken."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafttree.drafters.eagle import Eagle3Head
from drafttree.drafters.formats import eagle3 as eagle3_format
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from helpers.checkpoints import DEPTH, FORMATS
from testing import tiny

WIDTH, VOCAB = 8, 13


def test_language_models():
    found = inspect("embedded-draft")
    assert found.kind == "language-model"
    assert found.fits["vocabulary"] == 4096
    assert found.parameters == 1_065_440
    assert found.megabytes == pytest.approx(2.13, abs=0.01)
    assert found.dtypes == "bfloat16"
    assert found.problems == ()


def test_what_an_eagle3_head_lacks(tmp_path):
    tensors = FORMATS["SpecForge"].tensors()
    del tensors["fc.weight"], tensors["d2t"]
    found = inspect(str(FORMATS["SpecForge"].write(tmp_path, tensors)))
    assert found.fits["number of layers"] == "not said"
    assert found.details["hidden states read"] == "1, 2, 3"
    assert list(found.problems) == ["missing fc.weight", "missing d2t, for 11 of 23 token ids"]


def medusa() -> dict[str, torch.Tensor]:
    heads = {}
    for head in range(3):
        block = {"linear.weight": torch.ones(WIDTH, WIDTH), "linear.bias": torch.ones(WIDTH)}
        heads |= {f"{head}.0.{name}": tensor.clone() for name, tensor in block.items()}
        heads[f"{head}.1.weight"] = torch.ones(VOCAB, WIDTH)
    return heads


def hydra(prefix: bool) -> dict[str, torch.Tensor]:
    heads = {"input_embed_fn.weight": torch.ones(VOCAB, WIDTH)}
    block, end = ("1", ".1") if prefix else ("0", "")
    for head in range(2):
        for name in ("linear", "res_connection"):
            heads[f"hydra_mlp.{head}.{block}.{name}.weight"] = torch.ones(WIDTH, (head + 2) * WIDTH)
            heads[f"hydra_mlp.{head}.{block}.{name}.bias"] = torch.ones(WIDTH)
        heads[f"hydra_lm_head.{head}{end}.weight"] = torch.ones(VOCAB, WIDTH)
        heads[f"hydra_lm_head.{head}{end}.bias"] = torch.ones(VOCAB)
    if prefix:
        shapes = {"q_proj": (WIDTH, WIDTH), "k_proj": (4, WIDTH), "v_proj": (4, WIDTH), "o_proj": (WIDTH, WIDTH)}
        layer = {f"self_attn.{name}": shape for name, shape in shapes.items()}
        layer |= {"mlp.gate_proj": (20, WIDTH), "mlp.up_proj": (20, WIDTH), "mlp.down_proj": (WIDTH, 20)}
        layer |= {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
        names = {f"prefix_embeding_layer.layers.0.{name}.weight": shape for name, shape in layer.items()}
        heads |= {name: torch.ones(shape) for name, shape in names.items()}
        heads["prefix_embeding_layer.norm.weight"] = torch.ones(WIDTH)
    return heads


@pytest.mark.parametrize(
    ("kind", "tensors", "count"),
    [("medusa", medusa(), 3), ("hydra", hydra(False), 2), ("hydra", hydra(True), 2)],
)
def test_medusa_and_hydra_heads(kind, tensors, count, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    found = inspect(str(tmp_path))
    assert (found.kind, found.details["heads"], found.problems) == (kind, count, ())
    assert found.fits == {"hidden size": WIDTH, "vocabulary": VOCAB, "number of layers": "not said"}
    lost = sorted(name for name in tensors if name.endswith("bias"))[0]
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    assert lost in inspect(str(tmp_path)).problems[0]


def test_medusa_and_hydra_heads_that_share_a_projection_tell_their_target(tmp_path):
    tensors = {name: tensor for name, tensor in medusa().items() if not name.endswith(".1.weight")}
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    assert inspect(str(tmp_path)).fits["vocabulary"] == "not said"
    config = {
        "vocab_size": 4096,
        "hidden_size": WIDTH,
        "base_num_hidden_layers": 6,
        "base_model_name_or_path": "some/lm",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = inspect(str(tmp_path))
    assert found.fits == {"hidden size": WIDTH, "vocabulary": 4096, "number of layers": 6, "trained on": "some/lm"}
    assert found.problems == ()
    assert found.details["output layers"] == "the target's"


@pytest.mark.parametrize("prefix", [False, True])
def test_every_tensor_of_hydra_heads_is_looked_at(prefix, tmp_path):
    tensors = hydra(prefix) | {"input_embed_fn.weight": torch.ones(VOCAB, WIDTH - 1)}
    lost = "hydra_mlp.1.1.linear.bias" if prefix else "hydra_mlp.1.0.linear.bias"
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    assert list(inspect(str(tmp_path)).problems) == [
        f"missing {lost}",
        f"input_embed_fn.weight is [{VOCAB}, {WIDTH - 1}] and should be [{VOCAB}, {WIDTH}]",
    ]


def test_every_tensor_of_medusa_heads_is_looked_at(tmp_path):
    tensors = medusa() | {"1.1.weight": torch.ones(VOCAB, 3), "0.0.linear.weight": torch.tensor(1.0)}
    del tensors["2.0.linear.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert list(inspect(str(tmp_path)).problems) == [
        "missing 2.0.linear.bias",
        f"0.0.linear.weight is [] and should be [{WIDTH}, {WIDTH}]",
        f"1.1.weight is [{VOCAB}, 3] and should be [{VOCAB}, {WIDTH}]",
    ]


def test_an_attention_layer_of_no_shape(tmp_path):
    tensors = hydra(True)
    tensors["prefix_embeding_layer.layers.0.self_attn.q_proj.weight"] = torch.ones(7, WIDTH)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="has 7 rows of queries and 4 of keys and values; no attention layer 8 wide"):
        inspect(str(tmp_path))


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2_moe_sliding"])
def test_what_a_language_model_lacks(name, tmp_path):
    tiny.build(name).save_pretrained(tmp_path)
    assert inspect(str(tmp_path)).problems == ()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    lost, short = (
        next(name for name in sorted(tensors, reverse=end) if "layernorm" in name or "ln_" in name) for end in (0, 1)
    )
    del tensors[lost]
    tensors[short] = tensors[short][:5].clone()
    save_file(tensors, path, {"format": "pt"})
    width = tiny.SIZES["hidden_size"]
    assert list(inspect(str(tmp_path)).problems) == [f"missing {lost}", f"{short} is [5] and should be [{width}]"]


def test_a_language_model_that_transformers_cannot_make(tmp_path):
    tiny.build("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 5}))
    assert "not a multiple of the number of attention heads (5)" in inspect(str(tmp_path)).problems[0]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    assert inspect(str(tmp_path)).problems == ("t5 is not a decoder-only language model",)


def test_tied_weights_are_counted_once(tmp_path):
    found = inspect(str(FORMATS["AngelSlim, tied"].write(tmp_path)))
    assert (found.details["embedding"], found.details["output layer"]) == ("own", "the embedding")
    assert found.parameters == sum(tensor.numel() for tensor in FORMATS["AngelSlim, tied"].tensors().values())
    assert found.problems == ()


def test_a_head_of_this_house_is_of_the_format_it_is_saved_in(tmp_path):
    published = FORMATS["SafeAILab"]
    head = Eagle3Head(eagle3_format.parse(published.tensors(), published.fields()).config)
    head.target_ids = torch.tensor(published.draft_ids)
    eagle3_format.save(head, tmp_path, DEPTH, own_lm_head=True, dtype=torch.float32)
    found = inspect(str(tmp_path))
    assert found.details["format"] == "SpecForge"
    assert found.fits["number of layers"] == DEPTH


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": "1e4"}, "config.json gives rope_theta as '1e4'; it must be a positive number"),
        ({"transformer_layer_config": "x"}, "config.json gives transformer_layer_config as 'x'"),
        (None, "config.json is missing or empty"),
    ],
)
def test_configurations_that_make_no_sense(change, message, tmp_path):
    FORMATS["SafeAILab"].write(tmp_path, **(change or {}))
    if change is None:
        (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=message):
        inspect(str(tmp_path))


def test_what_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        inspect("./nowhere")
    with pytest.raises(ModelError, match="holds no weights"):
        inspect(str(tmp_path))
