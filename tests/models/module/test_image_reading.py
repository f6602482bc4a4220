"""Reading prompts with images: hidden states are those that transformers returns for the same inputs."""

import pytest
import torch
from torch import Tensor

from drafttree.models import TargetModel
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.segment import BEFORE_NORM
from helpers.image_models import FAMILIES, ImageModel, hidden_states, image_model


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request) -> ImageModel:
    return image_model(request.param)


def read(target: TargetModel, inputs: dict[str, Tensor], layers: tuple[int, ...], count: int) -> tuple[Tensor, ...]:
    """The states of these layers that reading the first tokens of a prompt returns."""
    tokens = inputs["input_ids"][0].tolist()
    images = {name: value for name, value in inputs.items() if name != "input_ids"}
    cache = target.new_cache(len(tokens))
    return target.read_images(cache, tokens[:count], images, prompt_length=len(tokens), hidden_layers=layers)


def test_states_are_those_of_transformers(model):
    target = TargetModel(model.module)
    inputs = model.prompt([3, 4], [5, 6, 7] * 4, [8, 9])
    states = hidden_states(model, inputs)
    layers = tuple(range(len(states)))
    count = inputs["input_ids"].shape[1] - 1
    for _ in range(2):  # the first time with a trial
        for state, own_state in zip(read(target, inputs, layers, count), states, strict=True):
            torch.testing.assert_close(state, own_state[:, :count], atol=1e-4, rtol=1e-4)


def test_the_state_before_the_last_norm_becomes_the_last_one_by_it(model):
    target = TargetModel(model.module)
    count = model.inputs["input_ids"].shape[1] - 1
    (state,) = read(target, model.inputs, (BEFORE_NORM,), count)
    with torch.inference_mode():
        last_state = decoder_of(model.module).norm(state)
    torch.testing.assert_close(last_state, hidden_states(model, model.inputs)[-1][:, :count], atol=1e-4, rtol=1e-4)


def test_a_part_of_a_prompt_gives_the_states_of_that_part(model):
    target = TargetModel(model.module)
    inputs = model.prompt([3, 4], [5, 6, 7] * 4)
    end = inputs["input_ids"][0].tolist().index(5)
    layer = len(hidden_states(model, inputs)) - 1
    (state,) = read(target, inputs, (layer,), end)
    torch.testing.assert_close(state, hidden_states(model, inputs)[layer][:, :end], atol=1e-4, rtol=1e-4)
