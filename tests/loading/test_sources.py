"""Each kind of source becomes its drafter, and what needs no weights is refused before the target's are read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import drafttree
from drafttree.drafters import (
    Drafter,
    LanguageModelDrafter,
    MixedDrafter,
    PromptLookupDrafter,
    SuffixDrafter,
)
from drafttree.errors import ConfigError, ModelError
from drafttree.loading.inspect import inspect
from drafttree.loading.names import drafter_name
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import words

DOTTED = "drafttree.drafters.PromptLookupDrafter"
NAMES = {
    "lookup": PromptLookupDrafter,
    "lookup:max_ngram=3": PromptLookupDrafter,
    "suffix": SuffixDrafter,
    DOTTED: PromptLookupDrafter,
    f"{DOTTED}:max_ngram=3": PromptLookupDrafter,
    f"mixed:{DOTTED}": MixedDrafter,
}


@pytest.fixture
def target(tmp_path) -> Path:
    """A model folder, to load as target."""
    return saved(tmp_path / "target")


@pytest.fixture
def unread(monkeypatch):
    """Fails if weights are read."""
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))


def saved(folder: Path, **changes: object) -> Path:
    """The folder, filled with a small model whose config.json is changed."""
    tiny.build("llama", seed=1).save_pretrained(folder)
    words("a", "b", "c").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def drafter_of(target: object, source: object, **options: object) -> Drafter | None:
    return drafttree.load(target, source, "chain", dtype="float32", **options).drafter


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_a_name_stands_for_its_class_and_is_shown(target, name, kind):
    drafter = drafter_of(target, name)
    assert type(drafter) is kind
    assert drafter_name(drafter) == name


def test_objects_classes_and_loaded_models_stand_for_themselves(target):
    lookup = PromptLookupDrafter(tiny.VOCAB)
    assert drafter_of(target, lookup) is lookup
    assert drafter_name(drafter_of(target, PromptLookupDrafter)) == "PromptLookupDrafter"
    model = tiny.build("llama", seed=1)
    drafter = drafter_of(target, model)
    assert isinstance(drafter, LanguageModelDrafter)
    assert drafter_name(drafter) == "LanguageModelDrafter"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_shown_by_its_last_part(target, tmp_path, kind):
    folder = saved(tmp_path / "draft")
    drafter = drafter_of(target, kind(folder))
    assert isinstance(drafter, LanguageModelDrafter)
    assert drafter_name(drafter) == "draft"
    mixed = drafter_of(target, f"mixed:{folder}")
    assert isinstance(mixed, MixedDrafter)
    assert isinstance(mixed.model, LanguageModelDrafter)
    assert drafter_name(mixed) == "mixed:draft"


def other_tensors(folder: Path, name: str) -> Path:
    folder.mkdir()
    save_file({name: torch.zeros(2, 2)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def encoder_decoder(folder: Path) -> Path:
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=tiny.VOCAB)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


UNUSABLE = {
    "is not a drafter that drafttree knows": lambda folder: other_tensors(folder, "odd.weight"),
    "holds a Domino drafter, which is not supported": lambda folder: other_tensors(folder, "prefix_gru.weight"),
    "holds no weights; expected one of": lambda folder: folder.mkdir() or folder,
    "num_hidden_layers as 100000; it must be between": lambda folder: saved(folder, num_hidden_layers=100000),
    "cannot be verified in a tree: it has encoder-decoder": encoder_decoder,
}


@pytest.mark.parametrize("prefix", ["", "mixed:"])
@pytest.mark.parametrize("reason", UNUSABLE)
@pytest.mark.usefixtures("unread")
def test_a_folder_that_cannot_draft_is_refused_before_weights_are_read(target, tmp_path, reason, prefix):
    folder = UNUSABLE[reason](tmp_path / "draft")
    assert reason in told(ModelError, drafter_of, target, f"{prefix}{folder}")


@pytest.mark.parametrize("prefix", ["", "mixed:"])
@pytest.mark.usefixtures("unread")
def test_own_layers_of_a_gguf_file_are_refused_before_it_is_read(tmp_path, prefix):
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    message = told(ModelError, drafter_of, tmp_path / "some.gguf", f"{prefix}mtp")
    assert message == "'mtp' drafts with layers of the target, which drafttree cannot read from a GGUF file"


@pytest.mark.parametrize("source", ["auto", "none", "lookup", "mtp", "mixed:mtp", DOTTED, PromptLookupDrafter])
@pytest.mark.usefixtures("unread")
def test_what_is_no_language_model_in_files_is_not_quantised(target, source):
    name = source if isinstance(source, str) else "PromptLookupDrafter"
    message = told(ConfigError, drafter_of, target, source, quantize_drafter="int8")
    assert message == f"quantize_drafter='int8' is for a language model that drafts, not {name!r}"


@pytest.mark.parametrize("prefix", ["", "mixed:"])
@pytest.mark.usefixtures("unread")
def test_weights_that_are_quantised_are_not_quantised_again(target, tmp_path, prefix):
    method = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    folder = saved(tmp_path / "draft", quantization_config=method)
    message = told(ModelError, drafter_of, target, f"{prefix}{folder}", quantize_drafter="int8")
    assert message == f"{str(folder)!r} is quantised already (bitsandbytes); leave out quantize"


def test_a_loaded_assistant_is_no_target(monkeypatch):
    model = tiny.build("llama")
    monkeypatch.setattr(type(model.config), "model_type", "gemma4_assistant")
    message = told(ModelError, drafttree.load, model, "./nowhere")
    assert message.startswith("LlamaForCausalLM is a drafter (an assistant), not a model; give it as the drafter, ")


def test_a_loaded_target_is_not_sharded(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = told(ConfigError, drafttree.load, tiny.build("llama"), tensor_parallel_size=2)
    assert message == "tensor_parallel_size=2 is for a target that is loaded by name; give its folder or hub name"


def test_own_layers_need_a_target_that_names_its_files():
    message = told(ModelError, drafttree.load, tiny.build("llama"), "mixed:mtp")
    assert message == (
        "'mtp' drafts with layers from the target's files, and this loaded model does not say where its files are"
    )


def test_own_layers_that_are_not_there_are_told(target):
    message = told(ModelError, drafter_of, target, "mtp")
    assert message.startswith(f"cannot load drafter 'mtp': {target} holds no MTP layers")


@pytest.mark.parametrize("source", ["mixed", "none:x", "mtp:x", "mixed:lookup", f"mixed:{DOTTED}"])
def test_what_stands_for_a_drafter_only_with_others_is_not_inspected(source):
    assert f"{source!r} is not a drafter by itself; inspect a folder" in told(ModelError, inspect, source)


def test_what_a_source_is_decides_what_is_inspected(target):
    assert inspect(tiny.build("llama")).kind == inspect(str(target)).kind == "language-model"
    assert inspect(DOTTED).details["class"] == "drafttree.drafters.lookup.PromptLookupDrafter"


@pytest.mark.usefixtures("unread")
def test_a_call_of_transformers_parses_the_same_sources(target):
    model = LlamaForCausalLM.from_pretrained(target)
    prompt = torch.tensor([tiny.random_tokens(5, 2) * 3])
    stock = model.generate(prompt, max_new_tokens=6)
    for source in (None, "none", "suffix", f"mixed:{DOTTED}", tiny.build("llama", seed=2)):
        ours = drafttree.hf.generate(source, "chain", "greedy")
        assert torch.equal(model.generate(prompt, max_new_tokens=6, custom_generate=ours), stock)
    ours = drafttree.hf.generate("mtp", "chain")
    assert "'mtp' is not a model; give an embedded name" in told(
        ModelError, model.generate, prompt, max_new_tokens=6, custom_generate=ours
    )
