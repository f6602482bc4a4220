"""`drafttree replay map` on the embedded pair, at the smallest size."""

import json

import pytest

from drafttree.measure.run_store import RUNS, NothingFinished
from drafttree_lab.replay import run as replay_run
from drafttree_lab.winner_map import winner_map
from testing.command_line import complaint, run

TINY = ["replay", "map", "--limit", 1, "--max-new-tokens", 6]


@pytest.fixture
def small_map(embedded, monkeypatch):
    """A map of one agreement, one cost and short prompts, of the embedded target, which is loaded once."""
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: embedded.plain())
    monkeypatch.setattr(winner_map, "MAX_PROMPT_TOKENS", 16)
    monkeypatch.setattr(winner_map, "AGREEMENTS", (0.65,))
    monkeypatch.setattr(winner_map, "cost_grid", lambda: [(0.1, 0.005)])


@pytest.mark.slow
@pytest.mark.usefixtures("small_map")
def test_the_map_is_counted_kept_shown_and_drawn(tmp_path):
    command = [*TINY, "--out", tmp_path / "out"]
    shown = run(*command, "--json")
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert [each["confidence"] for each in found["points"]] == ["overconfident", "calibrated", "underconfident"]
    for point in found["points"]:
        assert point["agreement"] == 0.65
        assert point["best"] == max(point["speedups"].values())
    assert len(found["pairs"]) == 9
    kept = (tmp_path / "out" / RUNS).read_text()
    again = run(*command, "-o", tmp_path / "wins.svg")
    assert again.exit_code == 0
    assert (tmp_path / "out" / RUNS).read_text() == kept
    assert (tmp_path / "wins.svg").exists()


@pytest.mark.usefixtures("small_map")
def test_when_the_minutes_are_over_nothing_is_finished(tmp_path):
    shown = run(*TINY, "--out", tmp_path / "out", "--minutes", 1e-9)
    assert isinstance(shown.exception, NothingFinished)
    assert (tmp_path / "out" / "run.json").exists()


@pytest.mark.usefixtures("small_map")
def test_a_folder_of_drafters_of_other_confidences_is_refused(tmp_path, capsys):
    run(*TINY, "--out", tmp_path / "out", "--minutes", 1e-9)
    command = json.loads((tmp_path / "out" / "run.json").read_text())
    del command["confidences"]
    (tmp_path / "out" / "run.json").write_text(json.dumps(command))
    said = complaint(capsys, *TINY, "--out", tmp_path / "out")
    assert "holds the runs of another command (confidences = None there" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["talon/1"], "unexpected extra argument(s) (talon/1)"),
        (["--points", "2"], "No such option: --points"),
        (["--cost", "measured"], "No such option: --cost"),
        (["-o", "map.png"], "does not end in .svg"),
        (["--target", "gpt2"], "name one with --as Draft model=DRAFTER"),
        (["--as", "SD=x"], "unknown role 'SD'"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    assert said in complaint(capsys, "replay", "map", *arguments)


@pytest.mark.usefixtures("small_map")
def test_a_drafter_that_is_no_language_model_is_refused(tmp_path, capsys):
    said = complaint(capsys, *TINY, "--as", "Draft model=embedded-eagle3", "--out", tmp_path / "out")
    assert "the map grades language models that draft" in said
