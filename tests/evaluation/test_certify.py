import pytest
import torch

import drafttree
from drafttree.engine import Request
from drafttree.errors import ConfigError, ContextError
from drafttree.evaluation.certify import certify
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.reference import find_difference, released, transformers_generate

PROMPTS = ["The old man looked at the sea", "In the year of our Lord"]


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


@pytest.fixture
def broken(decoder, monkeypatch):
    """A decoder whose every text has a wrong fourth token."""
    commit = Request.commit

    def spoil(self, tokens, accepted):
        count = commit(self, tokens, accepted)
        spoilt = len(self.task.prompt) + 3
        if self.drafting.session and len(self.tokens) > spoilt:
            self.tokens[spoilt] = 99
        return count

    monkeypatch.setattr(Request, "commit", spoil)
    return decoder


def test_greedy_texts_are_those_of_transformers(decoder):
    seen = []
    certificate = certify(decoder, PROMPTS, ["chain", "talon"], max_new_tokens=12, progress=seen.append)
    assert certificate.passed
    assert certificate.reference == "transformers generate"
    assert [(entry.policy, entry.identical) for entry in certificate.policies] == [
        ("plain", 2),
        ("chain", 2),
        ("talon", 2),
    ]
    assert len(seen) == 8


def test_sampled_texts_are_those_of_plain_decoding(decoder):
    certificate = certify(decoder, PROMPTS, ["dynatree"], max_new_tokens=12, temperature=1.0, seed=7)
    assert certificate.reference == "plain decoding"
    assert [(entry.policy, entry.identical) for entry in certificate.policies] == [("dynatree", 2)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"sequence_bias": [[[13], 3.0], [[5, 9], -2.0]], "min_new_tokens": 10},
        {"temperature": 1.0, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    ],
)
def test_options_hold_on_both_sides(decoder, options):
    free = transformers_generate(decoder, decoder.tokenizer(PROMPTS[0])["input_ids"], max_new_tokens=12).tokens
    certificate = certify(decoder, PROMPTS[:1], ["talon"], max_new_tokens=12, **options)
    assert certificate.passed
    assert certificate.policies[-1].identical == 1
    assert decoder.generate(PROMPTS[0], max_new_tokens=12, **options).tokens != free


def test_options_on_one_side_only_are_found(decoder, monkeypatch):
    monkeypatch.setattr(
        drafttree.engine.decoder.PathConstraints, "score", lambda self, tokens, tree, logits: (logits, set())
    )
    certificate = certify(decoder, PROMPTS[:1], ["chain"], max_new_tokens=16, repetition_penalty=1.5)
    assert not certificate.passed


def test_the_reference_choice_is_the_best_score_after_processors(decoder):
    options = {"repetition_penalty": 1.5, "max_new_tokens": 12}
    ids = decoder.tokenizer(PROMPTS[0])["input_ids"]
    expected = transformers_generate(decoder, ids, **options).tokens
    free = transformers_generate(decoder, ids, max_new_tokens=12).tokens
    difference = find_difference(decoder, ids, expected, free, **options)
    assert difference.expected == expected[difference.position]
    assert difference.gap > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_wrong_text_is_found_where_it_goes_wrong(broken, temperature):
    certificate = certify(broken, PROMPTS[:1], ["chain"], max_new_tokens=8, temperature=temperature)
    (difference,) = certificate.policies[-1].differences.values()
    assert not certificate.passed
    assert (difference.position, difference.got) == (3, 99)
    assert (difference.rounding, difference.is_tie) == (0, False)
    assert difference.gap > 0
    assert certificate.summary()["passed"] is False


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_reference_choice_is_the_best_score(decoder, temperature):
    sampling = {"temperature": temperature, "seed": 3}
    ids = decoder.tokenizer(PROMPTS[0])["input_ids"]
    expected = decoder.plain().generate(ids, max_new_tokens=4, **sampling).tokens
    got = [*expected[:3], (expected[3] + 1) % 4096]
    difference = find_difference(decoder, ids, expected, got, **sampling)
    assert (difference.position, difference.expected) == (3, expected[3])
    assert find_difference(decoder, ids, expected, expected, **sampling) is None
    assert find_difference(decoder, ids, expected, expected[:2], **sampling).got is None


def test_only_reduced_precision_explains_a_tie():
    decoder = drafttree.load(drafter="none", dtype="bfloat16")
    ids = decoder.tokenizer(PROMPTS[0])["input_ids"]
    with released(decoder.target) as module, torch.inference_mode():
        order = module(torch.tensor([ids])).logits[0, -1].argsort(descending=True, stable=True).tolist()
    far = find_difference(decoder, ids, order[:1], order[-1:])
    assert 0 < far.rounding < 0.1
    assert not far.is_tie
    assert find_difference(decoder, ids, order[:1], order[:1] * 2).is_tie is False


def test_a_reference_run_gives_the_modules_settings_back(decoder):
    module, settings = decoder.target.module, decoder.target.module.generation_config
    with released(decoder.target) as inside:
        inside.generation_config = None
    assert module.generation_config is settings
    assert len(decoder.generate(PROMPTS[0], max_new_tokens=4).tokens) == 4


def test_eos_is_honoured_or_ignored_on_both_sides(decoder):
    ids = decoder.tokenizer(PROMPTS[0])["input_ids"]
    free = transformers_generate(decoder, ids, max_new_tokens=12).tokens
    ending = drafttree.Decoder(decoder.target, decoder.drafter, tokenizer=decoder.tokenizer, eos=[free[2]])
    short = transformers_generate(ending, ids, max_new_tokens=12).tokens
    assert short == free[: free.index(free[2]) + 1]
    assert transformers_generate(ending, ids, max_new_tokens=12, ignore_eos=True).tokens == free
    for ignore_eos, tokens in [(False, len(short)), (True, 12)]:
        certificate = certify(ending, [ids], ["chain"], max_new_tokens=12, ignore_eos=ignore_eos)
        assert certificate.passed
        assert certificate.tokens == tokens


def test_texts_that_depend_on_the_tree_are_not_compared(decoder):
    drawn = drafttree.Decoder(decoder.target, decoder.drafter, verifier=drafttree.verifiers.Traversal, eos=decoder.eos)
    with pytest.raises(ConfigError, match=r"texts of Traversal depend on the draft trees, so .* certify --live"):
        certify(drawn, [[1, 2, 3]], ["chain"], max_new_tokens=4, temperature=1.0)


def test_long_prompts_keep_their_last_tokens(decoder, monkeypatch):
    monkeypatch.setattr(decoder.target, "context", 64)
    ids = list(range(10, 110))
    assert fit(decoder, ids, 14) == (ids[-50:], True)
    assert fit(decoder, ids[:5], 14) == (ids[:5], False)
    with pytest.raises(ContextError, match="64"):
        fit(decoder, ids, 64)
    assert certify(decoder, [ids, ids[:5]], ["chain"], max_new_tokens=2).truncated == 1


def test_comparing_with_transformers_leaves_the_global_generator_alone(decoder):
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    certify(decoder, PROMPTS[:1], ["chain"], max_new_tokens=3)
    assert torch.rand(3).tolist() == expected
