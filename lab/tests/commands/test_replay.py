"""`drafttree replay` on the embedded pair, at tiny sizes and on shipped prompts."""

import json
import re
import sys
from pathlib import Path

import pytest

from drafttree.errors import ConfigError
from drafttree.measure.run_store import RUNS, RunStore
from drafttree_lab.replay import run as replay_run
from drafttree_lab.replay.agreement import Fit
from drafttree_lab.replay.plan import Setting
from testing.command_line import complaint, run

DOCS = Path(__file__).parents[3] / "docs"
DRAFTER = """\
from drafttree.drafters import PromptLookupDrafter

class Mine(PromptLookupDrafter):
    pass
"""
BROKEN = """\
def start(self, *_, **__):
        from drafttree.errors import ModelError

        raise ModelError("it is broken")
"""
CHAIN = """
[methods.Chain]
role = "Draft"
policy = "chain:depth=4"
[methods.Tree]
role = "Draft"
policy = "widest.Widest:depth=2,width=2"
[results.1]
title = "Tokens per round"
line = 140
methods = ["Chain", "Tree"]
sets = ["MT-Bench"]
metrics = ["tau"]
[[results.1.claims]]
id = "ahead"
text = "A wide tree commits more tokens per round than a chain"
line = 141
metric = "tau"
left = "Tree"
right = "Chain"
sign = ">"
"""
TINY = ["--limit", 1, "--max-new-tokens", 8, "--counts-only", "--no-agreement"]


@pytest.fixture
def quick_target(embedded, monkeypatch):
    """The embedded target, loaded once."""
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: embedded.plain())


@pytest.mark.usefixtures("quick_target")
def test_a_table_is_replayed_kept_and_reported(tmp_path):
    command = ["replay", "talon/fig7", "--points", 2, *TINY, "--out", tmp_path / "out"]
    shown = run(*command)
    assert shown.exit_code == 0
    assert "talon/fig7" in shown.stdout
    assert "these prompts do not ship (CC-BY-NC-4.0); give a folder that has them with --data" in shown.stdout
    kept = (tmp_path / "out" / RUNS).read_text()
    again = run(*command, "--json")
    assert again.exit_code == 0
    (result,) = json.loads(again.stdout)["results"]
    assert result["done"] == result["tasks"] > 0
    assert (tmp_path / "out" / RUNS).read_text() == kept
    page = tmp_path / "page.html"
    assert run("replay", "report", tmp_path / "out", "-o", page).exit_code == 0
    assert "talon/fig7" in page.read_text(encoding="utf-8")
    assert "nowhere" in complaint_of("replay", "report", tmp_path / "out", "-o", tmp_path / "nowhere" / "page.html")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_target")
def test_claims_are_judged_with_a_fitted_drafter_which_is_found_once(tmp_path):
    sizes = ["--limit", 10, "--max-new-tokens", 24, "--counts-only"]
    command = ["replay", "dynatree-v1/2", *sizes, "--out", tmp_path / "out", "--json"]
    (result,) = json.loads(run(*command).stdout)["results"]
    assert re.match(
        r"agreement 0\.\d+ ± 0\.\d+, where Linear K=6 commits 4\.10 tokens a round on 6 prompts", result["fit"]
    )
    found = {kind: result["verdicts"][0][kind] for kind in ("at_agreement", "by_counts")}
    assert {each["prompts"] for each in found.values()} == {10}
    assert found["at_agreement"]["estimate"] != found["by_counts"]["estimate"]
    taus = {entry["method"]: entry["fitted"] for entry in result["entries"] if entry["metric"] == "speedup"}
    assert taus["DynaTree"]["mean"] > 1
    kept = (tmp_path / "out" / RUNS).read_text()
    (again,) = json.loads(run(*command).stdout)["results"]
    assert again == result
    assert (tmp_path / "out" / RUNS).read_text() == kept


@pytest.mark.slow
@pytest.mark.usefixtures("quick_target")
def test_when_the_minutes_are_over_claims_are_judged_by_what_is_kept_of_fitted_drafters(tmp_path):
    out = ["--out", tmp_path / "out", "--json"]
    command = ["replay", "dynatree-v1/2", "--limit", 1, "--max-new-tokens", 16, "--counts-only", *out]

    def judged(*options):
        (result,) = json.loads(run(*command, *options).stdout)["results"]
        return [each["at_agreement"] for each in result["verdicts"]]

    unfitted = judged("--minutes", 1e-9)
    assert {each["outcome"] for each in unfitted} == {"not run"}
    assert {each["said"] for each in unfitted} == {"no drafter was fitted yet to Linear K=6 of dynatree-v1"}
    whole = judged()  # one prompt of a set is judged, too
    assert "too few" in {each["outcome"] for each in whole}
    assert judged("--minutes", 1e-9) == whole


def test_no_drafter_is_fitted_to_an_inflated_target():
    target = replay_run.ReplayTarget("embedded", "float32", "cpu", "300m")
    with pytest.raises(ConfigError, match="leave --inflate out"):
        target.read_text([1, 2], Setting("a", 0.0, 4, None), 0)


class Killed(BaseException):
    """Ends a command where it is, as a signal would."""


@pytest.mark.usefixtures("quick_target")
def test_a_replay_that_was_killed_reports_what_was_run(tmp_path, monkeypatch):
    out, page, left = tmp_path / "out", tmp_path / "page.html", [2]
    ordinary = RunStore.run

    def killed(*arguments):
        if not left[0]:
            raise Killed
        left[0] -= 1
        return ordinary(*arguments)

    monkeypatch.setattr(RunStore, "run", killed)
    command = ["replay", "talon/fig7", "--points", 2, *TINY, "--out", out]
    with pytest.raises(Killed):
        run(*command)
    assert complaint_of("replay", "report", out, "-o", page) == (
        f"{out}: 2 finished runs of a replay that ended before its first results; the same command continues from there"
    )
    left[0] = 4
    with pytest.raises(Killed):
        run(*command)
    assert run("replay", "report", out, "-o", page).exit_code == 0
    assert "talon/fig7" in page.read_text(encoding="utf-8")


def complaint_of(*arguments):
    """The error of a command."""
    return str(run(*arguments).exception)


@pytest.mark.usefixtures("quick_target")
def test_a_drafter_that_does_not_fit_a_role_ends_its_own_row_alone(tmp_path):
    command = ["replay", "talon/1", "--as", "SD=lookup", *TINY, "--out", tmp_path / "out"]
    shown = run(*command, "--json")
    assert shown.exit_code == 3
    reason = "assisted generation takes a language model as its drafter, and 'lookup' is none; name one with --as"
    told, *_, ending = shown.stderr.splitlines()
    assert told == f"drafttree: not run: SD: {reason}"
    assert ending == "drafttree: not everything is done; the results above give the reasons"
    (result,) = json.loads(shown.stdout)["results"]
    assert result["done"] == result["tasks"] == 3
    assert result["missing"]["SD"] == reason
    assert {"EAGLE-3", "TALON", "OPT-Tree"} <= {entry["method"] for entry in result["entries"] if entry["measured"]}
    assert "lookup" not in (tmp_path / "out" / RUNS).read_text()


def test_where_no_row_is_left_the_drafter_is_refused_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    command = ["replay", "talon/1", "--target", tmp_path, "--as", "SD=lookup", "--out", tmp_path / "out"]
    assert "SD: assisted generation takes a language model as its drafter" in complaint(capsys, *command)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quick_target")
def test_what_is_not_done_is_told_by_the_code(tmp_path, monkeypatch):
    ended = []

    def fail(self, task):
        ended.append(task)
        return "it is broken" if len(ended) > 1 else None

    monkeypatch.setattr(replay_run.Runner, "_difference", fail)
    shown = run("replay", "talon/1", *TINY, "--out", tmp_path / "out")
    assert shown.exit_code == 3
    assert "2 of 3 turns done" in shown.stdout
    assert "drafttree: not everything is done; the results above give the reasons" in shown.stderr


def test_the_list_counts_only_runs_that_can_run_and_times_a_pass_of_a_target_on_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(replay_run.ReplayTarget, "pass_seconds", 0.25)
    roles = ["--as", "EAGLE-3=lookup", "--as", "SD=lookup"]
    command = ["replay", "list", "talon/1", "--limit", 100, "--target", tmp_path, *roles]
    shown = run(*command, "--json")
    (row,) = json.loads(shown.stdout)["results"]
    prompts = 40 + 40 + 80  # as many as ship
    ways = 4  # plain decoding, EAGLE-3's tree, OPT-Tree and TALON; lookup cannot assist transformers' generate
    assert row["runs"] == prompts * ways
    assert row["minutes"] == pytest.approx(prompts * ways * 128 * 0.25 / 60)
    assert "minutes are guessed at 250 ms per token, a pass of the target in float32" in shown.stderr


def test_the_list_downloads_no_target(monkeypatch):
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    shown = run("replay", "list", "talon/1", "--target", "no-one/none", "--as", "EAGLE-3=lookup")
    assert "minutes are guessed at 100 tokens per second, since the target is not on this machine" in shown.stderr


@pytest.mark.usefixtures("quick_target")
def test_when_the_minutes_are_over_the_code_is_3(tmp_path):
    shown = run("replay", "talon/1", *TINY, "--out", tmp_path / "out", "--minutes", 1e-9)
    assert shown.exit_code == 3
    assert "0 of 3 turns done" in shown.stdout
    assert f"the same command continues from {tmp_path / 'out'}" in shown.stderr


def test_the_list_loads_no_model_and_may_be_of_some_results(monkeypatch):
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    assert run("replay", "list").stdout.count("\n") > 50
    shown = run("replay", "list", "talon/1", "traversal/2")
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["result", "talon/1", "traversal/2"]
    assert "without fitted drafters; those must first be found, and run each text four more times" in shown.stderr
    rows = json.loads(run("replay", "list", "talon/1", "traversal/2", "--json").stdout)["results"]
    assert [row["result"] for row in rows] == ["talon/1", "traversal/2"]
    assert all(f"{row['runs']}  " in shown.stdout and row["minutes"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_target")
def test_the_name_of_the_command_may_be_left_out_whatever_stands_first(tmp_path):
    tables = []
    for number, command in enumerate((["run", "talon/fig7", *TINY], [*TINY, "talon/fig7"], ["talon/fig7", *TINY])):
        shown = run("replay", *command, "--points", 1, "--out", tmp_path / str(number), "--json")
        tables.append(json.loads(shown.stdout)["results"])
    assert tables[0] == tables[1] == tables[2]


def test_the_help_names_the_commands_and_how_to_run_everything():
    shown = run("replay", "--help").stdout
    assert "drafttree replay all --minutes 40" in shown
    assert all(f"\n  {name} " in shown for name in ("run", "list", "report", "map"))
    assert "--counts-only" in run("replay", "run", "--help").stdout


def test_the_list_says_what_does_not_ship_and_why():
    (_, table), (_, speed) = (
        run("replay", "list", name).stdout.splitlines() for name in ("talon/1", "traversal/2-speed")
    )
    assert "Alpaca: these prompts do not ship (CC-BY-NC-4.0); give a folder that has them with --data" in table
    assert speed.endswith("Spec-Bench: only prompts of MT-Bench and GSM8K ship; give a folder that has all with --data")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_target")
def test_a_result_on_a_part_of_a_set_says_so(tmp_path):
    shown = run("replay", "traversal/fig3a", "--points", 1, *TINY, "--out", tmp_path / "out", "--json")
    (result,) = json.loads(shown.stdout)["results"]
    assert result["done"] == result["tasks"] == 1
    assert result["notes"][-1:] == [
        "Spec-Bench: only prompts of MT-Bench and GSM8K ship; give a folder that has all with --data"
    ]


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The paper and the policy that the documentation shows, in a folder of the user's."""
    (example,) = re.findall(r"```toml\n(.*?)```", (DOCS / "replay.md").read_text(), re.DOTALL)
    (policy,) = re.findall(r"as `widest.py`:\n\n```python\n(.*?)```", (DOCS / "writing.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    (tmp_path / "widest.py").write_text(policy)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("widest", "drafting"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path / "mine.toml"


@pytest.mark.usefixtures("quick_target")
def test_a_paper_of_the_users_own_is_listed_replayed_and_reported(documented, tmp_path):
    shown = run("replay", "list", "--paper", documented)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["result", "mine/fig2"]
    command = ["replay", "--paper", documented, *TINY, "--out", tmp_path / "out", "--json"]
    replayed = run(*command)
    assert replayed.exit_code == 0, replayed.exception
    (result,) = json.loads(replayed.stdout)["results"]
    assert result["done"] == result["tasks"] == 1
    assert [entry["method"] for entry in result["entries"]] == ["Widest@2", "Widest@4"]
    documented.unlink()
    page = tmp_path / "page.html"
    assert run("replay", "report", tmp_path / "out", "-o", page).exit_code == 0
    assert "Widest: Trees That Are Wide" in page.read_text(encoding="utf-8")


@pytest.mark.few(1)
@pytest.mark.usefixtures("quick_target")
@pytest.mark.parametrize("part", ["widest.py", "drafting.py", "beside.py"])
def test_a_policy_or_drafter_of_the_users_own_that_has_changed_runs_again(documented, tmp_path, part):
    (tmp_path / "beside.py").write_text("from drafttree.drafters import PromptLookupDrafter\n")
    (tmp_path / "drafting.py").write_text(DRAFTER.replace("drafttree.drafters", "beside"))
    documented.write_text(documented.read_text().replace("embedded-draft", "drafting.Mine"))
    command = ["replay", "mine/fig2", "--paper", documented, *TINY, "--out", tmp_path / "out"]
    counts = []
    for changed in (False, False, True):
        if changed:
            code = (tmp_path / part).read_text()
            (tmp_path / part).write_text(code + "# another one\n")
        assert run(*command).exit_code == 0
        counts.append((tmp_path / "out" / RUNS).read_text().count("\n"))
    assert counts == [3, 3, 5]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_target")
def test_a_drafter_is_fitted_anew_where_the_reference_or_its_number_has_changed(documented, tmp_path, monkeypatch):
    text = documented.read_text().replace(
        "line = 90", 'references = [{ method = "Chain", result = "1", tau = 2.2 }]\nline = 90'
    )
    text += CHAIN
    wanted = []

    def fit(method, number, *_):
        wanted.append(number)
        return Fit(method, number, 2)

    monkeypatch.setattr(replay_run, "fit", fit)
    sizes = ["--limit", 1, "--max-new-tokens", 4, "--counts-only"]
    for changed in (text, text, text.replace("2.2", "3.2"), text.replace("chain:depth=4", "chain:depth=3")):
        documented.write_text(changed)
        assert run("replay", "mine/1", "--paper", documented, *sizes, "--out", tmp_path / "out").exit_code == 0
    assert wanted == [2.2, 3.2, 2.2]


@pytest.mark.usefixtures("quick_target")
def test_other_contexts_are_other_cells_of_the_same_folder(tmp_path):
    counts = []
    for contexts in (1, 1, 2):
        command = ["replay", "traversal/fig3b", "--points", 1, *TINY, "--contexts", contexts, "--out", tmp_path / "out"]
        assert run(*command).exit_code == 0
        counts.append((tmp_path / "out" / RUNS).read_text().count("\n"))
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.usefixtures("quick_target")
def test_a_replay_of_which_every_turn_has_failed_says_so_by_its_code(documented, tmp_path):
    (tmp_path / "drafting.py").write_text(DRAFTER.replace("pass", BROKEN))
    documented.write_text(documented.read_text().replace("embedded-draft", "drafting.Mine"))
    shown = run("replay", "--paper", documented, *TINY, "--out", tmp_path / "out")
    assert shown.exit_code == 1
    assert "it is broken" in shown.stdout
    assert "0 of 1 turns done" in shown.stdout


@pytest.mark.usefixtures("quick_target")
def test_a_drafter_of_the_users_own_paper_that_is_none_is_told_before_anything_runs(documented, tmp_path, capsys):
    documented.write_text(documented.read_text().replace("embedded-draft", "embeded-draft"))
    said = complaint(capsys, "replay", "--paper", documented, *TINY, "--out", tmp_path / "out")
    assert (
        f"{documented}, line 9: roles.Draft.stand_in: unknown drafter 'embeded-draft'; did you mean 'embedded-draft'?"
        in said
    )
    assert not (tmp_path / "out").exists()


def test_a_wrong_key_in_a_paper_is_told_with_its_line(documented, capsys):
    documented.write_text(documented.read_text().replace("sign =", "sing ="))
    for command in (["replay"], ["replay", "list"]):
        said = complaint(capsys, *command, "--paper", documented)
        assert f"{documented}, line 40: results.fig2.claims.sing: unknown key 'sing'; did you mean 'sign'?" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["talom"], "unknown paper 'talom'; did you mean 'talon'?"),
        (["talon/fig77"], "unknown table or figure of talon 'fig77'; did you mean 'fig7'?"),
        (["list", "talom"], "unknown paper 'talom'"),
        (["talon", "--as", "EAGLE3=x"], "unknown role 'EAGLE3'; did you mean 'EAGLE-3'?"),
        (["report", "-o", "claims.pdf"], "-o 'claims.pdf' does not end in .html (a page) or .md"),
        (["talon", "--as", "SD"], "--as 'SD' is not of the form ROLE=DRAFTER"),
        (["talon", "--cost", "free"], "--cost is 'free'"),
        (["talon", "--inflate", "9t"], "unknown shape '9t'"),
        (["talon", "--data", "nowhere"], "--data 'nowhere' is not a folder"),
        ([], "Missing argument 'what'"),
        (["report", "one", "two"], "unexpected extra argument(s) (two)"),
        (["list", "--minutes", "2"], "No such option: --minutes"),
        (["--limit", "0", "talon"], "--limit"),
        (["report", "nowhere"], "nowhere: the folder has no results of a replay"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(replay_run, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    assert said in complaint(capsys, "replay", *arguments)


def test_a_bad_line_of_prompts_is_numbered(tmp_path, capsys):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "gsm8k.jsonl").write_text('{"prompt": "a"}\n{"prompt":\n')
    assert "gsm8k.jsonl, line 2" in complaint(capsys, "replay", "talon/1", "--data", tmp_path)


@pytest.mark.usefixtures("quick_target")
def test_a_drafter_that_does_not_fit_is_told_before_anything_runs(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    given = ["--as", f"SD={tmp_path / 'none'}", "--out", tmp_path / "out"]
    said = complaint(capsys, "replay", "talon/1", *TINY, *given)
    assert f"the drafter '{tmp_path / 'none'}' cannot draft for 'embedded'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quick_target")
def test_a_folder_of_another_replay_is_refused_by_name(tmp_path, capsys):
    command = ["replay", "talon/1", *TINY, "--out", tmp_path / "out", "--minutes", 1e-9]
    assert run(*command).exit_code == 3
    assert "(seed = 0 there, 1 here)" in complaint(capsys, *command, "--seed", 1)
    run_json = tmp_path / "out" / "run.json"
    run_json.write_text(run_json.read_text().replace('"embedded"', '"other"'))
    assert "(target = 'other' there, 'embedded' here)" in complaint(capsys, *command)
    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in complaint(capsys, *command[:-4], "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
