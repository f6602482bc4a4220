"""A target with a window sees the first and the latest tokens only, in trees as in plain decoding."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig, LlamaConfig, MistralConfig

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError, ModelError
from drafttree.evaluation.compare import compare
from drafttree.measure.reference import transformers_generate
from drafttree.models import CacheLayout, LossyWindow, TargetModel, TreeCache
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import append
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.windows import WindowedRows
from drafttree.models.wrapped_backends import WindowedBackend
from drafttree.policies import Chain, DynaTree, Talon
from helpers.replays import Replays
from testing import tiny
from testing.families import config, hybrids

CONTEXT = 256
GROUPED = {**tiny.GROUPED, "max_position_embeddings": CONTEXT}
CONFIGS = {
    "llama": LlamaConfig(**GROUPED),
    "gpt_neox": GPTNeoXConfig(**{**tiny.SIZES, "max_position_embeddings": CONTEXT}),
    "own_window": MistralConfig(**GROUPED, sliding_window=7),
}
BACKENDS = {
    "module": ModuleBackend,
    "fused": FusedBackend,
    "recorded": lambda module: RecordedBackend(FusedBackend(module), Replays()),
}
WINDOW = LossyWindow(12, 3)
PROMPT = tiny.random_tokens(30, 5)
LENGTH = 50
POLICIES = [Chain(), DynaTree(), Talon(budget=24, width=4)]


def build(name: str):
    return tiny.from_config(deepcopy(CONFIGS[name])).double()


def windowed(module, window: LossyWindow = WINDOW) -> TargetModel:
    return TargetModel(module, partial(choose_backend, wants=Wants(lossy_window=window)))


def speculative(target: TargetModel, name: str) -> Decoder:
    """A decoder whose drafter is the same model without the window, so it is often right and often wrong."""
    return Decoder(target, LanguageModelDrafter(TargetModel(build(name))))


@torch.inference_mode()
def naive_text(module, window: LossyWindow, own_window: int | None = None) -> list[int]:
    """Greedy decoding by transformers, which reads the whole text anew for every token, under an explicit mask."""
    text = list(PROMPT)
    for _ in range(LENGTH):
        own, keys = torch.arange(len(text))[:, None], torch.arange(len(text))
        seen = (keys <= own) & ((own - keys < window.size) | (keys < window.sinks))
        seen &= own - keys < (own_window or len(text))
        mask = torch.zeros(seen.shape, dtype=module.dtype).masked_fill(~seen, -torch.inf)[None, None]
        text.append(int(module(input_ids=torch.tensor([text]), attention_mask=mask).logits[0, -1].argmax()))
    return text[len(PROMPT) :]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "own_window"), [("llama", None), ("gpt_neox", None), ("own_window", 7)])
def test_plain_decoding_writes_the_text_of_the_model_with_a_masked_window(name, own_window):
    expected = naive_text(build(name), WINDOW, own_window)
    plain = Decoder(windowed(build(name)))
    assert plain.generate(PROMPT, max_new_tokens=LENGTH).tokens == expected
    if own_window is None:
        assert expected != Decoder(TargetModel(build(name))).generate(PROMPT, max_new_tokens=LENGTH).tokens


@pytest.mark.few(1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_speculative_decoding_writes_plain_decodings_text_over_the_same_window(name, temperature):
    decoder = speculative(windowed(build(name)), name)
    options = {"max_new_tokens": LENGTH, "temperature": temperature, "seed": 3}
    plain = decoder.plain().generate(PROMPT, **options).tokens
    for policy in POLICIES:
        found = decoder.with_policy(policy).generate(PROMPT, **options)
        assert found.tokens == plain
        assert found.metrics.mean_accepted_tokens > 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "window", [LossyWindow(1, 0), LossyWindow(1, 2), LossyWindow(3, 0), LossyWindow(40, 9)], ids=str
)
def test_any_window_holds_for_trees_deeper_than_itself(window):
    decoder = speculative(windowed(build("llama"), window), "llama").with_policy(Talon(budget=16, width=2))
    found = decoder.generate(PROMPT, max_new_tokens=LENGTH)
    assert found.tokens == decoder.plain().generate(PROMPT, max_new_tokens=LENGTH).tokens


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_writes_the_same_text(backend):
    expected = naive_text(build("llama"), WINDOW)
    target = TargetModel(build("llama"), lambda module: WindowedBackend(BACKENDS[backend](module), WINDOW))
    for decoder in (Decoder(target), speculative(target, "llama").with_policy(Talon(budget=16, width=4))):
        assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == expected


def test_a_windowed_model_drafts_as_it_decodes():
    target = windowed(build("llama"))
    decoder = Decoder(target, LanguageModelDrafter(target), Chain(depth=4))
    found = decoder.generate(PROMPT, max_new_tokens=LENGTH)
    assert found.metrics.acceptance_rate > 0.95


def test_a_window_as_long_as_the_text_changes_nothing():
    decoder = Decoder(windowed(build("llama"), LossyWindow(LENGTH + len(PROMPT), 0)))
    whole = Decoder(TargetModel(build("llama"))).generate(PROMPT, max_new_tokens=LENGTH)
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == whole.tokens


def test_a_long_text_takes_the_memory_of_its_window():
    decoder = speculative(windowed(build("llama")), "llama")
    request = decoder.new_request(PROMPT, max_new_tokens=200)
    while not request.text.finish_reason:
        decoder.step(request)
        assert request.cache.length < WINDOW.rows + WINDOW.slack
        assert request.cache.next_position == len(request.tokens) - 1
    assert request.cache.windowed.dropped > 150


def test_rows_that_no_later_token_sees_are_dropped_and_the_others_keep_their_positions():
    cache = TreeCache(CacheLayout.uniform(1, 1, 1), 4)
    cache.windowed = WindowedRows(LossyWindow(4, 2))
    for start, count in ((0, 3), (3, 5), (8, 1)):
        rows = torch.arange(start, start + count, dtype=torch.float32).view(1, 1, -1, 1)
        cache.update(rows, rows, 0)
        cache.grow(np.arange(start, start + count))
        cache.commit(range(count))
    ((keys, _),) = cache.committed()
    assert keys.flatten().tolist() == cache.committed_positions(keys.device).tolist() == [0, 1, 5, 6, 7, 8]
    assert (cache.next_position, cache.windowed.dropped) == (9, 3)
    cache.reset()
    assert (cache.length, cache.next_position) == (0, 0)


def test_nothing_is_kept_of_windowed_texts_for_later_ones():
    decoder = speculative(windowed(build("llama")), "llama")
    expected = decoder.plain().generate([*PROMPT, 1, 2], max_new_tokens=8).tokens
    decoder.generate(PROMPT, max_new_tokens=8, reuse_prefix=True)
    later = decoder.generate([*PROMPT, 1, 2], max_new_tokens=8, reuse_prefix=True)
    assert (decoder.prefixes.tokens, later.metrics.reused_tokens) == (0, 0)
    assert later.tokens == expected


def test_a_cache_with_a_window_takes_no_rows_of_one_without():
    layout = CacheLayout.uniform(1, 1, 1)
    whole, cut = TreeCache(layout, 4), TreeCache(layout, 4)
    whole.update(torch.ones(1, 1, 3, 1), torch.ones(1, 1, 3, 1), 0)
    whole.commit(range(3))
    cut.windowed = WindowedRows(WINDOW)
    assert cut.copy_from(whole, 3) == 0
    assert TreeCache(layout, 4).copy_from(whole, 3) == 3


def test_rows_of_whole_texts_do_not_serve_a_windowed_one():
    whole = speculative(TargetModel(build("llama")), "llama")
    whole.generate(PROMPT, max_new_tokens=8, reuse_prefix=True)
    assert whole.prefixes.tokens > 0
    decoder = whole.with_target(windowed(build("llama")))
    found = decoder.generate(PROMPT, max_new_tokens=LENGTH, reuse_prefix=True)
    assert found.metrics.reused_tokens == 0
    assert found.tokens == naive_text(build("llama"), WINDOW)


def test_a_long_prompt_is_read_in_parts_as_in_one():
    module = build("llama")
    logits = []
    for parts in ((30,), (7, 1, 13, 9), (1,) * 30):
        target = windowed(deepcopy(module))
        cache, rest = target.new_cache(64), list(PROMPT)
        for count in parts:
            output = append(target, cache, rest[:count])
            rest = rest[count:]
        logits.append(output.logits[0, -1])
    torch.testing.assert_close(logits[1], logits[0])
    torch.testing.assert_close(logits[2], logits[0])


def test_recurrent_layers_are_refused_by_name():
    with pytest.raises(ModelError, match=r"lossy_window cannot hold for \w+, whose recurrent layers"):
        windowed(tiny.from_config(config(hybrids()[0])))


def test_transformers_is_no_reference_for_a_windowed_target():
    decoder = speculative(windowed(build("llama")), "llama")
    with pytest.raises(ConfigError, match="transformers' generate has no lossy_window"):
        transformers_generate(decoder, PROMPT, max_new_tokens=4)
    assert compare(decoder, PROMPT, repeats=1, max_new_tokens=8).transformers is None


def test_the_window_is_shown():
    assert "lossy_window=12+3" in repr(windowed(build("llama")))
    assert TargetModel(build("llama")).lossy_window is None
