"""What the terminal shows of a replay."""

from drafttree_lab.commands.replay import Plan, cell, list_rows, show_list, show_replay
from drafttree_lab.replay.inputs import PromptTexts, find_roles
from drafttree_lab.replay.judge import Judgement, Verdict
from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.plan import Experiment, Sizes, plan
from drafttree_lab.replay.results import Entry, ResultSummary


def verdict(outcome, said="1.20 [1.10, 1.30]", **changes):
    by_counts = Judgement(outcome, said, **changes)
    by_time = Judgement("contradicted", "0.80", reason="v(n) decides")
    return Verdict("x", "a tree is ahead", 1, True, None, by_counts, by_time)


def entry(measured=2.0, **changes):
    value = measured and Value(measured, measured - 0.1, measured + 0.1, 3)
    own = {"method": "tree", "set": "chat", "temperature": 0.0, "value": None, "metric": "tau"}
    return Entry(**own | {"published": 3.5, "model": "large", "measured": value} | changes)


def summary(**changes):
    own = {"id": "talon/1", "title": "A table", "line": 1, "verdicts": [], "not_looping": [], "looping": 0.0}
    own |= {
        "entries": [],
        "missing": {},
        "reach": {},
        "costs": "",
        "fit": "",
        "figure": None,
        "points": {},
        "notes": [],
        "done": 2,
        "tasks": 3,
    }
    return ResultSummary(**own | changes)


def test_a_number_stands_before_the_papers_and_a_speedup_beside_r():
    assert cell(entry()) == "2.00 (3.5)"
    assert cell(entry(published=None)) == "2.00"
    assert cell(entry(by_law=Value(2.25, 2.0, 2.5, 3))) == "2.00, R 2.25 (3.5)"
    assert cell(entry(measured=None, by_law=Value(2.25, 2.0, 2.5, 3))) == "R 2.25 (3.5)"
    assert cell(entry(ties=1)) == "2.00~ (3.5)"


def test_a_speed_that_was_counted_and_not_timed_is_shown_with_its_law(capsys):
    show_replay([summary(entries=[entry(measured=None, metric="speedup", by_law=Value(2.25, 2.0, 2.5, 3))])])
    shown = capsys.readouterr().out
    assert "R 2.25 (3.5)" in shown
    assert "R = tau (1 + h0) / (v + c delta + h) by counts" in shown


def test_a_column_is_named_by_set_temperature_and_value():
    assert entry().column == "chat"
    assert entry(temperature=0.5, value=60).column == "chat, T = 0.5, 60"


def test_results_show_verdicts_values_and_what_is_missing(capsys):
    found = summary(
        verdicts=[verdict("undecided", needed=40), verdict("reproduced")],
        not_looping=[verdict("contradicted")],
        looping=0.25,
        entries=[entry(), entry(metric="delta", measured=None)],
        missing={"SD": "no drafter replaces it"},
        reach={"TALON": (38, 60)},
        costs="costs of the paper's model: c = 0.1",
        notes=["it ended early"],
    )
    show_replay([found])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "talon/1  A table"
    assert lines[1:5] == [
        "  a tree is ahead (main)",
        "    with our drafters      undecided       1.20 [1.10, 1.30]; about 40 prompts would decide",
        "    on this machine        contradicted    0.80",
        "                                           v(n) decides",
    ]
    assert "  without the 25% of texts that loop:" in lines
    text = "\n".join(lines)
    assert "2.00 (3.5)" in text
    assert "delta" not in text
    assert "  costs of the paper's model: c = 0.1\n  TALON: no tree has more than 38 of 60 nodes\n" in text
    assert "  it ended early\n  SD: no drafter replaces it\n  2 of 3 turns done" in text
    assert lines[-4:] == [
        "claims: 2",
        "  with a fitted drafter: none",
        "  with our drafters: 1 undecided, 1 reproduced",
        "  on this machine: 2 contradicted",
    ]


def test_without_claims_none_are_counted(capsys):
    show_replay([summary()])
    assert capsys.readouterr().out.splitlines()[-2:] == ["  with our drafters: none", "  on this machine: none"]


def test_the_list_has_runs_and_what_cannot_be_replayed(capsys):
    roles, sizes = find_roles(["talon"], "embedded", {}), Sizes(limit=2, max_new_tokens=3000)
    planned: list[Experiment] = [plan("talon", name, *roles, sizes) for name in ("fig1", "1")]
    show_list(list_rows(Plan(planned, PromptTexts({}, {}, {}), *roles, sizes), 1, 0.01))
    header, schematic, table = capsys.readouterr().out.splitlines()
    assert header.split() == ["result", "title", "runs", "minutes", "not", "replayed"]
    assert schematic.split()[0] == "talon/fig1"
    assert "a schematic" in schematic
    ways = len(planned[1].blocks[0].ways) * len(planned[1].blocks)
    tokens = planned[1].blocks[0].setting.max_new_tokens
    assert f" {2 * ways} " in table
    assert f" {2 * ways * tokens / 6000:.0f} " in table
