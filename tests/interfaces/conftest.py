"""Models for transformers' own `generate`."""

from copy import deepcopy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

from drafttree.loading import zoo
from testing import tiny


@pytest.fixture(scope="module")
def target():
    return tiny.build("llama")


@pytest.fixture(scope="module")
def draft(target):
    """Near enough to the target for trees to be accepted in part."""
    module = deepcopy(target)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return module


@pytest.fixture(scope="module")
def embedded():
    folder = zoo.folder("embedded")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
