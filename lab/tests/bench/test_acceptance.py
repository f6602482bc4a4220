"""The acceptance table: its expectations against enumeration, and its contexts and shapes on a toy decoder."""

import json

import pytest
import torch
from typer.testing import CliRunner

from drafttree import Decoder, Sampling
from drafttree.core import SeededRandomness
from drafttree.core.tree import DraftTree
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError
from drafttree.exactness import TabularModel, law, trees
from drafttree.interfaces import cli
from drafttree.interfaces.cli import decoders
from drafttree.measure import prompt_encoding
from drafttree.policies import Chain
from drafttree.verifiers import RRS, Block, Coupled, PointMass, RRSw, Traversal
from drafttree.verifiers.base import TreeView
from drafttree_lab.bench import acceptance
from drafttree_lab.bench.acceptance import measure_acceptance
from drafttree_lab.graded import Grade, GradedDrafter
from drafttree_lab.judged_tree import (
    JudgedTree,
    reach_by_rejection,
    reach_by_traversal,
    reach_by_walking,
    score_trees,
)
from testing.toy import Table, ToyDrafter, ToyModel
from testing.toy_pairs import CHAINS, RERANKING, SMALL_TREES, toy_pair

TREES = CHAINS | {name: SMALL_TREES[name] for name in ("siblings", "ragged", "late branch", "dynatree", "talon")}
EXPECTED = {
    RRSw: lambda view: sum(reach_by_rejection(view)) - 1,
    Traversal: lambda view: sum(reach_by_traversal(view)) - 1,
    PointMass: lambda view: sum(reach_by_walking(view)) - 1,
}
TARGET = Table(8, order=2, seed=3, scale=1.0)
DRAFT = TARGET.blurred(0.7)
SHAPES = {"chain:depth=3": {"chain 1": 1, "chain 3": 3}, "template:tree=binary-2": {"binary 1": 1, "binary 2": 2}}
PROMPTS = [[1, 2, 3], [4, 5]]
VERIFIERS = {"rrsw": RRSw, "traversal": Traversal, "point-mass": PointMass, "coupled": Coupled}


def view_of(tree: DraftTree, target: TabularModel) -> TreeView:
    logits = torch.stack([target.logits(context) for context in tree.paths()])
    return TreeView(tree, logits, Sampling(1.0), SeededRandomness(0, 1, torch.device("cpu")).at(0))


def expectation(target: TabularModel, draft: TabularModel, policy, verifier) -> float:
    """Over all trees, of the expectation given the tree."""
    drafted_trees = trees(draft, policy, verifier)
    return sum(chance * EXPECTED[verifier](view_of(tree, target)) for chance, tree in drafted_trees)


@pytest.mark.few(8)
@pytest.mark.parametrize("verifier", EXPECTED)
@pytest.mark.parametrize("name", TREES)
def test_expectations_given_the_tree_are_those_of_the_verifier(name, verifier):
    tables = toy_pair(3)
    found = expectation(tables.target, tables.draft, TREES[name], verifier)
    assert found == pytest.approx(law(tables.target, tables.draft, TREES[name], verifier).expected_accepted)


def test_no_node_of_a_chain_is_less_likely_by_traversal_than_token_by_token():
    gains = []
    for seed in range(4):
        tables = toy_pair(seed)
        for _, tree in trees(tables.draft, Chain(depth=3), Traversal):
            view = view_of(tree, tables.target)
            pairs = zip(reach_by_traversal(view), reach_by_rejection(view), strict=True)
            gains += [by_traversal - token_by_token for by_traversal, token_by_token in pairs]
    assert min(gains) > -1e-6
    assert max(gains) > 0.1


def test_the_naive_walk_on_re_ranked_trees_too():
    tables = toy_pair(1)
    for policy in RERANKING.values():
        found = expectation(tables.target, tables.draft, policy, PointMass)
        assert found == pytest.approx(law(tables.target, tables.draft, policy, PointMass).expected_accepted)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(acceptance, "SHAPES", SHAPES)


def decoder(draft: Table = DRAFT) -> Decoder:
    return Decoder(ToyModel(TARGET), LanguageModelDrafter(ToyModel(draft)))


def test_a_graded_drafter_is_measured_as_the_draft_model_it_is(small):
    draft, target = (LanguageModelDrafter(ToyModel(table)) for table in (DRAFT, TARGET))
    graded = Decoder(ToyModel(TARGET), GradedDrafter(draft, target, Grade(weight=0.0)))
    options = {"temperatures": (1.0,), "rounds": 3, "stride": 5}
    found, expected = (measure_acceptance(each, PROMPTS, **options)["rows"] for each in (graded, decoder()))
    assert found == expected
    near = Decoder(ToyModel(TARGET), GradedDrafter(draft, target, Grade(weight=1.0)))
    for row in measure_acceptance(near, PROMPTS, **options)["rows"]:
        if row["shape"].startswith("chain"):  # the target itself drafts, so all is accepted
            assert row["tokens"]["rrsw"].mean == pytest.approx(1 + int(row["shape"][-1]))


def test_the_table_has_every_shape_and_temperature(small):
    seen = []
    result = measure_acceptance(decoder(), PROMPTS, temperatures=(0.5, 1.0), rounds=3, stride=5, progress=seen.append)
    assert [(row["temperature"], row["shape"]) for row in result["rows"]] == [
        (temperature, shape) for temperature in (0.5, 1.0) for shapes in SHAPES.values() for shape in shapes
    ]
    assert seen == ["0.5", "1", "1", "0.5"]
    assert result["rounds"] == 2 * 2 * 3
    for row in result["rows"]:
        deepest = int(row["shape"][-1])
        assert set(row["tokens"]) == {"rrsw", "traversal", "point-mass", "coupled"}
        assert all(1 <= each.mean <= 1 + deepest for each in row["tokens"].values())


def test_a_drafter_that_is_the_target_has_everything_accepted(small):
    result = measure_acceptance(decoder(TARGET), PROMPTS, temperatures=(1.0,), rounds=2, stride=4)
    for row in result["rows"]:
        for name in ("rrsw", "traversal", "coupled"):
            assert row["tokens"][name].mean == pytest.approx(1 + int(row["shape"][-1]), abs=1e-5)
        assert row["gain"].mean == pytest.approx(0, abs=1e-5)


def test_contexts_lie_along_one_text_of_the_target():
    options = {"temperature": 1.0, "seed": 4}
    text = decoder().generate(PROMPTS[0], max_new_tokens=8, **options).tokens
    found = [list(each.tokens) for each in acceptance._contexts(decoder(), PROMPTS[0], 3, 4, options)]
    assert found == [PROMPTS[0] + text[:length] for length in (0, 4, 8)]


def test_rounds_in_a_context_agree_with_those_of_a_fresh_sequence(small):
    """The trees and the verdicts do not depend on the trees judged before in the same place."""
    engine, options = decoder(), {"temperature": 1.0, "seed": 4}
    for sequence in acceptance._contexts(engine, PROMPTS[0], 3, 4, options):
        again = engine.new_request(list(sequence.tokens), max_new_tokens=sequence.text.remaining, **options)
        engine.loop.read_prompt(again)
        ours, fresh = (acceptance._lengths(engine, each, SHAPES, VERIFIERS) for each in (sequence, again))
        assert {k: pytest.approx(v) for k, v in fresh.items()} == ours


def test_a_text_that_ends_has_fewer_contexts(small):
    engine = decoder()
    engine.eos = tuple(range(4))
    result = measure_acceptance(engine, PROMPTS, temperatures=(1.0,), rounds=4, stride=8)
    assert 2 <= result["rounds"] < 8


def test_shapes_and_verifiers_may_be_any(small):
    options = {"temperatures": (1.0,), "rounds": 2, "stride": 4, "shapes": ["chain:depth=3;chain"]}
    result = measure_acceptance(decoder(TARGET), PROMPTS, verifiers=["block,rrs", Traversal], **options)
    assert [row["shape"] for row in result["rows"]] == ["chain:depth=3", "chain"]
    for row, depth in zip(result["rows"], (3, 5), strict=True):
        assert {name: each.mean for name, each in row["tokens"].items()} == pytest.approx(
            dict.fromkeys(("block", "rrs", "traversal"), 1 + depth), abs=1e-5
        )
        assert row["gain"] is None


def test_a_chain_of_five_is_among_the_shapes():
    assert {shape for upper in acceptance.SHAPES.values() for shape in upper} >= {"chain 2", "chain 5", "chain 8"}


@pytest.mark.parametrize("verifier", [Block, RRS])
def test_a_count_on_the_upper_levels_is_that_on_the_shorter_chain(verifier):
    """Growth is predictable, so a chain of 2 is the beginning of the chain of 4 that is drawn with the same noise."""
    counts = set()
    for seed in range(20):
        engine, options = decoder(), {"temperature": 1.0, "seed": seed}
        (request,) = acceptance._contexts(engine.with_verifier(Coupled), PROMPTS[0], 1, 1, options)
        long, short = (JudgedTree(engine, request, Chain(depth=depth), verifier) for depth in (4, 2))
        score_trees(engine, request, [long, short])
        assert long.accepted(verifier, 2) == short.accepted(verifier, 2)
        counts.add(long.accepted(verifier, 4))
    assert len(counts) > 2


def test_tasks_have_rows_of_their_own(small):
    options = {"temperatures": (1.0,), "rounds": 1}
    result = measure_acceptance(decoder(), [*PROMPTS, [2, 2]], tasks=["qa", "code", "qa"], **options)
    rows = {row["task"]: row for row in result["rows"] if row["shape"] == "chain 3"}
    assert {task: row["prompts"] for task, row in rows.items()} == {"all": 3, "qa": 2, "code": 1}
    whole, qa, code = (rows[task]["tokens"]["rrsw"].mean for task in ("all", "qa", "code"))
    assert whole == pytest.approx((2 * qa + code) / 3)


@pytest.mark.parametrize(
    ("shape", "said"),
    [("eagle", "Eagle with RRSw is not lossless"), ("auto", "'auto' has no shape of its own")],
)
def test_shapes_that_cannot_be_judged_are_refused(shape, said):
    with pytest.raises(ConfigError, match=said):
        measure_acceptance(decoder(), PROMPTS, temperatures=(1.0,), shapes=[shape])


def test_acceptance_needs_a_language_model_as_drafter():
    for engine in (decoder().plain(), Decoder(ToyModel(TARGET), ToyDrafter(DRAFT))):
        with pytest.raises(
            ConfigError, match="a language model as drafter; name one, such as --drafter embedded-draft"
        ):
            measure_acceptance(engine, PROMPTS, temperatures=(1.0,))


def test_the_command_prints_tables_or_json(small, monkeypatch):
    monkeypatch.setattr(decoders, "load", lambda *_, **__: decoder())
    monkeypatch.setattr(prompt_encoding, "encode_prompts", lambda *_: [PROMPTS[0]])
    options = ["--temperatures", "0.5,1", "--rounds", "1", "--limit", "2"]
    result = CliRunner().invoke(cli.app, ["bench", "acceptance", *options])
    assert result.exit_code == 0
    assert "published gain of traversal over rrsw at T = 1: 2.2% to 5.7%" in result.stdout
    result = CliRunner().invoke(cli.app, ["bench", "acceptance", *options, "--json"])
    assert len(json.loads(result.stdout)["rows"]) == 8


def test_the_command_takes_shapes_verifiers_and_tasks(monkeypatch, tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a", "category": "mt/writing"}, {"prompt": "b", "category": "qa"}, {"prompt": "c"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(decoders, "load", lambda *_, **__: decoder())
    monkeypatch.setattr(prompt_encoding, "encode_prompts", lambda *_: [PROMPTS[0]])
    options = ["--temperatures", "1", "--rounds", "1", "--shapes", "chain:depth=2", "--verifiers", "block"]
    result = CliRunner().invoke(cli.app, ["bench", "acceptance", *options, "--prompts", str(path)])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert all(f"T = 1, {task}: tokens per round" in shown for task in ("all", "mt", "qa", "other"))
    assert "block" in result.stdout
    assert "published" not in result.stdout


@pytest.mark.parametrize("temperatures", ["0", "warm", "-1"])
def test_bad_temperatures_are_named(temperatures):
    result = CliRunner().invoke(cli.app, ["bench", "acceptance", "--temperatures", temperatures])
    assert isinstance(result.exception, ConfigError)
    assert "temperature" in str(result.exception)
