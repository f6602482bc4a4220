"""With exact_text a token's logits are the same, bit for bit, in whatever pass the token is."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, MistralConfig

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ModelError
from drafttree.loading import load_model
from drafttree.models import Segment, TargetModel, TreeCache
from drafttree.models.attention.exact_attention import DEPTH, attend_exactly, query_blocks
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import append
from drafttree.models.exact_text import ExactTextBackend, has_uniform_rows
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.segment import causal
from drafttree.models.windows import EVERYTHING, Span
from drafttree.models.wrapped_backends import WrappedBackend
from drafttree.policies import Chain, DynaTree, Eagle, Talon
from testing import tiny
from testing.families import config, hybrids

CONTEXT = 1024
GROUPED = {**tiny.GROUPED, "max_position_embeddings": CONTEXT}
LLAMA = LlamaConfig(**GROUPED)
CONFIGS = {
    "llama": LLAMA,
    "window": MistralConfig(**GROUPED, sliding_window=230),
    "small_window": MistralConfig(**GROUPED, sliding_window=tiny.WINDOW),
    "bounded_scores": Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=0.5, sliding_window=tiny.WINDOW),
}
REDUCED = [torch.bfloat16, torch.float16]


def build(config, dtype: torch.dtype):
    """A random model, of so many heads that rounding shows."""
    return tiny.from_config(deepcopy(config)).to(dtype)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in CONFIGS), ("llama", torch.float16)],
    ids=str,
)
def test_texts_are_those_of_plain_decoding(name, dtype):
    module = build(CONFIGS[name], dtype)
    drafter = LanguageModelDrafter(TargetModel(deepcopy(module)))
    decoder = Decoder(TargetModel(module, partial(choose_backend, wants=Wants(exact_text=True))), drafter)
    for seed, policy in enumerate((Chain(), DynaTree(), Talon(budget=24), Eagle())):
        options = {"max_new_tokens": 80, "temperature": seed % 2, "seed": seed, "ignore_eos": True}
        prompt = tiny.random_tokens(40 + 30 * seed, seed)
        found = decoder.with_policy(policy).generate(prompt, **options)
        assert found.tokens == decoder.plain().generate(prompt, **options).tokens
        assert found.metrics.mean_accepted_tokens > 1.5


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", [FusedBackend, ModuleBackend])
def test_the_check_at_load_finds_rows_that_depend_on_their_pass(backend):
    module = load_model("embedded", torch.bfloat16, torch.device("cpu"))
    assert not has_uniform_rows(backend(module), torch.bfloat16, module.config.vocab_size, CONTEXT)


@torch.inference_mode()
def test_padded_and_split_passes_give_the_logits_and_hidden_states_of_whole_ones():
    inner = FusedBackend(build(LLAMA, torch.float64))
    tree, prefix = tiny.random_tree((3, 5, 4), 2), tiny.random_tokens(9, 1)
    outputs = []
    for least, most in ((1, None), (16, None), (4, 4), (1, 5)):
        model = ExactTextBackend(inner, least, most)
        cache = model.new_cache(40)
        for part in (prefix[:6], prefix[6:]):
            append(model, cache, part)
        positions = tree.depths + cache.length
        outputs.append(tiny.run(model, cache, tree.tokens, positions, tree.ancestors, hidden_layers=(1, 3)))
        assert cache.drafted == tree.size
        seen = np.ones((1, cache.drafted + 1), dtype=bool)
        last = tiny.run(model, cache, tree.tokens[:1], positions[:1], seen, wanted=slice(-1, None))
        assert last.logits.shape[1] == 1
    for output in outputs[1:]:
        torch.testing.assert_close(output.logits, outputs[0].logits)
        torch.testing.assert_close(output.hidden, outputs[0].hidden)


@pytest.mark.parametrize("span", [EVERYTHING, Span(window=250), Span(window=40), Span(chunk=128)], ids=str)
def test_attention_is_that_of_one_sum(span):
    torch.manual_seed(0)
    rows, nodes, length = 460, 20, 440
    query, keys, values = (torch.randn(1, 2, *shape, 8) for shape in ((2, nodes), (rows,), (rows,)))
    positions = length + torch.arange(nodes)[None]
    distance = positions[0, :, None] - torch.arange(rows)
    seen = distance >= 0
    if span.window:
        seen &= distance < span.window
    if span.chunk:
        seen &= positions[0, :, None] // span.chunk == torch.arange(rows) // span.chunk
    mask = torch.zeros(nodes, rows).masked_fill(~seen, -torch.inf).repeat(2, 1)[None, None]
    cache = TreeCache.__new__(TreeCache)
    cache.length = length
    blocks = query_blocks(
        Segment(cache, positions[0].numpy(), positions[0].numpy(), causal(nodes)), torch.device("cpu")
    )
    assert len(blocks) == 2
    found = attend_exactly(query, keys, values, mask, None, blocks, span)
    scores = query.double() @ keys.double()[:, :, None].mT / 8**0.5 + mask.double().unflatten(2, (2, nodes))
    torch.testing.assert_close(found.double(), scores.softmax(-1) @ values.double()[:, :, None], atol=1e-6, rtol=1e-5)


def test_a_tree_too_deep_for_exact_text_is_refused_and_a_chain_is_not():
    cache = TreeCache.__new__(TreeCache)
    cache.length = 100
    positions = 100 + np.arange(DEPTH + 40)
    chain = Segment(cache, positions, positions, np.tri(DEPTH + 40, dtype=bool))
    assert len(query_blocks(chain, torch.device("cpu"))) > 1
    chain.visible[-1, 3] = False
    with pytest.raises(ModelError, match=f"at most {DEPTH} levels"):
        query_blocks(chain, torch.device("cpu"))


@pytest.mark.parametrize("name", ["gptj", *hybrids()[:1]])
def test_models_whose_sums_are_their_own_are_refused_by_name(name):
    with pytest.raises(ModelError, match=r"exact_text cannot hold for \w+, which has"):
        TargetModel(tiny.from_config(config(name)), partial(choose_backend, wants=Wants(exact_text=True)))


@pytest.mark.usefixtures("on_torch")
def test_a_device_on_which_rows_depend_on_their_pass_is_refused(monkeypatch):
    monkeypatch.setattr("drafttree.models.backend_choice.has_uniform_rows", lambda *_: False)
    with pytest.raises(ModelError, match="exact_text cannot hold for LlamaForCausalLM in float32 on this cpu"):
        TargetModel(build(LLAMA, torch.float32), partial(choose_backend, wants=Wants(exact_text=True)))


def test_a_backend_around_an_exact_one_is_exact():
    exact = TargetModel(
        tiny.build("llama"), lambda module: WrappedBackend(ExactTextBackend(FusedBackend(module), 1, 8))
    )
    assert exact.exact_text
    assert exact.packed_nbytes == exact.backend.packed_nbytes
    assert not TargetModel(tiny.build("llama"), lambda module: WrappedBackend(FusedBackend(module))).exact_text
