"""A model is trusted with trees only after a tree pass has agreed with the model's own logits."""

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch

import drafttree
from drafttree.core.openmp import gnu_libraries
from drafttree.errors import ModelError
from drafttree.models import TargetModel, backend_choice, validation
from drafttree.models.attention import tree_attention
from drafttree.models.backend_choice import choose_backend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module import module_inputs
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.native.native_backend import NativeBackend
from testing import families, tiny


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_known_architectures_pass(name):
    assert TargetModel(tiny.build(name), choose_backend).vocab_size


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "granite_swa", "gptj", "llama4"])
def test_long_contexts_pass(name):
    """There a second tree at late positions is scored, where windows must not hide the tree itself."""
    if name not in families.known():
        pytest.skip("the installed transformers has no such family")
    config = families.config(name)
    config.max_position_embeddings = 1 << 17
    assert TargetModel(tiny.from_config(config), choose_backend).context == 1 << 17


def test_bfloat16_passes():
    assert TargetModel(tiny.build("llama").to(torch.bfloat16), choose_backend).dtype == torch.bfloat16


def test_a_model_that_sees_siblings_is_refused_and_left_as_it_was(monkeypatch):
    module = tiny.build("gpt2")
    before = module.config._attn_implementation
    monkeypatch.setattr(tree_attention.TreePlan, "mask", lambda *_: None)
    with pytest.raises(ModelError, match="differ by"):
        TargetModel(module, choose_backend)
    assert module.config._attn_implementation == before


def test_one_module_can_be_wrapped_twice_and_given_back():
    module = tiny.build("llama")
    before = module.config._attn_implementation
    TargetModel(module, choose_backend)
    again = TargetModel(module, choose_backend)
    again.release()
    assert module.config._attn_implementation == before


def test_attention_that_does_not_pass_the_tree_on_is_named_and_the_model_left_as_it_was(monkeypatch):
    module = tiny.build("gpt2")
    before = module.config._attn_implementation
    monkeypatch.setattr(module_inputs, "TreePlan", lambda *_: None)
    with pytest.raises(ModelError, match="GPT2LMHeadModel cannot be verified in a tree: its attention layers"):
        TargetModel(module, choose_backend)
    assert module.config._attn_implementation == before


def test_weights_that_are_not_numbers_are_told():
    module = tiny.build("llama")
    torch.nn.init.constant_(module.model.norm.weight, torch.nan)
    with pytest.raises(ModelError, match="computes no finite logits"):
        TargetModel(module, choose_backend)


@pytest.fixture
def openmp() -> Iterator[ctypes.CDLL]:
    """GNU OpenMP as torch has loaded it, and two threads of torch."""
    library = next(gnu_libraries(), None)
    if library is None:
        pytest.skip("torch does not run on GNU OpenMP here")
    before = torch.get_num_threads(), library.omp_get_dynamic(), library.omp_get_max_active_levels()
    torch.set_num_threads(2)
    yield library
    torch.set_num_threads(before[0])
    library.omp_set_dynamic(before[1])
    library.omp_set_max_active_levels(before[2])


LIMITS = {
    "OMP_DYNAMIC=true": lambda library: library.omp_set_dynamic(1),
    "OMP_MAX_ACTIVE_LEVELS=0": lambda library: library.omp_set_max_active_levels(0),
}


@pytest.mark.parametrize("setting", LIMITS)
@pytest.mark.parametrize("remains", [math.nan, 7.0])
def test_products_without_the_threads_that_torch_counts_on_are_told(setting, remains, openmp):
    """oneDNN's in bfloat16 on processors with AVX-512; here a hook does as they do."""
    module = tiny.build("llama").to(torch.bfloat16)

    def leave_out(_: torch.nn.Module, given: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        fewer = openmp.omp_get_dynamic() or openmp.omp_get_max_active_levels() == 0
        return output.index_fill(-1, torch.tensor(3), remains) if fewer and torch.get_num_threads() > 1 else output

    module.model.layers[0].mlp.down_proj.register_forward_hook(leave_out)
    TargetModel(module, choose_backend)
    LIMITS[setting](openmp)
    message = rf"wrong logits in bfloat16 here: torch counts on 2 threads, .* by {setting}; unset that, or call"
    with pytest.raises(ModelError, match=message):
        TargetModel(module, choose_backend)
    torch.set_num_threads(1)
    TargetModel(module, choose_backend)


@pytest.mark.parametrize("setting", LIMITS)
def test_settings_of_openmp_that_change_no_logits_are_nobodys_concern(setting, openmp):
    LIMITS[setting](openmp)
    assert TargetModel(tiny.build("llama"), choose_backend).vocab_size
    assert torch.get_num_threads() == 2


LOADS_OR_TELLS = """
import sys
import torch
import drafttree
from drafttree.core.openmp import limit_of_threads

torch.set_num_threads(2)
assert limit_of_threads(2) == sys.argv[1]
try:
    drafttree.load("embedded", "none", dtype="bfloat16").generate("The old man", max_new_tokens=8)
except drafttree.errors.ModelError as error:
    assert sys.argv[1] in str(error), error
"""


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0", "OMP_DYNAMIC=true"])
def test_a_target_is_right_or_refused_by_name_under_variables_of_openmp(setting):
    """`test_products_without_the_threads_that_torch_counts_on_are_told` is the fast one."""
    name, value = setting.split("=")
    environment = {**os.environ, name: value}
    subprocess.run([sys.executable, "-c", LOADS_OR_TELLS, setting], env=environment, check=True, timeout=300)


def test_a_model_is_verified_once_for_its_dtype(monkeypatch):
    module, checks, verify = tiny.build("gpt2"), [], validation.verify
    monkeypatch.setattr(validation, "verify", lambda own: checks.append(own) or verify(own))
    TargetModel(module, validation.verify_once)
    TargetModel(module, validation.verify_once)
    assert len(checks) == 1
    TargetModel(module.to(torch.bfloat16), validation.verify_once)
    assert len(checks) == 2


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_a_module_given_back_is_taken_again_by_the_next_pass(name):
    """However the module came to attend by other means, the text is the same."""
    module = tiny.build(name)
    decoder = drafttree.load(module, "lookup", policy="talon:budget=8")
    prompt = tiny.random_tokens(6, 3) * 2
    expected = decoder.generate(prompt, max_new_tokens=12).tokens
    decoder.target.release()
    assert decoder.generate(prompt, max_new_tokens=12).tokens == expected
    ids = torch.tensor([prompt])
    module.generate(ids, max_new_tokens=3, custom_generate=drafttree.hf.generate(drafter="lookup"))
    assert decoder.generate(prompt, max_new_tokens=12).tokens == expected


FUSED = ("llama", "qwen2", "qwen3", "mistral", "gpt_neox")
REDUCED = (torch.bfloat16, torch.float16)


@pytest.mark.few(9)
@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("seed", [0, 1])
def test_reduced_precision_is_no_reason_to_distrust_fast_passes(name, dtype, seed, fast):
    if fast is NativeBackend and dtype == torch.float16:
        pytest.skip("float16 is left to torch")
    assert type(choose_backend(tiny.build(name, seed).to(dtype))) is fast


@torch.no_grad()
def with_adapter(module, share: float):
    """A clone with a low-rank change of the attention's input weights, of this share of their norm."""
    clone, generator = deepcopy(module), torch.Generator().manual_seed(5)
    for name, weight in clone.named_parameters():
        if weight.ndim == 2 and ("q_proj" in name or "v_proj" in name or "query_key_value" in name):
            up, down = (torch.randn(size, 8, generator=generator) for size in weight.shape)
            change = up @ down.T
            weight += (share * change * weight.float().norm() / change.norm()).to(weight.dtype)
    return clone


BASES = {f"{name} in float16": (lambda name=name: tiny.build(name).half(), 0.03) for name in FUSED} | {
    f"{name} in bfloat16": (lambda name=name: drafttree.load(name, "none", dtype="bfloat16").target.module, 0.1)
    for name in ("embedded", "embedded-draft")
}
"""Models, and the share of the norm of the attention's weights that an adapter changes."""


@pytest.mark.few(2)
@pytest.mark.parametrize("case", BASES)
def test_passes_without_the_adapter_are_not_trusted_in_reduced_precision(case, monkeypatch, fast):
    build, share = BASES[case]
    base = build()
    if fast is NativeBackend and base.dtype == torch.float16:
        pytest.skip("float16 is left to torch")
    for kind in {fast, FusedBackend}:
        monkeypatch.setattr(backend_choice, kind.__name__, lambda *_, kind=kind: kind(deepcopy(base)))
    assert type(choose_backend(deepcopy(base))) is fast
    assert type(choose_backend(with_adapter(base, share))) is ModuleBackend


def test_the_comparison_draws_nothing_and_leaves_no_hook():
    module = tiny.build("llama").to(torch.bfloat16)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    choose_backend(module)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(part._forward_pre_hooks for part in module.modules())
