"""The benchmark of growing trees: its rows follow Zipf's law, and its trees are those of the policies."""

import pytest
import torch

from drafttree.drafters import Frontier
from drafttree.measure.run_store import RunStore
from drafttree_lab.bench import micro
from drafttree_lab.bench.micro import time_growth, zipf_draft

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(micro, "WARM_UP", 1)


def nodes(count: int) -> list[Frontier]:
    return [Frontier([0] * count, [0] * count)]


def rows_of(policy: str, alpha: float, vocab: int = 50) -> list[dict]:
    return time_growth([policy], vocabs=[vocab], alphas=[alpha], repeats=2)


@pytest.mark.parametrize("alpha", [0.7, 1.35, 5.0])
def test_a_row_is_zipfs_law_in_another_order(alpha):
    rows = zipf_draft(40, alpha, CPU).draft_level(nodes(3))
    weights = [rank**-alpha for rank in range(1, 41)]
    for row in rows:
        found = row.double().softmax(0).sort(descending=True).values.tolist()
        assert found == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-5)
    assert len({int(row.argmax()) for row in rows}) > 1


def test_a_frontier_wider_than_the_rows_sees_them_again():
    draft = zipf_draft(8, 1.0, CPU)
    wide = draft.draft_level(nodes(150))
    assert wide.shape == (150, 8)
    assert torch.equal(wide[:64], wide[64:128])


def test_every_policy_is_timed_for_every_vocabulary_and_exponent():
    result = time_growth(["chain:depth=3", "auto"], vocabs=[20, 30], alphas=[0.7, 5.0], repeats=2)
    assert {(row["vocab"], row["alpha"], row["policy"]) for row in result} == {
        (vocab, alpha, policy) for vocab in (20, 30) for alpha in (0.7, 5.0) for policy in ("chain:depth=3", "auto")
    }
    assert all(min(row["seconds"], row["mean_seconds"]) > 0 for row in result)


@pytest.mark.parametrize(
    ("policy", "nodes", "levels"),
    [("chain:depth=5", 6, 5), ("eagle:depth=9", 60, 9), ("eagle:depth=9,chosen_only=true", 60, 9)],
)
def test_a_tree_of_fixed_shape_has_its_nodes_and_levels(policy, nodes, levels):
    (row,) = rows_of(policy, 1.35)
    assert (row["nodes"], row["levels"]) == (nodes, levels)
    assert row["per_level"] == pytest.approx(row["seconds"] / levels)


def test_talon_grows_deep_where_rows_are_certain_and_wide_where_they_are_not():
    (sure,), (unsure,) = rows_of("talon", 5.0), rows_of("talon", 0.7)
    # 2 ** -5 passes the gate of 0.03 on every level and 3 ** -5 does not; of 50 ** -0.7 = 0.065 every token passes.
    assert sure["levels"] > 5
    assert unsure["levels"] == 2
    assert sure["nodes"] == unsure["nodes"] == 60


def test_a_finished_figure_is_kept(tmp_path):
    options = {"vocabs": [20], "alphas": [1.0], "repeats": 2}
    first = time_growth(["chain"], store=RunStore(tmp_path / "out"), **options)
    assert time_growth(["chain"], store=RunStore(tmp_path / "out"), **options) == first


def test_a_budget_of_one_has_no_level_to_share_the_time():
    (row,) = rows_of("talon:budget=1", 1.0)
    assert (row["nodes"], row["levels"], row["per_level"]) == (1, 0, row["seconds"])
