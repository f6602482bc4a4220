"""Recorded passes give the fused layers' logits, whatever ran on the same memory before."""

import gc
import logging
import re
import weakref
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.loading import make_policy
from drafttree.models import Output, TargetModel, backend_choice
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append, prefill
from drafttree.models.cache.buffer_pool import MIN_CAPACITY, POOL_SIZE, Recorder
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.probe import make_probes, own_logits
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.masked_inputs import BUCKETS, MAX_DRAFTED
from drafttree.models.recorded.recorded_passes import RecordedBackend
from helpers.replays import Replays, frozen
from testing import tiny

SIZES = ((), (2,), (3, 5, 4), (20, 20))


def _flat(output: Output) -> tuple[torch.Tensor, ...]:
    return output.logits, *output.hidden


def recorded_by(module, recorder: Recorder) -> TargetModel:
    return TargetModel(module, lambda module: RecordedBackend(FusedBackend(module), recorder))


def models(name: str, seed: int = 0, context: int = 64) -> tuple[TargetModel, TargetModel, Replays]:
    """A model on fused layers and one that records the same weights' passes."""
    config = tiny.CONFIGS[name]()
    config.max_position_embeddings = context
    fused = TargetModel(tiny.from_config(config, seed), choose_backend)
    assert isinstance(fused.backend, FusedBackend)
    recorder = Replays()
    return fused, recorded_by(fused.module, recorder), recorder


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ["gpt_neox", "llama", "qwen3"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_and_hidden_states_are_the_fused_layers(name, size):
    fused, recorded, _ = models(name)
    layers, prefix = (0, tiny.LAYERS), tiny.random_tokens(9, 1)
    tree = tiny.random_tree(size, 2)
    results = []
    for model in (fused, recorded, recorded):
        cache = model.new_cache(40)
        prefill(model, cache, prefix)
        positions = tree.depths + cache.length
        results.append(_flat(tiny.run(model, cache, tree.tokens, positions, tree.ancestors, hidden_layers=layers)))
    for ours in results[1:]:
        for one, other in zip(results[0], ours, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_last_logits_alone():
    fused, recorded, _ = models("llama")
    tokens = tiny.random_tokens(11, 3)
    ours, theirs = (append(model, model.new_cache(16), tokens).logits for model in (recorded, fused))
    assert ours.shape == (1, 1, tiny.VOCAB)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_outputs_of_an_earlier_pass_stay():
    _, recorded, _ = models("llama")
    cache, tokens = recorded.new_cache(16), tiny.random_tokens(4, 3)
    first = append(recorded, cache, tokens[:1])
    before = first.logits.clone()
    append(recorded, cache, tokens[1:2])
    assert first.logits.equal(before)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["dynatree", "talon:budget=24", "eagle", "chain"])
def test_texts_are_the_same_and_nothing_is_recorded_twice(policy):
    target, recorded_target, recorder = models("llama")
    draft, recorded_draft, _ = models("llama", seed=1)
    fused = Decoder(target, LanguageModelDrafter(draft), make_policy(policy))
    recorded = Decoder(recorded_target, LanguageModelDrafter(recorded_draft), make_policy(policy))
    for seed in (1, 2):
        prompt = tiny.random_tokens(7, seed)
        for options in ({}, {"temperature": 1.0, "seed": 5}):
            ours, theirs = (each.generate(prompt, max_new_tokens=24, **options) for each in (recorded, fused))
            assert ours.tokens == theirs.tokens
    assert 0 < recorder.recorded <= 2 * len(BUCKETS)  # greedy texts also rank their tokens


def test_a_text_longer_than_its_buffer():
    fused, recorded, _ = models("llama", context=8 * MIN_CAPACITY)
    tokens = tiny.random_tokens(2 * MIN_CAPACITY, 4)
    results = []
    for model in (fused, recorded):
        cache = model.new_cache(8)
        prefill(model, cache, tokens, chunk=100)
        results.append(append(model, cache, tokens[:5]).logits)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_what_a_damaged_text_left_behind_is_gone():
    fused, recorded, _ = models("llama")
    cache = recorded.new_cache(16)
    append(recorded, cache, [1, 2, 3])
    with torch.inference_mode():
        for buffer in cache.pooled.buffers:
            buffer.fill_(torch.nan)
    del cache
    ours, theirs = (append(model, model.new_cache(16), [4, 5]).logits for model in (recorded, fused))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_few_buffers_are_kept():
    _, recorded, recorder = models("llama")
    caches = [recorded.new_cache(16) for _ in range(POOL_SIZE + 3)]
    for cache in caches:
        append(recorded, cache, [1])
    buffers = {id(cache.pooled) for cache in caches}
    del caches, cache
    assert len(buffers) == recorder.recorded == POOL_SIZE + 3
    caches = [recorded.new_cache(16) for _ in range(POOL_SIZE + 3)]
    for cache in caches:
        append(recorded, cache, [1])
    assert recorder.recorded == POOL_SIZE + 6


def test_texts_of_several_lengths_take_turns():
    fused, recorded, recorder = models("llama", context=8 * MIN_CAPACITY)
    decoders = [Decoder(each, LanguageModelDrafter(each), make_policy("talon:budget=8")) for each in (recorded, fused)]
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
    fused, recorded, _ = models("llama")
    results = []
    for model in (fused, recorded):
        long, short = model.new_cache(40), model.new_cache(40)
        append(model, long, tiny.random_tokens(9, 1))
        append(model, short, [1, 2])
        append(model, short, [3, 4, 5])
        results.append(append(model, long, [6, 7, 8]).logits)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_a_model_is_freed_with_what_it_recorded():
    _, recorded, _ = models("llama")
    append(recorded, recorded.new_cache(16), [1])
    gone = weakref.ref(recorded)
    gc.disable()
    try:
        del recorded
        assert gone() is None
    finally:
        gc.enable()


def test_a_recording_that_repeats_its_first_pass_is_not_trusted():
    model, _, _ = models("llama")
    model.release()
    fused = FusedBackend(model.module)
    own = [(probe, own_logits(model.module, probe)) for probe in make_probes(model.module)]
    assert backend_choice._repeats(RecordedBackend(fused, Replays()), own, 1e-4)
    assert not backend_choice._repeats(RecordedBackend(fused, frozen), own, 1e-4)


def test_prompts_run_as_they_come():
    _, recorded, recorder = models("llama", context=8 * MIN_CAPACITY)
    append(recorded, recorded.new_cache(16), tiny.random_tokens(BUCKETS[-1] + 1, 1))
    assert recorder.recorded == 0


def test_more_drafted_rows_than_a_pass_can_see():
    fused, recorded, recorder = models("llama", context=8 * MIN_CAPACITY)
    results = []
    for model in (fused, recorded):
        cache = model.new_cache(2 * MAX_DRAFTED)
        visible = np.zeros((BUCKETS[-1], 0), dtype=bool)
        tokens = np.array(tiny.random_tokens(BUCKETS[-1], 1))
        for level in range(MAX_DRAFTED // BUCKETS[-1] + 1):
            visible = np.concatenate((visible, np.eye(BUCKETS[-1], dtype=bool)), 1)
            output = tiny.run(model, cache, tokens, np.full_like(tokens, level), visible)
        results.append(output.logits)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    assert recorder.recorded == 1


def test_a_failed_capture_is_told_once_and_passes_go_on(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    fused, _, _ = models("llama")
    graphs = CudaGraphs(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(graphs, "_capture", fail)
    recorded = recorded_by(fused.module, graphs)
    with pytest.warns(UserWarning, match="without CUDA graphs.*not permitted when stream is capturing$") as told:
        ours = [append(recorded, recorded.new_cache(16), tokens).logits for tokens in ([4, 5], [4, 5, 6])]
    assert len(told) == 1
    theirs = [append(fused, fused.new_cache(16), tokens).logits for tokens in ([4, 5], [4, 5, 6])]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_other_threads_may_use_the_device_during_a_capture(monkeypatch):
    """By default any thread's allocation would end the capture."""
    captures = []

    def graph(_: object, **options):
        captures.append(options)
        return nullcontext()

    for name in ("Stream", "CUDAGraph", "graph_pool_handle", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    assert CudaGraphs(torch.device("cuda"))(lambda: ())() == ()
    assert [options["capture_error_mode"] for options in captures] == ["thread_local"]


def test_what_a_recording_took_is_told_once_for_every_size(caplog):
    _, recorded, _ = models("llama")
    cache = recorded.new_cache(40)
    with caplog.at_level(logging.INFO, "drafttree"):
        for count in (3, 4, 5):
            append(recorded, cache, tiny.random_tokens(count, 1))
    assert [re.sub(r"[\d.]+ s", "T s", line) for line in caplog.messages] == [
        "recorded a pass of size 4: T s, 0.0 MiB",
        "recorded a pass of size 8: T s, 0.0 MiB",
    ]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["gpt_neox", "llama", "qwen3"])
def test_graphs_give_the_modules_logits(name):
    recorded = TargetModel(tiny.from_config(tiny.CONFIGS[name]()).cuda(), choose_backend)
    assert isinstance(recorded.backend, RecordedBackend)
    fused = TargetModel(recorded.module, FusedBackend)
    prefix = tiny.random_tokens(9, 1)
    for seed in (2, 3, 4):
        tree = tiny.random_tree((3, 5, 4), seed)
        tokens, positions, visible = tree.tokens, tree.depths + len(prefix), tree.ancestors
        results = []
        for model in (recorded, fused):
            cache = model.new_cache(40)
            prefill(model, cache, prefix)
            results.append(tiny.run(model, cache, tokens, positions, visible).logits)
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
