"""What a person sees of the objects at a prompt, and that a decoder is not copied by accident."""

import copy
import pickle

import pytest

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter, PromptLookupDrafter
from drafttree.errors import ConfigError
from drafttree.models import TargetModel
from drafttree.policies import Chain, Talon
from drafttree.verifiers import Coupled
from testing import tiny


@pytest.fixture(scope="module")
def decoder():
    model = TargetModel(tiny.build("llama"))
    return Decoder(model, LanguageModelDrafter(model), Talon(budget=9), Coupled)


def test_a_decoder_shows_its_parts(decoder):
    shown = repr(decoder)
    assert shown.startswith("Decoder(TargetModel(LlamaForCausalLM, ")
    assert "MB, float32, cpu, ModuleBackend)" in shown
    assert shown.endswith("MB), policy=Talon(budget=9), verifier=Coupled)")
    assert "drafter=LanguageModelDrafter(any depth, " in shown
    assert repr(decoder.plain().with_verifier(None)).endswith("drafter=None, policy=Talon(budget=9), verifier=auto)")


def test_policies_and_drafters_show_what_matters():
    assert repr(Chain()) == "Chain()"
    assert repr(Talon(depth=4, width=2)) == "Talon(width=2, depth=4)"
    assert repr(PromptLookupDrafter(8)) == "PromptLookupDrafter(any depth, 0.0 MB)"


def test_a_generation_is_shown_in_one_line(decoder):
    generation = decoder.generate([1, 2, 3], max_new_tokens=6, temperature=1.0, seed=5)
    metrics = generation.metrics
    assert repr(metrics).startswith(f"Metrics(6 tokens in {len(metrics.rounds)} rounds, ")
    assert f"{metrics.mean_accepted_tokens:.2f} tokens per target pass" in repr(metrics)
    assert repr(generation) == f"Generation('', length, seed=5, {metrics!r})"
    assert "\n" not in repr(generation)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_decoder_is_not_copied(decoder, duplicate):
    with pytest.raises(ConfigError, match=r"not pickled or copied.*call drafttree\.load"):
        duplicate(decoder)
