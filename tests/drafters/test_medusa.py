"""Medusa heads: one pass per round, the text unchanged, clear refusals."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from drafttree import Decoder
from drafttree.drafters.formats import medusa
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.policies import POLICIES, Chain, Talon
from helpers import trained
from helpers.checkpoints import FORMATS, Tensors, medusa_shapes
from helpers.trained import HIDDEN, LENGTH, PROMPT, SAMPLINGS, VOCAB
from testing import tiny
from testing.costs import toy_decoder

TARGET = trained.counting()
MODEL = TargetModel(TARGET)
CLONE = trained.counting()
PLAIN = Decoder(MODEL)


MEDUSA, UNPROJECTED = (
    FORMATS[name].but(sizes={"V": VOCAB}, states=(tiny.LAYERS,)) for name in ("Medusa-1", "Medusa-1, no projection")
)
every_policy = pytest.mark.parametrize("name", POLICIES)
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def checkpoint(count=3) -> Tensors:
    """The tensors of `medusa_lm_head.pt`."""
    return replace(MEDUSA, shapes=medusa_shapes(count)).tensors()


def counting(count=3) -> Tensors:
    """Heads that continue the counting of the target, and are right for as long as it counts."""
    tokens = TARGET.model.embed_tokens.weight.detach()
    return {name: tensor / 10 for name, tensor in checkpoint(count).items()} | {
        f"{head}.1.weight": tokens.roll(head + 2, 0) for head in range(count)
    }


def counter(count=3) -> medusa.MedusaDrafter:
    return medusa.load(counting(count), {}, TARGET)


@every_policy
@every_sampling
def test_text_is_that_of_plain_decoding(name, sampling):
    expected = PLAIN.generate(PROMPT, max_new_tokens=LENGTH, **sampling).tokens
    for drafter in (medusa.load(checkpoint(), {}, TARGET), counter()):
        decoder = toy_decoder(MODEL, drafter, trained.small(name))
        assert decoder.generate(PROMPT, max_new_tokens=LENGTH, **sampling).tokens == expected


def test_heads_read_the_last_hidden_state_of_the_text_in_every_round():
    decoder = Decoder(MODEL, counter(), Talon(width=4, budget=16))
    before = trained.check_roots(decoder, CLONE, MEDUSA, counting())
    assert max(np.diff(before)) == 4


def test_the_heads_run_once_a_round_whatever_the_tree():
    for policy in (Chain(depth=2), Chain(depth=6), Talon(width=4, budget=16)):
        metrics = toy_decoder(MODEL, counter(), policy).generate(PROMPT, max_new_tokens=LENGTH).metrics
        assert [turn.draft_passes for turn in metrics.rounds] == [min(turn.levels, 1) for turn in metrics.rounds]
        assert max(turn.levels for turn in metrics.rounds) == min(3, policy.levels() or 3)
        assert metrics.draft_pass > 0


def test_no_tree_is_deeper_than_there_are_heads():
    for count in (1, 2, 5):
        rounds = Decoder(MODEL, counter(count), Chain(depth=8)).generate(PROMPT, max_new_tokens=LENGTH).metrics.rounds
        assert max(turn.levels for turn in rounds) == count


@every_sampling
def test_a_prompt_of_one_token_is_enough(sampling):
    decoder = Decoder(MODEL, counter(), Talon(width=4, budget=16))
    expected = PLAIN.generate([7], max_new_tokens=LENGTH, **sampling).tokens
    assert decoder.generate([7], max_new_tokens=LENGTH, **sampling).tokens == expected
    assert decoder.generate([7], max_new_tokens=1, **sampling).tokens == expected[:1]


@pytest.mark.parametrize("name", ["gpt_neox", "qwen3", "gemma3", "gpt2"])
def test_any_architecture_can_be_the_target(name):
    target = tiny.build(name)
    model = TargetModel(target)
    drafter = medusa.load(UNPROJECTED.tensors(), {}, target)
    decoder = Decoder(model, drafter, Talon(width=4, budget=16))
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == (
        decoder.plain().generate(PROMPT, max_new_tokens=LENGTH).tokens
    )


def test_heads_take_the_targets_dtype_and_share_its_projection():
    target = tiny.build("llama").bfloat16()
    drafter = medusa.load(UNPROJECTED.tensors(), {}, target)
    weights = list(drafter.heads.parameters())
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in weights)
    assert sum(weight.numel() for weight in weights) == 3 * HIDDEN * (HIDDEN + 1)


def refused(tensors, config=None) -> str:
    with pytest.raises(ModelError) as error:
        medusa.load(tensors, config or {}, TARGET)
    return str(error.value)


def test_missing_and_unexpected_tensors_are_all_named_once():
    tensors = checkpoint(12)
    for name in ("0.0.linear.bias", "11.1.weight", "2.1.weight"):
        del tensors[name]
    tensors |= trained.randomness({"strange": (2,), "3.1.bias": (VOCAB,)})
    message = refused(tensors)
    assert "missing 0.0.linear.bias, 2.1.weight, 11.1.weight; unexpected" in message
    assert sorted(message.split("unexpected ")[1].split(", ")) == ["3.1.bias", "strange"]


def test_projections_beside_a_config_that_shares_them_are_unexpected():
    assert "unexpected 0.1.weight, 1.1.weight, 2.1.weight" in refused(checkpoint(), {"shared_lm_head": True})


def test_projections_missing_where_the_config_says_they_are_stored():
    message = refused(UNPROJECTED.tensors(), {"shared_lm_head": False})
    assert "missing 0.1.weight, 1.1.weight, 2.1.weight" in message


def test_wrong_shapes_are_all_shown_as_found_and_expected():
    tensors = checkpoint() | trained.randomness({"1.0.linear.bias": (7,), "2.1.weight": (VOCAB, 9)})
    message = refused(tensors)
    assert f"1.0.linear.bias is [7] and should be [{HIDDEN}]" in message
    assert f"2.1.weight is [{VOCAB}, 9] and should be [{VOCAB}, {HIDDEN}]" in message
    assert len(re.findall("should be", message)) == 2


def test_all_that_is_wrong_is_told_at_once():
    tensors = checkpoint() | trained.randomness({"1.0.linear.bias": (7,), "strange": (2,)})
    del tensors["2.1.weight"]
    assert refused(tensors).endswith(
        f"missing 2.1.weight; unexpected strange; 1.0.linear.bias is [7] and should be [{HIDDEN}]"
    )


@pytest.mark.parametrize("name", ["7.3.weight", "7.0.linear.weight", "0.5.linear.weight", "123456789.0.linear.bias"])
@pytest.mark.parametrize("projected", [True, False])
def test_a_stray_tensor_makes_no_head(name, projected):
    message = refused((MEDUSA if projected else UNPROJECTED).tensors() | {name: torch.ones(1)})
    assert message.endswith(f"no Medusa head: unexpected {name}")


def test_numbers_that_are_none_and_other_dtypes_are_refused():
    tensors = checkpoint()
    tensors["0.0.linear.weight"][3, 4] = torch.nan
    tensors["1.0.linear.bias"][0] = -torch.inf
    tensors["1.1.weight"] = torch.ones(VOCAB, HIDDEN, dtype=torch.int8)
    tensors["2.1.weight"] = torch.ones(VOCAB, HIDDEN, dtype=torch.bool)
    message = refused(tensors)
    for part in (
        "0.0.linear.weight holds numbers that are not finite",
        "1.0.linear.bias holds numbers that are not finite",
        "1.1.weight is int8 and should be floating-point",
        "2.1.weight is bool and should be floating-point",
    ):
        assert message.count(part) == 1


SIZES = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "base_num_hidden_layers": tiny.LAYERS}


def test_a_config_that_tells_the_targets_sizes():
    medusa.load(UNPROJECTED.tensors(), SIZES, TARGET)
    for key, size in (
        ("vocab_size", "vocabulary"),
        ("hidden_size", "hidden size"),
        ("base_num_hidden_layers", "layers"),
    ):
        message = refused(UNPROJECTED.tensors(), SIZES | {key: 4096})
        assert f"{size} of 4096, this target's is {SIZES[key]};" in message
        assert f"{key} as 'x'; it must be a positive integer" in refused(checkpoint(), {key: "x"})


@pytest.mark.parametrize(
    ("size", "found", "expected"), [("hidden_size", 16, HIDDEN), ("vocab_size", 50, VOCAB)], ids=["hidden", "vocab"]
)
def test_heads_made_for_another_target_are_refused_with_both_numbers(size, found, expected):
    hidden, vocab = (found, VOCAB) if size == "hidden_size" else (HIDDEN, found)
    shapes = {"0.0.linear.weight": (hidden, hidden), "0.0.linear.bias": (hidden,), "0.1.weight": (vocab, hidden)}
    message = refused(trained.randomness(shapes))
    assert f"of {found}" in message
    assert f"is {expected}" in message


@pytest.mark.parametrize("tensors", [{}, {"model.norm.weight": torch.ones(HIDDEN)}], ids=["nothing", "another model"])
def test_tensors_without_a_head_are_refused(tensors):
    assert "no Medusa head" in refused(tensors)


def test_memory_is_that_of_the_weights_the_target_does_not_have():
    target = tiny.build("llama")
    own = 4 * 3 * HIDDEN * (HIDDEN + 1)
    assert medusa.load(UNPROJECTED.tensors(), {}, target).nbytes == own
    assert medusa.load(checkpoint(), {}, target).nbytes == own + 4 * 3 * HIDDEN * tiny.VOCAB
