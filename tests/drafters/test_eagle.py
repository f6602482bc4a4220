"""The EAGLE-1 and EAGLE-2 drafter: the text is the target's, and what does not fit is told."""

import pytest
import torch

import drafttree
from drafttree import Decoder, Engine
from drafttree.drafters.formats import FORMATS
from drafttree.errors import ModelError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.models import lay_out_for_cpu
from drafttree.policies import POLICIES, Talon
from helpers import checkpoints
from helpers.refusals import told
from testing import tiny

EAGLE = checkpoints.FORMATS["EAGLE-1"]
READER = FORMATS["eagle"]


def decoder_of(folder) -> Decoder:
    return drafttree.load(checkpoints.target(), EAGLE.write(folder), "talon", dtype="float32", device="cpu")


@pytest.mark.parametrize("policy", ["chain", "talon", "dynatree", "auto"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_text_is_that_of_plain_decoding(policy, options, tmp_path):
    decoder = decoder_of(tmp_path).with_policy(POLICIES[policy]()).with_costs(TOY_COSTS)
    drafted = 0
    for prompt in ([3, 1, 4], [2]):
        generation = decoder.generate(prompt, max_new_tokens=16, **options)
        assert generation.tokens == decoder.plain().generate(prompt, max_new_tokens=16, **options).tokens
        drafted += sum(turn.levels for turn in generation.metrics.rounds)
    assert drafted


def test_texts_in_an_engine_are_those_written_alone(tmp_path):
    decoder = decoder_of(tmp_path).with_policy(Talon(width=4, budget=12))
    prompts = [[3, 1, 4], [2], [7, 7, 1, 0, 5, 9]]
    alone = [decoder.generate(prompt, max_new_tokens=12).tokens for prompt in prompts]
    with Engine(decoder) as engine:
        handles = [engine.submit(prompt, max_new_tokens=12) for prompt in prompts]
        assert [handle.result().tokens for handle in handles] == alone


def test_a_folder_is_loaded_for_its_target(tmp_path):
    folder, target = EAGLE.write(tmp_path), checkpoints.target()
    lay_out_for_cpu(target)
    decoder = drafttree.load(target, str(folder), policy="talon")
    assert decoder.drafter.kind == "eagle"
    assert decoder.drafter.hidden_layers == (checkpoints.DEPTH,)
    assert decoder.drafter.nbytes == sum(tensor.nbytes for tensor in EAGLE.tensors().values())
    assert len(decoder.generate([3, 1, 4], max_new_tokens=6).tokens) == 6


def test_what_does_not_fit_is_told():
    tensors, config, other = EAGLE.tensors(), EAGLE.fields(), tiny.build("llama")
    assert "made for a target with a vocabulary of 23, this target's is 97" in told(
        ModelError, READER.load, tensors, config, other
    )
    del tensors["layers.0.mlp.up_proj.weight"], tensors["fc.bias"]
    (problem,) = READER.parse({**tensors, "norm.weight": torch.ones(32)}, config).problems[:1]
    assert problem == "missing fc.bias, layers.0.mlp.up_proj.weight"
    assert "unexpected norm.weight" in READER.parse({**tensors, "norm.weight": torch.ones(32)}, config).problems
    assert "config.json is missing or empty" in told(ModelError, READER.parse, tensors, {})
    assert "gives layernorms as true" in told(ModelError, READER.parse, tensors, {**config, "layernorms": True})
    form = checkpoints.FORMATS["EAGLE, vLLM speculators"]
    scaled = {name: each * torch.nan if name == "fusion_fc.weight" else each for name, each in form.tensors().items()}
    assert "fusion_fc.weight holds numbers that are not finite" in READER.parse(scaled, form.fields()).problems
