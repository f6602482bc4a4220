"""EAGLE-3 checkpoints that cannot be used say why: everything at once, with the numbers on both sides."""

from dataclasses import replace

import pytest
import torch

import eagle3_files as files
from drafttree.drafters.checkpoints import read_config, read_tensors
from drafttree.drafters.eagle3 import Eagle3Head
from drafttree.drafters.eagle3_format import load, parse, save
from drafttree.errors import ModelError
from drafttree.models.huggingface import lay_out_for_cpu

KIND = files.KINDS["SafeAILab"]


def told(tensors, config=None, target=None) -> str:
    with pytest.raises(ModelError) as caught:
        load(tensors, files.configuration(KIND) if config is None else config, target or files.target())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_missing_unexpected_and_misshapen_tensors_are_listed_once():
    tensors = files.weights(KIND)
    for name in ("fc.weight", "midlayer.self_attn.k_proj.weight"):
        del tensors[name]
    tensors |= {"midlayer.self_attn.q_norm.bias": torch.zeros(1), "surprise": torch.zeros(1)}
    tensors["midlayer.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"][1:]
    tensors["norm.weight"] = tensors["norm.weight"][:5]
    message = told(tensors)
    for part in (
        "missing fc.weight, midlayer.self_attn.k_proj.weight;",
        "unexpected midlayer.self_attn.q_norm.bias, surprise;",
        "midlayer.mlp.up_proj.weight is [19, 32] and should be [20, 32]",
        "norm.weight is [5] and should be [32]",
    ):
        assert message.count(part) == 1


def test_names_are_those_of_the_format():
    kind = files.KINDS["vLLM speculators"]
    tensors = files.weights(kind)
    del tensors["layers.0.self_attn.q_norm.weight"]
    assert "missing layers.0.self_attn.q_norm.weight" in told(tensors, files.configuration(kind))


def d2t(change) -> dict[str, torch.Tensor]:
    tensors = files.weights(KIND)
    tensors["d2t"] = change(tensors["d2t"])
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:-2], "d2t has length 9 and should have 11"),
        (lambda t: t.float(), "d2t is torch.float32 and should be int64"),
        (lambda t: t + 12, "rising token ids below 23"),
        (lambda t: t.flip(0) * 3, "rising token ids below 23"),
        (lambda t: t.clone().index_fill_(0, torch.tensor([10]), int(t[10]) - 30), "rising token ids"),
    ],
)
def test_maps_that_lead_nowhere(change, message):
    assert message in told(d2t(change))


def test_maps_that_are_missing_or_disagree():
    tensors = files.weights(KIND)
    assert "missing d2t, for 11 of 23 token ids" in told({name: t for name, t in tensors.items() if name != "d2t"})
    assert "t2d and d2t name different" in told(tensors | {"t2d": ~tensors["t2d"]})
    assert "t2d has length 20 and should have 23" in told(tensors | {"t2d": tensors["t2d"][:20]})


def test_heads_of_other_targets_are_refused_with_both_numbers():
    tensors, config = files.weights(KIND), files.configuration(KIND)
    assert "vocabulary of 23, this target's is 31" in told(tensors, target=files.target(vocab=31))
    assert "hidden size of 48, this target's is 32" in told(tensors, {**config, "target_hidden_size": 48})
    deep = {**config, "target_num_hidden_layers": 28}
    assert "number of layers of 28, this target's is 4" in told(tensors, deep)
    assert "reads the hidden states 2, 1, -1 of a target, which has 2 layers" in told(
        tensors, target=files.target(depth=2)
    )


def test_depth_follows_from_the_default_layers():
    kind = files.KINDS["vLLM speculators"]
    config = {**files.configuration(kind), "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    assert "number of layers of 36, this target's is 4" in told(files.weights(kind), config)
    config["eagle_aux_hidden_state_layer_ids"] = [3, 18, 33]
    assert "hidden states 3, 18, 33 of a target, which has 4 layers" in told(files.weights(kind), config)


def test_narrow_heads_need_their_own_embedding():
    kind = files.KINDS["vLLM speculators"]
    tensors = files.weights(kind)
    del tensors["embed_tokens.weight"]
    assert "24 wide and has no embed_tokens.weight of its own; the target's is 32 wide" in told(
        tensors, files.configuration(kind)
    )


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, "32", 0])
def test_configurations_without_a_size(name, value):
    config = {**files.configuration(KIND), name: value}
    assert f"config.json gives {name} as {value!r}" in told(files.weights(KIND), config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle_config": "none"}, "eagle_config as 'none'"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1, 2"}}, "layer_ids as '1, 2'"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2.5]}, "layer_ids as [1, 2.5]"),
        ({"num_key_value_heads": 3}, "3 key heads for 4"),
        ({"hidden_act": "magic"}, "activation 'magic'"),
    ],
)
def test_configurations_that_make_no_sense(change, message):
    assert message in told(files.weights(KIND), {**files.configuration(KIND), **change})


def test_growing_rotary_embeddings_are_refused():
    config = {**files.configuration(KIND), "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert "rope_type 'dynamic'" in told(files.weights(KIND), config)


def test_a_tied_output_layer_is_the_embedding():
    kind = replace(files.KINDS["AngelSlim"], draft_vocab=files.VOCAB)
    tensors = files.weights(kind)
    del tensors["lm_head.weight"]
    config = {**files.configuration(kind), "draft_vocab_size": files.VOCAB, "tie_word_embeddings": True}
    head = load(tensors, config, files.target()).head
    assert torch.equal(head.lm_head.weight, head.embed_tokens.weight)


def test_legacy_rotary_tables_are_ignored():
    tensors = files.weights(KIND) | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    load(tensors, files.configuration(KIND), files.target())


@pytest.mark.parametrize("name", ["SafeAILab", "SafeAILab, whole vocabulary"])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_saved_loads_back(name, shared, tmp_path):
    kind, target = files.KINDS[name], files.target()
    lay_out_for_cpu(target)
    config = parse(files.weights(kind), files.configuration(kind)).config
    head = Eagle3Head(config)
    ids = torch.tensor(files.ids_of(kind))
    head.target_ids = None if kind.draft_vocab == files.VOCAB else ids
    if shared:
        head.lm_head.weight.data = target.lm_head.weight.data[ids]
    save(head, tmp_path, files.DEPTH, own_lm_head=not shared, dtype=torch.float32)
    stored = read_tensors(tmp_path)
    assert ("lm_head.weight" in stored) is not shared
    assert "embed_tokens.weight" not in stored
    back = load(stored, read_config(tmp_path), target)
    assert back.hidden_layers == (2, 2, 1)
    expected = {name: tensor for name, tensor in head.state_dict().items() if name != "embed_tokens.weight"}
    found = back.head.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.equal(found["embed_tokens.weight"], target.model.embed_tokens.weight)
    assert (back.head.target_ids is None) == (head.target_ids is None)
    if shared and head.target_ids is None:
        assert back.head.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()


def test_memory_is_that_of_the_tensors_in_the_file(tmp_path):
    tensors = files.weights(KIND)
    folder = files.write(tmp_path, KIND, tensors)
    drafter = load(read_tensors(folder), read_config(folder), files.target())
    weights = [tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")]
    assert drafter.nbytes == sum(4 * tensor.numel() for tensor in weights)
