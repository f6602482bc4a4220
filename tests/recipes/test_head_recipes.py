"""Recipes for heads: gradients equal plain autograd, runs resume, their files load, bad corpora are refused."""

import gzip
import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig

from drafttree import Decoder
from drafttree.drafters.formats import FORMATS, read_config, read_tensors, recognise
from drafttree.models import TargetModel
from drafttree.policies import Talon
from helpers import trained
from helpers.toy_run import SIZES, stop, train
from testing import tiny

KINDS = {
    "medusa": ("medusa",),
    "medusa, two blocks, own projection": ("medusa", "--layers", "2", "--own-projection"),
    "hydra": ("hydra",),
    "hydra++": ("hydra", "--prefix", "--layers", "2"),
    "hydra++, own projection": ("hydra", "--prefix", "--own-projection"),
}
LOADERS = {"medusa": FORMATS["medusa"].load, "hydra": FORMATS["hydra"].load}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def made(kind, target: Path, data: Path, out: Path):
    """A run that has not begun, with random heads so that every gradient shows."""
    train(kind, target, data, out, "--tokens", "64")
    name, *own = kind
    recipe_heads, recipe = importlib.import_module("heads"), importlib.import_module(name)
    module = AutoModelForCausalLM.from_pretrained(target).requires_grad_(False)
    parser = recipe_heads.parser("")
    parser.add_argument("--prefix", action="store_true")
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    options = parser.parse_args([*places, *SIZES, *own, "--decay", "0.5"])
    objective = {"medusa": "MedusaObjective", "hydra": "HydraObjective"}[name]
    objective = getattr(recipe, objective)(module, options)
    generator = torch.Generator().manual_seed(2)
    for parameter in objective.heads.parameters():
        parameter.data.normal_(0, 0.2, generator=generator)
    return recipe_heads.HeadRun(module, objective, None, options)


@pytest.mark.few(1)
@every_kind
def test_files_are_of_the_public_format_and_load_back(kind, target, data, tmp_path):
    train(kind, target, data, tmp_path)
    final = tmp_path / "final"
    module = AutoModelForCausalLM.from_pretrained(target)
    assert recognise(final) == kind[0]
    drafter = LOADERS[kind[0]](read_tensors(final), read_config(final), module)
    assert drafter.levels == 3
    decoder = Decoder(TargetModel(module), drafter, Talon(width=3, budget=8))
    out = decoder.generate(trained.PROMPT, max_new_tokens=12).tokens
    assert out == decoder.plain().generate(trained.PROMPT, max_new_tokens=12).tokens


@every_kind
def test_the_targets_own_parts_are_stored_only_where_they_are_trained(kind, target, data, tmp_path):
    train(kind, target, data, tmp_path)
    tall = {name for name, tensor in read_tensors(tmp_path / "final").items() if len(tensor) == tiny.VOCAB}
    ends = {"medusa": ".weight", "hydra": "hydra_lm_head"}[kind[0]]
    assert bool(tall) == ("--own-projection" in kind)
    assert all(ends in name or name == "input_embed_fn.weight" for name in tall)


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_files_say_which_target_they_are_for(kind, target, data, tmp_path):
    train((kind,), target, data, tmp_path)
    config = read_config(tmp_path / "final")
    sizes = {"vocab_size": tiny.VOCAB, "hidden_size": tiny.SIZES["hidden_size"], "base_num_hidden_layers": tiny.LAYERS}
    assert sizes.items() <= config.items()


@every_kind
def test_losses_and_gradients_are_those_of_plain_autograd(kind, target, data, tmp_path):
    """Head k at t against the target's distribution at t + 1 + k, by whole tensors, from the logits of transformers."""
    run = made(kind, target, data, tmp_path)
    heads, length, levels = run.heads, 16, 3
    inputs = torch.tensor([tiny.random_tokens(length, seed) for seed in (1, 2)])
    losses = run._forward_backward(inputs)
    found = {name: parameter.grad.clone() for name, parameter in heads.named_parameters()}
    heads.zero_grad(set_to_none=True)

    out = run.target(input_ids=inputs, output_hidden_states=True)
    hidden, answers = out.hidden_states[-1], out.logits.softmax(-1)
    embedded, count = run.target.get_input_embeddings()(inputs), length - levels
    context = hidden if kind[0] == "medusa" else heads.context(hidden)
    total = 0
    for level in range(levels):
        parts = [context[:, :count], *(embedded[:, 1 + ahead : 1 + ahead + count] for ahead in range(level + 1))]
        said = heads[level](parts[0]) if kind[0] == "medusa" else heads(level, torch.cat(parts, -1))
        logits = said if "--own-projection" in kind else run.target.lm_head(said)
        answer = answers[:, 1 + level : 1 + level + count]
        nats = -(answer * logits.log_softmax(-1)).sum()
        total = total + 0.5**level * nats / (2 * count)
        torch.testing.assert_close(losses.nats[level], nats.detach(), atol=1e-3, rtol=1e-4)
        assert losses.agreeing[level] == (answer.argmax(-1) == logits.argmax(-1)).sum()
    total.backward()
    assert losses.positions == 2 * count
    for name, parameter in heads.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3, msg=name)


SCALED = {
    "granite": (GraniteConfig(**tiny.GROUPED, logits_scaling=8.0), lambda logits: logits / 8),
    "cohere": (CohereConfig(**tiny.GROUPED, logit_scale=0.0625), lambda logits: logits / 16),
    "gemma2": (
        Gemma2Config(**tiny.GROUPED, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=2.0),
        lambda logits: 2 * torch.tanh(logits / 2),
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_heads_of_a_target_that_scales_its_logits_learn_its_own_probabilities(name, target, data, tmp_path):
    config, scaled = SCALED[name]
    shutil.copytree(target, tmp_path / "target")
    tiny.from_config(config).save_pretrained(tmp_path / "target")
    run = made(KINDS["medusa"], tmp_path / "target", data, tmp_path / "out")
    inputs = torch.tensor([tiny.random_tokens(16, 1)])
    losses = run._forward_backward(inputs)
    with torch.no_grad():
        out = run.target(input_ids=inputs, output_hidden_states=True)
        for level in range(3):
            logits = scaled(run.target.lm_head(run.heads[level](out.hidden_states[-1][:, :13])))
            answer = out.logits.softmax(-1)[:, 1 + level : 14 + level]
            nats = -(answer * logits.log_softmax(-1)).sum()
            torch.testing.assert_close(losses.nats[level], nats, atol=1e-3, rtol=1e-4)


@pytest.mark.few(2)
@every_kind
def test_training_lowers_the_loss(kind, target, data, tmp_path):
    run = made(kind, target, data, tmp_path)
    run.windows = importlib.import_module("windows").Windows((np.arange(2000) % 50).astype(np.uint16))
    plan = importlib.import_module("schedule").Plan(layers=1, tokens=64, length=16, rate=1.0)
    losses = [sum(run.update(plan).means()["loss"]) for _ in range(20)]
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [("medusa",), ("hydra", "--prefix")], ids=["medusa", "hydra++"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(kind, target, data, tmp_path, monkeypatch, capsys):
    train(kind, target, data, tmp_path / "whole")
    stop(monkeypatch, 2, 5)
    for _ in range(2):
        with pytest.raises(SystemExit, match="goes on from there"):
            train(kind, target, data, tmp_path / "parts")
        assert not (tmp_path / "parts/final").exists()
    train(kind, target, data, tmp_path / "parts")
    assert "resumed at step 5" in capsys.readouterr().out
    whole, parts = (read_tensors(tmp_path / name / "final") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=1e-2, rtol=1e-2, msg=name)
    train(kind, target, data, tmp_path / "parts")
    assert "is there already" in capsys.readouterr().out


def test_a_line_of_progress_says_how_long_it_will_take(target, data, tmp_path, capsys):
    train(("medusa",), target, data, tmp_path)
    out = capsys.readouterr().out
    assert "exported final at step 10, 640 tokens\n" in out
    line = next(line for line in out.splitlines() if "minutes left" in line)
    assert all(word in line for word in ("step 10", "tokens 640", "progress 1.0", "loss [", "agreement [", "speed"))


def written(name: str, content: bytes):
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


CORPORA = {
    "nothing": (lambda folder: None, "holds no text"),
    "an empty file": (written("a.txt", b" \n"), "holds no text"),
    "other files": (written("a.pdf", b"text"), r"holds no text; expected files named \*.txt"),
    "a broken archive": (written("a.jsonl.gz", gzip.compress(b'{"text": "w1"}' * 99)[:-9]), "cannot read .*a.jsonl.gz"),
    "no archive": (written("a.txt.gz", b"plain"), "cannot read .*a.txt.gz"),
    "no JSON": (written("a.jsonl", b"plain"), "cannot read .*a.jsonl"),
    "no text in it": (written("a.jsonl", b'{"body": "w1"}'), r'a.jsonl: line 1 is not .*: {"body": "w1"}'),
    "a number": (written("a.jsonl", b'{"text": "w1"}\n{"text": 5}'), r'a.jsonl: line 2 is not .*: {"text": 5}'),
    "null": (written("a.jsonl", b"null"), r'a.jsonl: line 1 is not of the form {"text": "..."}: null'),
    "not UTF-8": (written("a.txt", b"\xff\xfe\x00"), "cannot read .*a.txt"),
    "too short": (written("a.txt", b"w1 w2 w3"), "holds 4 tokens, a step needs 96"),
}


@pytest.mark.parametrize(("write", "reason"), CORPORA.values(), ids=CORPORA)
def test_a_corpus_that_cannot_be_used_is_one_clear_line(write, reason, target, tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    with pytest.raises(SystemExit, match=f"^medusa: .*{reason}"):
        train(("medusa",), target, tmp_path / "data", tmp_path / "out")


def test_a_corpus_or_target_that_is_not_there_is_one_clear_line(target, data, tmp_path):
    with pytest.raises(SystemExit, match="nowhere does not exist; give a file or folder of text"):
        train(("hydra",), target, tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(SystemExit, match="model folder '/nowhere' does not exist"):
        train(("hydra",), Path("/nowhere"), data, tmp_path / "other")


def test_sizes_that_do_not_go_together_are_refused(target, data, tmp_path):
    with pytest.raises(SystemExit, match="--length 3 must lie between --heads 3 and --batch 64"):
        train(("medusa",), target, data, tmp_path, "--length", "3")
