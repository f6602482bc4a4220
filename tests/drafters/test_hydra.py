"""Hydra and Hydra++ heads: one pass per level, the text unchanged, clear refusals."""

import logging
import re

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters.formats import read_tensors
from drafttree.drafters.formats.heads import HYDRA as READER
from drafttree.drafters.heads import HydraDrafter, HydraHeads, prefix_config
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.policies import Chain, Talon
from helpers import trained
from helpers.checkpoints import FORMATS, Format, Tensors, hydra_shapes
from helpers.trained import HIDDEN, LENGTH, PROMPT, VOCAB, states
from testing import tiny
from testing.costs import toy_decoder

TARGET = trained.counting()
MODEL = TargetModel(TARGET)
CLONE = trained.counting()
PREFIX = "prefix_embeding_layer."
LAYER = f"{PREFIX}layers.0."
HYDRA, PLUS = (FORMATS[name].but(sizes={"V": VOCAB}, states=(tiny.LAYERS,)) for name in ("Hydra", "Hydra++"))
both = pytest.mark.parametrize("form", [HYDRA, PLUS], ids=["hydra", "hydra++"])


def unprojected(form: Format) -> Format:
    return form.but(shapes={name: None for name in form.shapes if name.startswith("hydra_lm_head")})


def counting(form: Format) -> Tensors:
    """Heads that predict the last token they read plus one, and are right for as long as the target counts."""
    embeddings = TARGET.model.embed_tokens.weight.detach()
    tensors = {name: each if "norm" in name else each / 10 for name, each in form.tensors().items()}
    tensors["input_embed_fn.weight"] = embeddings.clone()
    for name in tensors:
        if name.endswith("res_connection.weight"):
            tensors[name][:, -HIDDEN:] += torch.eye(HIDDEN)
        if name.startswith("hydra_lm_head") and name.endswith("weight"):
            tensors[name] = 4 * embeddings.roll(1, 0)
    return tensors


def counter(form: Format = PLUS) -> HydraDrafter:
    return READER.load(counting(form), {}, TARGET)


def check_root(draft, hidden: torch.Tensor, root: int) -> None:
    """Compare the first draft below a root with the formula on the states of all tokens before it."""
    expected = PLUS.logits(PLUS.tensors(), CLONE, [hidden[0]], [root] * (hidden.shape[1] + 1), [])
    torch.testing.assert_close(draft.draft_root()[0, 0].double(), expected, atol=1e-5, rtol=1e-5)


def test_a_prompt_longer_than_a_chunk_is_read_in_parts(monkeypatch):
    monkeypatch.setattr("drafttree.drafters.heads.PREFILL_CHUNK", 3)
    drafter = READER.load(PLUS.tensors(), {}, TARGET)
    draft = drafter.start([1] * 10 + [6], capacity=4)
    draft.prefill((states(10, 1),), 10)
    check_root(draft, states(10, 1), 6)


def test_a_level_costs_one_pass_and_no_tree_is_deeper_than_there_are_heads():
    for policy in (Chain(depth=2), Chain(depth=6), Talon(width=4, budget=16)):
        metrics = toy_decoder(MODEL, counter(), policy).generate(PROMPT, max_new_tokens=LENGTH).metrics
        assert [turn.draft_passes for turn in metrics.rounds] == [turn.levels for turn in metrics.rounds]
        assert max(turn.levels for turn in metrics.rounds) <= min(3, policy.levels() or 3)
        assert metrics.draft_pass > 0


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["gpt_neox", "qwen3", "gemma3", "gpt2"])
def test_any_architecture_can_be_the_target(name):
    target = tiny.build(name)
    config = prefix_config(target.config)
    made = HydraHeads(2, 1, HIDDEN, VOCAB, config, shares_output=True)
    drafter = READER.load(made.state_dict(), {"shared_lm_head": True}, target)
    decoder = Decoder(TargetModel(target), drafter, Talon(width=4, budget=16))
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == (
        decoder.plain().generate(PROMPT, max_new_tokens=LENGTH).tokens
    )


def test_parts_equal_to_the_targets_are_not_kept_twice():
    target = tiny.build("llama").bfloat16()
    tensors = unprojected(PLUS).tensors() | {"input_embed_fn.weight": target.model.embed_tokens.weight}
    weights = dict(READER.load(tensors, {"shared_lm_head": True}, target).heads.named_parameters())
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in weights.values())
    assert set(weights) == set(tensors) - {"input_embed_fn.weight"}


def refused(tensors, config=None) -> str:
    with pytest.raises(ModelError) as error:
        READER.load(tensors, config or {}, TARGET)
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
    tensors = (PLUS if len(gone) == 3 else HYDRA).tensors()
    for name in gone:
        del tensors[name]
    message = refused(tensors | trained.randomness({"strange": (2,)}))
    missing, unexpected = message.split("missing ")[1].split("; unexpected ")
    assert sorted(missing.split(", ")) == sorted(gone)
    assert unexpected == "strange"


def test_tensors_of_another_architecture_than_the_config_says_are_named():
    assert "hydra_mlp.0.0.linear.weight" in refused(HYDRA.tensors(), {"hydra_head_arch": "prefix-mlp"})
    assert "unexpected" in refused(PLUS.tensors(), {"hydra_head_arch": "mlp"})


def test_projections_are_missing_unless_the_config_shares_them():
    message = refused(unprojected(HYDRA).tensors())
    assert all(f"hydra_lm_head.{head}.{part}" in message for head in range(3) for part in ("weight", "bias"))


def test_a_config_that_tells_the_targets_sizes():
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "base_num_hidden_layers": tiny.LAYERS, "shared_lm_head": True}
    tensors = unprojected(PLUS).but(shapes={"input_embed_fn.weight": None}).tensors()
    READER.load(tensors, sizes, TARGET)
    assert f"vocabulary of 4096, this target's is {VOCAB};" in refused(tensors, sizes | {"vocab_size": 4096})
    assert f"layers of 7, this target's is {tiny.LAYERS};" in refused(tensors, sizes | {"base_num_hidden_layers": 7})


@both
@pytest.mark.parametrize(
    "name", ["hydra_mlp.7.1.linear.weight", "hydra_mlp.0.9.linear.weight", "hydra_lm_head.5.weight"]
)
def test_a_stray_tensor_makes_no_head(form, name):
    message = refused(form.tensors() | {name: torch.ones(1)})
    assert message.endswith(f"the Hydra head are wrong: unexpected {name}")


def test_the_layer_of_a_target_is_made_without_a_word(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING, "transformers"):
        prefix_config(TARGET.config)
    assert not caplog.messages


def test_blocks_stored_once_stay_one(tmp_path):
    tensors = HYDRA.but(shapes={"input_embed_fn.weight": None} | hydra_shapes(3, [0, 1, 2])).tensors()
    for name in [name for name in tensors if re.match(r"hydra_mlp\.\d+\.2\.", name)]:
        tensors[name] = tensors[name.replace(".2.linear", ".1.linear")]
    torch.save(tensors, tmp_path / "hydra_lm_head.pt")
    for dtype in (torch.float32, torch.bfloat16):
        drafter = READER.load(read_tensors(tmp_path), {}, tiny.build("llama").to(dtype))
        once = {tensor.data_ptr(): tensor.numel() for tensor in tensors.values()}
        assert drafter.nbytes == dtype.itemsize * sum(once.values())


@pytest.mark.parametrize("kind", ["cross-attn", "eagle-attn", "mlps"])
def test_other_architectures_are_refused_by_name(kind):
    assert kind in refused(HYDRA.tensors(), {"hydra_head_arch": kind})


def test_heads_that_read_another_layer_are_refused():
    assert "hidden_state_offset is 1" in refused(HYDRA.tensors(), {"hidden_state_offset": 1})


def test_tensors_without_a_head_are_refused():
    assert "no Hydra head" in refused({})
