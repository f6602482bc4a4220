"""The measurements behind the law: what is counted must be what is there; how long it took is not a test's business."""

import json
from dataclasses import replace

import pytest
import torch

import drafttree
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.drafting.measure import time_passes
from drafttree.errors import ConfigError
from drafttree.measure.inflation import load_inflated
from drafttree_lab.display.tables import show_law
from drafttree_lab.experiment.law import measure_law, pass_bytes
from testing import tiny

PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]


@pytest.fixture(scope="module")
def decoder():
    target, draft = (tiny.wrap(tiny.build("llama", seed))[0] for seed in (0, 1))
    return drafttree.Decoder(target, LanguageModelDrafter(draft))


@pytest.fixture(scope="module")
def law(decoder):
    return measure_law(decoder, PROMPTS, ["chain", "talon"], repeats=1, max_new_tokens=10, context=8, contexts=[4, 99])


def test_every_way_of_generating_is_timed_and_writes_the_same_text(law):
    assert [row.method for row in law.bench.rows] == ["plain", "chain", "talon"]
    assert {peer.name for peer in law.bench.peers} == {
        "transformers",
        "transformers prompt lookup",
        "transformers assisted, constant",
        "transformers assisted, heuristic",
    }
    assert all(peer.identical == len(PROMPTS) and peer.tokens_per_second > 0 for peer in law.bench.peers)


def test_assisted_generation_leaves_the_models_as_they_were(decoder, law):
    for model in (decoder.target, decoder.drafter.model):
        assert model.module.config._attn_implementation == "drafttree"


def test_the_law_is_in_units_of_a_pass_over_one_node(law):
    assert law.v(1) == 1
    assert set(law.passes) == {1, 2, 4, 8, 16, 32}
    plain = law.bench.rows[0]
    assert law.moved(plain) == pytest.approx(plain.tokens_per_second * law.target_bytes)
    assert plain.law.without_host == pytest.approx(plain.law.tau / plain.law.v)
    assert json.loads(json.dumps(law.summary()))["v"]["1"] == 1


def test_targets_are_shown_beside_the_figures_of_a_gpu_only(law, capsys):
    assert law.targets() == []
    show_law(law)
    assert "target is" not in capsys.readouterr().out
    on_gpu = replace(law, device="cuda:0", passes={1: 1.0, 64: 1.5}, bandwidth=law.moved(law.bench.rows[0]))
    share, wide, best = on_gpu.targets()
    assert (share.found, share.bound, share.met) == (pytest.approx(1.0), 0.75, True)
    assert (wide.found, wide.bound, wide.met) == (1.5, 1.2, False)
    speeds = [row.tokens_per_second for row in law.bench.rows]
    assert (best.found, best.bound) == (pytest.approx(max(speeds[1:]) / speeds[0]), 3.0)
    show_law(on_gpu)
    assert "v(64): 1.50; the target is at most 1.20: missed" in capsys.readouterr().out
    assert len(on_gpu.summary()["targets"]) == 3


def test_passes_are_timed_behind_every_context_asked_for(law):
    assert {context: set(times) for context, times in law.contexts.items()} == {4: {1, 16}, 99: {1, 16}}


def test_bytes_are_those_of_the_weights_read_and_of_the_cache():
    model, _ = tiny.wrap(tiny.build("llama"))
    sizes = {name: p.nbytes for name, p in model.module.named_parameters()}
    row = tiny.SIZES["hidden_size"] * 4
    keys = tiny.LAYERS * 2 * 2 * 8 * 10 * 4
    expected = sum(sizes.values()) - sizes["model.embed_tokens.weight"] + row + keys
    assert pass_bytes(model, 10) == expected


def test_passes_leave_the_context_alone(monkeypatch):
    model, _ = tiny.wrap(tiny.build("gpt_neox"))
    seen = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda segments, **kw: seen.append(segments[0].cache.length) or forward(segments, **kw)
    )
    time_passes(model, (1, 4), 6, 2)
    assert seen[1:] == [6] * 6


def test_a_context_without_room_is_an_error(decoder):
    with pytest.raises(ConfigError, match="context=64"):
        measure_law(decoder, PROMPTS, ["chain"], context=64)


def test_an_inflated_target_writes_the_same_text():
    prompt, options = "The old man", {"max_new_tokens": 12}
    small = drafttree.load(dtype="float32").generate(prompt, **options)
    large = load_inflated("embedded", "auto", "100m", "float32", "cpu")
    assert large.target.module.get_decoder().layers[0].mlp.down_proj.weight.is_contiguous()
    assert sum(p.numel() for p in large.target.module.parameters()) > 90e6
    with torch.inference_mode():
        assert large.generate(prompt, **options).tokens == small.tokens
