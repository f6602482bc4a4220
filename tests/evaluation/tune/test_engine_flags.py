"""Flags of other engines, of tunings that were never run."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from drafttree import drafters
from drafttree.drafters import MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.errors import ConfigError
from drafttree.evaluation.tune import Tuning, engine_flags
from drafttree.evaluation.tune.tuning import TunedMethod
from drafttree.measure.interval import Interval
from helpers.timed_metrics import timed

CHAIN = {"committed": 2, "nodes": 4, "levels": 3, "widths": (1, 1, 1)}
TREE = {"committed": 2, "nodes": 12, "levels": 3, "widths": (1, 3, 3)}


def tuning(drafter, name, policy, rounds, gain=0.5):
    metrics = timed(0.5, 10, **rounds)
    best = TunedMethod(name, policy, 4, 1 + gain)
    return Tuning(
        best,
        SimpleNamespace(drafter=drafter),
        None,
        1.5,
        Interval(gain, gain - 0.1, gain + 0.1),
        True,
        True,
        metrics,
        timed(1.0),
        [best],
        [],
    )


def head(kind):
    """A drafter of a class, or an EAGLE-3 head, which is not made."""
    made = object.__new__(getattr(drafters, kind))
    if kind == "HeadDrafter":
        made.kind = "eagle3"
    return made


def lookup():
    return PromptLookupDrafter(97, torch.device("cpu"))


def test_sglang_runs_eagle_3_with_the_steps_the_width_and_the_nodes_of_the_median_round():
    flags = engine_flags("sglang", tuning(head("HeadDrafter"), "me/head", "talon:budget=16", TREE))
    assert shlex.split(flags.text) == [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "me/head"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "3", "--speculative-num-draft-tokens", "12"),
    ]
    chain = engine_flags("sglang", tuning(head("LanguageModelDrafter"), "me/small", "chain:depth=3", CHAIN))
    assert "STANDALONE" in chain.text
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in chain.text
    assert "NGRAM" in engine_flags("sglang", tuning(lookup(), "lookup", "chain", CHAIN)).text


def test_a_draft_temperature_is_said_to_be_lost():
    found = tuning(head("HeadDrafter"), "me/head", "talon:budget=16", TREE)
    note = "it has no draft temperature; the drafter's logits are taken as they are"
    assert note not in engine_flags("sglang", found).notes
    warm = replace(found, best=replace(found.best, draft_temperature=0.6))
    assert note in engine_flags("sglang", warm).notes


def test_a_wide_shallow_tree_gets_the_width_its_nodes_need():
    rounds = {"committed": 2, "nodes": 9, "levels": 1, "widths": (1,)}
    flags = engine_flags("sglang", tuning(head("HeadDrafter"), "me/head", "talon", rounds))
    assert "--speculative-num-steps 1 --speculative-eagle-topk 8 --speculative-num-draft-tokens 9" in flags.text


@pytest.mark.parametrize(
    ("drafter", "method"),
    [("HeadDrafter", "eagle3"), ("LanguageModelDrafter", "draft_model"), ("MedusaDrafter", "medusa")],
)
def test_vllm_drafts_chains_only_and_it_is_said(drafter, method):
    flags = engine_flags("vllm", tuning(head(drafter), "me/head", "talon", TREE))
    option, config = shlex.split(flags.text)
    assert option == "--speculative-config"
    assert json.loads(config) == {"method": method, "model": "me/head", "num_speculative_tokens": 3}
    assert flags.notes[0] == "it drafts chains only; the tree of 12 nodes becomes a chain of 3"


def test_vllm_looks_up_without_a_model():
    found = [engine_flags("vllm", tuning(made, "lookup", "chain:depth=3", CHAIN)).text for made in (lookup(), suffix())]
    methods = [json.loads(shlex.split(text)[1]) for text in found]
    assert methods == [{"method": name, "num_speculative_tokens": 3} for name in ("ngram", "suffix")]


def suffix():
    return SuffixDrafter(97, torch.device("cpu"))


def test_tensorrt_llm_has_a_configuration_file():
    flags = engine_flags("tensorrt-llm", tuning(head("HeadDrafter"), "me/head", "eagle", TREE))
    first, *rest = flags.text.splitlines()
    assert first == "speculative_config:"
    assert dict(line.strip().split(": ") for line in rest) == {
        "decoding_type": "Eagle3",
        "max_draft_len": "3",
        "speculative_model": '"me/head"',
        "use_dynamic_tree": "true",
        "dynamic_tree_max_topK": "3",
        "max_total_draft_tokens": "11",
    }
    assert (
        "Draft_Target" in engine_flags("tensorrt-llm", tuning(head("LanguageModelDrafter"), "m", "chain", CHAIN)).text
    )


def test_mixed_drafting_becomes_the_model_alone_and_an_embedded_head_its_folder():
    mixed = object.__new__(MixedDrafter)
    mixed.lookup, mixed.model = suffix(), head("HeadDrafter")
    flags = engine_flags("vllm", tuning(mixed, "mixed:embedded-eagle3", "auto", CHAIN))
    model = json.loads(shlex.split(flags.text)[1])["model"]
    assert model.endswith("eagle3")
    assert any("mix" in note for note in flags.notes)
    assert any("slower than plain decoding" in note for note in flags.notes)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_what_an_engine_has_nothing_for_gets_no_flags(engine):
    hydra = engine_flags(engine, tuning(head("HydraDrafter"), "me/hydra", "talon", TREE))
    assert hydra.text == ""
    assert "nothing like the drafter me/hydra" in hydra.notes[0]
    none = engine_flags(engine, tuning(lookup(), "lookup", "chain", CHAIN, gain=0.05))
    assert none.text == ""
    assert "not to speculate" in none.notes[0]


def test_an_unknown_engine_is_refused_with_the_names():
    with pytest.raises(ConfigError, match="unknown engine 'vlm'; known: sglang, vllm, tensorrt-llm"):
        engine_flags("vlm", tuning(lookup(), "lookup", "chain", CHAIN))
