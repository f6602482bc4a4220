"""What `inspect` says of every kind of folder, whole and broken."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from drafttree.drafters.eagle import Eagle3Head
from drafttree.drafters.formats import eagle3 as eagle3_format
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from drafttree.models.native import kernels
from helpers.checkpoints import DEPTH, FORMATS, HIDDEN
from testing import tiny


def test_language_models():
    found = inspect("embedded-draft")
    assert found.kind == "language-model"
    assert found.fits["vocabulary"] == 4096
    assert found.parameters == 1_065_440
    assert found.megabytes == pytest.approx(2.13, abs=0.01)
    assert found.dtypes == "bfloat16"
    assert found.problems == ()


def test_whether_native_passes_run_a_model_and_why_not(tmp_path):
    assert inspect("embedded-draft").details["native passes"] == (
        "yes" if kernels.native else "no: drafttree-native is not installed, or cannot be used here"
    )
    module = tiny.build("gpt2")
    reason = "no: layers of the family gpt2 are not known"
    assert inspect(module).details["native passes"] == reason
    module.save_pretrained(tmp_path)
    assert inspect(str(tmp_path)).details["native passes"] == reason


def test_what_an_eagle3_head_lacks(tmp_path):
    tensors = FORMATS["SpecForge"].tensors()
    del tensors["fc.weight"], tensors["d2t"]
    found = inspect(str(FORMATS["SpecForge"].write(tmp_path, tensors)))
    assert found.fits["number of layers"] == "not said"
    assert found.details["hidden states read"] == "1, 2, 3"
    assert list(found.problems) == ["missing fc.weight", "missing d2t, for 11 of 23 token ids"]


def test_medusa_and_hydra_heads_that_share_a_projection_tell_their_target(tmp_path):
    FORMATS["Medusa-1, no projection"].write(tmp_path)
    assert inspect(str(tmp_path)).fits["vocabulary"] == "not said"
    config = {
        "vocab_size": 4096,
        "hidden_size": HIDDEN,
        "base_num_hidden_layers": 6,
        "base_model_name_or_path": "some/lm",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = inspect(str(tmp_path))
    assert found.fits == {"hidden size": HIDDEN, "vocabulary": 4096, "number of layers": 6, "trained on": "some/lm"}
    assert found.problems == ()
    assert found.details["output layers"] == "the target's"


def test_an_attention_layer_of_no_shape(tmp_path):
    query = {"prefix_embeding_layer.layers.0.self_attn.q_proj.weight": torch.ones(7, HIDDEN)}
    FORMATS["Hydra++"].write(tmp_path, FORMATS["Hydra++"].tensors() | query)
    with pytest.raises(ModelError, match=r"has 7 rows of queries and \d+ of keys and values; no attention layer 32"):
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
    head = Eagle3Head(eagle3_format.parse(published.tensors(), published.fields()).heads.config)
    head.target_ids = torch.tensor(published.draft_ids)
    eagle3_format.save(head, tmp_path, DEPTH, own_lm_head=True, dtype=torch.float32)
    found = inspect(str(tmp_path))
    assert found.details["format"] == "SpecForge"
    assert found.fits["number of layers"] == DEPTH


@pytest.mark.parametrize(
    ("change", "message"),
    [
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


def test_most_of_a_model_lost_is_told_without_making_it(tmp_path, monkeypatch):
    """A default Llama has 7 B parameters; none of them is made of random numbers to be compared."""
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    save_file({"model.norm.weight": torch.ones(4096)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", None)
    (problem,) = inspect(str(tmp_path)).problems
    assert problem.startswith("missing ")
    assert "model.embed_tokens.weight" in problem
