"""Summaries in a folder."""

import errno
import json
from pathlib import Path

import pytest

from drafttree.errors import InputError
from drafttree_lab.replay.results import FOLDER, read_results, summarise, write_results
from lab_helpers.replay_cells import counted, measured


@pytest.fixture
def summary(experiment):
    """A summary under any name."""
    texts = [dict.fromkeys(experiment.blocks[0].ways, counted([1, 2]))] * 3
    cells = measured(experiment, dict.fromkeys("ab", texts))

    def named(name):
        found = summarise(cells, end_reason=None, done=6, tasks=6)
        return type(found)(**vars(found) | {"id": name})

    return named


def test_what_was_written_is_read_with_its_command_and_environment(summary, tmp_path):
    write_results(tmp_path, [summary("talon/1")], "drafttree replay talon/1")
    (kept,) = read_results(tmp_path)
    assert kept.summary == summary("talon/1")
    assert kept.command == "drafttree replay talon/1"
    assert {"drafttree", "torch", "device", "threads", "time"} <= set(kept.environment)


def test_results_come_in_the_order_of_the_papers_unknown_ones_last(summary, tmp_path):
    names = ["talon/1", "talon/fig3", "dynatree-v1/2", "mine/1"]
    write_results(tmp_path, [summary(name) for name in reversed(names)], "x")
    assert [kept.summary.id for kept in read_results(tmp_path)] == ["dynatree-v1/2", "talon/fig3", "talon/1", "mine/1"]


def test_a_later_command_replaces_a_result_and_leaves_the_others(summary, tmp_path):
    write_results(tmp_path, [summary("talon/1"), summary("talon/3")], "first")
    write_results(tmp_path, [summary("talon/3")], "second")
    assert [kept.command for kept in read_results(tmp_path)] == ["first", "second"]


def test_no_results_and_a_broken_file_are_refused(summary, tmp_path):
    with pytest.raises(InputError, match="the folder has no results of a replay; run drafttree replay with --out"):
        read_results(tmp_path)
    write_results(tmp_path, [summary("talon/1")], "x")
    for text in ("{", "{}", "[1]"):
        (tmp_path / FOLDER / "talon-1.json").write_text(text)
        with pytest.raises(InputError, match=r"talon-1.json: this is not a result of a replay; remove the file"):
            read_results(tmp_path)


def test_a_full_disk_is_told_and_leaves_the_earlier_result(summary, tmp_path, monkeypatch):
    write_results(tmp_path, [summary("talon/1")], "first")

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write_results(tmp_path, [summary("talon/1")], "second")
    assert [kept.command for kept in read_results(tmp_path)] == ["first"]


def test_a_result_of_an_earlier_format_is_refused(summary, tmp_path):
    write_results(tmp_path, [summary("talon/1")], "x")
    path = tmp_path / FOLDER / "talon-1.json"
    kept = json.loads(path.read_text())
    for earlier in ({name: value for name, value in kept.items() if name != "format"}, kept | {"format": 1}):
        path.write_text(json.dumps(earlier))
        with pytest.raises(
            InputError, match=r"talon-1.json: a result in the format of another version; run its command"
        ):
            read_results(tmp_path)
