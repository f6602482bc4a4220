"""Popular models at their true contexts, vocabularies and heads run on what their families run on."""

import pytest
import torch

from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.fused.fused_backend import why_not_known
from drafttree.models.native.native_backend import NativeBackend
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.random_models import popular_model
from drafttree_lab.support.report import popular_to_markdown
from drafttree_lab.support.sweep import check_all
from testing.marks import needs_native

UNKNOWN = {
    **dict.fromkeys(["ibm-granite/granite-4.0-micro", "ibm-granite/granite-4.0-h-tiny"], "family granitemoehybrid"),
    "mistralai/Ministral-3-8B-Instruct-2512": "family ministral3",
    "openai/gpt-oss-20b": "family gpt_oss",
    "zai-org/GLM-4.5-Air": "family glm4_moe",
}
"""What native passes do not know of these models."""


@needs_native
@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(POPULAR.keys() - UNKNOWN.keys()))
def test_native_passes_run_models_at_their_true_sizes(name, dtype):
    target = TargetModel(popular_model(name).to(dtype), choose_backend)
    assert target.context == POPULAR[name].config.max_position_embeddings
    assert isinstance(target.backend, NativeBackend), target.runs_on


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_keeps_the_others_from_native_passes_is_named(name):
    assert UNKNOWN[name] in str(why_not_known(POPULAR[name].config))


def test_a_popular_model_writes_the_texts_of_transformers():
    table = check_all(["HuggingFaceTB/SmolLM2-1.7B-Instruct"], popular=True)
    assert table.passed
    assert "| HuggingFaceTB/SmolLM2-1.7B-Instruct | 8,192 | 49,152 | exact | " in popular_to_markdown(table)
