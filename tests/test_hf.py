"""`model.generate(custom_generate=drafttree.hf.generate(...))` gives what stock `generate` gives, or says why not."""

from copy import deepcopy

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TextStreamer,
    TopKLogitsWarper,
)
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

import tiny
from drafttree import hf, zoo
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError, ContextError, InputError, ModelError, TokenizerMismatch
from drafttree.models import HuggingFaceModel
from drafttree.policies import POLICIES

PROMPT = torch.tensor([tiny.random_tokens(6, 3)])
NEW = 24


@pytest.fixture(scope="module")
def target():
    return tiny.build("llama")


@pytest.fixture(scope="module")
def draft(target):
    """Near enough to the target for trees to be accepted in part."""
    module = deepcopy(target)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return module


@pytest.fixture(scope="module")
def embedded():
    folder = zoo.folder("embedded")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value) -> None:
        self.values.append(value)

    def end(self) -> None:
        self.ends += 1


class StopAt(StoppingCriteria):
    """Stops after a token divisible by three, and notes all it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, input_ids, scores, **kwargs):
        self.asked.append(input_ids[0].tolist())
        return input_ids[:, -1] % 3 == 0


def both(model, drafter, policy="talon", **options):
    """Stock output and ours."""
    stock = model.generate(PROMPT, max_new_tokens=NEW, **options)
    ours = model.generate(PROMPT, max_new_tokens=NEW, custom_generate=hf.generate(drafter, policy), **options)
    return stock, ours


@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_stock_output_with_every_policy(target, draft, policy):
    stock, ours = both(target, draft, policy)
    assert torch.equal(stock, ours)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_greedy_output_is_stock_output_on_every_architecture(name, draft):
    stock, ours = both(tiny.build(name), tiny.build(name, seed=1))
    assert torch.equal(stock, ours)


def test_drafter_may_be_a_model_a_drafter_the_target_or_none(target, draft):
    wrapped = LanguageModelDrafter(HuggingFaceModel(deepcopy(target)))
    for drafter in (draft, wrapped, target, None, "none"):
        stock, ours = both(target, drafter)
        assert torch.equal(stock, ours)


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


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-5}, {"top_k": 1, "top_p": 0.5}]
)
def test_sampling_options_apply(target, draft, options):
    greedy = target.generate(PROMPT, max_new_tokens=NEW)
    speculate = hf.generate(draft)
    sampled = target.generate(PROMPT, max_new_tokens=NEW, do_sample=True, custom_generate=speculate, **options)
    assert torch.equal(greedy, sampled)


def test_sampling_options_are_read_off_the_prepared_warpers():
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.5), TopKLogitsWarper(7)])
    assert hf._sampling(warpers, True) == {"temperature": 0.5, "top_k": 7}
    assert hf._sampling(warpers, False) == {}
    assert hf._sampling(LogitsProcessorList(), True) == {"temperature": 1.0}
    for odd in ([*warpers, TemperatureLogitsWarper(0.5)], [TopKLogitsWarper(7, filter_value=-9.0)], warpers[::-1]):
        with pytest.raises(ConfigError, match="LogitsWarper"):
            hf._sampling(LogitsProcessorList(odd), True)


def test_named_verifier_must_serve_the_sampling(target, draft):
    with pytest.raises(ConfigError, match="use 'coupled'"):
        target.generate(PROMPT, do_sample=True, custom_generate=hf.generate(draft, verifier="greedy"))
    with pytest.raises(ConfigError, match="use 'greedy'"):
        target.generate(PROMPT, custom_generate=hf.generate(draft, verifier="coupled"))


def padded(*lengths: int) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left with token 0."""
    ids, mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long), torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        ids[row, -length:] = torch.tensor(tiny.random_tokens(length, 7 + row)) + 1
        mask[row, -length:] = 1
    return {"input_ids": ids % tiny.VOCAB, "attention_mask": mask.long()}


@pytest.mark.parametrize("lengths", [(5,), (6, 6), (4, 7, 1), (3,)])
def test_batches_and_left_padding(target, draft, lengths):
    inputs = padded(*lengths)
    free = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0)
    for options in ({}, {"eos_token_id": [int(free[0, -9]), int(free[-1, -3])]}):
        stock = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0, **options)
        speculate = hf.generate(draft, "dynatree")
        ours = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0, custom_generate=speculate, **options)
        assert torch.equal(stock, ours)
        assert len(speculate.metrics) == len(lengths)


def test_left_padding_of_a_single_prompt(target, draft):
    inputs = {name: value[:1] for name, value in padded(3, 8).items()}
    stock = target.generate(**inputs, max_new_tokens=NEW)
    assert torch.equal(stock, target.generate(**inputs, max_new_tokens=NEW, custom_generate=hf.generate(draft)))


def test_output_object_on_request(target, draft):
    stock, ours = both(target, draft, return_dict_in_generate=True)
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert torch.equal(stock.sequences, ours.sequences)


REFUSED = {
    "num_beams": {"num_beams": 2},
    "num_return_sequences": {"num_return_sequences": 2, "do_sample": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "force_words_ids": {"force_words_ids": [[3]]},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits": {"output_logits": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "cache_implementation": {"cache_implementation": "offloaded"},
    "min_new_tokens": {"min_new_tokens": 3, "eos_token_id": 5, "pad_token_id": 5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[4]]},
    "suppress_tokens": {"suppress_tokens": [4]},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda batch, ids: [1, 2]},
    "typical_p": {"typical_p": 0.5, "do_sample": True},
    "logits processor function": {"logits_processor": [type("function", (), {"__call__": lambda *_: None})()]},
    "past_key_values": {"past_key_values": DynamicCache()},
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, 6, 32)},
    "position_ids": {"position_ids": torch.arange(1, 7)[None]},
    "attention_mask": {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1]])},
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(target, draft, option):
    with pytest.raises(ConfigError, match=option) as caught:
        target.generate(PROMPT, max_new_tokens=4, custom_generate=hf.generate(draft), **REFUSED[option])
    assert "\n" not in str(caught.value)
    assert target.config._attn_implementation == "sdpa"


def test_arguments_transformers_keeps_to_itself_are_refused_by_name(target, draft):
    for option in ({"assistant_model": draft}, {"synced_gpus": True}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            target.generate(PROMPT, max_new_tokens=4, custom_generate=hf.generate(draft), **option)


def test_attentions_are_refused(target, draft):
    model = deepcopy(target)
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="output_attentions"):
        model.generate(PROMPT, custom_generate=hf.generate(draft), output_attentions=True, return_dict_in_generate=True)
    assert model.config._attn_implementation == "eager"


def test_batches_refuse_what_needs_rows_side_by_side(target, draft):
    inputs = padded(4, 6)
    speculate = hf.generate(draft)
    for option, value in (("streamer", Recorder()), ("max_time", 5.0), ("stopping_criteria", [StopAt()])):
        with pytest.raises(ConfigError, match=option.replace("_", "[ _]")):
            target.generate(**inputs, max_new_tokens=4, custom_generate=speculate, **{option: value})


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
    monkeypatch.setattr(hf, "load_model", lambda *key: loads.append(key) or tiny.build("llama"))
    monkeypatch.setattr(hf, "load_tokenizer", lambda _: None)
    model, _ = embedded
    speculate = hf.generate("embedded-draft")
    for _ in range(3):
        model.generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    assert loads == [(zoo.folder("embedded-draft"), torch.float32, torch.device("cpu"))]


def test_loaded_drafter_takes_the_models_dtype(embedded):
    model = AutoModelForCausalLM.from_pretrained(zoo.folder("embedded"), dtype=torch.bfloat16)
    speculate = hf.generate("embedded-draft")
    model.generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    embedded[0].generate(PROMPT, max_new_tokens=3, custom_generate=speculate)
    assert [drafter.model.dtype for drafter in speculate._loaded.values()] == [torch.bfloat16, torch.float32]


def words(*vocabulary: str) -> PreTrainedTokenizerFast:
    model = WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=vocabulary[0])
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))


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
        ((7,), "the drafter is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            hf.generate(*arguments)


def test_missing_drafter_and_bad_prompt(target, draft):
    with pytest.raises(ModelError, match="does not exist"):
        target.generate(PROMPT, custom_generate=hf.generate("./no/such/folder"))
    with pytest.raises(InputError, match="token id 97 is outside"):
        target.generate(PROMPT * 0 + 97, custom_generate=hf.generate(draft))
