"""The recipes of MTP layers and block drafters: what they learn is what drafting does, and runs stop and load back."""

import importlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafttree import Decoder
from drafttree.drafters.formats import block, mtp, read_config, read_tensors, recognise
from drafttree.models import TargetModel
from drafttree.policies import Talon
from helpers import trained
from helpers.toy_run import SIZES, stop, train
from testing import tiny

DEEP = ("--mask-token", "1", "--states", "1", "--mlp", "24", "--rank", "4", "--blocks", "3")
KINDS = {
    "mtp": ("mtp",),
    "block": ("block", *DEEP),
    "block, gated": ("block", *DEEP, "--transition", "gated"),
    "block, recurrent": ("block", *DEEP, "--transition", "rnn"),
    "block, without transition": ("block", *DEEP, "--rank", "0"),
}
LOADERS = {"mtp": mtp.FORMAT.load, "block": block.FORMAT.load}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def made(kind, target: Path, data: Path, out: Path):
    """A run that has not begun, with random weights so that every part shows."""
    train(kind, target, data, out, "--tokens", "64")
    name, *own = kind
    recipe, recipe_heads = importlib.import_module(name), importlib.import_module("heads")
    module = AutoModelForCausalLM.from_pretrained(target).requires_grad_(False)
    parser = recipe.block_parser() if name == "block" else recipe_heads.parser("")
    places = ("--target", str(target), "--data", str(data), "--out", str(out))
    options = parser.parse_args([*places, *SIZES, *own, "--decay", "0.5"])
    objective = (recipe.BlockObjective if name == "block" else recipe.MtpObjective)(module, options)
    generator = torch.Generator().manual_seed(2)
    for parameter in objective.heads.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.2, generator=generator)
    run = recipe.BlockRun if name == "block" else recipe_heads.HeadRun
    return run(module, objective, None, options)


@pytest.mark.few(1)
@every_kind
def test_files_load_back_and_draft(kind, target, data, tmp_path):
    train(kind, target, data, tmp_path)
    final, module = tmp_path / "final", AutoModelForCausalLM.from_pretrained(target)
    assert recognise(final) == kind[0]
    assert not any(len(tensor) == tiny.VOCAB for name, tensor in read_tensors(final).items() if "markov" not in name)
    drafter = LOADERS[kind[0]](read_tensors(final), read_config(final), module)
    decoder = Decoder(TargetModel(module), drafter, Talon(width=3, budget=8))
    out = decoder.generate(trained.PROMPT, max_new_tokens=12).tokens
    assert out == decoder.plain().generate(trained.PROMPT, max_new_tokens=12).tokens


@every_kind
def test_losses_are_those_of_what_is_drafted_along_the_text(kind, target, data, tmp_path):
    """Cross-entropies of the target's distributions under the drafts of the exported files, path by path."""
    run = made(kind, target, data, tmp_path)
    inputs = torch.tensor([tiny.random_tokens(16, seed) for seed in (1, 2)])
    for parameter in run.objective.heads.parameters():  # as the files store them
        parameter.data = parameter.data.bfloat16().float()
    losses = run._forward_backward(inputs)
    (tmp_path / "made").mkdir()
    run.objective.write(tmp_path / "made")
    drafter = LOADERS[kind[0]](read_tensors(tmp_path / "made"), read_config(tmp_path / "made"), run.target)
    out = run.target(input_ids=inputs, output_hidden_states=True)
    answers, levels = out.logits.softmax(-1), 3
    if kind[0] == "block":
        generator = torch.Generator().manual_seed(run.step)
        roots = torch.randperm(16 - levels, generator=generator)[:3].tolist()
    else:
        roots = [*range(1, 16 - levels + 1)]
    nats = torch.zeros(levels)
    for text, tokens in enumerate(inputs.tolist()):
        for root in roots:
            session = drafter.start(tokens[: root + 1], 32)
            read = [out.hidden_states[layer][text : text + 1, :root] for layer in drafter.hidden_layers]
            with torch.inference_mode():
                session.prefill(tuple(read), root)
                logits = [session.draft_root()[0, 0]]
                for ahead in range(1, levels):
                    node = torch.tensor([[tokens[root + ahead]]])
                    logits.append(session.draft_level(node, torch.tensor([[0]]))[0, 0])
            for level, given in enumerate(logits):
                nats[level] -= (answers[text, root + level] * given.log_softmax(-1)).sum()
    assert losses.positions == 2 * len(roots)
    torch.testing.assert_close(losses.nats, nats, atol=2e-2, rtol=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [("mtp",), ("block", *DEEP)], ids=["mtp", "block"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(kind, target, data, tmp_path, monkeypatch):
    train(kind, target, data, tmp_path / "whole")
    stop(monkeypatch, 2, 5)
    for _ in range(2):
        with pytest.raises(SystemExit, match="the same command goes on"):
            train(kind, target, data, tmp_path / "parts")
    train(kind, target, data, tmp_path / "parts")
    whole, parts = (read_tensors(tmp_path / run / "final") for run in ("whole", "parts"))
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("mtp", "--layers", "2"), "an MTP layer is one decoder layer"),
        (("block", *DEEP, "--own-projection"), "shares the target's projection"),
        (("block", *DEEP[2:]), "the target has no end of text"),
        (("block", *DEEP, "--mask-token", "9999"), "--mask-token 9999 must be one of the target's 97 token ids"),
        (("block", *DEEP, "--states", "9"), "has no 9 hidden states to read; try --states 1"),
    ],
)
def test_what_cannot_be_trained_ends_with_one_line(options, message, target, data, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        train(options, target, data, tmp_path)
    assert message in str(caught.value)
