"""GGUF files hold every weight of a model, in llama.cpp's order, and its tokens."""

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from drafttree.errors import ConfigError
from drafttree.loading import load_tokenizer
from drafttree_lab.peers.gguf_file import KINDS, interleaved, write_gguf
from testing import tiny

gguf = pytest.importorskip("gguf", reason="gguf is not installed; the lab's extra [peers] brings it")
CONFIG = {**tiny.GROUPED, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "rope_theta": 5000.0}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("embedded")


@pytest.fixture
def written(tokenizer, tmp_path):
    """Writes a model and gives the reader of its file."""

    def write(model, kind):
        write_gguf(model, tokenizer, tmp_path / "model.gguf", kind)
        return gguf.GGUFReader(tmp_path / "model.gguf")

    return write


def expected(model):
    """The weights by their names in GGUF, queries and keys in llama.cpp's order, found row by row."""
    state, found = model.state_dict(), {}
    for ours, theirs in ENDS.items():
        if ours != "lm_head" or not model.config.tie_word_embeddings:
            found[f"{theirs}.weight"] = state[f"{ours}.weight"]
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                width = model.config.head_dim
                source = [
                    head * width + place // 2 + place % 2 * width // 2
                    for head in range(len(weight) // width)
                    for place in range(width)
                ]
                weight = weight[source]
            found[f"blk.{layer}.{theirs}.weight"] = weight
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_is_in_the_file(written, kind, tied):
    model = tiny.from_config(LlamaConfig(**CONFIG, tie_word_embeddings=tied))
    wanted = expected(model)
    tensors = {each.name: each for each in written(model, kind).tensors}
    assert tensors.keys() == wanted.keys()
    for name, weight in wanted.items():
        own = tensors[name]
        assert own.tensor_type.name == (kind.upper() if weight.ndim == 2 else "F32")
        found = torch.tensor(gguf.quants.dequantize(own.data, own.tensor_type)).float()
        assert found.shape == weight.shape
        if kind == "q8_0" and weight.ndim == 2:
            unit = weight.unflatten(-1, (-1, 32)).abs().amax(-1) / 127
            assert bool(((found - weight).unflatten(-1, (-1, 32)).abs() <= 0.6 * unit[..., None]).all())
        else:
            dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
            assert torch.equal(found, weight.to(dtype if weight.ndim == 2 else torch.float32).float())


def test_sizes_and_tokens_are_the_models(written, tokenizer):
    model = tiny.from_config(LlamaConfig(**CONFIG))
    reader = written(model, "f32")
    found = {name: field.contents() for name, field in reader.fields.items()}
    assert found["general.architecture"] == "llama"
    assert found["llama.block_count"] == tiny.LAYERS
    assert found["llama.embedding_length"] == 64
    assert found["llama.feed_forward_length"] == 96
    assert (found["llama.attention.head_count"], found["llama.attention.head_count_kv"]) == (4, 2)
    assert found["llama.attention.key_length"] == found["llama.rope.dimension_count"] == 16
    assert found["llama.rope.freq_base"] == 5000
    assert found["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(model.config.rms_norm_eps)
    assert found["tokenizer.ggml.tokens"] == tokenizer.convert_ids_to_tokens(range(tiny.VOCAB))
    assert found["tokenizer.ggml.token_type"][:2] == [gguf.TokenType.CONTROL, gguf.TokenType.NORMAL]
    assert found["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert found["tokenizer.ggml.merges"][0] == "Ġ Ġ"


def test_ids_without_a_token_get_one_that_is_unused(written, tokenizer):
    size = len(tokenizer) + 1
    found = written(tiny.from_config(LlamaConfig(**CONFIG | {"vocab_size": size})), "f32").fields
    assert found["tokenizer.ggml.tokens"].contents(size - 1) == f"<unused {size - 1}>"
    assert found["tokenizer.ggml.token_type"].contents(size - 1) == gguf.TokenType.UNUSED


def test_rotary_pairs_come_to_lie_beside_each_other():
    rows = torch.arange(8.0)[:, None]
    assert interleaved(rows, 4).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Qwen2Config(**tiny.GROUPED), "only Llama models without biases can be written as GGUF, not qwen2"),
        (
            LlamaConfig(**CONFIG, rope_scaling={"rope_type": "linear", "factor": 2.0}),
            "not rope_type 'linear'",
        ),
    ],
    ids=["another family", "a scaled rotary embedding"],
)
def test_models_of_another_kind_are_refused(written, config, said):
    with pytest.raises(ConfigError, match=said):
        written(tiny.from_config(config), "f32")


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="only tokenizers that merge bytes can be written as GGUF, not one of type"):
        write_gguf(tiny.from_config(LlamaConfig(**CONFIG)), None, tmp_path / "model.gguf", "f32")
