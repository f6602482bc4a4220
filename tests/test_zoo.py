"""The embedded pair is what the documentation says it is, and loads as any Hugging Face model does."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from drafttree import zoo
from drafttree.errors import ModelError

LIMIT = 24 * 2**20
TEXTS = [
    "The old man looked at the sea.\n\n  Two spaces, a tab\t and naïve café 東京 🙂",
    "def f(x):\n    return x  # <unk>\n",
]


@pytest.fixture(scope="module", params=list(zoo.NAMES))
def name(request) -> str:
    return request.param


def test_both_models_load_with_every_weight(name):
    _, info = AutoModelForCausalLM.from_pretrained(zoo.folder(name), output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_weights_are_bfloat16_and_finite(name):
    for key, tensor in load_file(zoo.folder(name) / "model.safetensors").items():
        assert tensor.dtype == torch.bfloat16, key
        assert tensor.isfinite().all(), key


def test_the_target_is_deep_and_the_draft_is_small():
    models = {name: AutoModelForCausalLM.from_pretrained(zoo.folder(name)) for name in zoo.NAMES}
    sizes = {name: sum(weight.numel() for weight in model.parameters()) for name, model in models.items()}
    layers = {name: model.config.num_hidden_layers for name, model in models.items()}
    assert layers["embedded"] >= 12
    assert sizes["embedded"] >= 10_000_000
    assert layers["embedded-draft"] <= 2
    assert sizes["embedded-draft"] < 1_200_000
    assert all(model.config.max_position_embeddings >= 2048 for model in models.values())


def test_the_files_are_small_enough_to_ship():
    files = [file for name in zoo.NAMES for file in zoo.folder(name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= LIMIT


def test_one_lossless_tokenizer():
    target, draft = (AutoTokenizer.from_pretrained(zoo.folder(name)) for name in zoo.NAMES)
    assert target.get_vocab() == draft.get_vocab()
    for text in TEXTS:
        assert target.decode(target(text)["input_ids"]) == text


def test_the_model_card_is_there():
    card = (Path(zoo.__file__).parent / "MODEL_CARD.md").read_text()
    for fact in ("tokens seen", "bits per byte", "mean accepted tokens", "CC-BY-SA", "loop"):
        assert fact in card


def test_a_missing_file_is_named(monkeypatch):
    monkeypatch.setitem(zoo.NAMES, "embedded", "nowhere")
    with pytest.raises(ModelError, match="reinstall"):
        zoo.folder("embedded")
