"""Perplexity and kept tokens against transformers' own logits."""

import math

import pytest
import torch

import drafttree
from drafttree.errors import ConfigError
from drafttree.evaluation.reference import released, transformers_model
from drafttree_lab.experiment.quantized_quality import bench_quality
from testing.marks import needs_native

TEXTS = [[5, 9, 3, 1, 7, 7, 2], [4, 4, 1]]


@needs_native
def test_figures_are_those_of_transformers_logits():
    decoders = {
        "float32": drafttree.load("embedded", "none", dtype="float32"),
        "int8": drafttree.load("embedded", "none", dtype="float32", quantize="int8"),
    }
    seen = []
    rows = bench_quality(decoders, [*TEXTS, [3]], progress=seen.append)
    assert seen == ["float32", "int8"] * 2
    chosen = {}
    for row, decoder in zip(rows, decoders.values(), strict=True):
        losses = []
        with torch.inference_mode(), released(transformers_model(decoder)) as module:
            logits = [module(torch.tensor([text])).logits[0, :-1].double() for text in TEXTS]
        for own, text in zip(logits, TEXTS, strict=True):
            losses.append(torch.nn.functional.cross_entropy(own, torch.tensor(text[1:]), reduction="sum"))
        assert row.perplexity == pytest.approx(math.exp(float(sum(losses)) / 8), rel=1e-2)
        chosen[row.kind] = torch.cat([own.argmax(-1) for own in logits])
    assert [row.tokens for row in rows] == [8, 8]
    assert rows[0].same_token == 1
    assert rows[1].same_token == pytest.approx((chosen["int8"] == chosen["float32"]).double().mean().item(), abs=0.13)
    assert rows[1].weight_bytes < rows[0].weight_bytes / 2
    with pytest.raises(ConfigError, match="there is no text to measure"):
        bench_quality(decoders, [[3]])
