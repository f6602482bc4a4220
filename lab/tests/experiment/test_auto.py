"""`bench auto`: rows and cells, what is counted, what is timed, and that `auto` begins every row anew."""

import json

import pytest

import drafttree
from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters import PromptLookupDrafter
from drafttree.errors import ConfigError, InputError
from drafttree.evaluation.prompt_form import AS_TEXT
from drafttree.evaluation.prompts import Example
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import make_policy
from drafttree_lab.experiment.auto import Place, bench_auto, encode_sets
from drafttree_lab.experiment.timed_row import RIVALS, learning_way

CURVE = CostCurve(Costs.of({1: 1.0, 8: 1.1, 64: 2.0}), (DraftCosts(0.1, Costs.of({1: 0.1, 8: 0.1})),), 0.1, 0.1)
FREE = CostCurve(Costs.of({1: 1.0, 8: 1.0, 64: 1.0}), (DraftCosts(0.01, Costs.of({1: 0.01, 8: 0.01})),), 0.0, 0.0)
TEXTS = ["The old man looked at the sea", "one, two, three, one, two, three, one,"]


def examples(**sets: list[str]) -> dict[str, list[Example]]:
    return {name: [Example(text) for text in texts] for name, texts in sets.items()}


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


@pytest.fixture(scope="module")
def prompts(decoder):
    return encode_sets(decoder, examples(books=TEXTS[:1], lists=TEXTS[1:]), AS_TEXT, 8)


@pytest.fixture(scope="module")
def found(decoder):
    return {"model": decoder.drafter, "lookup": PromptLookupDrafter(decoder.target.vocab_size)}


def run(decoder, found, prompts, places, **options):
    settings = {"max_new_tokens": 8, "repeats": 1, "policies": ["chain:depth=2"], "temperatures": [0.0]}
    return bench_auto(decoder, found, places, prompts, **settings | options)


def here(decoder, *drafters):
    return Place("own", drafters, lambda _: decoder.with_costs(CURVE))


def test_every_row_counts_the_grid_and_auto_and_times_plain_decoding_and_the_best(decoder, found, prompts):
    seen = []
    result = run(decoder, found, prompts, [here(decoder, "model")], progress=seen.append)
    assert [row.name for row in result.rows] == ["model, books, T = 0, own", "model, lists, T = 0, own"]
    assert seen == ["auto", "chain:depth=2", "talon", "dynatree", "timed"] * 2
    row = result.rows[0]
    assert set(row.counted) == {"auto", "chain:depth=2", "talon", "dynatree"}
    assert set(row.timed.rows) == {"plain", "auto", row.best, *RIVALS}
    assert row.timed.rows["plain"].law.tau == 1
    assert row.timed.rows["dynatree"].law.tau == row.counted["dynatree"].tau
    assert result.summary()["costs"] == {"own": {"model": CURVE.to_json()}}


def test_counted_rounds_are_those_of_the_texts(decoder, found, prompts):
    result = run(decoder, found, prompts, [here(decoder, "lookup")], timed=False)
    row = result.rows[1]
    engine = decoder.with_drafter(found["lookup"]).with_policy(make_policy("chain:depth=2"))
    metrics = engine.generate(prompts["lists"][0], temperature=0.0, max_new_tokens=8).metrics
    counted = row.counted["chain:depth=2"]
    assert (counted.tau, counted.delta) == (metrics.mean_accepted_tokens, metrics.draft_efficiency)
    spent = sum(CURVE.round(each.nodes, each.widths, each.source) for each in metrics.rounds)
    assert counted.speedup == pytest.approx(metrics.tokens / spent * CURVE.plain_round)
    assert row.timed is None


def test_another_machines_costs_change_the_trees_and_nothing_else(decoder, found, prompts):
    places = [here(decoder, "model"), Place("wider", ["model"], costs={"model": FREE})]
    rows = run(decoder, found, prompts, places, max_new_tokens=16).rows
    own, other = ([row for row in rows if row.place == place.name] for place in places)
    assert all(row.timed is None for row in other)
    for mine, theirs in zip(own, other, strict=True):
        assert mine.counted["talon"].tau == theirs.counted["talon"].tau
        assert mine.counted["auto"].nodes < theirs.counted["auto"].nodes


def test_finished_cells_are_kept(decoder, found, prompts, tmp_path, monkeypatch):
    results = []
    for _ in range(2):
        store = RunStore(tmp_path / "out", {})
        results.append(run(decoder, found, prompts, [here(decoder, "model")], store=store).summary())
        monkeypatch.setattr(Decoder, "generate", None)
    assert json.dumps(results[0]) == json.dumps(results[1])


def test_auto_learns_from_text_to_text_and_begins_anew_with_the_first(decoder, prompts):
    options = {"temperature": 0.0, "max_new_tokens": 24}
    first, second = prompts["books"][0], prompts["lists"][0]
    engine = decoder.with_policy(make_policy("auto"))

    def shapes(generation):
        return [(turn.nodes, turn.widths) for turn in generation.metrics.rounds]

    generate = learning_way(decoder, CURVE, first, options)
    got = [shapes(generate(prompt)) for prompt in (first, second, first)]
    learning, fresh = engine.with_costs(CURVE), engine.with_costs(CURVE)
    assert got[:2] == [shapes(learning.generate(prompt, **options)) for prompt in (first, second)]
    assert got[2] == got[0]
    assert got[1] != shapes(fresh.generate(second, **options))


def test_nothing_to_measure_is_said(decoder, found, prompts):
    for given in ({}, {"temperatures": []}, {"places": []}):
        everything = {"drafters": found if given else {}, "places": [here(decoder, "model")], "sets": prompts}
        with pytest.raises(ConfigError, match=r"there is no .* to measure"):
            bench_auto(decoder, **everything | given)


def test_prompts_that_are_too_short_are_left_out_and_a_set_without_others_is_named(decoder):
    assert len(encode_sets(decoder, examples(chat=["a", TEXTS[0]]), AS_TEXT, 8)["chat"]) == 1
    with pytest.raises(InputError, match="chat: no prompt is long enough; 4 tokens are needed, the longest has 1"):
        encode_sets(decoder, examples(books=TEXTS, chat=["a"]), AS_TEXT, 8)
