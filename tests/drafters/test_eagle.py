"""The EAGLE-1 and EAGLE-2 drafter: the text is the target's, and what does not fit is told."""

import torch

import drafttree
from drafttree.drafters.formats.heads import parse_eagle
from drafttree.errors import ModelError
from drafttree.models.module.module_backend import lay_out_for_cpu
from helpers import checkpoints
from helpers.refusals import told

EAGLE = checkpoints.FORMATS["EAGLE-1"]


def test_a_folder_is_loaded_for_its_target(tmp_path):
    folder, target = EAGLE.write(tmp_path), checkpoints.target()
    lay_out_for_cpu(target)
    decoder = drafttree.load(target, str(folder), policy="talon")
    assert decoder.drafter.kind == "eagle"
    assert decoder.drafter.hidden_layers == (checkpoints.DEPTH,)
    assert decoder.drafter.nbytes == sum(tensor.nbytes for tensor in EAGLE.tensors().values())
    assert len(decoder.generate([3, 1, 4], max_new_tokens=6).tokens) == 6


def test_what_does_not_fit_is_told():
    tensors, config = EAGLE.tensors(), EAGLE.fields()
    del tensors["layers.0.mlp.up_proj.weight"], tensors["fc.bias"]
    (problem,) = parse_eagle({**tensors, "norm.weight": torch.ones(32)}, config).problems[:1]
    assert problem == "missing fc.bias, layers.0.mlp.up_proj.weight"
    assert "unexpected norm.weight" in parse_eagle({**tensors, "norm.weight": torch.ones(32)}, config).problems
    assert "config.json is missing or empty" in told(ModelError, parse_eagle, tensors, {})
    assert "gives layernorms as true" in told(ModelError, parse_eagle, tensors, {**config, "layernorms": True})
