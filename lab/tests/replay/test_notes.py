"""What a result tells beside its measured values: the paper's numbers of no set, and why nothing of it is run."""

from dataclasses import replace

from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.measured import Measured
from drafttree_lab.replay.paper import Published
from drafttree_lab.replay.results import BY_TOKENS, summarise


def summary(experiment, folder, **options):
    """The summary of an experiment of which nothing was run, with other fields of its result."""
    other = replace(experiment, result=experiment.result.model_copy(update=options))
    measured = Measured(other, RunStore(folder, {"command": "replay"}, partial=True), {"a": [], "b": []})
    return summarise(measured, end_reason=None, done=0, tasks=0)


def test_means_of_the_paper_and_numbers_of_no_told_set_are_kept_of_the_first_model(experiment, tmp_path):
    nan = float("nan")
    columns = ["a", "average", "untold"]
    first = Published(line=1, metric="tau", columns=columns, rows={"tree": [1.0, 2.0, nan]}, model="small")
    second = Published(line=2, metric="tau", columns=columns, rows={"tree": [3.0, 4.0, 5.0]}, model="large")
    entries = summary(experiment, tmp_path, published=[first, second]).entries
    found = {(each.set, each.published, each.model) for each in entries if each.published is not None}
    assert found == {("a", 1.0, "small"), ("average", 2.0, "small"), ("untold", 5.0, "large")}


def test_a_metric_that_is_not_shown_has_no_mean(experiment, tmp_path):
    block = Published(line=1, metric="ttft", columns=["average"], rows={"tree": [2.0]}, model="small")
    assert not any(each.published for each in summary(experiment, tmp_path, published=[block]).entries)


def test_a_result_that_cannot_be_replayed_says_why(experiment, tmp_path):
    assert summary(experiment, tmp_path, unavailable="a drawing").notes == ["a drawing"]


def test_speeds_of_all_texts_together_are_said_to_be(experiment, tmp_path):
    pooled = replace(experiment, averages={"tokens_per_second": "total"})
    assert summary(pooled, tmp_path / "speedup", metrics=["speedup"]).notes == [BY_TOKENS]
    assert summary(pooled, tmp_path / "tau", metrics=["tau"]).notes == []
    assert summary(experiment, tmp_path / "texts", metrics=["speedup"]).notes == []
