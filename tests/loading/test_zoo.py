"""The embedded models are what the documentation says they are, and load as any published ones do."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import drafttree
from drafttree import Metrics
from drafttree.drafters.formats.checkpoints import read_tensors
from drafttree.errors import ModelError
from drafttree.loading import load_tokenizer, zoo
from drafttree.measure.prompt_sets import shipped_prompts

LIMIT = 36 * 10**6
TEXTS = [
    "The old man looked at the sea.\n\n  Two spaces, a tab\t and naïve café 東京 🙂",
    "def f(x):\n    return x  # <unk>\n",
]
DRAFTING = [name for name in zoo.NAMES if name != "embedded"]


@pytest.mark.parametrize("name", zoo.MODELS)
def test_both_models_load_with_every_weight(name):
    _, info = AutoModelForCausalLM.from_pretrained(zoo.folder(name), output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_weights_are_bfloat16_and_finite(name):
    tensors = read_tensors(zoo.folder(name))
    for key, tensor in tensors.items():
        assert tensor.dtype == torch.bfloat16, key
        assert tensor.isfinite().all(), key


def test_the_target_is_deep_and_the_draft_is_small():
    models = {name: AutoModelForCausalLM.from_pretrained(zoo.folder(name)) for name in zoo.MODELS}
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


def test_heads_store_nothing_of_the_target():
    target = {tensor.shape for tensor in read_tensors(zoo.folder("embedded")).values() if len(tensor) == 4096}
    for name in zoo.HEADS:
        assert not target & {tensor.shape for tensor in read_tensors(zoo.folder(name)).values()}, name


def test_one_lossless_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(zoo.folder("embedded"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_draft_model_shares_the_tokenizer_which_is_shipped_once():
    assert len([*Path(zoo.__file__).parent.rglob("tokenizer.json")]) == 1
    vocabulary = AutoTokenizer.from_pretrained(zoo.folder("embedded")).get_vocab()
    draft = AutoModelForCausalLM.from_pretrained(zoo.folder("embedded-draft"))
    for source in ("embedded-draft", zoo.folder("embedded-draft"), draft):
        assert load_tokenizer(source).get_vocab() == vocabulary


@pytest.fixture(scope="module")
def greedy() -> dict[str, Metrics]:
    """Every drafter with the same tree, over the same texts, which come out the same with all of them."""
    texts, metrics = {}, {}
    for name in ("none", *DRAFTING):
        decoder = drafttree.load("embedded", name, "fixed:depth=3,breadth=2,threshold=0", dtype="float32")
        runs = [decoder.generate(prompt, max_new_tokens=40) for prompt in shipped_prompts()[::4]]
        texts[name], metrics[name] = [run.tokens for run in runs], Metrics.total(run.metrics for run in runs)
    assert all(text == texts["none"] for text in texts.values())
    return metrics


@pytest.mark.slow
def test_heads_draft_better_the_more_they_read(greedy):
    tau = {name: metrics.mean_accepted_tokens for name, metrics in greedy.items()}
    assert 1 == tau["none"] < tau["embedded-medusa"] < tau["embedded-hydra"] < tau["embedded-eagle3"]
    assert tau["embedded-draft"] < tau["embedded-eagle3"]


def test_a_head_is_no_target():
    with pytest.raises(ModelError, match=r"is a drafter \(eagle3\), not a model"):
        drafttree.load("embedded-eagle3")


def test_the_model_cards_are_there():
    card = (Path(zoo.__file__).parent / "MODEL_CARD.md").read_text()
    for fact in ("tokens seen", "bits per byte", "mean accepted tokens", "CC-BY-SA", "loop"):
        assert fact in card
    card = (Path(zoo.__file__).parent / "HEADS.md").read_text()
    for fact in (*zoo.HEADS, "tokens", "mean accepted tokens", "cc-by-sa"):
        assert fact in card


def test_a_missing_file_is_named(monkeypatch):
    monkeypatch.setitem(zoo.NAMES, "embedded", "nowhere")
    with pytest.raises(ModelError, match="reinstall"):
        zoo.folder("embedded")
