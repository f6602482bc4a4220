"""EAGLE-3 checkpoints that cannot be used say why: everything at once, with the numbers on both sides."""

import pytest
import torch

import drafttree
from drafttree.drafters.eagle import Eagle3Head
from drafttree.drafters.formats import read_config, read_tensors
from drafttree.drafters.formats.eagle3 import FORMAT, parse, save
from drafttree.errors import ModelError
from drafttree.models.module.module_backend import lay_out_for_cpu
from helpers import checkpoints
from helpers.checkpoints import FORMATS

HEAD = FORMATS["SafeAILab"]


def told(tensors, config=None, target=None) -> str:
    with pytest.raises(ModelError) as caught:
        FORMAT.load(tensors, HEAD.fields() if config is None else config, target or checkpoints.target())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_missing_unexpected_and_misshapen_tensors_are_listed_once():
    tensors = HEAD.tensors()
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


def test_latent_attention_is_refused_by_name():
    tensors, attention = HEAD.tensors(), "midlayer.self_attn."
    for name in "qkv":
        del tensors[f"{attention}{name}_proj.weight"]
    shapes = {"q_a_proj": (8, 64), "q_b_proj": (48, 8), "kv_a_proj_with_mqa": (20, 64), "kv_b_proj": (56, 16)}
    tensors |= {f"{attention}{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    message = told(tensors, HEAD.fields(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=16))
    assert "latent attention (MLA: kv_a_proj_with_mqa)" in message
    assert message.endswith("use another head made for the target, a smaller language model, or lookup")


def d2t(change) -> dict[str, torch.Tensor]:
    tensors = HEAD.tensors()
    tensors["d2t"] = change(tensors["d2t"])
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:-2], "d2t is [9] and should be [11]"),
        (lambda t: t[None], "d2t is [1, 11] and should be [11]"),
        (lambda t: t.float(), "d2t is float32 and should be int64"),
        (lambda t: t + 12, "d2t does not lead to different token ids below 23"),
        (lambda t: t.flip(0) * 3, "d2t does not lead to different token ids below 23"),
        (lambda t: t.clone().index_fill_(0, torch.tensor([10]), int(t[10]) - 30), "different token ids below 23"),
    ],
)
def test_maps_that_lead_nowhere(change, message):
    assert message in told(d2t(change))


def test_maps_that_are_missing_or_disagree():
    tensors = HEAD.tensors()
    assert "missing d2t, for 11 of 23 token ids" in told({name: t for name, t in tensors.items() if name != "d2t"})
    assert "t2d and d2t name different" in told(tensors | {"t2d": ~tensors["t2d"]})
    assert "t2d is [20] and should be [23]" in told(tensors | {"t2d": tensors["t2d"][:20]})


def test_heads_of_other_targets_are_refused_with_both_numbers():
    tensors, config = HEAD.tensors(), HEAD.fields()
    assert "hidden size of 48, this target's is 32" in told(tensors, {**config, "target_hidden_size": 48})
    deep = {**config, "target_num_hidden_layers": 28}
    assert "number of layers of 28, this target's is 4" in told(tensors, deep)
    assert "reads the hidden states 2, 1, -1 of a target, which has 2 layers" in told(
        tensors, target=checkpoints.target(depth=2)
    )


def test_depth_follows_from_the_default_layers():
    head_format = FORMATS["vLLM speculators"]
    config = head_format.fields(eagle_aux_hidden_state_layer_ids=[2, 18, 33])
    assert "number of layers of 36, this target's is 4" in told(head_format.tensors(), config)
    config["eagle_aux_hidden_state_layer_ids"] = [3, 18, 33]
    assert "hidden states 3, 18, 33 of a target, which has 4 layers" in told(head_format.tensors(), config)


def test_layers_numbered_by_specforge_say_nothing_of_the_depth(tmp_path):
    """Those of its heads for gpt-oss, 1, 11 and 21 of 24, would be the default layers of a target of 25."""
    folder = FORMATS["SpecForge, names as TensorRT-LLM's"].write(
        tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    )
    decoder = drafttree.load(checkpoints.target(depth=6), folder, "chain", device="cpu", dtype="float32")
    assert decoder.drafter.hidden_layers == (2, 3, 4)


def test_narrow_heads_need_their_own_embedding():
    head_format = FORMATS["vLLM speculators"]
    tensors = head_format.tensors()
    del tensors["embed_tokens.weight"]
    assert "24 wide and has no embed_tokens.weight of its own; the target's is 32 wide" in told(
        tensors, head_format.fields()
    )


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, "32", 0, True])
def test_configurations_without_a_size(name, value):
    gives = f"gives no {name}" if value is None else f"gives {name} as {value!r}; it must be a positive integer"
    assert f"config.json {gives}" in told(HEAD.tensors(), HEAD.fields(**{name: value}))


def test_no_configuration_at_all():
    assert "config.json is missing or empty" in told(HEAD.tensors(), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle_config": "none"}, "eagle_config as 'none'; it must be an object"),
        ({"transformer_layer_config": "x"}, "transformer_layer_config as 'x'"),
        ({"architectures": 3}, "architectures as 3"),
        ({"draft_vocab_size": "20"}, "draft_vocab_size as '20'; it must be a positive integer"),
        ({"target_hidden_size": [32]}, "target_hidden_size as [32]"),
        ({"target_hidden_size": 10**30}, "it must be a positive integer of at most 8 digits"),
        ({"target_num_hidden_layers": "4"}, "target_num_hidden_layers as '4'"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads as '2'"),
        ({"intermediate_size": 20.5}, "intermediate_size as 20.5"),
        ({"max_position_embeddings": "2k"}, "max_position_embeddings as '2k'"),
        ({"head_dim": -8}, "head_dim as -8"),
        ({"hidden_act": ["silu"]}, "hidden_act as ['silu']; it must be a string"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps as '1e-5'; it must be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps as nan"),
        ({"rope_theta": "1e4"}, "rope_theta as '1e4'"),
        ({"rope_scaling": [1]}, "rope_scaling as [1]"),
        ({"rope_scaling": {"type": "magic"}}, "rope_type as 'magic'; drafttree supports"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type as 'dynamic'; drafttree supports"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor as '2'; it must be a positive number"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor as 0"),
        ({"norm_before_residual": "no"}, "norm_before_residual as 'no'; it must be true or false"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings as 1"),
        ({"shared_lm_head": "yes"}, "shared_lm_head as 'yes'"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1, 2"}}, "layer_ids as '1, 2'"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2.5]}, "layer_ids as [1, 2.5]"),
        ({"num_key_value_heads": 3}, "num_key_value_heads as 3, which does not divide 4 heads"),
        ({"num_attention_heads": 5}, "num_attention_heads as 5, which does not divide a width of 32"),
        ({"hidden_act": "magic"}, "hidden_act as 'magic', which transformers does not know"),
        ({"sliding_window": -1}, "sliding_window as -1; it must be a positive integer"),
        ({"max_window_layers": -1}, "max_window_layers as -1; it must be a number of layers"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention in layer_types and no sliding_window; add"),
        ({"layer_types": ["chunked_attention"]}, "layer_types as ['chunked_attention']; the tensors make 1 layers"),
        ({"return_hidden_post_norm": 1}, "return_hidden_post_norm as 1; it must be true or false"),
        ({"target_layer_ids": [1, "2"]}, "target_layer_ids as [1, '2']; it must be a list of layers"),
    ],
)
def test_configurations_that_make_no_sense(change, message):
    found = told(HEAD.tensors(), HEAD.fields(**change))
    assert "config.json gives" in found
    assert message in found


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"sliding_window": 7}, 7),
        ({"sliding_window": 7, "use_sliding_window": True, "layer_types": ["sliding_attention"]}, 7),
        ({"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ({"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 28}, None),
        ({"sliding_window": 7, "use_sliding_window": False}, None),
        ({"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"sliding_window": None, "use_sliding_window": True}, None),
    ],
)
def test_the_window_of_a_layer(change, window):
    layer = parse(HEAD.tensors(), HEAD.fields(**change)).heads.config.layer
    assert layer.sliding_window == window
    assert layer.layer_types == ["sliding_attention" if window else "full_attention"]


NESTED = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}


@pytest.mark.parametrize(
    ("change", "states"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, (1, 2, 3)),
        ({"eagle_config": NESTED}, (1, 2, 3)),
        ({"eagle_config": NESTED, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, (1, 2, 3)),
        ({"target_layer_ids": [0, 1, 2]}, (1, 2, 3)),
        ({"aux_hidden_states_layer_ids": [0, 1, 2], "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, (1, 2, 3)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, None),
    ],
)
def test_hidden_states_are_counted_as_whoever_names_them_does(change, states):
    assert parse(HEAD.tensors(), HEAD.fields(**change)).layers == states


def test_hidden_states_named_twice_must_be_the_same():
    message = told(HEAD.tensors(), HEAD.fields(eagle_config=NESTED, target_layer_ids=[1, 2, 3]))
    assert (
        "eagle_config.eagle_aux_hidden_state_layer_ids means [1, 2, 3] and target_layer_ids means [2, 3, 4]" in message
    )


INSTEAD = "use another head made for the target, a smaller language model, or lookup"


@pytest.mark.parametrize("change", [{"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, {"target_layer_ids": [0, 1, 3]}])
def test_heads_that_read_the_last_layers_output_are_named_as_not_supported(change, tmp_path):
    HEAD.write(tmp_path, **change)
    assert refusal_of(tmp_path) == (
        "this EAGLE-3 head reads the output of the target's last layer, number 3, which is not supported: drafttree "
        f"runs heads that read the inputs of layers; {INSTEAD}"
    )


def refusal_of(folder) -> str:
    """Why a folder's head is not run."""
    with pytest.raises(ModelError) as caught:
        drafttree.load(checkpoints.target(), folder)
    return str(caught.value).removeprefix(f"cannot load drafter {str(folder)!r}: ")


@pytest.mark.parametrize(
    ("config", "sign"),
    [
        ({}, "it has no fc.weight"),
        ({"use_aux_hidden_state": False}, "use_aux_hidden_state is false"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
    ],
)
def test_heads_that_read_no_states_are_named_as_not_supported(config, sign, tmp_path):
    tensors = HEAD.tensors()
    if not config:
        del tensors["fc.weight"]
    HEAD.write(tmp_path, tensors, **config)
    assert refusal_of(tmp_path) == (
        f"this EAGLE-3 head reads no hidden states from between the target's layers ({sign}), which is not supported; "
        f"{INSTEAD}"
    )


def test_heads_that_say_that_they_read_states_are_run(tmp_path):
    HEAD.write(tmp_path, eagle_config={**NESTED, "use_aux_hidden_state": True})
    assert drafttree.load(checkpoints.target(), tmp_path).drafter.hidden_layers == (1, 2, 3)


@pytest.mark.parametrize("name", ["norm_output", "return_hidden_post_norm"])
@pytest.mark.parametrize("nested", [False, True])
def test_norm_output_has_two_names(name, nested):
    change = {"eagle_config": {name: True}} if nested else {name: True}
    assert parse(HEAD.tensors(), HEAD.fields(**change)).heads.config.normed_output


def test_norm_output_of_a_trainer_that_has_meant_two_things_is_logged(caplog):
    parse(HEAD.tensors(), HEAD.fields(norm_output=True))
    assert not caplog.records
    specforge = HEAD.fields(norm_output=True, architectures=["LlamaForCausalLMEagle3"])
    assert parse(HEAD.tensors(), specforge).heads.config.normed_output
    assert "SpecForge before its pull request 879" in caplog.text


@pytest.mark.parametrize("ours", [True, False], ids=["SpecForge", "another"])
@pytest.mark.parametrize("given", [{}, {"norm_output": False}, {"norm_output": True}], ids=["none", "false", "true"])
@pytest.mark.parametrize("trained", [True, False])
def test_the_norm_before_the_head_is_left_out_where_it_was_said_and_not_trained(ours, given, trained):
    tensors = HEAD.tensors()
    if not trained:
        tensors["norm.weight"] = torch.ones(checkpoints.HIDDEN)
    config = HEAD.fields(**given, architectures=["LlamaForCausalLMEagle3" if ours else "LlamaForCausalLM"])
    left_out = ours and not trained and given == {"norm_output": False}
    assert parse(tensors, config).heads.config.normed_logits is not left_out


@pytest.mark.parametrize("outputs", [True, False])
def test_biases_are_those_of_the_tensors(outputs):
    head_format = FORMATS["SafeAILab, biases and draft ids in no order"]
    tensors = head_format.tensors()
    bias = tensors["midlayer.self_attn.o_proj.bias"]
    if not outputs:
        del tensors["midlayer.self_attn.o_proj.bias"]
    head = FORMAT.load(tensors, head_format.fields(attention_bias=None), checkpoints.target()).modules[0]
    expected = bias if outputs else torch.zeros_like(bias)
    assert torch.equal(head.layers[0].self_attn.o_proj.bias, expected)
    del tensors["midlayer.self_attn.k_proj.bias"]
    assert "missing midlayer.self_attn.k_proj.bias" in told(tensors, head_format.fields())


def test_names_with_and_without_a_prefix_may_not_be_mixed_up():
    tensors = HEAD.tensors()
    message = told(tensors | {"model.fc.weight": tensors["fc.weight"]})
    assert "tensors have the same name with and without 'model.' before it" in message


def test_rotary_embeddings_that_lack_a_number():
    message = told(HEAD.tensors(), HEAD.fields(rope_scaling={"rope_type": "yarn"}))
    assert "{'rope_type': 'yarn', 'rope_theta': 10000.0}" in message
    assert "Missing required keys" in message
    assert "'factor'" in message


@pytest.mark.parametrize("name", ["layers.x.foo", "layers.7.foo", "layers.7.mlp.foo", "layers.123456789.mlp.foo"])
def test_a_stray_tensor_makes_no_layer(name):
    message = told(HEAD.tensors() | {name: torch.ones(1)})
    assert message.endswith(f"EAGLE-3 head are wrong: unexpected {name}")


def test_tensors_without_dimensions_are_of_wrong_shape():
    tensors = {name: tensor.flatten()[0] for name, tensor in HEAD.tensors().items()}
    config = HEAD.fields(draft_vocab_size=None)
    assert "lm_head.weight is [] and should be [23, 32]" in told(tensors, config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_output_layer_is_the_embedding(dtype):
    tensors, config = FORMATS["AngelSlim, tied"].tensors(), FORMATS["AngelSlim, tied"].fields()
    drafter = FORMAT.load(tensors, config, checkpoints.target().to(dtype))
    assert drafter.modules[0].lm_head.weight is drafter.modules[0].embed_tokens.weight
    torch.testing.assert_close(
        drafter.modules[0].lm_head.weight, tensors["embed_tokens.weight"].to(dtype), atol=0, rtol=0
    )
    assert drafter.nbytes == dtype.itemsize * sum(tensor.numel() for tensor in tensors.values())


def test_legacy_rotary_tables_are_ignored():
    tensors = HEAD.tensors() | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    FORMAT.load(tensors, HEAD.fields(), checkpoints.target())


@pytest.mark.parametrize("name", ["SafeAILab", "SafeAILab, whole vocabulary"])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_saved_loads_back(name, shared, tmp_path):
    head_format, target = FORMATS[name], checkpoints.target()
    lay_out_for_cpu(target)
    config = parse(head_format.tensors(), head_format.fields()).heads.config
    head = Eagle3Head(config)
    ids = torch.tensor(head_format.draft_ids)
    head.target_ids = None if len(head_format.draft_ids) == checkpoints.VOCAB else ids
    if shared:
        head.lm_head.weight.data = target.lm_head.weight.data[ids]
    save(head, tmp_path, checkpoints.DEPTH, own_lm_head=not shared, dtype=torch.float32)
    stored = read_tensors(tmp_path)
    assert ("lm_head.weight" in stored) is not shared
    assert "embed_tokens.weight" not in stored
    back = FORMAT.load(stored, read_config(tmp_path), target)
    assert back.hidden_layers == (2, 2, 1)
    expected = {name: tensor for name, tensor in head.state_dict().items() if name != "embed_tokens.weight"}
    found = back.modules[0].state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.equal(found["embed_tokens.weight"], target.model.embed_tokens.weight)
    assert (back.modules[0].target_ids is None) == (head.target_ids is None)
    if shared and head.target_ids is None:
        assert back.modules[0].lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
