"""Hydra and Hydra++ heads: logits equal the formulas, one pass per level, the text unchanged, clear refusals."""

import logging
import re

import numpy as np
import pytest
import torch

from drafttree import Decoder
from drafttree.drafters.formats import hydra, read_config, read_tensors, recognise
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.policies import POLICIES, Chain, Talon
from helpers import trained
from helpers.trained import HIDDEN, LENGTH, PROMPT, SAMPLINGS, VOCAB, affine, assert_close, exact, silu, states
from testing import tiny
from testing.costs import toy_decoder

TARGET = trained.counting()
MODEL = TargetModel(TARGET)
CLONE = trained.counting()
EMBEDDING = CLONE.model.embed_tokens.weight.detach()
PLAIN = Decoder(MODEL)

PREFIX = "prefix_embeding_layer."
LAYER = f"{PREFIX}layers.0."
INNER, HEADS, KEYS, WIDTH = tiny.SIZES["intermediate_size"], 4, 2, HIDDEN // 4
PREFIX_SHAPES = {
    f"{LAYER}self_attn.q_proj.weight": (HEADS * WIDTH, HIDDEN),
    f"{LAYER}self_attn.k_proj.weight": (KEYS * WIDTH, HIDDEN),
    f"{LAYER}self_attn.v_proj.weight": (KEYS * WIDTH, HIDDEN),
    f"{LAYER}self_attn.o_proj.weight": (HIDDEN, HEADS * WIDTH),
    f"{LAYER}mlp.gate_proj.weight": (INNER, HIDDEN),
    f"{LAYER}mlp.up_proj.weight": (INNER, HIDDEN),
    f"{LAYER}mlp.down_proj.weight": (HIDDEN, INNER),
    f"{LAYER}input_layernorm.weight": (HIDDEN,),
    f"{LAYER}post_attention_layernorm.weight": (HIDDEN,),
    f"{PREFIX}norm.weight": (HIDDEN,),
}


def checkpoint(
    count=3, layers=1, prefix=False, projected=True, grounded=True, embeds=True, scale=0.2
) -> trained.Tensors:
    """The tensors of `hydra_lm_head.pt`; with a prefix layer, every other place of a sequence is a dropout."""
    shapes = dict(PREFIX_SHAPES) if prefix else {}
    for head in range(count):
        for layer in range(layers):
            block = f"hydra_mlp.{head}.{2 * layer + 1 if prefix else layer}"
            width = (head + 2) * HIDDEN if grounded and layer == 0 else HIDDEN
            parts = ("linear", "res_connection") if grounded and layer == 0 else ("linear",)
            for part in parts:
                shapes |= {f"{block}.{part}.weight": (HIDDEN, width), f"{block}.{part}.bias": (HIDDEN,)}
        end = f"hydra_lm_head.{head}.1" if prefix else f"hydra_lm_head.{head}"
        shapes |= {f"{end}.weight": (VOCAB, HIDDEN), f"{end}.bias": (VOCAB,)} if projected else {}
    return trained.randomness(shapes, 4, scale) | ({"input_embed_fn.weight": EMBEDDING.clone()} if embeds else {})


def published() -> trained.Tensors:
    """Hydra++ with what its files hold besides: an embedding nobody reads and the rotary frequencies."""
    beside = {f"{PREFIX}embed_tokens.weight": (VOCAB, HIDDEN), f"{LAYER}self_attn.rotary_emb.inv_freq": (4,)}
    return checkpoint(prefix=True) | trained.randomness(beside)


FORMATS = {
    "hydra": (checkpoint(), {"hydra_head_arch": "mlp", "grounded_heads": True, "hydra_num_heads": 3}),
    "hydra, two blocks": (checkpoint(layers=2), {"hydra_num_layers": 2}),
    "hydra++": (checkpoint(prefix=True), {"hydra_head_arch": "prefix-mlp", "hidden_state_offset": 0}),
    "hydra++, four blocks": (checkpoint(prefix=True, layers=4), {"hydra_num_layers": 4}),
    "hydra++, as published": (published(), {"hydra_head_arch": "prefix-mlp"}),
    "ungrounded": (checkpoint(grounded=False), {"grounded_heads": False}),
    "an embedding of its own": (checkpoint() | trained.randomness({"input_embed_fn.weight": (VOCAB, HIDDEN)}, 9), {}),
    "no embedding": (checkpoint(embeds=False), {}),
    "shared projection": (checkpoint(projected=False, prefix=True), {"shared_lm_head": True}),
}
every_format = pytest.mark.parametrize(("tensors", "config"), FORMATS.values(), ids=FORMATS)
every_policy = pytest.mark.parametrize("name", POLICIES)
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CLONE.config.rms_norm_eps) * weight


def rotated(x: np.ndarray) -> np.ndarray:
    """`[tokens, heads, width]` turned by angles that grow with the position, halves paired."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] / 10000 ** (np.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((left * cos - right * sin, right * cos + left * sin), -1)


def attention(x: np.ndarray, tensors: trained.Tensors) -> np.ndarray:
    """Causal attention of a Llama layer, with groups of query heads per key head."""
    query, key, value = (
        affine(x, tensors, f"{LAYER}self_attn.{part}_proj").reshape(len(x), -1, WIDTH) for part in "qkv"
    )
    query, key = rotated(query), rotated(key)
    mixed = []
    for head in range(HEADS):
        group = head // (HEADS // KEYS)
        scores = query[:, head] @ key[:, group].T / np.sqrt(WIDTH)
        weights = np.exp(scores) * np.tril(np.ones((len(x), len(x))))
        mixed.append(weights / weights.sum(-1, keepdims=True) @ value[:, group])
    return affine(np.concatenate(mixed, -1), tensors, f"{LAYER}self_attn.o_proj")


def context(hidden: np.ndarray, tensors: trained.Tensors) -> np.ndarray:
    """The context vector: the last of the target's hidden states `[tokens, hidden]`, after the prefix layer if any."""
    if f"{PREFIX}norm.weight" not in tensors:
        return hidden[-1]
    norm = {name: exact(tensors[f"{LAYER}{name}.weight"]) for name in ("input_layernorm", "post_attention_layernorm")}
    x = hidden + attention(rms_norm(hidden, norm["input_layernorm"]), tensors)
    inner = rms_norm(x, norm["post_attention_layernorm"])
    gate, up = (affine(inner, tensors, f"{LAYER}mlp.{part}_proj") for part in ("gate", "up"))
    x = x + affine(silu(gate) * up, tensors, f"{LAYER}mlp.down_proj")
    return rms_norm(x, exact(tensors[f"{PREFIX}norm.weight"]))[-1]


def formula(tensors: trained.Tensors, hidden: np.ndarray, path: list[int]) -> np.ndarray:
    """Logits after a path that begins with the root: head k reads the context and k + 1 embeddings."""
    embedding = exact(tensors.get("input_embed_fn.weight", EMBEDDING))
    head = len(path) - 1
    x = np.concatenate([context(hidden, tensors), *(embedding[token] for token in path)])
    blocks = sorted(
        (name for name in tensors if re.match(rf"hydra_mlp\.{head}\.\d+\.linear\.weight", name)),
        key=lambda name: int(name.split(".")[2]),
    )
    for block in (name.removesuffix(".linear.weight") for name in blocks):
        x = x[: tensors[f"{block}.linear.weight"].shape[1]]
        passed = affine(x, tensors, f"{block}.res_connection") if f"{block}.res_connection.weight" in tensors else x
        x = passed + silu(affine(x, tensors, f"{block}.linear"))
    for end in (f"hydra_lm_head.{head}", f"hydra_lm_head.{head}.1"):
        if f"{end}.weight" in tensors:
            return affine(x, tensors, end)
    return x @ exact(CLONE.lm_head.weight).T


def counting(prefix: bool) -> trained.Tensors:
    """Heads that predict the last token they read plus one, and are right for as long as the target counts."""
    tensors = checkpoint(prefix=prefix, scale=0.02)
    for name in tensors:
        if name.endswith("res_connection.weight"):
            tensors[name][:, -HIDDEN:] += torch.eye(HIDDEN)
        if name.startswith("hydra_lm_head") and name.endswith("weight"):
            tensors[name] = 4 * EMBEDDING.roll(1, 0)
    return tensors


def counter(prefix: bool = True) -> hydra.HydraDrafter:
    return hydra.load(counting(prefix), {}, TARGET)


@every_format
def test_logits_of_a_tree_equal_the_formula_in_every_round(tensors, config):
    drafter = hydra.load(tensors, config, TARGET)
    root, hidden = PROMPT[-1], states(5, 1)
    draft = drafter.start(PROMPT, capacity=4)
    draft.prefill((hidden,), 5)
    for round_ in range(4):
        levels = [[[root]], [[root, 7], [root, 8], [root, 9]], [[root, 7, 3], [root, 9, 3], [root, 9, 4]]]
        expected = [np.stack([formula(tensors, exact(hidden[0]), path) for path in paths]) for paths in levels]
        assert_close(draft.root(), expected[0])
        assert_close(draft.expand(torch.tensor([[7, 8, 9]]), torch.tensor([[0, 0, 0]])), expected[1])
        assert_close(draft.expand(torch.tensor([[3, 3, 4]]), torch.tensor([[0, 2, 2]])), expected[2])
        rows = states(round_ + 1, seed=10 + round_)
        root, hidden = 20 + round_, torch.cat((hidden, rows), 1)
        draft.commit([1] * round_ + [root], (rows,))
    assert draft.passes == 12
    assert draft.seconds > 0


def test_rounds_without_a_draft_are_read_by_the_next_one():
    drafter, tensors = hydra.load(checkpoint(prefix=True), {}, TARGET), checkpoint(prefix=True)
    draft = drafter.start(PROMPT, capacity=4)
    draft.prefill((states(5, 1),), 5)
    draft.commit([3], (states(1, 2),))
    draft.commit([4, 5], (states(2, 3),))
    hidden = torch.cat((states(5, 1), states(1, 2), states(2, 3)), 1)
    assert_close(draft.root(), formula(tensors, exact(hidden[0]), [5])[None])
    assert draft.passes == 1


def test_a_prompt_longer_than_a_chunk_is_read_in_parts(monkeypatch):
    monkeypatch.setattr("drafttree.drafters.hydra.PREFILL_CHUNK", 3)
    drafter, tensors = hydra.load(checkpoint(prefix=True), {}, TARGET), checkpoint(prefix=True)
    draft = drafter.start([1] * 10 + [6], capacity=4)
    draft.prefill((states(10, 1),), 10)
    assert_close(draft.root(), formula(tensors, exact(states(10, 1)[0]), [6])[None])


@every_policy
@every_sampling
def test_text_is_that_of_plain_decoding(name, sampling):
    expected = PLAIN.generate(PROMPT, max_new_tokens=LENGTH, **sampling).tokens
    for drafter in (counter(), hydra.load(checkpoint(), {}, TARGET)):
        decoder = toy_decoder(MODEL, drafter, trained.small(name))
        assert decoder.generate(PROMPT, max_new_tokens=LENGTH, **sampling).tokens == expected


@pytest.mark.parametrize("prefix", [False, True], ids=["hydra", "hydra++"])
def test_heads_read_the_hidden_states_and_tokens_of_the_text_in_every_round(prefix):
    tensors = counting(prefix)
    calls, _ = trained.watched(MODEL, counter(prefix), Talon(width=4, budget=16))
    steps = np.diff(sorted({len(text) for text, _, _ in calls}))
    assert len(set(steps)) > 1
    assert max(steps) == 4
    for text, frontier, logits in calls:
        hidden = CLONE(input_ids=torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0]
        expected = [formula(tensors, exact(hidden), [text[-1], *path]) for path in frontier]
        np.testing.assert_allclose(exact(logits[0]), np.stack(expected), atol=1e-3)


def test_a_level_costs_one_pass_and_no_tree_is_deeper_than_there_are_heads():
    for policy in (Chain(depth=2), Chain(depth=6), Talon(width=4, budget=16)):
        metrics = toy_decoder(MODEL, counter(), policy).generate(PROMPT, max_new_tokens=LENGTH).metrics
        assert [turn.draft_passes for turn in metrics.rounds] == [turn.levels for turn in metrics.rounds]
        assert max(turn.levels for turn in metrics.rounds) <= min(3, policy.levels() or 3)
        assert metrics.draft_pass > 0


@every_sampling
def test_a_prompt_of_one_token_is_enough(sampling):
    decoder = Decoder(MODEL, counter(), Talon(width=4, budget=16))
    expected = PLAIN.generate([7], max_new_tokens=LENGTH, **sampling).tokens
    assert decoder.generate([7], max_new_tokens=LENGTH, **sampling).tokens == expected
    assert decoder.generate([7], max_new_tokens=1, **sampling).tokens == expected[:1]


@pytest.mark.parametrize("prefix", [False, True], ids=["hydra", "hydra++"])
def test_public_files_are_read(prefix, tmp_path):
    tensors = checkpoint(prefix=prefix)
    torch.save(tensors, tmp_path / "hydra_lm_head.pt")
    (tmp_path / "config.json").write_text('{"hydra_num_heads": 4, "hydra_num_layers": 1}')
    assert recognise(tmp_path) == "hydra"
    drafter = hydra.load(read_tensors(tmp_path), read_config(tmp_path), TARGET)
    assert (drafter.levels, drafter.heads.state_dict().keys()) == (3, tensors.keys() - {"input_embed_fn.weight"})


def test_two_drafts_of_one_drafter_do_not_disturb_each_other():
    drafter, tensors = hydra.load(checkpoint(prefix=True), {}, TARGET), checkpoint(prefix=True)
    drafts = [drafter.start([token], 8) for token in (1, 2)]
    for seed, draft in enumerate(drafts):
        draft.prefill((states(4, seed),), 4)
    for seed, draft in enumerate(drafts):
        assert_close(draft.root(), formula(tensors, exact(states(4, seed)[0]), [seed + 1])[None])


@pytest.mark.parametrize("name", ["gpt_neox", "qwen3", "gemma3", "gpt2"])
def test_any_architecture_can_be_the_target(name):
    target = tiny.build(name)
    config = hydra.prefix_config(target.config)
    made = hydra.HydraHeads(2, 1, HIDDEN, VOCAB, config, shared=True)
    drafter = hydra.load(made.state_dict(), {"shared_lm_head": True}, target)
    decoder = Decoder(TargetModel(target), drafter, Talon(width=4, budget=16))
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == (
        decoder.plain().generate(PROMPT, max_new_tokens=LENGTH).tokens
    )


def test_parts_equal_to_the_targets_are_not_kept_twice():
    target = tiny.build("llama").bfloat16()
    tensors = checkpoint(projected=False, prefix=True) | {"input_embed_fn.weight": target.model.embed_tokens.weight}
    weights = dict(hydra.load(tensors, {"shared_lm_head": True}, target).heads.named_parameters())
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in weights.values())
    assert set(weights) == set(checkpoint(projected=False, prefix=True)) - {"input_embed_fn.weight"}


def refused(tensors, config=None) -> str:
    with pytest.raises(ModelError) as error:
        hydra.load(tensors, config or {}, TARGET)
    return str(error.value)


@pytest.mark.parametrize(
    "gone",
    [
        ["hydra_mlp.1.0.res_connection.bias", "hydra_lm_head.2.weight"],
        ["hydra_lm_head.2.1.bias", f"{LAYER}mlp.up_proj.weight", f"{PREFIX}norm.weight"],
    ],
    ids=["hydra", "hydra++"],
)
def test_missing_and_unexpected_tensors_are_all_named_once(gone):
    tensors = checkpoint(prefix=len(gone) == 3)
    for name in gone:
        del tensors[name]
    message = refused(tensors | trained.randomness({"strange": (2,)}))
    missing, unexpected = message.split("missing ")[1].split("; unexpected ")
    assert sorted(missing.split(", ")) == sorted(gone)
    assert unexpected == "strange"


def test_tensors_of_another_architecture_than_the_config_says_are_named():
    assert "hydra_mlp.0.0.linear.weight" in refused(checkpoint(), {"hydra_head_arch": "prefix-mlp"})
    assert "unexpected" in refused(checkpoint(prefix=True), {"hydra_head_arch": "mlp"})


def test_projections_are_missing_unless_the_config_shares_them():
    message = refused(checkpoint(2, projected=False))
    assert all(f"hydra_lm_head.{head}.{part}" in message for head in (0, 1) for part in ("weight", "bias"))


def test_wrong_shapes_are_all_shown_as_found_and_expected():
    wrong = {f"{LAYER}mlp.up_proj.weight": (9, HIDDEN), "hydra_mlp.1.1.linear.weight": (HIDDEN, 5)}
    message = refused(checkpoint(prefix=True) | trained.randomness(wrong))
    assert f"{LAYER}mlp.up_proj.weight is [9, {HIDDEN}] and should be [{INNER}, {HIDDEN}]" in message
    assert f"hydra_mlp.1.1.linear.weight is [{HIDDEN}, 5] and should be [{HIDDEN}, {3 * HIDDEN}]" in message
    assert message.count("should be") == 2


@pytest.mark.parametrize(
    ("size", "found", "expected"), [("hidden size", HIDDEN // 2, HIDDEN), ("vocabulary", 2 * VOCAB, VOCAB)]
)
@pytest.mark.parametrize("prefix", [False, True], ids=["hydra", "hydra++"])
def test_heads_made_for_another_target_are_refused_with_both_numbers(prefix, size, found, expected):
    shapes = {name: tensor.shape for name, tensor in checkpoint(prefix=prefix).items()}
    scaled = {
        name: tuple(found * (side // expected) if side % expected == 0 else side for side in shape)
        for name, shape in shapes.items()
    }
    assert f"{size} of {found}, this target's is {expected};" in refused(trained.randomness(scaled))


def test_a_config_that_tells_the_targets_sizes():
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "base_num_hidden_layers": tiny.LAYERS, "shared_lm_head": True}
    tensors = checkpoint(projected=False, embeds=False, prefix=True)
    hydra.load(tensors, sizes, TARGET)
    assert f"vocabulary of 4096, this target's is {VOCAB};" in refused(tensors, sizes | {"vocab_size": 4096})
    assert f"layers of 7, this target's is {tiny.LAYERS};" in refused(tensors, sizes | {"base_num_hidden_layers": 7})


@pytest.mark.parametrize("prefix", [False, True], ids=["hydra", "hydra++"])
@pytest.mark.parametrize(
    "name", ["hydra_mlp.7.1.linear.weight", "hydra_mlp.0.9.linear.weight", "hydra_lm_head.5.weight"]
)
def test_a_stray_tensor_makes_no_head(prefix, name):
    message = refused(checkpoint(prefix=prefix) | {name: torch.ones(1)})
    assert message.endswith(f"no Hydra head: unexpected {name}")


def test_numbers_that_are_none_are_refused():
    tensors = checkpoint(prefix=True)
    tensors[f"{LAYER}mlp.up_proj.weight"][0, 0] = torch.nan
    assert refused(tensors).endswith(f"{LAYER}mlp.up_proj.weight holds numbers that are not finite")


def test_the_layer_of_a_target_is_made_without_a_word(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING, "transformers"):
        hydra.prefix_config(TARGET.config)
    assert not caplog.messages


def test_blocks_stored_once_stay_one(tmp_path):
    tensors = checkpoint(layers=3, embeds=False)
    for name in [name for name in tensors if re.match(r"hydra_mlp\.\d+\.2\.", name)]:
        tensors[name] = tensors[name.replace(".2.linear", ".1.linear")]
    torch.save(tensors, tmp_path / "hydra_lm_head.pt")
    for dtype in (torch.float32, torch.bfloat16):
        drafter = hydra.load(read_tensors(tmp_path), {}, tiny.build("llama").to(dtype))
        once = {tensor.data_ptr(): tensor.numel() for tensor in tensors.values()}
        assert drafter.nbytes == dtype.itemsize * sum(once.values())


@pytest.mark.parametrize("kind", ["cross-attn", "eagle-attn", "mlps"])
def test_other_architectures_are_refused_by_name(kind):
    assert kind in refused(checkpoint(), {"hydra_head_arch": kind})


def test_heads_that_read_another_layer_are_refused():
    assert "hidden_state_offset is 1" in refused(checkpoint(), {"hidden_state_offset": 1})


def test_tensors_without_a_head_are_refused():
    assert "no Hydra head" in refused({})
