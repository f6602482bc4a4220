"""An inflated model is larger and computes the same."""

import pytest
import torch
from transformers import GPTNeoXConfig, LlamaConfig

import drafttree
from drafttree.drafters.head import HeadDrafter
from drafttree.errors import ConfigError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading import zoo
from drafttree.measure.inflation import inflate, load_inflated
from drafttree.measure.shapes import SHAPES, Shape, find_shape
from drafttree.policies import DynaTree
from testing import tiny

SMALL = {**tiny.GROUPED, "head_dim": 8}
SHAPE = Shape(hidden=128, layers=5, intermediate=100, heads=8, key_value_heads=4, head_dim=8)
LARGER = Shape(hidden=320, layers=13, intermediate=800, heads=8, key_value_heads=4)
OTHERS = {
    "wider by no power of four": Shape(hidden=80, layers=3, intermediate=48, heads=4, key_value_heads=2, head_dim=8),
    "every query head its own key head": Shape(64, 4, 60, heads=6, key_value_heads=6, head_dim=8),
    "more query heads for each key head": Shape(64, 4, 60, heads=8, key_value_heads=2, head_dim=8),
    "wider heads": Shape(64, 4, 60, heads=4, key_value_heads=2, head_dim=32),
}


def logits(model, count: int = 12):
    with torch.inference_mode():
        return model(torch.tensor([tiny.random_tokens(count, 3)])).logits


@pytest.mark.parametrize("shape", [SHAPE, *OTHERS.values()], ids=["larger all around", *OTHERS])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_the_small_models(shape, tied):
    small = tiny.from_config(LlamaConfig(**SMALL, tie_word_embeddings=tied))
    expected = logits(small)
    large = inflate(small, shape)
    assert sum(p.numel() for p in large.parameters()) > sum(p.numel() for p in small.parameters())
    assert float((logits(large) - expected).abs().max()) < 1e-5 * float(expected.abs().max())


def test_what_is_added_is_not_zero():
    small = tiny.from_config(LlamaConfig(**SMALL))
    block = inflate(small, SHAPE).model.layers[0]
    for part in (block.mlp.gate_proj, block.mlp.up_proj, block.self_attn.v_proj):
        assert (part.weight == 0).float().mean() < 0.1


@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes_hold_the_embedded_target(name):
    shape = find_shape(name)
    assert shape.hidden >= 256
    assert shape.layers >= 12
    assert shape.head_dim % 64 == 0


def test_mistakes_are_named():
    small = tiny.from_config(LlamaConfig(**SMALL))
    with pytest.raises(ConfigError, match="num_hidden_layers from 3 to 2"):
        inflate(small, Shape(64, 2, 60, 4, 2, 8))
    with pytest.raises(ConfigError, match="multiple of 8"):
        inflate(small, Shape(64, 4, 60, 4, 2, 12))
    with pytest.raises(ConfigError, match="cannot share 3"):
        inflate(small, Shape(64, 4, 60, heads=4, key_value_heads=3, head_dim=8))
    with pytest.raises(ConfigError, match="4 are needed"):
        inflate(
            tiny.from_config(LlamaConfig(**SMALL | {"num_attention_heads": 6, "hidden_size": 48})),
            Shape(64, 4, 60, 6, 3, 8),
        )
    with pytest.raises(ConfigError, match="gpt_neox"):
        inflate(tiny.from_config(GPTNeoXConfig(**tiny.SIZES)), SHAPE)
    with pytest.raises(ConfigError, match="300m"):
        find_shape("300M")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*zoo.HEADS, "mixed:embedded-eagle3"])
def test_a_head_drafts_for_the_inflated_target_what_it_drafts_for_the_small_one(name, monkeypatch):
    monkeypatch.setitem(SHAPES, "slightly larger", LARGER)
    large = load_inflated("embedded", name, "slightly larger", "float32", "cpu").with_policy(DynaTree())
    small = drafttree.load("embedded", name, "dynatree", dtype="float32", device="cpu")
    outs = [each.generate("one two one two", max_new_tokens=16) for each in (large, small)]
    assert outs[0].tokens == outs[1].tokens
    assert outs[0].drafted == outs[1].drafted
    assert outs[0].metrics.draft_efficiency == outs[1].metrics.draft_efficiency > 0
    assert outs[0].metrics.lookup_rounds == outs[1].metrics.lookup_rounds
    assert outs[0].metrics.draft_cache_bytes == outs[1].metrics.draft_cache_bytes
    if name.startswith("mixed"):
        lookup, head = large.drafter.sources
        assert (lookup.hidden_layers, len(head.hidden_layers)) == ((), 3)


@pytest.mark.parametrize("name", ["embedded-eagle3", "mixed:embedded-eagle3"])
def test_texts_of_a_batch_share_the_passes_of_a_head(name, monkeypatch):
    monkeypatch.setitem(SHAPES, "slightly larger", LARGER)
    decoder = load_inflated("embedded", name, "slightly larger", "float32", "cpu").with_costs(TOY_COSTS)
    asked, root = [], HeadDrafter.draft_root
    monkeypatch.setattr(
        HeadDrafter, "draft_root", lambda self, sessions: (asked.append(len(sessions)), root(self, sessions))[1]
    )
    decoder.with_policy(DynaTree()).generate(["The old man", "It was", "She said"], max_new_tokens=12, temperature=0)
    assert max(asked) == 3
