"""A digest knows a model again, and knows it from another."""

import torch

from drafttree.drafters import LanguageModelDrafter, PromptLookupDrafter
from drafttree.engine.model_digest import model_digest
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from testing import tiny


def test_the_backend_does_not_change_it():
    digests = {model_digest(TargetModel(tiny.build("llama"), *how)) for how in ((), (choose_backend,))}
    assert len(digests) == 1


def test_weights_shapes_and_dtypes_do():
    trained = tiny.build("llama")
    with torch.no_grad():
        trained.lm_head.weight.add_(1e-3)
    others = [trained, tiny.build("qwen2"), tiny.build("llama").to(torch.bfloat16), tiny.build("llama")]
    assert len({model_digest(TargetModel(module)) for module in others}) == 4


def test_a_drafter_is_its_models_and_its_class():
    small, other = (TargetModel(tiny.build(name)) for name in ("llama", "qwen2"))
    assert model_digest(LanguageModelDrafter(small)) == model_digest(LanguageModelDrafter(small))
    assert model_digest(LanguageModelDrafter(small)) != model_digest(LanguageModelDrafter(other))
    assert model_digest(LanguageModelDrafter(small)) != model_digest(small)
    lookup = PromptLookupDrafter(97, torch.device("cpu"))
    assert model_digest(lookup) == model_digest(PromptLookupDrafter(97, torch.device("cpu")))
