"""Whether a text has the law of the target's own texts is told of every text, with the reason where it has not."""

from functools import partial

import pytest

import drafttree
from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.batching import Engine
from drafttree.engine.generation import Fidelity
from drafttree.models import LossyWindow, TargetModel
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.policies import Talon
from drafttree.verifiers import VERIFIERS, Coupled, LossyTypical, Traversal
from testing import tiny
from testing.costs import toy_decoder
from testing.marks import needs_native
from testing.toy import Table, ToyDrafter, ToyModel

PROMPT = [1, 2, 3]
SAMPLED = {"max_new_tokens": 6, "temperature": 0.8, "seed": 4}
TYPICAL = "the verifier lossy-typical does not follow the target's distribution"
LOSSLESS = {name: kind for name, kind in VERIFIERS.items() if name != "lossy-typical"}


def toys(verifier=None) -> Decoder:
    return toy_decoder(ToyModel(Table()), ToyDrafter(Table().blurred(1.0)), Talon(budget=6), verifier)


def windowed(sinks: int = 2, verifier=None) -> Decoder:
    window = LossyWindow(4, sinks)
    model = TargetModel(tiny.build("llama"), partial(choose_backend, wants=Wants(lossy_window=window)))
    return Decoder(model, LanguageModelDrafter(TargetModel(tiny.build("llama"))), Talon(budget=6), verifier)


@pytest.mark.parametrize("verifier", [None, Coupled, Traversal])
def test_a_text_of_a_lossless_verifier_is_lossless(verifier):
    text = toys(verifier).generate(PROMPT, **SAMPLED)
    assert (text.lossless, text.lossy) == (True, None)
    assert text.fidelity.words == "lossless"
    assert text.fidelity.to_json() == {"lossless": True}


def test_greedy_texts_are_lossless():
    assert toys().generate(PROMPT, max_new_tokens=6).lossless


@pytest.mark.parametrize("name", LOSSLESS)
def test_all_other_verifiers_are_lossless(name):
    assert Fidelity.of(ToyModel(Table()), VERIFIERS[name]).lossless


def test_a_lossy_verifier_is_named():
    text = toys(LossyTypical).generate(PROMPT, **SAMPLED)
    assert (text.lossless, text.lossy) == (False, TYPICAL)
    assert text.fidelity.words == f"NOT lossless: {TYPICAL}"
    assert text.fidelity.to_json() == {"lossless": False, "lossy": TYPICAL}


def test_a_users_own_lossy_verifier_is_named_by_its_class():
    class Generous(LossyTypical):
        pass

    assert toys(Generous).generate(PROMPT, **SAMPLED).lossy == TYPICAL.replace("lossy-typical", "Generous")


@pytest.mark.parametrize("speculate", [True, False])
def test_all_ways_of_writing_tell_it(speculate):
    decoder, options = toys(LossyTypical), {**SAMPLED, "speculate": speculate}
    assert [text.lossy for text in decoder.generate([PROMPT, PROMPT], **options)] == [TYPICAL, TYPICAL]
    with Engine(decoder) as engine:
        assert engine.submit(PROMPT, **options).result().lossy == TYPICAL
    assert decoder.plain().generate(PROMPT, **options).lossy == TYPICAL


def test_a_window_is_lossy_whatever_the_verifier():
    said = "lossy_window lets the target attend to the last 4 tokens and the first 2 only"
    assert windowed().generate(PROMPT, max_new_tokens=6).lossy == said
    assert windowed(sinks=0).generate(PROMPT, max_new_tokens=6).lossy == said.replace(" and the first 2", "")
    assert windowed(verifier=LossyTypical).generate(PROMPT, **SAMPLED).lossy == f"{TYPICAL}; and {said}"


@needs_native
def test_a_quantised_target_is_another_model_to_which_texts_are_lossless():
    decoder = drafttree.load(drafter="none", dtype="float32", quantize="int8")
    text = decoder.generate(PROMPT, max_new_tokens=6)
    assert (text.lossless, text.lossy) == (True, None)
    assert text.fidelity.words == "lossless with respect to the int8 target"
    assert text.fidelity.to_json() == {"lossless": True, "quantization": "int8"}
    lossy = decoder.with_verifier(LossyTypical).generate(PROMPT, **SAMPLED).fidelity
    assert lossy.words == f"NOT lossless: {TYPICAL}"
    assert lossy.to_json() == {"lossless": False, "lossy": TYPICAL, "quantization": "int8"}
