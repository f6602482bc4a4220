"""Prompts with images: texts are transformers', whatever drafts, and rows are shared by pixels."""

import pytest
import torch

import drafttree
from drafttree.core.errors import ConfigError, InputError, ModelError
from helpers.image_models import FAMILIES, REFUSED, ImageModel, image_model

NEW = 24
UNKNOWN = {"aria_text", "cohere2", "glm4v_text", "glm4v_moe_text", "ministral3", "qwen3_5_text"}
"""Language parts that have no native passes."""
POLICIES = ("chain", "talon:budget=12,width=3", "dynatree", "eagle", "opt-tree:budget=8", "auto")


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request) -> ImageModel:
    return image_model(request.param)


def lookup(model: ImageModel, policy: str = "talon:budget=12,width=3") -> drafttree.Decoder:
    return drafttree.load(model.module, "lookup", policy)


def test_the_text_is_that_of_transformers_with_and_without_drafts(model):
    expected = model.generate(model.inputs, NEW)
    decoder = lookup(model)
    for each in (decoder, decoder.plain()):
        result = each.generate(model.inputs, max_new_tokens=NEW, ignore_eos=True)
        assert result.tokens == expected
    assert type(model.module).__name__ in repr(decoder.target)


def test_the_language_part_runs_natively_where_it_is_known(model):
    runs_on = lookup(model).target.runs_on
    known = model.module.config.get_text_config().model_type not in UNKNOWN
    assert runs_on.startswith("NativeBackend" if known else "ModuleBackend"), runs_on


def test_several_images_in_a_long_prompt(model):
    inputs = model.prompt([3, 4], [5, 6, 7] * 9, [8, 9, 10, 11] * 4)
    result = lookup(model).generate(inputs, max_new_tokens=NEW, ignore_eos=True)
    assert result.tokens == model.generate(inputs, NEW)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_text(policy):
    model = image_model("qwen2_5_vl")
    expected = model.generate(model.inputs, NEW)
    assert lookup(model, policy).generate(model.inputs, max_new_tokens=NEW, ignore_eos=True).tokens == expected


def test_a_seed_repeats_a_text_with_and_without_drafts(model):
    decoder = lookup(model)
    options = {"max_new_tokens": NEW, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    drafted = decoder.generate(model.inputs, **options)
    assert drafted.tokens == decoder.plain().generate(model.inputs, **options).tokens


def test_rows_are_shared_by_the_same_image_and_not_by_another_one(model):
    decoder = lookup(model)
    options = {"max_new_tokens": NEW, "ignore_eos": True, "reuse_prefix": True}
    first = decoder.generate(model.inputs, **options)
    again = decoder.generate(model.inputs, **options)
    assert again.metrics.reused_tokens == model.inputs["input_ids"].shape[1] - 1
    assert again.tokens == first.tokens
    other = decoder.generate(model.other_image(), **options)
    assert other.metrics.reused_tokens == 0
    assert other.tokens == model.generate(model.other_image(), NEW)


def test_texts_with_and_without_images_share_rounds(model):
    decoder = lookup(model)
    text = [2, 5, 6, 7, 8]
    alone = decoder.generate(text, max_new_tokens=NEW, ignore_eos=True)
    results = decoder.generate([model.inputs, text, model.other_image()], max_new_tokens=NEW, ignore_eos=True)
    expected = [model.generate(inputs, NEW) for inputs in (model.inputs, model.other_image())]
    assert [results[0].tokens, results[2].tokens] == expected
    assert results[1].tokens == alone.tokens


def test_the_model_is_left_as_it_was(model):
    decoder = lookup(model)
    backend = decoder.target.backend
    for _ in range(2):
        decoder.generate(model.inputs, max_new_tokens=4)
    assert decoder.target.backend is backend


def test_a_model_without_eyes_refuses_images_by_name():
    decoder = drafttree.load()
    prompt = {"input_ids": [1, 2, 3], "pixel_values": torch.zeros(1, 3, 2, 2)}
    with pytest.raises(InputError, match="the target reads no images; leave out pixel_values"):
        decoder.generate(prompt)
    parts = [{"type": "image", "path": "a.png"}, {"type": "text", "text": "what is this?"}]
    with pytest.raises(InputError, match="message 1 has an image, and the target reads no images"):
        decoder.generate([{"role": "user", "content": parts}])


@pytest.mark.parametrize("name", ["pixel_values_videos", "input_features", "video_grid_thw"])
def test_video_and_audio_are_refused_by_name(name):
    model = image_model("llava")
    with pytest.raises(InputError, match=f"{name} is not supported"):
        lookup(model).generate({**model.inputs, name: torch.zeros(1, 2)})


def test_what_does_not_work_with_images_is_refused():
    model = image_model("llava")
    with pytest.raises(ConfigError, match="prompt_logprobs does not work with images"):
        lookup(model).generate(model.inputs, prompt_logprobs=1)
    windowed = drafttree.load(model.module, "lookup", lossy_window=64)
    with pytest.raises(ConfigError, match="lossy_window does not work with images"):
        windowed.generate(model.inputs)
    without = {**model.inputs, "input_ids": torch.tensor([[2, 5, 6, 7]])}
    with pytest.raises(InputError, match="no image token"):
        lookup(model).generate(without)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_families_that_cannot_go_on_as_text_are_refused_by_name(name):
    model = image_model(name)
    with pytest.raises(ModelError, match=f"^{REFUSED[name]}"):
        lookup(model).generate(model.inputs)


def test_a_trial_refuses_a_model_whose_images_leave_more_than_rows(monkeypatch):
    model = image_model("llava")
    forward = type(model.module).forward

    def with_lasting_images(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        if options.get("pixel_values") is not None:
            output.logits = output.logits + output.logits.abs().max()
        return output

    decoder = lookup(model)
    monkeypatch.setattr(type(model.module), "forward", with_lasting_images)
    with pytest.raises(ModelError, match=f"images do not work with {type(model.module).__name__}: behind them its "):
        decoder.generate(model.inputs)


def test_custom_generate_reads_images_too(model):
    speculate = drafttree.hf.generate("lookup", "talon:budget=12,width=3")
    length = model.inputs["input_ids"].shape[1]
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    text = model.module.generate(**model.inputs, custom_generate=speculate, **options)
    assert text[0, length:].tolist() == model.generate(model.inputs, NEW)
    several = {name: torch.cat((value, value)) for name, value in model.inputs.items()}
    with pytest.raises(ConfigError, match="with several prompts"):
        model.module.generate(**several, custom_generate=speculate, **options)
