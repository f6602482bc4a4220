"""Medusa heads: one pass per round, the text unchanged, clear refusals."""

from dataclasses import replace

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import MedusaDrafter
from drafttree.drafters.formats.heads import MEDUSA as READER
from drafttree.drafters.ranked_logits import RANKED
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.recorded.recorded_function import RecordedFunction
from drafttree.policies import Chain, Talon
from helpers import trained
from helpers.checkpoints import FORMATS, Tensors, medusa_shapes
from helpers.replays import Operations
from helpers.trained import HIDDEN, LENGTH, PROMPT, VOCAB
from testing import tiny
from testing.costs import toy_decoder

TARGET = trained.counting()
MODEL = TargetModel(TARGET)
MEDUSA, UNPROJECTED = (
    FORMATS[name].but(sizes={"V": VOCAB}, states=(tiny.LAYERS,)) for name in ("Medusa-1", "Medusa-1, no projection")
)


def checkpoint(count=3) -> Tensors:
    """The tensors of `medusa_lm_head.pt`."""
    return replace(MEDUSA, shapes=medusa_shapes(count)).tensors()


def counting(count=3) -> Tensors:
    """Heads that continue the counting of the target, and are right for as long as it counts."""
    tokens = TARGET.model.embed_tokens.weight.detach()
    return {name: tensor / 10 for name, tensor in checkpoint(count).items()} | {
        f"{head}.1.weight": tokens.roll(head + 2, 0) for head in range(count)
    }


def counter(count=3) -> MedusaDrafter:
    return READER.load(counting(count), {}, TARGET)


def test_the_heads_run_once_a_round_whatever_the_tree():
    for policy in (Chain(depth=2), Chain(depth=6), Talon(width=4, budget=16)):
        metrics = toy_decoder(MODEL, counter(), policy).generate(PROMPT, max_new_tokens=LENGTH).metrics
        assert [turn.draft_passes for turn in metrics.rounds] == [min(turn.levels, 1) for turn in metrics.rounds]
        assert max(turn.levels for turn in metrics.rounds) == min(3, policy.levels() or 3)
        assert metrics.draft_pass > 0


def test_all_levels_are_ranked_in_one_recorded_run(monkeypatch):
    """As on a device: the tree is that of the logits, which are not read."""
    recorder = Operations()
    drafter = counter()
    drafter.run = RecordedFunction(drafter._all_levels, recorder)
    contexts = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))
    (wanted,) = counter()._all_levels(contexts)
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)
    for rows in (contexts[:3], contexts[1:4], contexts):
        logits, best = drafter.run(rows)
    assert recorder.recorded == 2
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(best[:, 0], logits.log_softmax(-1).topk(min(VOCAB, RANKED)).values)
    ours, own = (toy_decoder(MODEL, heads, Talon(width=4, budget=16)) for heads in (drafter, counter()))
    ours.loop.reads_at_once = True
    found, plain = (decoder.generate(PROMPT, max_new_tokens=LENGTH) for decoder in (ours, own))
    assert found.tokens == plain.tokens
    assert found.metrics.tau == plain.metrics.tau > 2


def test_no_tree_is_deeper_than_there_are_heads():
    for count in (1, 2, 5):
        rounds = Decoder(MODEL, counter(count), Chain(depth=8)).generate(PROMPT, max_new_tokens=LENGTH).metrics.rounds
        assert max(turn.levels for turn in rounds) == count


@pytest.mark.parametrize("name", ["gpt_neox", "qwen3", "gemma3", "gpt2"])
def test_any_architecture_can_be_the_target(name):
    target = tiny.build(name)
    model = TargetModel(target)
    drafter = READER.load(UNPROJECTED.tensors(), {}, target)
    decoder = Decoder(model, drafter, Talon(width=4, budget=16))
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == (
        decoder.plain().generate(PROMPT, max_new_tokens=LENGTH).tokens
    )


def test_heads_take_the_targets_dtype_and_share_its_projection():
    target = tiny.build("llama").bfloat16()
    drafter = READER.load(UNPROJECTED.tensors(), {}, target)
    weights = list(drafter.heads.parameters())
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in weights)
    assert sum(weight.numel() for weight in weights) == 3 * HIDDEN * (HIDDEN + 1)


def refused(tensors, config=None) -> str:
    with pytest.raises(ModelError) as error:
        READER.load(tensors, config or {}, TARGET)
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
    assert message.endswith(f"the Medusa head are wrong: unexpected {name}")


SIZES = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "base_num_hidden_layers": tiny.LAYERS}


def test_a_config_that_tells_the_targets_sizes():
    READER.load(UNPROJECTED.tensors(), SIZES, TARGET)
    for key, size in (
        ("vocab_size", "vocabulary"),
        ("hidden_size", "hidden size"),
        ("base_num_hidden_layers", "layers"),
    ):
        message = refused(UNPROJECTED.tensors(), SIZES | {key: 4096})
        assert f"{size} of 4096, this target's is {SIZES[key]};" in message
        assert f"{key} as 'x'; it must be a positive integer" in refused(checkpoint(), {key: "x"})


@pytest.mark.parametrize("tensors", [{}, {"model.norm.weight": torch.ones(HIDDEN)}], ids=["nothing", "another model"])
def test_tensors_without_a_head_are_refused(tensors):
    assert "no Medusa head" in refused(tensors)


def test_memory_is_that_of_the_weights_the_target_does_not_have():
    target = tiny.build("llama")
    own = 4 * 3 * HIDDEN * (HIDDEN + 1)
    assert READER.load(UNPROJECTED.tensors(), {}, target).nbytes == own
    assert READER.load(checkpoint(), {}, target).nbytes == own + 4 * 3 * HIDDEN * tiny.VOCAB
