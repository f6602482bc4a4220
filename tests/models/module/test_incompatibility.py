"""What cannot be verified in a tree is refused before a token is generated, by the name of what is in the way."""

from collections.abc import Callable

import pytest
from transformers import (
    AutoModelForSeq2SeqLM,
    BertConfig,
    Cache,
    DogeConfig,
    FalconConfig,
    Gemma3TextConfig,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    RecurrentGemmaConfig,
    RobertaConfig,
    RwkvConfig,
    T5Config,
)

from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.base import prefill
from testing import tiny

GROUPED, SIZES = tiny.GROUPED, tiny.SIZES
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
STATE = {"vocab_size": tiny.VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
UNSHARED = "that keep their states where no tree can branch"
GEMMA = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8}

REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "rwkv": (lambda: RwkvConfig(**STATE, attention_hidden_size=32), rf"recurrent layers \(rwkv\) {UNSHARED}"),
    "recurrent_gemma": (lambda: RecurrentGemmaConfig(**GROUPED, lru_width=32), f"recurrent layers .*{UNSHARED}"),
    "falcon": (lambda: FalconConfig(**STATE, num_attention_heads=4, alibi=True), "ALiBi biases that falcon adds by"),
    "dynamic rope": (lambda: LlamaConfig(**GROUPED, rope_parameters=DYNAMIC), "rope_type 'dynamic'"),
    "dynamic rope of one layer type": (
        lambda: Gemma3TextConfig(
            **GEMMA,
            rope_parameters={
                "full_attention": DYNAMIC,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        "rope_type 'dynamic'",
    ),
    "gpt_neo": (
        lambda: GPTNeoConfig(
            vocab_size=tiny.VOCAB, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
        ),
        r"\(gpt_neo\) outside transformers' AttentionInterface",
    ),
    "bert": (lambda: BertConfig(**SIZES), "bidirectional attention"),
    "bidirectional gemma3": (lambda: Gemma3TextConfig(**GEMMA, use_bidirectional_attention=True), "bidirectional"),
    "roberta": (
        lambda: RobertaConfig(**{**SIZES, "pad_token_id": 1}, is_decoder=True),
        "position embeddings that leave room for padding",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrapping_refuses_and_names_the_layer_kind(case):
    config, kind = REFUSED[case]
    module = tiny.from_config(config())
    with pytest.raises(ModelError, match=f"^{type(module).__name__} cannot be verified in a tree: it has .*{kind}"):
        TargetModel(module)


def test_recurrent_layers_of_an_older_transformers_are_refused(monkeypatch):
    monkeypatch.delattr(Cache, "get_conv_state", raising=False)
    with pytest.raises(ModelError, match=r"recurrent layers \(.*\) that need transformers 5.21 or later"):
        TargetModel(tiny.from_config(MambaConfig(**STATE)))


def test_wrapping_refuses_an_encoder_decoder():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    module = AutoModelForSeq2SeqLM.from_config(T5Config(vocab_size=tiny.VOCAB, **sizes))
    with pytest.raises(ModelError, match="encoder-decoder"):
        TargetModel(module)


def test_a_refused_module_is_left_as_it_was():
    module = tiny.from_config(LlamaConfig(**GROUPED, rope_parameters=DYNAMIC))
    before = module.config._attn_implementation
    with pytest.raises(ModelError):
        TargetModel(module)
    assert module.config._attn_implementation == before


REFUSED_ON_THE_FIRST_PASS: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "a mask of its own": (lambda: DogeConfig(**GROUPED), "a mask of their own"),
}


@pytest.mark.parametrize("case", REFUSED_ON_THE_FIRST_PASS)
def test_the_first_pass_refuses_what_only_a_pass_can_show(case):
    config, kind = REFUSED_ON_THE_FIRST_PASS[case]
    model = TargetModel(tiny.from_config(config()))
    with pytest.raises(ModelError, match=kind):
        prefill(model, model.new_cache(8), [1, 2, 3])


def test_longrope_limits_the_context_to_its_original_length(caplog):
    """Other families than Phi's go on with keys of the short frequencies, which no fresh pass over the text gives."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, **factors}
    model = TargetModel(tiny.from_config(LlamaConfig(**GROUPED, rope_parameters=rope)))
    assert (model.context, model.rope_switch) == (32, None)
    assert "LlamaForCausalLM is limited to LongRoPE's original context of 32 tokens instead of 64: " in caplog.text
