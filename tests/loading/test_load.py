"""Names, paths and objects become decoders, or one line that says what is wrong and what to do."""

import json

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

import drafttree
from drafttree import Decoder
from drafttree.drafters import (
    LOOKUPS,
    LanguageModelDrafter,
    MixedDrafter,
    PromptLookupDrafter,
)
from drafttree.errors import ConfigError, ContextError, ModelError, TokenizerMismatch
from drafttree.loading import (
    choose_drafter,
    find_device,
    find_dtype,
    find_verifier,
    make_policy,
    zoo,
)
from drafttree.models import TargetModel
from drafttree.verifiers import VERIFIERS
from helpers import checkpoints
from helpers.checkpoints import FORMATS
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import words

CPU = torch.device("cpu")


def test_a_limit_of_the_context_holds_for_prompts_and_texts():
    decoder = drafttree.load(drafter="none", max_model_len=20)
    assert len(decoder.generate([5] * 12, max_new_tokens=8, ignore_eos=True).tokens) == 8
    assert "exceed the model's context of 20" in told(ContextError, decoder.generate, [5] * 12, max_new_tokens=9)
    assert "leaves no room" in told(ContextError, decoder.generate, [5] * 20)
    decoder.target.module.lm_head.register_forward_hook(lambda *_: None)
    decoder.generate([5], max_new_tokens=1)  # looks at the model anew
    assert "context of 20" in told(ContextError, decoder.generate, [5] * 12, max_new_tokens=9)


@pytest.mark.parametrize(("tokens", "message"), [(1, "at least 2"), ("9", "at least 2"), (4096, "context is 2048")])
def test_a_context_that_the_model_does_not_have_is_refused(tokens, message):
    assert message in told(ConfigError, drafttree.load, drafter="none", max_model_len=tokens)


def resized(vocab: int, seed: int = 0) -> PreTrainedModel:
    return tiny.from_config(LlamaConfig(**{**tiny.GROUPED, "vocab_size": vocab}), seed)


def test_devices_and_dtypes_have_names():
    assert find_device("cpu") == CPU
    assert find_dtype("bfloat16", CPU) is torch.bfloat16
    assert find_dtype("auto", CPU) in (torch.float32, torch.bfloat16)
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "meta", ""])
def test_devices_that_are_not_there_are_told(name):
    message = told(ConfigError, find_device, name)
    assert f"device {name!r} is not available" in message
    assert "cpu" in message


def test_dtypes_that_do_not_exist_are_told():
    assert "did you mean 'float16'" in told(ConfigError, find_dtype, "flaot16", CPU)


def test_dtypes_and_verifiers_may_be_the_things_themselves():
    assert find_dtype(torch.float16, CPU) == torch.float16
    assert find_verifier(VERIFIERS["rrsw"]) is VERIFIERS["rrsw"]
    assert find_verifier(None) is None


@pytest.mark.parametrize(
    "option", [{"dtype": None}, {"dtype": torch.int8}, {"device": None}, {"verifier": 5}, {"drafter": False}]
)
def test_options_of_other_types_are_told(option):
    told(ConfigError, drafttree.load, tiny.build("llama"), **option)


def test_a_loaded_target_keeps_its_dtype_and_device(monkeypatch):
    module = tiny.build("llama")
    message = told(ConfigError, drafttree.load, module, "none", dtype="bfloat16")
    assert "the target is in torch.float32, not in 'bfloat16'" in message
    monkeypatch.setattr("drafttree.loading.placement.find_dtype", lambda *_: torch.float16)
    assert drafttree.load(module, "none").target.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "meant"), [("lokup", "lookup"), ("sufix", "suffix"), ("embedded-draf", "embedded-draft")]
)
def test_misspelt_drafters_are_told_before_the_target_is_loaded(name, meant, monkeypatch):
    monkeypatch.setattr("drafttree.loading.pretrained.read_model", lambda *_: pytest.fail("loaded"))
    message = told(ModelError, drafttree.load, drafter=name)
    assert message.startswith(f"unknown drafter {name!r}; did you mean {meant!r}")


@pytest.mark.parametrize("names", [("", "lookup"), ("embedded", ""), ("embedded", "mixed:")])
def test_empty_names_are_told(names):
    assert "the name of a model is empty" in told(ModelError, drafttree.load, *names)


def test_a_mismatch_leaves_a_loaded_drafter_as_it_was(folder, tmp_path_factory):
    draft = tiny.build("llama", seed=2)
    draft.name_or_path = str(folder)
    before = draft.config._attn_implementation
    words("x", "y", "z").save_pretrained(folder)
    with pytest.raises(TokenizerMismatch):
        drafttree.load(tiny.build("llama"), draft, tokenizer=words("a", "b", "c"))
    assert draft.config._attn_implementation == before


def test_a_loaded_model_of_a_folder_without_tokenizer_says_what_to_do(tmp_path):
    tiny.build("llama").save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    message = told(ModelError, drafttree.load, model, "lookup")
    assert message == (
        f"cannot load the tokenizer of {str(tmp_path)!r}: there are no files of one beside it, or not all of them "
        "(tokenizer.json); save one beside the model (tokenizer.save_pretrained) or pass tokenizer="
    )
    assert drafttree.load(model, "lookup", tokenizer=words("a", "b", "c")).target.module is model


def test_a_drafter_needs_no_tokenizer_of_its_own(folder, tmp_path):
    tiny.build("llama", seed=2).save_pretrained(tmp_path)
    assert drafttree.load(folder, tmp_path).drafter


@pytest.mark.parametrize("target", [None, 123, torch.nn.Linear(2, 2), LlamaConfig])
def test_targets_of_other_types_are_told_without_a_network(target, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("connected"))
    message = told(ConfigError, drafttree.load, target)
    assert f"the target is of type {type(target).__name__}; give an embedded name, a folder" in message


def test_options_are_checked_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr("drafttree.loading.pretrained.read_model", lambda *_: pytest.fail("loaded"))
    for option in ({"policy": "no"}, {"verifier": "no"}, {"dtype": "no"}, {"device": "no"}):
        told(ConfigError, drafttree.load, **option)


def test_missing_files_of_the_embedded_pair(monkeypatch):
    monkeypatch.setattr(zoo, "NAMES", dict.fromkeys(zoo.NAMES, "gone"))
    assert "missing from this installation; reinstall" in told(ModelError, drafttree.load)


def test_a_folder_loads_and_decodes_as_the_model_it_was_saved_from(folder):
    prompt = tiny.random_tokens(5, 2)
    decoder = drafttree.load(folder, folder, "talon", dtype="float32", device="cpu")
    stock = tiny.build("llama").generate(torch.tensor([prompt]), max_new_tokens=12)[0, 5:].tolist()
    assert decoder.generate(prompt, max_new_tokens=12).tokens == stock
    assert decoder.tokenizer.get_vocab() == {"a": 0, "b": 1, "c": 2}


def test_loaded_models_pass_as_they_are():
    target = tiny.build("llama").train()
    decoder = drafttree.load(target, tiny.build("qwen3"), device="cpu")
    assert decoder.target.module is target
    assert not target.training
    assert decoder.tokenizer is None


def test_folder_without_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "pass tokenizer=" in told(ModelError, drafttree.load, folder)
    assert drafttree.load(folder, tokenizer=words("a")).tokenizer is not None


@pytest.mark.parametrize("drafter", ["none", None])
def test_no_drafter(folder, drafter):
    assert drafttree.load(folder, drafter).drafter is None


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookup_drafters_have_names_and_fit_the_target(folder, name):
    decoder = drafttree.load(folder, name, "talon", dtype="float32", device="cpu")
    assert type(decoder.drafter) is LOOKUPS[name]
    assert (decoder.drafter.vocab_size, decoder.drafter.device) == (tiny.VOCAB, CPU)
    prompt = tiny.random_tokens(5, 2) * 3
    stock = tiny.build("llama").generate(torch.tensor([prompt]), max_new_tokens=12)[0, 15:].tolist()
    assert decoder.generate(prompt, max_new_tokens=12).tokens == stock


def test_a_mixed_drafter_has_the_model_it_names(folder):
    drafter = drafttree.load(folder, f"mixed:{folder}", device="cpu").drafter
    assert isinstance(drafter, MixedDrafter)
    assert isinstance(drafter.model, LanguageModelDrafter)
    assert drafter.vocab_size == tiny.VOCAB
    assert "model folder './nowhere' does not exist" in told(ModelError, drafttree.load, folder, "mixed:./nowhere")


def test_a_mixed_drafters_tokenizer_is_checked(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    tiny.build("llama").save_pretrained(other)
    words("z", "x", "y").save_pretrained(other)
    assert "token 0 is 'a'" in told(TokenizerMismatch, drafttree.load, folder, f"mixed:{other}")


def test_auto_takes_the_embedded_head_behind_lookup_or_else_lookup(folder):
    assert choose_drafter("embedded").name == "mixed:embedded-eagle3"
    assert isinstance(drafttree.load().drafter, MixedDrafter)
    for target in (folder, str(folder), tiny.build("llama")):
        assert choose_drafter(target).name == "lookup"
        assert isinstance(drafttree.load(target, device="cpu").drafter, PromptLookupDrafter)
    assert str(folder) in choose_drafter(folder).reason


def test_embedded_pair_is_the_default_and_loads_in_every_dtype():
    for dtype in ("float32", "bfloat16"):
        decoder = drafttree.load(dtype=dtype, device="cpu")
        assert decoder.target.dtype is decoder.drafter.model.modules[0].fc.weight.dtype is getattr(torch, dtype)
        assert len(decoder.generate("It was", max_new_tokens=4, ignore_eos=True).tokens) == 4
    assert drafttree.load(drafter="none").drafter is None


@pytest.mark.parametrize(("ids", "expected"), [([7, 9], (7, 9)), (5, (5,)), (None, (2,))])
def test_eos_ids_come_from_the_generation_config_or_else_the_tokenizer(folder, ids, expected):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    tokenizer = words("a", "b", "c")
    tokenizer.eos_token = "c"
    assert drafttree.load(folder, tokenizer=tokenizer).eos == expected


def test_mismatch_shows_the_first_differing_token(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    tiny.build("llama").save_pretrained(other)
    words("z", "x", "y").save_pretrained(other)
    message = told(TokenizerMismatch, drafttree.load, folder, other)
    assert "token 0 is 'a' for the target and 'z' for the drafter" in message


@pytest.mark.few(3)
@pytest.mark.parametrize("vocab", [80, 120])
@pytest.mark.parametrize("policy", ["talon", "chain", "dynatree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_of_another_padded_size_changes_nothing(vocab, policy, temperature):
    drafter = LanguageModelDrafter(TargetModel(resized(vocab, 1)))
    decoder = Decoder(TargetModel(tiny.build("llama")), drafter, make_policy(policy))
    prompt = [3, 96, 95, 81, 96]
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 4}
    assert decoder.generate(prompt, **options).tokens == decoder.plain().generate(prompt, **options).tokens


def test_heads_that_do_not_fit_are_refused_by_name_and_leave_the_target_alone(tmp_path):
    target, folder = checkpoints.target(vocab=31), FORMATS["SafeAILab"].write(tmp_path)
    before = target.config._attn_implementation
    message = told(ModelError, drafttree.load, target, folder, device="cpu")
    assert message.startswith(f"cannot load drafter {str(folder)!r}: this EAGLE-3 head was made for")
    assert target.config._attn_implementation == before


def test_auto_takes_what_was_published_for_the_target(monkeypatch):
    had = []
    monkeypatch.setattr("drafttree.loading.drafters.download", had.append)
    name, reason = choose_drafter("meta-llama/Llama-3.1-8B-Instruct")
    assert name == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    assert reason == "it was published for meta-llama/Llama-3.1-8B-Instruct"
    target = tiny.build("llama")
    target.config._name_or_path = target.name_or_path = "Qwen/Qwen3-8B"
    assert choose_drafter(target).name == "AngelSlim/Qwen3-8B_eagle3"
    assert had == ["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "AngelSlim/Qwen3-8B_eagle3"]


def test_what_auto_stands_for_is_logged(caplog):
    drafttree.load(tiny.build("llama"), tokenizer=None)
    (told,) = [record for record in caplog.records if record.name == "drafttree"]
    assert told.levelname == "WARNING"
    assert told.getMessage().startswith("drafter: lookup (no model is known to draft for this target; ")


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["embedded", "mixed:embedded"])
def test_a_drafter_that_is_no_smaller_than_the_target_is_warned_of(drafter, caplog):
    for target, drafts, warned in (("embedded", drafter, 1), ("embedded-draft", drafter, 1), ("embedded", "lookup", 0)):
        caplog.clear()
        drafttree.load(target, drafts, "chain", dtype="float32")
        assert caplog.text.count("it cannot make the text faster; name a smaller drafter, or 'lookup'") == warned
    caplog.clear()
    decoder = drafttree.load("embedded", "mixed:embedded-draft", "chain", dtype="float32")
    assert caplog.text == ""
    decoder.with_drafter(drafter)
    assert "the drafter has 10.1 million parameters and the target 10.1" in caplog.text


@pytest.mark.parametrize("name", ["mixed:none", "mixed:lookup", "mixed:auto"])
def test_mixed_needs_a_model(name):
    assert "is not a model; give an embedded name" in told(ModelError, drafttree.load, "embedded", name)


def test_auto_takes_lookup_where_no_other_drafter_is_to_be_had(monkeypatch):
    assert choose_drafter("embedded").name == "mixed:embedded-eagle3"
    assert choose_drafter("some/model").name == "lookup"
    assert "no model is known to draft for some/model" in choose_drafter("some/model").reason
    assert "no model is known to draft for this target" in choose_drafter(tiny.build("llama")).reason
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name, reason = choose_drafter("qwen/qwen3-8b")
    assert name == "lookup"
    assert "cannot download 'AngelSlim/Qwen3-8B_eagle3'" in reason


def test_assistants_of_unknown_kinds_are_refused_as_objects(monkeypatch):
    target, drafter = tiny.build("gpt_neox"), tiny.build("llama")
    monkeypatch.setattr(LlamaConfig, "model_type", "strange_assistant")
    message = told(ModelError, drafttree.load, target, drafter)
    assert "the drafter is an assistant of an unknown kind, which is not supported" in message


@pytest.mark.parametrize(
    ("family", "field", "place"),
    [("llama", "num_hidden_layers", "model.layers"), ("gpt2", "n_layer", "transformer.h")],
)
def test_a_config_with_fewer_layers_than_the_files_is_refused_by_name(tmp_path, family, field, place):
    model = tiny.build(family)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    held = config[field]
    (tmp_path / "config.json").write_text(json.dumps(config | {field: held - 1}))
    assert told(ModelError, drafttree.load, tmp_path, "none") == (
        f"the weights of '{tmp_path}' do not fit its config.json: {place} has {held} entries in the files, and "
        f"{field} is {held - 1}; correct it, or save the pruned model again"
    )
