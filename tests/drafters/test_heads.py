"""Logits of the target's own projection are the target's: scaled and bounded where its family does so."""

import pytest
import torch
from transformers import (
    Cohere2Config,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    PreTrainedModel,
)

from drafttree.drafters.formats.heads import MEDUSA as READER
from drafttree.drafters.target_parts import final_logits, projection
from testing import tiny

SSM = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
CONFIGS = {
    "llama": lambda: LlamaConfig(**tiny.GROUPED),
    "granite": lambda: GraniteConfig(**tiny.GROUPED, logits_scaling=8.0),
    "hyperclovax": lambda: HyperCLOVAXConfig(**tiny.GROUPED, logits_scaling=0.25),
    "cohere": lambda: CohereConfig(**tiny.GROUPED, logit_scale=0.0625),
    "cohere2": lambda: Cohere2Config(**tiny.GROUPED, logit_scale=0.25),
    "falcon_h1": lambda: FalconH1Config(**tiny.GROUPED, **SSM, lm_head_multiplier=0.125),
    "gemma2": lambda: Gemma2Config(
        **tiny.GROUPED, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=2.0, attn_implementation="eager"
    ),
}
SCALED = [name for name in CONFIGS if name != "llama"]


@torch.no_grad()
def states_and_logits(module: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden states after the final norm, and the module's own logits of them."""
    found = module(torch.tensor([tiny.random_tokens(9, 1)]), output_hidden_states=True)
    return found.hidden_states[-1], found.logits


@pytest.mark.parametrize("name", CONFIGS)
def test_final_logits_are_the_models_own(name):
    module = tiny.from_config(CONFIGS[name]())
    hidden, logits = states_and_logits(module)
    with torch.no_grad():
        torch.testing.assert_close(final_logits(module, hidden), logits, atol=1e-5, rtol=1e-5)
        assert (name in SCALED) is not torch.allclose(projection(module)(hidden), logits, atol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_head_that_passes_the_state_on_has_the_targets_probabilities(name):
    """A block whose weights are zero adds SiLU(0) = 0."""
    module = tiny.from_config(CONFIGS[name]())
    hidden, logits = states_and_logits(module)
    width = hidden.shape[-1]
    tensors = {"0.0.linear.weight": torch.zeros(width, width), "0.0.linear.bias": torch.zeros(width)}
    drafter = READER.load(tensors, {"medusa_num_heads": 1, "medusa_num_layers": 1}, module)
    draft = drafter.start([0] * (hidden.shape[1] + 1), hidden.shape[1] + 1)
    draft.prefill((hidden,), hidden.shape[1])
    torch.testing.assert_close(draft.draft_root()[0], logits[:, -1], atol=1e-5, rtol=1e-5)
