"""With exact_text, what experts compute for a token does not depend on the other tokens that are routed to them."""

from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DbrxConfig, JetMoeConfig, PreTrainedModel, Qwen3MoeConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.policies import Talon
from helpers.refusals import told
from testing import tiny

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 256}
QWEN = Qwen3MoeConfig(
    **{**tiny.GROUPED, **SIZES}, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[]
)
CONFIGS = {
    "qwen3_moe": QWEN,
    "dbrx": DbrxConfig(
        **{"vocab_size": tiny.VOCAB, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    ),
    "jetmoe": JetMoeConfig(
        **{**tiny.SIZES, **SIZES, "kv_channels": 16}, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
}


def by_count(experts: nn.Module, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Experts that round otherwise for every number of tokens that they are given, as some processors do."""
    out = torch.zeros_like(states)
    for expert in chosen.unique().tolist():
        tokens, choice = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(states[tokens], experts.gate_up_proj[expert]).chunk(2, -1)
        rows = F.linear(experts.act_fn(gate) * up, experts.down_proj[expert]) * weights[tokens, choice, None]
        out.index_add_(0, tokens, (rows * (1 + len(tokens) * 2.0**-8)).to(out.dtype))
    return out


def check(module: PreTrainedModel) -> None:
    """Texts over trees have the tokens, and the bits of the log-probabilities, of plain decoding."""
    drafter = LanguageModelDrafter(TargetModel(deepcopy(module)))
    decoder = Decoder(
        TargetModel(module, partial(choose_backend, wants=Wants(exact_text=True))), drafter, Talon(budget=24)
    )
    for seed in range(2):
        prompt = tiny.random_tokens(9 + 14 * seed, seed)
        options = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        drafted, plain = decoder.generate(prompt, **options), decoder.plain().generate(prompt, **options)
        assert (drafted.tokens, drafted.logprobs) == (plain.tokens, plain.logprobs)
        assert drafted.metrics.mean_accepted_tokens > 1.5


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_are_those_of_plain_decoding_in_float32(name):
    check(tiny.from_config(deepcopy(CONFIGS[name])))


def test_texts_are_those_of_plain_decoding_where_sums_depend_on_the_tokens_of_an_expert(monkeypatch):
    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS, "by_count", by_count)
    module = tiny.from_config(deepcopy(QWEN)).to(torch.bfloat16)
    module.set_experts_implementation("by_count")
    check(module)


class Mine(nn.Module):
    """Experts of a user's own."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.weights, self.experts = nn.Parameter(experts.down_proj.detach()), experts

    def forward(self, states: Tensor, *routing: Tensor) -> Tensor:
        return self.experts(states, *routing)


def test_experts_that_are_not_known_are_refused_by_name():
    module = tiny.from_config(deepcopy(QWEN))
    module.model.layers[1].mlp.experts = Mine(module.model.layers[1].mlp.experts)
    message = told(ModelError, TargetModel, module, partial(choose_backend, wants=Wants(exact_text=True)))
    assert "which has experts (layers.1.mlp.experts) that it routes tokens to in a way of its own" in message
