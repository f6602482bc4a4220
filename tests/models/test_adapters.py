"""peft's adapters are part of the model, whenever they are added, trained, switched or merged."""

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig, PeftModel, PolyConfig, PromptTuningConfig, TaskType, XLoraConfig, get_peft_model
from transformers import LlamaConfig, PreTrainedModel

import drafttree
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend
from helpers.refusals import told
from testing import tiny

PROMPT = tiny.random_tokens(6, 1) * 2
IDS = torch.tensor([PROMPT])


@torch.no_grad()
def base(seed: int = 0) -> PreTrainedModel:
    """A model whose weights are small enough that its text varies."""
    module = tiny.from_config(LlamaConfig(**{**tiny.GROUPED, "hidden_size": 64}), seed)
    for parameter in module.parameters():
        if parameter.ndim == 2:
            parameter.mul_(0.5)
    return module


def lora(seed: int = 0, scale: float = 1.0, **options) -> LoraConfig:
    torch.manual_seed(seed)
    return LoraConfig(r=4, lora_alpha=4 * scale, target_modules=["q_proj", "down_proj"], **options)


def adapted(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> PeftModel:
    return get_peft_model(base().to(dtype), lora(scale=scale, init_lora_weights=False))


def stock(model: PeftModel | PreTrainedModel) -> list[int]:
    """The greedy text of transformers' own generate."""
    text = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=16, do_sample=False)
    return text[0, len(PROMPT) :].tolist()


def own_text(decoder: drafttree.Decoder, model: PeftModel | PreTrainedModel) -> list[int]:
    """The same text of all decoders over the module of one, which is transformers'."""
    draft = LanguageModelDrafter(TargetModel(base(3)))
    chain, tree = (
        drafttree.Decoder(decoder.target, draft, drafttree.loading.make_policy(policy))
        for policy in ("chain", "dynatree")
    )
    decoder.target.release()
    expected = stock(model)
    for each in (decoder, decoder.plain(), chain, tree):
        assert each.generate(PROMPT, max_new_tokens=16).tokens == expected
    return expected


@torch.no_grad()
def train(model: PeftModel) -> None:
    """An optimiser's step on the adapter."""
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight -= 0.5


def switch(model: PeftModel) -> None:
    model.add_adapter("other", lora(7, init_lora_weights=False))
    model.set_adapter("other")


CHANGES = {
    "trained": train,
    "disabled": lambda model: model.base_model.disable_adapter_layers(),
    "another one added and set": switch,
    "merged and taken out": lambda model: model.merge_and_unload(),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_an_adapted_model_is_its_adapted_layers(scale):
    model = adapted(scale)
    decoder = drafttree.load(model, "lookup")
    assert isinstance(decoder.target.backend, ModuleBackend)
    text = own_text(decoder, model)
    assert text != stock(base()) or scale < 1


@pytest.mark.few(1)
@pytest.mark.parametrize("change", CHANGES)
def test_an_adapter_may_change_after_loading(change):
    model = adapted()
    decoder = drafttree.load(model, "lookup")
    before = own_text(decoder, model)
    CHANGES[change](model)
    assert own_text(decoder, model.get_base_model()) != before or change.startswith("merged")


def test_an_adapter_may_be_merged_and_unmerged_in_place():
    model = adapted()
    decoder = drafttree.load(model, "lookup")
    before = own_text(decoder, model)
    model.merge_adapter()
    assert own_text(decoder, model) == before
    model.unmerge_adapter()
    assert own_text(decoder, model) == before


def test_fast_passes_leave_when_an_adapter_is_added_and_return_when_it_is_merged(fast):
    module = base()
    decoder = drafttree.load(module, "lookup")
    assert isinstance(decoder.target.backend, fast)
    before = own_text(decoder, module)
    model = get_peft_model(module, lora(init_lora_weights=False))
    assert own_text(decoder, model) != before
    assert isinstance(decoder.target.backend, ModuleBackend)
    model.merge_and_unload()
    assert own_text(decoder, module) != before
    assert isinstance(decoder.target.backend, fast)


@pytest.mark.few(2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_in_reduced_precision_are_the_adapters(dtype, when, fast):
    module, tree, prefix = base().to(dtype), tiny.random_tree((3, 4, 2), 2), tiny.random_tokens(7, 1)
    plain = deepcopy(module)
    if when == "after":
        model = TargetModel(module, choose_backend)
        assert isinstance(model.backend, fast if dtype == torch.bfloat16 else FusedBackend)
    adapter = get_peft_model(module, lora(scale=0.1, init_lora_weights=False))
    if when == "before":
        model = drafttree.load(adapter, None).target
    cache = model.new_cache(24)
    prefill(model, cache, prefix)
    logits = tiny.score(model, cache, tree)[0]
    model.release()
    few_units = 4 * torch.finfo(dtype).eps * float(logits.abs().max())
    assert tiny.worst_gap(logits, module, prefix, tree) <= few_units < tiny.worst_gap(logits, plain, prefix, tree)


def test_an_adapted_drafter_is_served():
    target, draft = base(), adapted()
    decoder = drafttree.load(target, draft, policy="chain")
    assert decoder.drafter.model.module is draft.get_base_model()
    decoder.target.release()
    assert decoder.generate(PROMPT, max_new_tokens=16).tokens == own_text(decoder, target)


def test_custom_generate_runs_the_adapter():
    model = adapted()
    expected = stock(model)
    speculate = drafttree.hf.generate(drafter=adapted(0.5), policy="dynatree")
    found = model.generate(input_ids=IDS, max_new_tokens=16, do_sample=False, custom_generate=speculate)
    assert found[0, len(PROMPT) :].tolist() == expected
    with model.disable_adapter():
        found = model.generate(input_ids=IDS, max_new_tokens=16, do_sample=False, custom_generate=speculate)
    assert found[0, len(PROMPT) :].tolist() == stock(base()) != expected


def test_prompts_that_were_trained_are_refused():
    settings = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    model = get_peft_model(base(), settings).eval()
    message = "an adapter that trains a prompt (PROMPT_TUNING) is not in the model's layers"
    assert message in told(ModelError, drafttree.load, model, "lookup")
    options = {"max_new_tokens": 4, "custom_generate": drafttree.hf.generate("lookup")}
    assert message in told(ModelError, model.generate, input_ids=IDS, **options)


def activated(**options) -> LoraConfig:
    """An aLoRA adapter, which peft's wrapper switches on behind two tokens of the prompt."""
    return lora(alora_invocation_tokens=PROMPT[2:4], init_lora_weights=False, task_type=TaskType.CAUSAL_LM, **options)


def test_an_adapter_that_is_switched_on_by_tokens_is_refused_by_name_unless_it_is_off():
    model = get_peft_model(base(), activated()).eval()
    message = "it has an aLoRA adapter ('default'), which peft's wrapper switches on"
    for target in (model, model.get_base_model()):
        assert message in told(ModelError, drafttree.load, target, "lookup")
    expected = stock(base())
    assert stock(model) != expected
    model.base_model.disable_adapter_layers()
    assert own_text(drafttree.load(model, "lookup"), model) == expected


def test_an_adapter_that_is_switched_on_by_tokens_is_refused_when_it_is_set_later():
    model = adapted()
    decoder = drafttree.load(model, "lookup")
    model.add_adapter("other", activated())
    model.eval().set_adapter("other")
    assert "it has an aLoRA adapter ('other')" in told(ModelError, decoder.generate, PROMPT, max_new_tokens=4)
    model.set_adapter("default")
    own_text(decoder, model)


def test_adapters_that_need_peft_in_every_call_are_refused_by_name(tmp_path):
    for name in "01":
        get_peft_model(base(), lora(int(name), init_lora_weights=False)).save_pretrained(tmp_path / name)
    experts = {name: str(tmp_path / name) for name in "01"}
    module = base()
    module.config.use_cache = False  # X-LoRA asks for it
    mixed = XLoraConfig(task_type=TaskType.CAUSAL_LM, hidden_size=64, xlora_depth=1, adapters=experts)
    skills = PolyConfig(task_type=TaskType.CAUSAL_LM, r=2, n_tasks=2, n_skills=2, target_modules=["q_proj"])
    for config, kind in ((mixed, "XLORA"), (skills, "POLY")):
        model = get_peft_model(module if config is mixed else base(), config).eval()
        message = f"an adapter that acts by what peft's wrapper does in each call ({kind}) is not in the model's layers"
        assert message in told(ModelError, drafttree.load, model, "lookup")


def test_compiled_models_are_unwrapped():
    module, model = base(), adapted()
    assert drafttree.load(torch.compile(module), "lookup").target.module is module
    assert drafttree.load(torch.compile(model), torch.compile(module)).target.module is model.get_base_model()
