"""Passes of drafttree-native: the module's function, in sums that do not depend on what else is in a pass."""

import os
import signal
import sys
import threading
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

import drafttree
from drafttree.core.openmp import openmp_libraries
from drafttree.models import Segment, TargetModel
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import append, prefill
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.native import kernels, native_backend, packing_plan
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.native.packed_model import packed_models
from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.quantization.quantize import quantize_int8
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

pytestmark = needs_native
every_family = pytest.mark.parametrize("name", CONFIGS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_kind = pytest.mark.parametrize(
    ("dtype", "quantize"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.float32, "int8"), (torch.bfloat16, "int8")],
    ids=lambda value: str(value),
)


def in_kind(module: PreTrainedModel, dtype: torch.dtype, quantize: str | None) -> PreTrainedModel:
    module.to(dtype)  # pyright: ignore[reportCallIssue]
    if quantize:
        quantize_int8(module)
    return module


def build(name: str, dtype: torch.dtype = torch.float32, quantize: str | None = None) -> TargetModel:
    model = TargetModel(in_kind(tiny.from_config(CONFIGS[name]()), dtype, quantize), choose_backend)
    assert isinstance(model.backend, NativeBackend)
    return model


@st.composite
def configs(draw) -> PreTrainedConfig:
    """Models whose sizes are no multiples of anything a kernel would like."""
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = {
        "vocab_size": draw(st.integers(20, 200)),
        "hidden_size": draw(st.integers(2, 30)) * heads * groups,
        "intermediate_size": draw(st.integers(10, 150)),
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_attention_heads": heads * groups,
        "num_key_value_heads": heads,
        "head_dim": 2 * draw(st.integers(2, 50)),
        "max_position_embeddings": 512,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    kind = draw(st.sampled_from([LlamaConfig, Qwen3Config, Gemma3TextConfig, Gemma4TextConfig, GPTNeoXConfig]))
    if kind is GPTNeoXConfig:
        sizes["hidden_size"] = sizes["num_attention_heads"] * sizes["head_dim"]
    if kind is Gemma3TextConfig:
        sizes |= {"sliding_window": draw(st.integers(1, 90)), "query_pre_attn_scalar": 8}
    if kind is Gemma4TextConfig:
        sizes |= draw(gemma4_options(heads))
    return kind(**sizes)


@st.composite
def gemma4_options(draw, key_heads: int) -> dict[str, Any]:
    shared, has_experts = draw(st.sampled_from([0, 2, 4])), draw(st.booleans())
    inputs = draw(st.sampled_from([0, *range(1, 70)]))
    return {
        **{"num_hidden_layers": 4 + shared, "num_kv_shared_layers": shared, "use_double_wide_mlp": draw(st.booleans())},
        **{"layer_types": ["sliding_attention", "full_attention"] * (2 + shared // 2)},
        **{"sliding_window": draw(st.integers(1, 90)), "global_head_dim": 2 * draw(st.integers(2, 50))},
        **{
            "attention_k_eq_v": draw(st.booleans()),
            "num_global_key_value_heads": draw(st.sampled_from([1, key_heads])),
        },
        **{"hidden_size_per_layer_input": inputs, "vocab_size_per_layer_input": 200},
        **{"final_logit_softcapping": draw(st.sampled_from([None, 2.0, 30.0]))},
        **({"enable_moe_block": True, "num_experts": 5, "moe_intermediate_size": 20} if has_experts else {}),
        "top_k_experts": draw(st.integers(1, 3)),
    }


@st.composite
def trees(draw) -> list[int]:
    """The parents of a tree's nodes."""
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, draw(st.integers(1, 40))))]


def seen(parents: list[int]) -> np.ndarray:
    visible = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        visible[node] |= visible[parent]
    return visible


@pytest.mark.few(1)
@every_kind
@settings(max_examples=20)
@given(config=configs(), prefixes=st.lists(st.integers(1, 150), min_size=1, max_size=3), shapes=st.data())
@torch.inference_mode()
def test_a_row_is_the_same_in_every_pass(dtype, quantize, config, prefixes, shapes):
    """Every node of trees that share a pass has the logits and states of its path read token by token."""
    backend = NativeBackend(in_kind(tiny.from_config(config), dtype, quantize))
    segments, alone, layers = [], [], tuple(range(config.num_hidden_layers + 1))
    for seed, length in enumerate(prefixes):
        prefix = (torch.tensor(tiny.random_tokens(length, seed)) % config.vocab_size).tolist()
        parents = shapes.draw(trees())
        visible = seen(parents)
        tokens = np.random.default_rng(seed).integers(config.vocab_size, size=len(parents))
        whole = backend.new_cache(8)
        append(backend, whole, prefix)
        segments.append(Segment(whole, tokens, visible.sum(1) - 1 + length, visible))
        path = visible[shapes.draw(st.integers(0, len(parents) - 1))].nonzero()[0].tolist()
        single = backend.new_cache(8)
        for token in prefix:
            append(backend, single, [token])
        alone.append((path, [append(backend, single, [int(tokens[node])], layers) for node in path]))
    for together, (path, outputs) in zip(backend.forward(segments, hidden_layers=layers), alone, strict=True):
        assert torch.equal(together.logits[0, path], torch.cat([each.logits[0] for each in outputs]))
        for layer, states in enumerate(together.hidden):
            assert torch.equal(states[0, path], torch.cat([each.hidden[layer][0] for each in outputs]))


@pytest.mark.few(6)
@every_dtype
@every_family
@torch.inference_mode()
def test_logits_are_as_near_to_exact_ones_as_the_modules(name, dtype):
    model = build(name, dtype)
    prompt = tiny.random_tokens(40, 1)
    module = deepcopy(model.module)
    TargetModel(module).release()
    exact = in_float64(module)(torch.tensor([prompt])).logits[0]
    theirs = module(torch.tensor([prompt])).logits[0]
    cache, ours = model.new_cache(40), []
    prefill(model, cache, prompt[:6], read=lambda rows: ours.append(rows))
    prefill(model, cache, prompt[6:], chunk=17, read=lambda rows: ours.append(rows))
    # on average: the largest of a mixture of experts is that of a token that another expert was chosen for
    gaps = [float((each.double() - exact).square().mean().sqrt()) for each in (torch.cat(ours), theirs)]
    assert gaps[0] <= 1.5 * gaps[1] + 1e-6


@pytest.mark.few(7)
@every_dtype
@every_family
@torch.inference_mode()
def test_rows_of_eight_bits_are_near_to_whole_ones(name, dtype):
    """Within what rounding the rows of every product of the module to eight bits changes, by chunks of 128 numbers."""
    model = build(name, dtype, "int8")
    prompt = tiny.random_tokens(40, 1)
    exact = deepcopy(model.module)
    TargetModel(exact).release()
    exact = in_float64(exact)
    rounded = deepcopy(exact)
    for layer in rounded.modules():
        if isinstance(layer, Int8Linear):
            layer.register_forward_pre_hook(lambda _, given: in_eight_bits(given[0]))
    expected, theirs = (module(torch.tensor([prompt])).logits[0] for module in (exact, rounded))
    cache, ours = model.new_cache(40), []
    prefill(model, cache, prompt, read=lambda rows: ours.append(rows))
    gap = float((torch.cat(ours).double() - expected).abs().max())
    assert gap <= 2 * float((theirs - expected).abs().max()) + (dtype == torch.bfloat16) * 0.05


def in_float64(module: PreTrainedModel) -> PreTrainedModel:
    """A copy of a module, on products of experts that know float64."""
    exact: Any = deepcopy(module)
    exact.config._experts_implementation = "eager"
    return exact.double()


def in_eight_bits(rows: torch.Tensor) -> torch.Tensor:
    parts = rows.split(128, -1)
    units = [part.abs().amax(-1, keepdim=True) / 127 for part in parts]
    return torch.cat([(part / unit).round() * unit for part, unit in zip(parts, units, strict=True)], -1)


@pytest.mark.few(1)
@every_kind
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"])
def test_texts_are_those_of_plain_decoding_in_every_kind(dtype, quantize, sampled):
    decoder = drafttree.load(
        "embedded", "embedded-draft", "talon:budget=12", device="cpu", dtype=dtype, quantize=quantize
    )
    target: Any = decoder.target
    assert isinstance(target.backend, NativeBackend)
    assert target.exact_text
    prompts = ["The old man looked at the sea", "def add(a, b):", "It was", "In the beginning there was"]
    options = {"max_new_tokens": 24, "ignore_eos": True, **sampled}
    expected = [decoder.plain().generate(prompt, **options).tokens for prompt in prompts]
    assert [decoder.generate(prompt, **options).tokens for prompt in prompts] == expected
    assert [text.tokens for text in decoder.generate(prompts, **options)] == expected


@every_dtype
@pytest.mark.parametrize("biased", ["q_proj", "k_proj", "v_proj"])
@torch.inference_mode()
def test_some_of_the_joined_products_may_have_a_bias(dtype, biased):
    module: Any = tiny.build("llama")
    for block in module.model.layers:
        layer = block.self_attn.get_submodule(biased)
        layer.bias = nn.Parameter(torch.randn(len(layer.weight), generator=torch.Generator().manual_seed(1)))
    module.to(dtype)
    clone, model = deepcopy(module), TargetModel(module, NativeBackend)
    tokens = tiny.random_tokens(9, 1)
    ours = append(model, model.new_cache(9), tokens).logits[0, -1]
    exact = clone.double()(torch.tensor([tokens])).logits[0, -1]
    assert (ours - exact).abs().max() < (1e-4 if dtype == torch.float32 else 0.1) * exact.abs().max()


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
@torch.inference_mode()
def test_another_default_dtype_changes_nothing(default):
    """transformers sets it for the whole process while it loads a model."""
    module = tiny.build("llama")
    backend = NativeBackend(module)
    expected = append(backend, backend.new_cache(9), tiny.random_tokens(9, 1)).logits
    torch.set_default_dtype(default)
    try:
        kernels._rows_agree.cache_clear()
        assert native_backend.why_not_native(module) is None
        assert torch.equal(append(backend, backend.new_cache(9), tiny.random_tokens(9, 1)).logits, expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_sizes_that_do_not_fit_are_refused():
    module: Any = tiny.build("llama")
    module.model.norm.weight = nn.Parameter(torch.ones(16))
    with pytest.raises(ValueError, match="sizes of the head do not fit"):
        NativeBackend(module)
    module = tiny.build("llama")
    module.model.layers[1].mlp.up_proj = nn.Linear(32, 40, bias=False)
    with pytest.raises(ValueError, match="sizes of a layer do not fit together"):
        NativeBackend(module)


def test_exact_text_needs_no_padding():
    module: Any = tiny.build("llama")
    assert isinstance(choose_backend(module.to(torch.bfloat16), Wants(exact_text=True)), NativeBackend)


@torch.inference_mode()
def test_changed_weights_are_packed_anew():
    model = build("llama")
    tokens = tiny.random_tokens(9, 1)
    before = append(model, model.new_cache(9), tokens).logits
    with torch.no_grad():
        model.module.model.layers[1].mlp.up_proj.weight.mul_(-1)
    after = append(model, model.new_cache(9), tokens).logits
    assert not torch.equal(before, after)
    model.release()
    torch.testing.assert_close(after[0], model.module(torch.tensor([tokens])).logits[0, -1:], atol=1e-4, rtol=1e-4)


def test_weights_are_packed_once():
    module = tiny.build("llama")
    first, second = NativeBackend(module), NativeBackend(module)
    assert first._model is second._model


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module.model.layers[0].mlp, "act_fn", nn.Mish()),
        lambda module: setattr(module.model.layers[0].self_attn, "o_proj", nn.Identity()),
        lambda module: module.half(),
    ],
    ids=["activation", "projection", "dtype"],
)
def test_what_is_not_known_is_left_to_the_module(change):
    module = tiny.build("llama")
    change(module)
    assert not isinstance(choose_backend(module), NativeBackend)


def test_a_pass_that_gives_other_logits_is_not_trusted(monkeypatch):
    def wrong(block):
        return {place: norm and norm._replace(scale=norm.scale * 1.1) for place, norm in right(block).items()}

    right = packing_plan._norms
    monkeypatch.setattr(packing_plan, "_norms", wrong)
    assert isinstance(choose_backend(tiny.build("llama")), FusedBackend | ModuleBackend)


def test_without_the_package_layers_are_fused(monkeypatch):
    monkeypatch.setattr(kernels, "native", None)
    assert isinstance(choose_backend(tiny.build("llama")), FusedBackend)


def test_where_memory_is_short_no_second_copy_is_made(monkeypatch):
    short = type("Memory", (), {"free": 1000, "total": 10000})()
    monkeypatch.setattr(native_backend, "machine_memory", lambda: short)
    module = tiny.build("llama")
    held = [*module.parameters()]
    assert isinstance(choose_backend(module), FusedBackend)
    del held
    assert isinstance(choose_backend(tiny.build("llama")), NativeBackend)


@torch.inference_mode()
def test_bad_tokens_are_named():
    model = build("llama")
    with pytest.raises(ValueError, match=f"token {tiny.VOCAB} is not in a vocabulary of {tiny.VOCAB}"):
        append(model, model.new_cache(4), [tiny.VOCAB])


@every_kind
@torch.inference_mode()
def test_what_is_no_number_is_not_hidden(dtype, quantize):
    model = build("llama", dtype, quantize)
    with torch.no_grad():
        model.module.get_input_embeddings().weight[3] = torch.nan
    logits = append(model, model.new_cache(4), [1, 2]).logits
    assert logits.isfinite().all()
    assert append(model, model.new_cache(4), [1, 3, 2]).logits.isnan().all()


def tasks_of_this_process() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(not openmp_libraries(), reason="no OpenMP library is known here")
@torch.inference_mode()
def test_passes_run_on_torchs_threads():
    """Threads of their own would share the cores with torch's, which spin after each operation."""
    model, threads = build("llama"), torch.get_num_threads()
    expected = append(model, model.new_cache(9), tiny.random_tokens(9, 1)).logits
    torch.set_num_threads(2)
    try:
        torch.randn(400, 400) @ torch.randn(400, 400)
        before = tasks_of_this_process()
        assert torch.equal(append(model, model.new_cache(9), tiny.random_tokens(9, 1)).logits, expected)
        # Threads that earlier tests left may end meanwhile.
        assert tasks_of_this_process() <= before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@torch.inference_mode()
def test_it_goes_on_in_a_forked_process():
    model = build("llama")
    expected = append(model, model.new_cache(9), tiny.random_tokens(9, 1)).logits
    child = os.fork()
    if not child:
        own = append(model, model.new_cache(9), tiny.random_tokens(9, 1)).logits
        os._exit(0 if torch.equal(own, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_may_be_forked_while_another_thread_is_in_a_pass():
    model, tokens, stop = build("llama"), tiny.random_tokens(60, 1), threading.Event()

    def read() -> None:
        with torch.inference_mode():
            append(model, model.new_cache(60), tokens)

    def go_on() -> None:
        while not stop.is_set():
            read()

    other = threading.Thread(target=go_on)
    other.start()
    try:
        for _ in range(12):
            child = os.fork()
            if not child:
                signal.alarm(20)
                read()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        other.join()


def test_a_build_whose_instructions_the_system_does_not_permit_is_passed_over(monkeypatch):
    for variant, permitted in {"_amx": False, "_avx512": True}.items():
        build = SimpleNamespace(may_run=lambda permitted=permitted: permitted)
        monkeypatch.setitem(sys.modules, f"drafttree_native.{variant}", build)
    found = kernels.native.load(kernels.native.VARIANTS["_amx"])
    assert found is sys.modules["drafttree_native._avx512"]


@pytest.mark.parametrize("variant", ["_avx512_bf16", "_avx512", "_avx2", "_portable"])
@every_kind
@torch.inference_mode()
def test_builds_for_other_processors_agree(dtype, quantize, variant, monkeypatch):
    """Those whose instructions this one has too; a build's own rows agree with each other to the last bit."""
    missing = kernels.native.VARIANTS[variant] - kernels.native.cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    try:
        other = kernels.native.load(kernels.native.VARIANTS[variant])
    except ImportError:
        pytest.skip("not built here")
    module = in_kind(tiny.build("llama"), dtype, quantize)
    prompt, tree = tiny.random_tokens(70, 1), tiny.random_tree((3, 5, 4), 2)
    expected = append(NativeBackend(module), NativeBackend(module).new_cache(70), prompt).logits
    monkeypatch.setattr(kernels, "native", other)
    packed_models.clear()
    model = TargetModel(module, NativeBackend)
    cache = model.new_cache(90)
    found = append(model, cache, prompt).logits
    torch.testing.assert_close(found, expected, atol=2e-2 if dtype == torch.bfloat16 or quantize else 1e-4, rtol=0)
    logits = tiny.score(model, cache, tree)[0]
    cache.commit([])
    for path in tiny.leaf_paths(tree):
        single = model.new_cache(90)
        append(model, single, prompt)
        rows = [append(model, single, [int(tree.tokens[node])]).logits[0] for node in path]
        assert torch.equal(torch.cat(rows), logits[path])
    packed_models.clear()
