"""Whatever decides a text may change after `load`: the next text is the changed model's, kept rows and tables included.

Every text is compared with that of transformers' own `generate`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

import drafttree
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import chat_words

PROMPT = tiny.random_tokens(10, 3) * 4
OPTIONS = {"max_new_tokens": 12, "temperature": 0}


class Steered(nn.Module):
    """A layer of a user's own, which scales another's output by something that it holds in one of many ways."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.mode = "plain"
        self.active, self.scales = ["one"], {"one": 1.0, "two": -2.0}
        self.deltas = {"one": torch.zeros(1), "two": torch.full((1,), 3.0)}
        self.shift, self.shifts = torch.zeros(1), [torch.zeros(1)]
        self.low_rank = {"one": nn.Linear(32, 32), "two": nn.Linear(32, 32)}
        self.settings, self.order, self.marks = SimpleNamespace(scale=1.0), (1.0, 2.0), {"one"}
        self.register_buffer("offset", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        (active,) = self.active
        scale = self.scales[active] * self.settings.scale * self.order[0] * len(self.marks)
        out = self.inner(x) + self.low_rank[active](x)
        out = out * scale + self.deltas[active] + self.shift + self.shifts[0] + self.offset
        return -out if self.mode == "negated" else out


def module_of(seed: int = 0) -> PreTrainedModel:
    return tiny.from_config(LlamaConfig(**tiny.GROUPED), seed).double()


def steered() -> tuple[PreTrainedModel, Steered]:
    module = module_of()
    layer = module.model.layers[0].mlp = Steered(module.model.layers[0].mlp).double().eval()
    for each in layer.low_rank.values():
        each.double()
    return module, layer


def adapted() -> PeftModel:
    torch.manual_seed(3)
    lora = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(module_of(), lora, adapter_name="one")
    model.add_adapter("two", lora)
    model.set_adapter("one")
    return model.double().eval()


def own_text(
    decoder: drafttree.Decoder, model: PeftModel | PreTrainedModel, prompt: Sequence[int] = PROMPT
) -> list[int]:
    decoder.target.release()
    ids = torch.tensor([prompt])
    text = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    return text[0, len(prompt) :].tolist()


def check(model: PeftModel | PreTrainedModel, change: Callable[[], object]) -> None:
    """Change a model between two texts that may share rows; the second has to be the changed model's."""
    decoder = drafttree.load(model, "lookup", policy="chain:depth=4")
    texts = []
    for text in range(2):
        found = decoder.generate(PROMPT, reuse_prefix=True, **OPTIONS)
        assert found.tokens == own_text(decoder, model)
        texts.append(found.tokens)
        if text == 0:
            assert decoder.generate(PROMPT, reuse_prefix=True, **OPTIONS).metrics.reused_tokens
            change()
    assert texts[0] != texts[1]


ADAPTER_CHANGES = {
    "another set": lambda model: model.set_adapter("two"),
    "both set": lambda model: model.base_model.set_adapter(["one", "two"]),
    "disabled": lambda model: model.base_model.disable_adapter_layers(),
    "scaled": lambda model: [
        layer.set_scale("one", -40)
        for layer in model.modules()
        if hasattr(layer, "lora_A") and hasattr(layer, "set_scale")
    ],
    "edited by data": lambda model: [
        weight.data.mul_(-30) for name, weight in model.named_parameters() if "lora_B.one" in name
    ],
    "merged with another": lambda model: (model.set_adapter("two"), model.merge_adapter()),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ADAPTER_CHANGES)
def test_the_text_is_the_active_adapters(change):
    model = adapted()
    check(model, lambda: ADAPTER_CHANGES[change](model))


STEERED_CHANGES = {
    "a string": lambda layer: setattr(layer, "mode", "negated"),
    "a list": lambda layer: layer.active.__setitem__(0, "two"),
    "another list": lambda layer: setattr(layer, "active", ["two"]),
    "a number in a dict": lambda layer: layer.scales.update(one=-2.0),
    "a tensor in a dict": lambda layer: layer.deltas["one"].add_(7),
    "a tensor replaced in a list": lambda layer: layer.shifts.__setitem__(0, torch.full((1,), 7.0)),
    "a tensor": lambda layer: layer.shift.add_(7),
    "a tensor by data": lambda layer: layer.shift.data.add_(7),
    "a replaced tensor": lambda layer: setattr(layer, "shift", torch.full((1,), 7.0)),
    "a layer in a dict": lambda layer: layer.low_rank["one"].weight.data.mul_(-9),
    "a buffer that is not saved": lambda layer: layer.offset.add_(7),
    "an object's number": lambda layer: setattr(layer.settings, "scale", -2.0),
    "a tuple": lambda layer: setattr(layer, "order", (-2.0, 2.0)),
    "a set": lambda layer: layer.marks.update(range(60)),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("change", STEERED_CHANGES)
def test_the_text_is_that_of_what_layers_hold(change):
    module, layer = steered()
    check(module, lambda: STEERED_CHANGES[change](layer))


def scale_scores(module: PreTrainedModel) -> None:
    for layer in module.model.layers:
        layer.self_attn.scaling *= 3


def replace_class_forward(module: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(module.model.layers[0].mlp)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: -forward(self, x))


ROTARY_CHANGES = {
    "in place": lambda rotary: rotary.inv_freq.mul_(0.25),
    "by data": lambda rotary: rotary.inv_freq.data.mul_(0.25),
    "replaced": lambda rotary: setattr(rotary, "inv_freq", rotary.inv_freq * 0.25),
    "data replaced": lambda rotary: setattr(rotary.inv_freq, "data", rotary.inv_freq.data * 0.25),
    "scaling": lambda rotary: setattr(rotary, "attention_scaling", 3.0),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("change", ROTARY_CHANGES)
def test_the_text_is_that_of_the_rotary_frequencies(change):
    module = module_of()
    check(module, lambda: ROTARY_CHANGES[change](module.model.rotary_emb))


def test_the_text_is_that_of_the_scores_factor_and_of_a_class_whose_forward_is_replaced(monkeypatch):
    module = module_of()
    check(module, lambda: scale_scores(module))
    check(module, lambda: replace_class_forward(module, monkeypatch))


def test_a_conversation_goes_on_with_the_adapter_that_is_set():
    model, tokenizer = adapted(), chat_words()
    decoder = drafttree.load(model, "lookup", policy="chain:depth=4", tokenizer=tokenizer)
    messages = [{"role": "user", "content": "hello how are you " * 6}]
    reused = []
    for adapter in ("one", "one", "two", "one"):
        model.set_adapter(adapter)
        found = decoder.generate(messages, **OPTIONS)
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert found.tokens == own_text(decoder, model, prompt)
        reused.append(found.metrics.reused_tokens > 0)
        messages += [{"role": "assistant", "content": "you"}, {"role": "user", "content": "hello"}]
    assert reused == [False, True, False, False]


def test_an_engine_writes_with_the_adapter_that_is_set():
    model = adapted()
    decoder = drafttree.load(model, "lookup", policy="chain:depth=4")
    with drafttree.Engine(decoder) as engine:
        for adapter in ("one", "two", "one"):
            model.set_adapter(adapter)
            found = engine.submit(PROMPT, **OPTIONS).result()
            assert found.tokens == own_text(decoder, model)
        assert engine.submit(PROMPT, **OPTIONS).result().metrics.reused_tokens


def add_hook(module: PreTrainedModel, scales: list[float]) -> None:
    module.model.layers[1].register_forward_hook(lambda _, __, out: out * scales[0])


def replace_forward(module: PreTrainedModel, scales: list[float]) -> None:
    layer = module.model.layers[1]
    own = layer.forward
    layer.forward = functools.wraps(own)(lambda *given, **named: own(*given, **named) * scales[0])


@dataclass(slots=True)
class Held:
    scales: list[float]


class Holding(nn.Module):
    """A layer of a user's own, which reads an object that cannot be looked into."""

    def __init__(self, inner: nn.Module, scales: list[float]) -> None:
        super().__init__()
        self.inner, self.held = inner, Held(scales)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.held.scales[0]


def hold(module: PreTrainedModel, scales: list[float]) -> None:
    module.model.layers[1].mlp = Holding(module.model.layers[1].mlp, scales).eval()


class Calling(nn.Module):
    """A layer of a user's own, which calls a function."""

    def __init__(self, inner: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.functions = inner, [function]

    def forward(self, x: Tensor) -> Tensor:
        return self.functions[0](self.inner(x))


def call(module: PreTrainedModel, scales: list[float]) -> None:
    module.model.layers[1].mlp = Calling(module.model.layers[1].mlp, lambda x: x * scales[0]).eval()


UNSEEN = {
    add_hook: "the forward hook of model.layers.1",
    replace_forward: "the replaced forward of model.layers.1",
    hold: "the attribute held of the class Holding",
    call: "the attribute functions of the class Calling",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("add", UNSEEN)
def test_nothing_is_reused_by_default_where_a_function_may_have_a_state(add, caplog):
    module, scales = module_of(), [1.0]
    add(module, scales)
    decoder = drafttree.load(module, "lookup", policy="chain:depth=4", tokenizer=chat_words())
    assert f"reuses no rows by default because of {UNSEEN[add]}" in repr(decoder)
    reason = f"nothing by default: {UNSEEN[add]} may have a state that cannot be compared"
    assert inspect(module).details["reuses rows"] == reason
    talk = [{"role": "user", "content": "hello how are you " * 6}]
    talked = decoder.tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    with drafttree.Engine(decoder) as engine:
        for scale in (1.0, -2.0):
            scales[0] = scale
            found = engine.submit(PROMPT, **OPTIONS).result()
            turn = decoder.generate(talk, **OPTIONS)
            assert found.metrics.reused_tokens == turn.metrics.reused_tokens == 0
            assert found.tokens == own_text(decoder, module)
            assert turn.tokens == own_text(decoder, module, talked)
    assert not caplog.messages
    decoder.generate(PROMPT, reuse_prefix=True, **OPTIONS)
    assert caplog.messages == [
        f"reuse_prefix=True: {UNSEEN[add]} may have state that cannot be compared, and the KV cache of earlier texts "
        "is reused even if this state has changed; pass reuse_prefix=False after a change"
    ]
    assert decoder.generate(PROMPT, reuse_prefix=True, **OPTIONS).metrics.reused_tokens


class OfTheClass(nn.Module):
    """A layer of a user's own, which reads attributes of its class."""

    scale, scales = 1.0, {"one": 1.0}

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale * self.scales["one"]


def test_the_text_is_that_of_what_classes_hold(monkeypatch):
    module = module_of()
    module.model.layers[0].mlp = OfTheClass(module.model.layers[0].mlp).eval()
    decoder = drafttree.load(module, "lookup", policy="chain:depth=4")
    with drafttree.Engine(decoder) as engine:
        reused = []
        for change in (
            lambda: None,
            lambda: None,
            lambda: monkeypatch.setattr(OfTheClass, "scale", -2.0),
            lambda: monkeypatch.setitem(OfTheClass.scales, "one", 3.0),
        ):
            change()
            found = engine.submit(PROMPT, **OPTIONS).result()
            assert found.tokens == own_text(decoder, module)
            reused.append(found.metrics.reused_tokens > 0)
    assert reused == [False, True, False, False]


def test_hooks_of_libraries_keep_no_state():
    module = module_of()
    module.enable_input_require_grads()
    module(torch.tensor([[1, 2]]), output_hidden_states=True)
    decoder = drafttree.load(module, "lookup")
    assert "by default" not in repr(decoder)
    assert inspect(module).details["reuses rows"] == "yes"


def test_training_mode_is_named_and_given_back():
    torch.manual_seed(3)
    lora = LoraConfig(r=4, lora_alpha=64, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(module_of(), lora).double().train()
    frozen = model.get_base_model().model.layers[2].eval()
    decoder = drafttree.load(model, "lookup", policy="chain:depth=4")
    assert not any(part.training for part in model.modules() if part is not model and part is not model.base_model)
    decoder.target.release()
    assert model.get_base_model().training
    assert not any(part.training for part in frozen.modules())
    message = "LlamaForCausalLM cannot be verified in a tree: it is in training mode; call its eval()"
    assert told(ModelError, decoder.generate, PROMPT, **OPTIONS) == message
    model.eval()
    found = decoder.generate(PROMPT, **OPTIONS)
    assert found.tokens == own_text(drafttree.load(model, "lookup"), model)
