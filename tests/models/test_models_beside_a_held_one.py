"""A model that a decoder holds is its user's between texts: it runs, is copied and saved, and shares its config."""

import io
import json
import threading
from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.module.module_backend import ModuleBackend
from helpers import images
from testing import tiny

IDS = torch.tensor([tiny.random_tokens(9, 1)])
LENGTH = {"max_new_tokens": 12, "ignore_eos": True}
KINDS = {
    "llama": lambda: tiny.build("llama"),
    "gpt2": lambda: tiny.build("gpt2"),
    "gemma3": lambda: tiny.build("gemma3"),
    "qwen3_vl": lambda: images.build("qwen3_vl"),
}
SELECTED = {"fastest": choose_backend, "module": ModuleBackend}


@torch.inference_mode()
def logits(module: PreTrainedModel) -> torch.Tensor:
    return module(input_ids=IDS).logits


@torch.inference_mode()
def held(module: PreTrainedModel, select) -> Decoder:
    """A decoder that has written a text."""
    decoder = Decoder(TargetModel(module, select))
    decoder.generate(IDS[0].tolist(), **LENGTH)
    return decoder


def saved(module: PreTrainedModel) -> bytes:
    file = io.BytesIO()
    torch.save(module, file)
    return file.getvalue()


@pytest.fixture(params=SELECTED)
def select(request: pytest.FixtureRequest):
    return SELECTED[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_its_copies_and_others_of_its_config_run(kind, select, tmp_path):
    module = KINDS[kind]()
    config, before, expected = module.config, deepcopy(module.config), logits(module)
    decoder = held(module, select)
    text = decoder.generate(IDS[0].tolist(), **LENGTH).tokens
    assert module.config is config
    assert config == before
    assert config._attn_implementation == before._attn_implementation
    other = type(module)(config).eval()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(logits(other), expected)
    torch.testing.assert_close(logits(deepcopy(module)), expected)
    torch.testing.assert_close(logits(torch.load(io.BytesIO(saved(module)), weights_only=False)), expected)
    torch.testing.assert_close(logits(module), expected)
    module.save_pretrained(tmp_path)
    assert "drafttree" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    assert decoder.generate(IDS[0].tolist(), **LENGTH).tokens == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_of_a_held_model_needs_nothing_of_ours(kind, select):
    module = KINDS[kind]()
    decoder = held(module, select)
    assert b"drafttree" not in saved(module)
    decoder.close()


def test_its_own_generate_and_texts_take_turns(select):
    module = tiny.build("llama")
    stock = deepcopy(module).generate(IDS, max_new_tokens=12, do_sample=False)[0, IDS.shape[1] :].tolist()
    decoder = held(module, select)
    for _ in range(2):
        assert module.generate(IDS, max_new_tokens=12, do_sample=False)[0, IDS.shape[1] :].tolist() == stock
        assert decoder.generate(IDS[0].tolist(), **LENGTH).tokens == stock


def test_a_pass_that_fails_leaves_the_configs_as_they_were():
    module = tiny.build("llama")
    target = TargetModel(module)
    configs = [vars(part).get("config") for part in module.modules()]
    hook = module.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prefill(target, target.new_cache(8), [1, 2, 3])
    hook.remove()
    after = [vars(part).get("config") for part in module.modules()]
    assert all(one is other for one, other in zip(configs, after, strict=True))


def test_models_of_one_config_write_at_once_in_two_threads():
    config = tiny.CONFIGS["llama"]()
    modules = [AutoModelForCausalLM.from_config(config).eval() for _ in range(2)]
    decoders = [Decoder(TargetModel(module)) for module in modules]
    alone = [decoder.generate([1, 2, 3], max_new_tokens=30).tokens for decoder in decoders]
    texts: dict[int, list[list[int]]] = {0: [], 1: []}

    def write(place: int) -> None:
        texts[place] = [decoders[place].generate([1, 2, 3], max_new_tokens=30).tokens for _ in range(4)]

    threads = [threading.Thread(target=write, args=[place]) for place in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*texts.values()] == [[text] * 4 for text in alone]


def test_a_drafter_of_the_targets_config_drafts():
    config = tiny.CONFIGS["llama"]()
    target, draft = (tiny.from_config(config, seed) for seed in (0, 1))
    expected = deepcopy(target).generate(IDS, max_new_tokens=12, do_sample=False)[0, IDS.shape[1] :].tolist()
    decoder = Decoder(TargetModel(target, choose_backend), LanguageModelDrafter(TargetModel(draft)))
    assert decoder.generate(IDS[0].tolist(), **LENGTH).tokens == expected
    assert torch.equal(logits(draft), logits(deepcopy(draft)))
