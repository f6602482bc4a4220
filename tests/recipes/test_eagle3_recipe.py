"""The EAGLE-3 recipe: what it learns is what drafting does, and runs stop, cache, go on, and load back."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, Qwen3Config

from drafttree import Decoder
from drafttree.drafters.formats import eagle3 as eagle3_format
from drafttree.drafters.formats import read_config, read_tensors, recognise
from drafttree.loading.inspect import inspect
from drafttree.models import TargetModel
from drafttree.policies import Talon
from helpers import trained
from helpers.toy_run import SIZES, stop, train
from testing import tiny

KINDS = {
    "plain": (),
    "own projection": ("--own-projection",),
    "reduced vocabulary": ("--draft-vocab", "40"),
    "reduced vocabulary, own projection, two layers": ("--draft-vocab", "40", "--own-projection", "--layers", "2"),
}
every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
KIND = ("eagle3", "--mlp", "24")


def made(options, target: Path, data: Path, out: Path):
    """A run that has not begun, with random weights so that every gradient shows."""
    train((*KIND, *options), target, data, out, "--tokens", "64")
    recipe = importlib.import_module("eagle3")
    module = AutoModelForCausalLM.from_pretrained(target).requires_grad_(False)
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    chosen = recipe.eagle3_parser().parse_args([*places, *SIZES, *KIND[1:], *options, "--decay", "0.5"])
    objective = recipe.Eagle3Objective(module, chosen)
    generator = torch.Generator().manual_seed(2)
    for parameter in objective.heads.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.2, generator=generator)
    return importlib.import_module("heads").HeadRun(module, objective, None, chosen)


def loaded(folder: Path, target: Path):
    module = AutoModelForCausalLM.from_pretrained(target)
    return module, eagle3_format.FORMAT.load(read_tensors(folder), read_config(folder), module)


@pytest.mark.few(1)
@every_kind
def test_files_are_of_the_public_format_and_load_back(options, target, data, tmp_path):
    train((*KIND, *options), target, data, tmp_path)
    final = tmp_path / "final"
    assert recognise(final) == "eagle3"
    stored = read_tensors(final)
    assert ("lm_head.weight" in stored) == ("--own-projection" in options)
    assert "embed_tokens.weight" not in stored
    assert ("d2t" in stored) == ("--draft-vocab" in options)
    module, drafter = loaded(final, target)
    assert drafter.hidden_layers == (2, 1, 0)
    decoder = Decoder(TargetModel(module), drafter, Talon(width=3, budget=8))
    out = decoder.generate(trained.PROMPT, max_new_tokens=12).tokens
    assert out == decoder.plain().generate(trained.PROMPT, max_new_tokens=12).tokens


def test_the_draft_vocabulary_is_what_the_text_has_most_of(target, data, tmp_path):
    train((*KIND, "--draft-vocab", "20"), target, data, tmp_path)
    drafter = loaded(tmp_path / "final", target)[1]
    counts = np.bincount(np.load(tmp_path / "tokens.npy"), minlength=tiny.VOCAB)
    chosen = drafter.modules[0].target_ids.numpy()
    assert counts[chosen].min() >= np.delete(counts, chosen).max()


def test_files_are_of_the_format_the_recipe_says(target, data, tmp_path):
    train(KIND, target, data, tmp_path)
    found = inspect(str(tmp_path / "final")).details["format"]
    assert f"{found}'s format" in importlib.import_module("eagle3").__doc__


@pytest.mark.parametrize("options", [(), ("--draft-vocab", "40")])
def test_a_full_export_has_what_other_programs_ask_for(options, target, data, tmp_path):
    """SafeAILab's cnets.py, SGLang and vLLM (llama_eagle3.py) need a projection in the file and take the target's
    embedding, SafeAILab's only if there is no target_hidden_size; its heads are as wide as their number divides."""
    qwen = tmp_path / "qwen"
    shutil.copytree(target, qwen, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    tiny.from_config(Qwen3Config(**tiny.GROUPED, head_dim=12)).save_pretrained(qwen)
    train((*KIND, "--export", "full", *options), qwen, data, tmp_path / "out")
    final = tmp_path / "out/final"
    stored, config = read_tensors(final), read_config(final)
    module, drafter = loaded(final, qwen)
    ids = torch.arange(tiny.VOCAB) if drafter.modules[0].target_ids is None else drafter.modules[0].target_ids
    assert torch.equal(stored["lm_head.weight"], module.lm_head.weight[ids].bfloat16())
    assert "embed_tokens.weight" not in stored
    assert {config[name] for name in ("shared_lm_head", "tie_word_embeddings")} == {False}
    assert "target_hidden_size" not in config
    assert config["head_dim"] * config["num_attention_heads"] == config["hidden_size"] == 32
    assert drafter.hidden_layers == (2, 1, 0)


def test_heads_that_other_programs_do_not_know_are_not_exported_in_full(target, data, tmp_path):
    full = (*KIND, "--export", "full")
    with pytest.raises(SystemExit, match="fill the target's 32; --layers is 2, and the target has 4 attention heads"):
        train((*full, "--layers", "2"), target, data, tmp_path / "a")
    odd = tmp_path / "odd"
    shutil.copytree(target, odd, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    sizes = {**tiny.GROUPED, "hidden_size": 36, "num_attention_heads": 12}
    tiny.from_config(Qwen3Config(**sizes, head_dim=12)).save_pretrained(odd)
    with pytest.raises(SystemExit, match="fill the target's 36; --layers is 1, and the target has 12 attention heads"):
        train(full, odd, data, tmp_path / "b")


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt_neox", "gpt2", "mistral"])
def test_the_final_norm_starts_as_the_targets(name):
    module = tiny.build(name)
    decoder = module.get_decoder()
    norm = next(getattr(decoder, part) for part in ("norm", "final_layer_norm", "ln_f") if hasattr(decoder, part))
    for parameter in norm.parameters():
        parameter.data.normal_(0.5, 0.3, generator=torch.Generator().manual_seed(1))
    expected = norm.weight.data + (name == "gemma3")
    found = importlib.import_module("eagle3").final_norm_scale(module)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_run_starts_with_the_final_norm_of_any_target(target, data, tmp_path):
    qwen = tmp_path / "qwen"
    shutil.copytree(target, qwen, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    module = tiny.from_config(Qwen3Config(**tiny.GROUPED, head_dim=12))
    module.model.norm.weight.data.normal_(0.5, 0.3)
    module.save_pretrained(qwen)
    recipe = importlib.import_module("eagle3")
    places = ("--target", str(qwen), "--data", str(data), "--out", str(tmp_path / "out"))
    train(KIND, qwen, data, tmp_path / "out", "--tokens", "64")
    objective = recipe.Eagle3Objective(module, recipe.eagle3_parser().parse_args([*places, *SIZES, *KIND[1:]]))
    assert torch.equal(objective.heads.norm.weight, module.model.norm.weight)


def test_layers_are_counted_as_the_help_says(capsys):
    with pytest.raises(SystemExit):
        importlib.import_module("eagle3").main(["--help"])
    assert "decoder layers of the head" in " ".join(capsys.readouterr().out.split())


def test_a_target_that_does_not_say_how_wide_its_mlp_is_gets_a_head(target, data, tmp_path):
    gpt2 = tmp_path / "gpt2"
    shutil.copytree(target, gpt2, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    sizes = {name: size for name, size in tiny.SIZES.items() if name != "intermediate_size"}
    tiny.from_config(GPT2Config(**sizes)).save_pretrained(gpt2)
    train(("eagle3",), gpt2, data, tmp_path / "out", "--tokens", "1280")
    assert read_config(tmp_path / "out/final")["intermediate_size"] == 4 * tiny.SIZES["hidden_size"]
    module, drafter = loaded(tmp_path / "out/final", gpt2)
    decoder = Decoder(TargetModel(module), drafter, Talon(width=3, budget=8))
    out = decoder.generate(trained.PROMPT, max_new_tokens=12).tokens
    assert out == decoder.plain().generate(trained.PROMPT, max_new_tokens=12).tokens


@every_kind
def test_every_level_learns_what_it_says_when_it_drafts(options, target, data, tmp_path):
    """The objective's outputs and losses are those of the drafter along the text, level by level, from every start."""
    run = made(options, target, data, tmp_path)
    run.objective.write(tmp_path / "untrained")
    module = run.target
    tensors = {name: tensor.float() for name, tensor in read_tensors(tmp_path / "untrained").items()}
    maps = {name: tensor for name, tensor in read_tensors(tmp_path / "untrained").items() if name in ("d2t", "t2d")}
    for parameter in run.heads.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float() if parameter.requires_grad else parameter.data
    drafter = eagle3_format.FORMAT.load(tensors | maps, read_config(tmp_path / "untrained"), module)
    text = tiny.random_tokens(16, 1)
    losses = run._forward_backward(torch.tensor([text]))
    with torch.no_grad():
        out = module(torch.tensor([text]), output_hidden_states=True)
    states = tuple(out.hidden_states[layer] for layer in drafter.hidden_layers)
    nats, rows = torch.zeros(3), len(text) - 3
    ids = torch.arange(tiny.VOCAB) if drafter.modules[0].target_ids is None else drafter.modules[0].target_ids
    for start in range(1, rows + 1):
        draft = drafter.start(text[: start + 1], 32)
        draft.prefill(tuple(state[:, :start] for state in states), start)
        said = [draft.draft_root()]
        said += [draft.draft_level(torch.tensor([[text[start + level]]]), torch.zeros(1, 1).long()) for level in (1, 2)]
        for level, logits in enumerate(said):
            answer = out.logits[0, start + level]
            if answer.argmax() in ids:
                nats[level] -= (answer[ids].softmax(-1) * logits[0, 0, ids].log_softmax(-1)).sum()
    assert losses.positions == rows
    torch.testing.assert_close(losses.nats, nats, atol=1e-2, rtol=1e-3)


@every_kind
def test_gradients_are_those_of_the_loss(options, target, data, tmp_path):
    """A small step along the gradient lowers the weighted loss by the square of its length."""
    run = made(options, target, data, tmp_path)
    inputs = torch.tensor([tiny.random_tokens(16, seed) for seed in (1, 2)])

    def loss() -> float:
        run.heads.zero_grad(set_to_none=True)
        found = run._forward_backward(inputs)
        return float((found.nats * torch.tensor([1.0, 0.5, 0.25])).sum()) / found.positions

    before = loss()
    learning = [parameter for parameter in run.heads.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in learning)
    steepness = sum(float(parameter.grad.square().sum()) for parameter in learning)
    step = 0.02 / steepness
    for parameter in learning:
        parameter.data -= step * parameter.grad
    assert before - loss() == pytest.approx(step * steepness, rel=0.15)
    assert run.target.lm_head.weight.grad is None


def test_every_level_learns_to_count(target, data, tmp_path):
    run = made(("--rate", "0.1"), target, data, tmp_path)
    run.windows = importlib.import_module("windows").Windows((np.arange(2000) % 50).astype(np.uint16))
    plan = importlib.import_module("schedule").Plan(layers=1, tokens=64, length=16, rate=1.0)
    agreements = [run.update(plan).means()["agreement"] for _ in range(60)]
    assert max(agreements[0]) < 0.1
    assert all(sum(level) / 5 > 0.25 for level in zip(*agreements[-5:], strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("cache", [(), ("--cache",)])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(cache, target, data, tmp_path, monkeypatch):
    train((*KIND, *cache), target, data, tmp_path / "whole")
    stop(monkeypatch, 2, 5)
    for _ in range(2):
        with pytest.raises(SystemExit, match="goes on from there"):
            train((*KIND, *cache), target, data, tmp_path / "parts")
    kept = torch.load(tmp_path / "parts/checkpoint.pt", weights_only=True)["heads"]
    assert not {"embed_tokens.weight", "lm_head.weight"} & kept.keys()
    train((*KIND, *cache), target, data, tmp_path / "parts")
    whole, parts = (read_tensors(tmp_path / name / "final") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=1e-2, rtol=1e-2, msg=name)


def test_cached_features_are_those_computed(target, data, tmp_path):
    train((*KIND, "--cache"), target, data, tmp_path, "--tokens", "1600")
    hidden_states, windows = importlib.import_module("features"), importlib.import_module("features").RepeatedWindows
    module, stream = AutoModelForCausalLM.from_pretrained(target), np.load(tmp_path / "tokens.npy")
    files = sorted((tmp_path / "features").glob("*.safetensors"))
    supply, seen = windows(stream), {}
    for _ in range(2 * len(files)):
        inputs, _ = supply.take(4, 16)
        assert torch.equal(seen.setdefault(supply.number, inputs), inputs)
        last, states = hidden_states.HiddenStates(module, (2, 1, 0), None).compute(inputs, supply)
        kept = load_file(tmp_path / f"features/batch-{supply.number:06d}.safetensors")["states"].float()
        torch.testing.assert_close(kept, torch.stack((last, *states)), atol=0.05, rtol=0.01)
    assert len(files) == supply.batches == len(seen)


def test_targets_and_sizes_that_do_not_do_are_refused(target, data, tmp_path):
    with pytest.raises(SystemExit, match="--draft-vocab 98 must lie between 1 and the target's vocabulary of 97"):
        train((*KIND, "--draft-vocab", "98"), target, data, tmp_path / "a")
    train((*KIND, "--draft-vocab", "40"), target, data, tmp_path / "a")
    shallow = tmp_path / "shallow"
    for file in target.iterdir():
        (shallow / file.name).parent.mkdir(exist_ok=True)
        (shallow / file.name).write_bytes(file.read_bytes())
    config = AutoConfig.from_pretrained(target, num_hidden_layers=2, layer_types=None)
    AutoModelForCausalLM.from_config(config).save_pretrained(shallow)
    with pytest.raises(SystemExit, match="has 2 layers; an EAGLE-3 head reads the states of at least 3"):
        train(KIND, shallow, data, tmp_path / "b")
