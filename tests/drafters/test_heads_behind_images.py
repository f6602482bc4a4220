"""Heads behind a prompt with images read the states that transformers computes of it, and draft by their formula."""

from pathlib import Path

import pytest
import torch

import drafttree
from drafttree.policies import Talon
from helpers.checkpoints import FORMATS, Format
from helpers.image_models import VOCAB, ImageModel, hidden_states, image_model

LENGTH = 14
HEADS = {
    "gemma4, layers that share keys": ("gemma4", "SafeAILab", [1, 2, 3]),
    "qwen3_vl, features added behind layers": ("qwen3_vl", "SafeAILab", [1, 2, 0]),
    "gemma3, the last state": ("gemma3", "EAGLE-1", None),
}
"""By name: the family of the target, the format of the head, and the states it reads if the format leaves them open."""


def head_format(name: str, layers: list[int] | None, depth: int) -> Format:
    """A format for targets of this many layers."""
    if layers is None:
        return FORMATS[name].but(sizes={"V": VOCAB}, states=(depth,))
    config = {"eagle_aux_hidden_state_layer_ids": layers}
    return FORMATS[name].but(config=config, sizes={"V": VOCAB}, states=tuple(layers))


def decoder_of(case: str, folder: Path) -> tuple[Format, ImageModel, drafttree.Decoder]:
    family, name, layers = HEADS[case]
    model = image_model(family)
    form = head_format(name, layers, model.module.config.get_text_config().num_hidden_layers)
    policy = Talon(width=8, budget=24, margin=0.01)
    return form, model, drafttree.load(model.module, form.write(folder), policy, dtype="float32")


@pytest.mark.parametrize("case", HEADS)
def test_drafts_are_those_of_the_formula_on_the_states_of_transformers(case, tmp_path, monkeypatch):
    form, model, decoder = decoder_of(case, tmp_path)
    inputs = model.prompt([3, 4], [5, 6, 7], [8, 9])
    expected_text = model.generate(inputs, LENGTH)
    request = decoder.new_request(inputs, max_new_tokens=LENGTH, ignore_eos=True)
    roots = []
    draft_root = decoder.drafter.draft_root

    def noted_root(sessions):
        logits = draft_root(sessions)
        roots.append(([*request.tokens], logits[0]))
        return logits

    monkeypatch.setattr(decoder.drafter, "draft_root", noted_root)
    while not request.text.finish_reason:
        decoder.step(request)
    assert request.tokens[inputs["input_ids"].shape[1] :] == expected_text
    assert len(roots) > 2
    for tokens, logits in roots:
        states = [hidden_states(model, inputs, tokens[:-1])[index][0] for index in form.states]
        expected = form.logits(form.tensors(), model.module, states, tokens, [])
        torch.testing.assert_close(logits.double(), expected.double(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", HEADS)
def test_texts_are_those_of_transformers_in_batches_and_turns(case, tmp_path):
    _, model, decoder = decoder_of(case, tmp_path)
    inputs = model.prompt([3, 4], [5, 6, 7], [8, 9])
    options = {"max_new_tokens": LENGTH, "ignore_eos": True, "reuse_prefix": True}
    text = model.generate(inputs, LENGTH)
    for _ in range(2):
        assert decoder.generate(inputs, **options).tokens == text
    plain_text = decoder.plain().generate([3, 4, 5], **options).tokens
    together = decoder.generate([model.other_image(), [3, 4, 5]], **options)
    assert [each.tokens for each in together] == [model.generate(model.other_image(), LENGTH), plain_text]
    turn = model.prompt([3, 4], [5, 6, 7], [8, 9, *text[:5], 10, 11])
    assert decoder.generate(turn, **options).tokens == model.generate(turn, LENGTH)
