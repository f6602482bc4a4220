"""Recorded passes give the lean decoder's logits, whatever ran on the same memory before."""

import gc
import weakref
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch

from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.loading import make_policy
from drafttree.models import validation as probe
from drafttree.models.base import Output, append, read
from drafttree.models.cuda_graphs import CudaGraphs
from drafttree.models.fused import LeanModel
from drafttree.models.huggingface import HuggingFaceModel
from drafttree.models.recorded import BUCKETS, DRAFTED, KEPT, SHORTEST, StaticModel
from drafttree.models.validation import wrap
from helpers import tiny
from helpers.replays import Replays, frozen

SIZES = ((), (2,), (3, 5, 4), (20, 20))


def _flat(output: Output) -> tuple[torch.Tensor, ...]:
    return output.logits, *output.hidden


def models(name: str, seed: int = 0, context: int = 64) -> tuple[LeanModel, StaticModel, Replays]:
    """A lean model and one that records the same weights' passes."""
    config = tiny.CONFIGS[name]()
    config.max_position_embeddings = context
    lean = wrap(tiny.from_config(config, seed))
    assert isinstance(lean, LeanModel)
    recorder = Replays()
    return lean, StaticModel(lean, recorder), recorder


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "qwen3"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_and_hidden_states_are_the_lean_models(name, size):
    lean, static, _ = models(name)
    layers, prefix = (0, tiny.LAYERS), tiny.random_tokens(9, 1)
    tree = tiny.random_tree(size, 2)
    results = []
    for model in (lean, static, static):
        cache = model.new_cache(1, 40)
        read(model, cache, prefix)
        positions = tree.depths + cache.length
        results.append(_flat(model.forward(cache, tree.tokens, positions, tree.ancestors, hidden_layers=layers)))
    for ours in results[1:]:
        for one, other in zip(results[0], ours, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_last_logits_alone():
    lean, static, _ = models("llama")
    tokens = tiny.random_tokens(11, 3)
    ours, theirs = (append(model, model.new_cache(1, 16), tokens).logits for model in (static, lean))
    assert ours.shape == (1, 1, tiny.VOCAB)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_outputs_of_an_earlier_pass_stay():
    _, static, _ = models("llama")
    cache, tokens = static.new_cache(1, 16), tiny.random_tokens(4, 3)
    first = append(static, cache, tokens[:1])
    before = first.logits.clone()
    append(static, cache, tokens[1:2])
    assert first.logits.equal(before)


@pytest.mark.parametrize("policy", ["dynatree", "talon:budget=24", "eagle", "chain"])
def test_texts_are_the_same_and_nothing_is_recorded_twice(policy):
    target, static, recorder = models("llama")
    draft, static_draft, _ = models("llama", seed=1)
    lean = Decoder(target, LanguageModelDrafter(draft), make_policy(policy))
    recorded = Decoder(static, LanguageModelDrafter(static_draft), make_policy(policy))
    for seed in (1, 2):
        prompt = tiny.random_tokens(7, seed)
        for options in ({}, {"temperature": 1.0, "seed": 5}):
            ours, theirs = (each.generate(prompt, max_new_tokens=24, **options) for each in (recorded, lean))
            assert ours.tokens == theirs.tokens
    assert 0 < recorder.recorded <= len(BUCKETS)


def test_a_text_longer_than_its_buffer():
    lean, static, _ = models("llama", context=8 * SHORTEST)
    tokens = tiny.random_tokens(2 * SHORTEST, 4)
    results = []
    for model in (lean, static):
        cache = model.new_cache(1, 8)
        read(model, cache, tokens, chunk=100)
        results.append(append(model, cache, tokens[:5]).logits)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_what_a_damaged_text_left_behind_is_gone():
    lean, static, _ = models("llama")
    cache = static.new_cache(1, 16)
    append(static, cache, [1, 2, 3])
    with torch.inference_mode():
        cache.slot.buffer.fill_(torch.nan)
    del cache
    ours, theirs = (append(model, model.new_cache(1, 16), [4, 5]).logits for model in (static, lean))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_few_buffers_are_kept():
    _, static, recorder = models("llama")
    caches = [static.new_cache(1, 16) for _ in range(KEPT + 3)]
    for cache in caches:
        append(static, cache, [1])
    slots = {id(cache.slot) for cache in caches}
    del caches, cache
    assert len(slots) == recorder.recorded == KEPT + 3
    caches = [static.new_cache(1, 16) for _ in range(KEPT + 3)]
    for cache in caches:
        append(static, cache, [1])
    assert recorder.recorded == KEPT + 6


def test_texts_of_several_lengths_take_turns():
    lean, static, recorder = models("llama", context=8 * SHORTEST)
    decoders = [Decoder(each, LanguageModelDrafter(each), make_policy("talon:budget=8")) for each in (static, lean)]
    prompt = tiny.random_tokens(5, 2)
    for limit in (8, 600, 8, 600, 600):
        texts = [decoder.new_request(prompt, max_new_tokens=limit) for decoder in decoders for _ in range(2)]
        for _ in range(6):
            for text, decoder in zip(texts, (decoders[0], decoders[0], decoders[1], decoders[1]), strict=True):
                if not text.finish_reason:
                    decoder.step(text)
        assert len({tuple(text.tokens) for text in texts}) == 1
        del texts, text
    assert recorder.recorded < 60


def test_recording_a_pass_leaves_committed_rows_alone():
    lean, static, _ = models("llama")
    results = []
    for model in (lean, static):
        long, short = model.new_cache(1, 40), model.new_cache(1, 40)
        append(model, long, tiny.random_tokens(9, 1))
        append(model, short, [1, 2])
        append(model, short, [3, 4, 5])
        results.append(append(model, long, [6, 7, 8]).logits)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_a_model_is_freed_with_what_it_recorded():
    _, static, _ = models("llama")
    append(static, static.new_cache(1, 16), [1])
    gone = weakref.ref(static)
    gc.disable()
    try:
        del static
        assert gone() is None
    finally:
        gc.enable()


def test_a_recording_that_repeats_its_first_pass_is_not_trusted():
    lean, _, _ = models("llama")
    module = HuggingFaceModel(deepcopy(lean.module))
    module.release()
    own = probe._own_logits(module)
    assert probe._repeats(StaticModel(lean, Replays()), own, 1e-4)
    assert not probe._repeats(StaticModel(lean, frozen), own, 1e-4)


def test_batches_and_prompts_run_as_they_come():
    lean, static, recorder = models("llama", context=8 * SHORTEST)
    trees = tiny.stacked([tiny.random_tree((2, 3), seed) for seed in (1, 2)])
    ours, theirs = (tiny.score(model, model.new_cache(2, 8), trees) for model in (static, lean))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    append(static, static.new_cache(1, 16), tiny.random_tokens(BUCKETS[-1] + 1, 1))
    assert recorder.recorded == 0


def test_more_drafted_rows_than_a_pass_can_see():
    lean, static, recorder = models("llama", context=8 * SHORTEST)
    results = []
    for model in (lean, static):
        cache = model.new_cache(1, 2 * DRAFTED)
        visible = torch.zeros(1, BUCKETS[-1], 0, dtype=torch.bool)
        tokens = torch.tensor([tiny.random_tokens(BUCKETS[-1], 1)])
        for level in range(DRAFTED // BUCKETS[-1] + 1):
            itself = torch.eye(BUCKETS[-1], dtype=torch.bool)[None]
            visible = torch.cat((visible, itself), 2)
            output = model.forward(cache, tokens, torch.full_like(tokens, level), visible)
        results.append(output.logits)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    assert recorder.recorded == 1


def test_a_failed_capture_is_told_once_and_passes_go_on(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    lean, _, _ = models("llama")
    graphs = CudaGraphs(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(graphs, "_capture", fail)
    static = StaticModel(lean, graphs)
    with pytest.warns(UserWarning, match="without CUDA graphs.*not permitted when stream is capturing$") as told:
        ours = [append(static, static.new_cache(1, 16), tokens).logits for tokens in ([4, 5], [4, 5, 6])]
    assert len(told) == 1
    theirs = [append(lean, lean.new_cache(1, 16), tokens).logits for tokens in ([4, 5], [4, 5, 6])]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["gpt_neox", "llama", "qwen3"])
def test_graphs_give_the_modules_logits(name):
    recorded = wrap(tiny.from_config(tiny.CONFIGS[name]()).cuda())
    assert isinstance(recorded, StaticModel)
    lean = LeanModel(HuggingFaceModel(deepcopy(recorded.module)))
    prefix = tiny.random_tokens(9, 1)
    for seed in (2, 3, 4):
        tree = tiny.random_tree((3, 5, 4), seed)
        tokens, positions, visible = (part.cuda() for part in (tree.tokens, tree.depths + len(prefix), tree.ancestors))
        results = []
        for model in (recorded, lean):
            cache = model.new_cache(1, 40)
            read(model, cache, prefix)
            results.append(model.forward(cache, tokens, positions, visible).logits)
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
