"""Where the seconds of loading go: stages within stages, and what a load logs."""

import logging

import drafttree
from drafttree.core import stages
from drafttree.core.stages import counted_stages, stage


def test_a_stage_within_another_counts_by_itself(monkeypatch):
    ticks = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(ticks))
    with counted_stages() as counted, stage("check"), stage("pack"):
        pass
    assert counted.seconds == {"other": 1 + 5, "check": 2 + 4, "pack": 3}


def test_without_anybody_who_counts_a_stage_does_nothing():
    with stage("check"):
        pass
    with counted_stages() as counted:
        pass
    assert [*counted.seconds] == ["other"]


def test_who_counts_already_counts_on():
    with counted_stages() as outer, counted_stages() as inner:
        assert inner is outer


def test_a_load_logs_where_its_seconds_went(caplog):
    with caplog.at_level(logging.INFO, "drafttree"):
        drafttree.load("embedded", "none", dtype="float32")
    (line,) = (each.message for each in caplog.records if each.message.startswith("loaded in "))
    assert "check " in line
