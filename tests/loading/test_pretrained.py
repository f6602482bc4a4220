"""Folders and names become models, or one line that says what is wrong with the files."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)
from transformers.utils import logging as transformers_logging

import drafttree
from drafttree.errors import ModelError
from drafttree.loading import check_tokenizers, load_model
from drafttree.loading.inspect import inspect
from helpers import images
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import words

CPU = torch.device("cpu")


TENSOR = "model.layers.1.mlp.up_proj.weight"


def open_folder(path: Path) -> PreTrainedModel:
    return load_model(path, torch.float32, CPU)


def test_a_damaged_generation_config_is_told(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [')
    assert "generation_config.json cannot be read as JSON" in told(ModelError, open_folder, folder)
    (folder / "generation_config.json").write_text('{"max_new_tokens": "many"}')
    assert "generation_config.json is not a generation config" in told(ModelError, open_folder, folder)


@pytest.mark.parametrize("eos", ["x", "0", 1.5, True, [["a"]], [1, None], {"a": 1}])
def test_eos_tokens_that_are_none_are_told(folder, eos):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    message = told(ModelError, drafttree.load, folder, "lookup", tokenizer=words("a"))
    assert f"the model's eos_token_id is {eos!r}" in message


def change_config(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("layers", [-1, 10**9])
@pytest.mark.parametrize("call", [open_folder, inspect])
def test_numbers_of_layers_out_of_range_are_told_before_layers_are_built(folder, layers, call):
    change_config(folder, num_hidden_layers=layers)
    reason = f"config.json gives num_hidden_layers as {layers}; it must be between 0 and 1000"
    assert told(ModelError, call, folder) == reason
    change_config(folder, num_hidden_layers=3, text_config={"n_layer": layers})
    assert f"config.json gives n_layer as {layers}" in told(ModelError, call, folder)


def test_a_model_without_layers_is_told(folder):
    change_config(folder, num_hidden_layers=0)
    config = LlamaConfig.from_pretrained(folder)
    tiny.from_config(config).save_pretrained(folder)
    assert "it has no layers" in told(ModelError, drafttree.load, folder, "lookup", tokenizer=words("a"))


class Code:
    def __reduce__(self):
        return pytest.fail, ("run",)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_with_code_are_told_without_torchs_advice(folder, zipped):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "x": Code()}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    message = told(ModelError, open_folder, folder)
    assert "a pickle that holds code or objects, which are not run" in message
    assert "weights_only" not in message


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_damaged_pickles_are_told(folder, content):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    assert "are truncated or damaged" in told(ModelError, open_folder, folder)


def test_an_index_that_lacks_a_part_is_told(folder):
    index = folder / "model.safetensors.index.json"
    for kept in ("metadata", "weight_map"):
        index.write_text(json.dumps({kept: {}}))
        lost = {"metadata": "weight_map", "weight_map": "metadata"}[kept]
        assert told(ModelError, open_folder, folder).startswith(f"{index} has no {lost!r}; download it again")


@pytest.mark.parametrize("name", ["lookup", "suffix", "none", "auto", "lookup:max_ngram=3", "mixed:embedded-draft"])
def test_ways_to_draft_are_no_targets(name, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("tried the network"))
    reason = f"{name!r} is not a model; give an embedded name, a folder or a hub name, and {name!r} as drafter"
    assert told(ModelError, drafttree.load, name, "none") == reason


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/models/x", "a/b/c", "two words", "x" * 5000])
def test_missing_folder(name):
    assert told(ModelError, open_folder, name) == f"model folder {name!r} does not exist"


def test_misspelt_embedded_name():
    assert "did you mean 'embedded-draft'" in told(ModelError, open_folder, "embeded-draft")


def test_hub_name_without_a_network_fails_at_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("tried the network"))
    assert "cannot load model 'nobody/no-such-model'" in told(ModelError, open_folder, "nobody/no-such-model")


def test_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    message = told(ModelError, open_folder, folder)
    assert str(folder) in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights(folder, share):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert re.search("weights of .* are truncated or damaged .* download", told(ModelError, open_folder, folder))


def rewrite(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})


def test_missing_tensors_are_not_drawn_at_random(folder):
    rewrite(folder, lambda tensors: tensors.pop(TENSOR))
    assert told(ModelError, open_folder, folder).endswith(f"are incomplete: {TENSOR} missing")
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert told(ModelError, open_folder, folder).endswith("lm_head.weight and 1 more missing")


def test_tensors_of_another_shape(folder):
    rewrite(folder, lambda tensors: tensors.update({TENSOR: tensors[TENSOR][:-1]}))
    message = told(ModelError, open_folder, folder)
    assert message.endswith(f"do not fit its config.json: {TENSOR} is [47, 32] and should be [48, 32]")


def test_bad_weights_leave_nothing_but_the_error(folder, capfd):
    rewrite(folder, lambda tensors: tensors.pop(TENSOR))
    capfd.readouterr()
    told(ModelError, open_folder, folder)
    assert "REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("text", ["{not json", "{}", '{"model_type": "nonsense"}', None])
def test_bad_config(folder, text):
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    assert f"cannot load model {str(folder)!r}" in told(ModelError, open_folder, folder)


CONFIGS = {
    "a rope of tomorrow": (
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        "'spiral' in its config.json",
    ),
    "layers of tomorrow": ({"layer_types": ["magic"] * 3}, "layer_types"),
    "a model of tomorrow": ({"model_type": "llama9"}, "`llama9`"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_models_of_a_newer_transformers_are_told(folder, case):
    change, message = CONFIGS[case]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    told_now = told(ModelError, open_folder, folder)
    assert message in told_now
    assert message in told(ModelError, drafttree.load, folder)  # which looks for layers that draft before
    assert "update transformers" not in told_now
    (folder / "config.json").write_text(json.dumps(config | change | {"transformers_version": "99.1.0"}))
    newer = f"(it was saved by transformers 99.1.0, newer than {transformers.__version__}; update transformers)"
    assert told(ModelError, open_folder, folder).endswith(newer)


def test_a_newer_transformers_alone_is_no_obstacle(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "99.1.0"}))
    assert open_folder(folder)


def test_code_beside_a_model_is_not_run(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": names}))
    assert "it needs code of its own; load it by transformers" in told(ModelError, open_folder, folder)


def test_adapters_by_path_are_told(tmp_path):
    get_peft_model(tiny.build("llama"), LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path)
    assert "it is an adapter; load it with its model by peft" in told(ModelError, drafttree.load, tmp_path)


def test_drafters_that_are_not_run_are_told_as_targets_too(tmp_path):
    save_file({"mask_hidden": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    message = told(ModelError, drafttree.load, tmp_path, None)
    assert "a P-EAGLE head" in message
    assert "give it as the drafter, and the model it is made for as the target" in message
    save_file({"mtp.fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    assert "is a drafter (mtp), not a model" in told(ModelError, drafttree.load, tmp_path, None)


def test_other_kinds_of_model_are_refused(tmp_path):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    ViTModel(ViTConfig(**small, image_size=8, patch_size=4)).save_pretrained(tmp_path / "vit")
    assert "is not a language model (vit)" in told(ModelError, open_folder, tmp_path / "vit")
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=9)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    assert "encoder-decoder" in told(ModelError, open_folder, tmp_path / "t5")
    assert "encoder-decoder" in told(ModelError, drafttree.load, T5ForConditionalGeneration(config))


def test_vocabularies_may_differ_in_padding():
    check_tokenizers(words("a", "b"), words("a", "b", "padding"))
    check_tokenizers(words("a", "b", "padding"), words("a", "b"))
    check_tokenizers(words("a"), None)
    check_tokenizers(None, words("a"))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_was_loaded_by_name_can_be_saved(tmp_path, dtype, tied):
    source, saved = tmp_path / "source", tmp_path / "saved"
    tiny.from_config(LlamaConfig(**tiny.GROUPED, tie_word_embeddings=tied)).to(getattr(torch, dtype)).save_pretrained(
        source
    )
    decoder = drafttree.load(source, "lookup", dtype=dtype, tokenizer=words("a"))
    decoder.generate([1, 2, 3], max_new_tokens=2)
    decoder.target.module.save_pretrained(saved)
    assert "drafttree" not in (saved / "config.json").read_text()
    before, after = (load_file(folder / "model.safetensors") for folder in (source, saved))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", images.CONFIGS)
def test_models_of_images_write_text(name, tmp_path):
    module, prompt = images.build(name), tiny.random_tokens(6, 3) * 2
    module.save_pretrained(tmp_path)
    stock = module.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, 12:].tolist()
    for source in (tmp_path, module):
        decoder = drafttree.load(source, "lookup", dtype="float32", tokenizer=words("a"))
        for each in (decoder, decoder.plain()):
            assert each.generate(prompt, max_new_tokens=12).tokens == stock


def test_bars_of_transformers_are_shown_to_those_who_ask_for_them(folder, monkeypatch, capfd):
    monkeypatch.setattr(transformers_logging, "_tqdm_active", True)
    before = transformers_logging.get_verbosity()
    for disabled, verbosity, shown in ((None, before, False), (False, before, True), (None, "info", True)):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", disabled)
        getattr(transformers_logging, f"set_verbosity_{verbosity}", lambda: None)()
        try:
            drafttree.load(folder, folder, dtype="float32")
            inspect(str(folder))
        finally:
            transformers_logging.set_verbosity(before)
        assert ("Loading weights" in capfd.readouterr().err) is shown
        assert transformers_logging.is_progress_bar_enabled()
    monkeypatch.setattr(transformers_logging, "_tqdm_active", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", False)
    drafttree.load(folder, "none", dtype="float32")
    assert "Loading weights" not in capfd.readouterr().err
