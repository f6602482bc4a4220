"""`model.generate(custom_generate=drafttree.hf.generate(...))` gives what stock `generate` gives, or says why not."""

import re
from copy import deepcopy

import pytest
import torch
from accelerate import cpu_offload
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    TextStreamer,
    TopKLogitsWarper,
    WatermarkingConfig,
)
from transformers.generation import GenerateDecoderOnlyOutput

from drafttree.constraints import grammar
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError, ContextError, InputError, ModelError, TokenizerMismatch
from drafttree.interfaces import transformers_generate as hf
from drafttree.loading import zoo
from drafttree.models import TargetModel
from drafttree.policies import POLICIES
from helpers.stock_generate import Recorder, StopAt, padded
from testing import tiny
from testing.tokenizers import words

PROMPT = torch.tensor([tiny.random_tokens(6, 3)])


NEW = 24


def both(model, drafter, policy="talon", **options):
    """Stock output and ours."""
    stock = model.generate(PROMPT, max_new_tokens=NEW, **options)
    ours = model.generate(PROMPT, max_new_tokens=NEW, custom_generate=hf.generate(drafter, policy), **options)
    return stock, ours


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_stock_output_with_every_policy(target, draft, policy):
    stock, ours = both(target, draft, policy)
    assert torch.equal(stock, ours)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_greedy_output_is_stock_output_on_every_architecture(name, draft):
    stock, ours = both(tiny.build(name), tiny.build(name, seed=1))
    assert torch.equal(stock, ours)


def test_drafter_may_be_a_model_a_drafter_the_target_or_none(target, draft):
    wrapped = LanguageModelDrafter(TargetModel(deepcopy(target)))
    for drafter in (draft, wrapped, target, None, "none"):
        stock, ours = both(target, drafter)
        assert torch.equal(stock, ours)


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["lookup", "suffix", "mixed:embedded-draft"])
def test_drafters_may_be_named(embedded, drafter):
    model, tokenizer = embedded
    inputs = tokenizer("one two three four one two three four one two", return_tensors="pt")
    speculate = hf.generate(drafter, "talon")
    stock = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    for _ in range(2):
        ours = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, custom_generate=speculate)
        assert torch.equal(stock, ours)
    assert len(speculate.metrics[0].rounds) < NEW
    assert len(speculate._loaded) == drafter.startswith("mixed")


def test_a_copy_as_drafter_saves_rounds(target):
    speculate = hf.generate(deepcopy(target), "chain:depth=5")
    target.generate(PROMPT, max_new_tokens=NEW, custom_generate=speculate)
    (metrics,) = speculate.metrics
    assert len(metrics.rounds) == NEW // 6


def test_embedded_pair_streams_stock_text(embedded, capsys):
    model, tokenizer = embedded
    inputs = tokenizer("The king said that", return_tensors="pt")
    options = {"max_new_tokens": 40, "do_sample": False, "tokenizer": tokenizer}
    stock = model.generate(**inputs, **options, streamer=TextStreamer(tokenizer))
    expected = capsys.readouterr().out
    speculate = hf.generate("embedded-draft", "dynatree")
    ours = model.generate(**inputs, **options, streamer=TextStreamer(tokenizer), custom_generate=speculate)
    assert torch.equal(stock, ours)
    assert capsys.readouterr().out == expected
    assert len(speculate.metrics[0].rounds) < 40


def test_stop_strings_cut_where_stock_generate_cuts(embedded):
    model, tokenizer = embedded
    inputs = tokenizer("The king said that", return_tensors="pt")
    options = {"max_new_tokens": 30, "do_sample": False, "tokenizer": tokenizer}
    text = tokenizer.decode(model.generate(**inputs, **options)[0])
    speculate = hf.generate("embedded-draft", "talon")
    for start in (30, 50, 70):
        stop = [text[start : start + 3], "never in the text"]
        stock = model.generate(**inputs, **options, stop_strings=stop)
        ours = model.generate(**inputs, **options, stop_strings=stop, custom_generate=speculate)
        assert torch.equal(stock, ours)
        assert ours.shape[1] < inputs["input_ids"].shape[1] + 30


def test_stop_strings_without_a_tokenizer_fail_as_in_stock_generate(target, draft):
    with pytest.raises(ValueError, match="tokenizer"):
        target.generate(PROMPT, max_new_tokens=4, stop_strings="x", custom_generate=hf.generate(draft))


@pytest.mark.parametrize("drafter", ["copy", "other"])
def test_streamer_gets_prompt_tokens_and_end(target, draft, drafter):
    stock, ours = Recorder(), Recorder()
    speculate = hf.generate(draft if drafter == "other" else deepcopy(target), "talon")
    target.generate(PROMPT, max_new_tokens=NEW, streamer=stock)
    target.generate(PROMPT, max_new_tokens=NEW, streamer=ours, custom_generate=speculate)
    assert len(stock.values) == len(ours.values) == 1 + NEW
    assert all(torch.equal(a, b) for a, b in zip(stock.values, ours.values, strict=True))
    assert ours.ends == 1


def test_stopping_criteria_are_asked_token_by_token_as_in_stock_generate(target):
    stock, ours = StopAt(), StopAt()
    first = target.generate(PROMPT, max_new_tokens=NEW, stopping_criteria=StoppingCriteriaList([stock]))
    speculate = hf.generate(deepcopy(target), "talon")
    streamer = Recorder()
    second = target.generate(
        PROMPT, max_new_tokens=NEW, stopping_criteria=[ours], custom_generate=speculate, streamer=streamer
    )
    assert torch.equal(first, second)
    assert stock.asked == ours.asked
    assert [int(value) for value in streamer.values[1:]] == second[0, 6:].tolist()
    assert streamer.ends == 1


def test_every_eos_id_of_a_list_ends_the_text(target):
    free = target.generate(PROMPT, max_new_tokens=NEW)[0].tolist()
    for ends in ([free[9], 96], [96, free[-4]], free[14]):
        stock, ours = both(target, deepcopy(target), eos_token_id=ends, pad_token_id=0)
        assert torch.equal(stock, ours)
        assert ours.shape[1] < 6 + NEW


def test_eos_of_the_models_own_generation_config_ends_the_text(target):
    model = deepcopy(target)
    free = target.generate(PROMPT, max_new_tokens=NEW)[0].tolist()
    model.generation_config.eos_token_id = [free[11]]
    stock, ours = both(model, target)
    assert torch.equal(stock, ours)
    assert ours.shape[1] == free.index(free[11], 6) + 1


def test_length_and_time_limits(target, draft):
    speculate = hf.generate(draft)
    for options in ({"max_length": 13}, {"max_new_tokens": 1}, {"max_time": 0.0, "max_new_tokens": 9}, {}):
        stock = target.generate(PROMPT, **options)
        assert torch.equal(stock, target.generate(PROMPT, custom_generate=speculate, **options))
    with pytest.raises(ContextError, match="context of 64"):
        target.generate(PROMPT, custom_generate=speculate, max_new_tokens=100)


def test_sampling_follows_torchs_seed_and_neither_policy_nor_drafter(target, draft):
    def sample(seed, drafter, policy):
        torch.manual_seed(seed)
        speculate = hf.generate(drafter, policy)
        return target.generate(PROMPT, max_new_tokens=NEW, do_sample=True, top_k=20, custom_generate=speculate)[
            0
        ].tolist()

    first = sample(5, draft, "talon")
    assert sample(5, draft, "talon") == sample(5, draft, "chain") == sample(5, None, "eagle") == first
    assert sample(6, draft, "talon") != first


def test_two_samples_in_a_row_differ(target, draft):
    speculate = hf.generate(draft)
    first, second = (
        target.generate(PROMPT, max_new_tokens=NEW, do_sample=True, custom_generate=speculate) for _ in range(2)
    )
    assert not torch.equal(first, second)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        *({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-5}, {"top_k": 1, "top_p": 0.5}),
        *({"top_h": 1e-4}, {"epsilon_cutoff": 0.999}, {"eta_cutoff": 0.9999, "temperature": 0.02}),
        {"typical_p": 1e-6, "temperature": 0.005},
    ],
)
def test_sampling_options_apply(target, draft, options):
    greedy = target.generate(PROMPT, max_new_tokens=NEW)
    speculate = hf.generate(draft)
    sampled = target.generate(PROMPT, max_new_tokens=NEW, do_sample=True, custom_generate=speculate, **options)
    assert torch.equal(greedy, sampled)


class Restless(LogitsProcessor):
    """Forbids the token of two places before, and prefers odd ones at odd lengths."""

    def __call__(self, input_ids, scores):
        scores = scores.scatter(1, input_ids[:, -2:-1], -torch.inf)
        scores[:, input_ids.shape[1] % 2 :: 2] += 1.5
        return scores


PROCESSED = {
    **dict.fromkeys(tiny.OPTIONS),
    "everything": None,
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda row, ids: [(int(ids[-1]) * 3 + n) % 97 for n in range(40 + row)]
    },
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=5.0)},
    "one of its own": {"logits_processor": LogitsProcessorList([Restless()])},
    "a warper as processor": {"logits_processor": [TopKLogitsWarper(9)], "repetition_penalty": 1.4},
    "renormalize_logits": {"renormalize_logits": True, "no_repeat_ngram_size": 2},
}


def processed(name: str, text: list[int]) -> dict:
    return PROCESSED[name] or tiny.options(name, text)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PROCESSED)
def test_greedy_output_is_stock_output_with_every_processor(target, draft, name):
    free = target.generate(PROMPT, max_new_tokens=NEW)[0, PROMPT.shape[1] :].tolist()
    ends = {"eos_token_id": [free[9], 96], "pad_token_id": 0}
    stock, ours = both(target, draft, "eagle:depth=3,top_k=3,budget=10", **ends, **processed(name, free))
    assert torch.equal(stock, ours)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["repetition_penalty", "watermarking_config", "one of its own", "suppress_tokens"])
def test_each_row_of_a_padded_batch_has_its_own_processors(target, draft, name):
    inputs = padded(4, 7, 1)
    free = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0)[1, 7:].tolist()
    options = {"max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": [free[15]], **processed(name, free)}
    stock = target.generate(**inputs, **options)
    assert torch.equal(stock, target.generate(**inputs, **options, custom_generate=hf.generate(draft)))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["repetition_penalty", "watermarking_config", "one of its own", "suppress_tokens"])
def test_sampled_text_depends_on_no_policy_under_processors(target, draft, name):
    def sample(drafter, policy):
        torch.manual_seed(5)
        options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 0.8, "top_p": 0.9}
        speculate = hf.generate(drafter, policy)
        return target.generate(PROMPT, custom_generate=speculate, **options, **processed(name, [1, 2, 3, 4, 5, 6]))

    plain = sample(None, "chain")
    assert torch.equal(sample(draft, "talon"), plain)
    assert torch.equal(sample(draft, "eagle"), plain)


def test_several_samples_of_one_prompt(target, draft):
    options = {"max_new_tokens": NEW, "do_sample": True, "num_return_sequences": 3}
    out = target.generate(PROMPT, custom_generate=hf.generate(draft), **options)
    assert out.shape == (3, PROMPT.shape[1] + NEW)
    assert len({tuple(row) for row in out.tolist()}) == 3
    greedy = target.generate(PROMPT, custom_generate=hf.generate(draft), **(options | {"top_k": 1}))
    assert torch.equal(greedy, target.generate(PROMPT, max_new_tokens=NEW).expand(3, -1))


def test_a_processor_is_never_shown_a_text_it_forbids(target, draft):
    """As in stock generate, so that a function that knows nothing else need not know it."""

    def follow(row, ids):
        assert all(int(after) % 2 == 0 for after in ids[PROMPT.shape[1] :]), "a text that cannot be"
        return range(0, 96, 2)

    stock, ours = both(target, draft, "talon:width=4,margin=0.001", prefix_allowed_tokens_fn=follow)
    assert torch.equal(stock, ours)


def test_a_grammar_binds_the_text(embedded):
    pytest.importorskip("llguidance")
    model, tokenizer = embedded
    inputs = tokenizer("The king said that", return_tensors="pt")
    speculate = hf.generate("embedded-draft", "talon", grammar=grammar.regex(" [a-z]{3}( [0-9]){4}"))
    out = model.generate(**inputs, max_new_tokens=30, custom_generate=speculate)
    text = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert re.fullmatch(" [a-z]{3}( [0-9]){4}", text)


def test_named_verifier_must_serve_the_sampling(target, draft):
    with pytest.raises(ConfigError, match="use 'coupled'"):
        target.generate(PROMPT, do_sample=True, custom_generate=hf.generate(draft, verifier="greedy"))
    with pytest.raises(ConfigError, match="use 'greedy'"):
        target.generate(PROMPT, custom_generate=hf.generate(draft, verifier="coupled"))


def test_output_object_on_request(target, draft):
    stock, ours = both(target, draft, return_dict_in_generate=True)
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert torch.equal(stock.sequences, ours.sequences)


def test_the_models_are_left_as_they_were(target):
    model, drafter = deepcopy(target), deepcopy(target)
    model.set_attn_implementation("eager")
    model.train()
    model.model.layers[1].eval()
    modes = [part.training for part in model.modules()]
    before = model.generate(PROMPT, max_new_tokens=NEW)
    ours = model.generate(PROMPT, max_new_tokens=NEW, custom_generate=hf.generate(drafter))
    after = model.generate(PROMPT, max_new_tokens=NEW)
    assert torch.equal(before, after)
    assert torch.equal(before, ours)
    assert modes == [part.training for part in model.modules()]
    assert (model.config._attn_implementation, drafter.config._attn_implementation) == ("eager", "sdpa")
    assert all(part.is_contiguous() for part in (*model.parameters(), *drafter.parameters()))


def test_the_models_are_left_as_they_were_after_an_exception(target, draft):
    class Breaks(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.values) == 4:
                raise RuntimeError("broken pipe")

    before = target.generate(PROMPT, max_new_tokens=NEW)
    with pytest.raises(RuntimeError, match="broken pipe"):
        target.generate(PROMPT, max_new_tokens=NEW, custom_generate=hf.generate(draft), streamer=Breaks())
    assert target.config._attn_implementation == draft.config._attn_implementation == "sdpa"
    assert torch.equal(before, target.generate(PROMPT, max_new_tokens=NEW))


def test_other_custom_functions_are_left_alone(target, draft):
    hf.generate(draft)
    seen = {}

    def custom(model, input_ids, extra=None, **kwargs):
        seen.update(kwargs, extra=extra)
        return input_ids

    target.generate(PROMPT, max_new_tokens=2, custom_generate=custom, extra=3, streamer=Recorder())
    assert seen["extra"] == 3
    assert "streamer" not in seen


def test_the_drafter_is_loaded_once(embedded, monkeypatch):
    loads = []
    monkeypatch.setattr(
        hf, "load_model", lambda files, *where: loads.append((files.path, *where)) or tiny.build("llama")
    )
    monkeypatch.setattr(hf, "tokenizer_beside", lambda _: None)
    model, _ = embedded
    speculate = hf.generate("embedded-draft")
    for _ in range(3):
        model.generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    assert loads == [(str(zoo.folder("embedded-draft")), torch.float32, torch.device("cpu"))]


def test_loaded_drafter_takes_the_models_dtype(embedded):
    model = AutoModelForCausalLM.from_pretrained(zoo.folder("embedded"), dtype=torch.bfloat16)
    speculate = hf.generate("embedded-draft")
    model.generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    embedded[0].generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    assert [drafter.model.dtype for drafter in speculate._loaded.values()] == [torch.bfloat16, torch.float32]


def test_a_model_offloaded_by_accelerate_takes_drafters(draft, tmp_path):
    draft.save_pretrained(tmp_path)
    model = tiny.build("llama")
    expected = model.generate(PROMPT, max_new_tokens=8)
    cpu_offload(model, execution_device="cpu")
    for drafter in (draft, tmp_path):
        assert torch.equal(model.generate(PROMPT, max_new_tokens=8, custom_generate=hf.generate(drafter)), expected)


def test_different_vocabularies_are_refused(target, draft, tmp_path):
    draft.save_pretrained(tmp_path)
    words("a", "b", "x").save_pretrained(tmp_path)
    options = {"max_new_tokens": 4, "custom_generate": hf.generate(tmp_path)}
    for _ in range(2):
        with pytest.raises(TokenizerMismatch, match="token 2 is 'c' for the target and 'x' for the drafter"):
            target.generate(PROMPT, tokenizer=words("a", "b", "c"), **options)
    target.generate(PROMPT, tokenizer=words("a", "b", "x", "padding"), **options)


def test_bad_arguments_are_told_early(draft):
    for arguments, message in (
        ((draft, "tallon"), "did you mean 'talon'"),
        ((draft, "talon:width=0"), "width is"),
        ((draft, "talon", "gredy"), "did you mean 'greedy'"),
        ((7,), "the drafter is of type int"),
    ):
        with pytest.raises(ConfigError, match=message):
            hf.generate(*arguments)


def test_missing_drafter_and_bad_prompt(target, draft):
    with pytest.raises(ModelError, match="does not exist"):
        target.generate(PROMPT, custom_generate=hf.generate("./no/such/folder"))
    with pytest.raises(InputError, match="token id 97 is outside"):
        target.generate(PROMPT * 0 + 97, custom_generate=hf.generate(draft))
