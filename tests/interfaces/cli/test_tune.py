"""`drafttree tune`: what it prints, saves and refuses; the embedded pair, at speeds that are given."""

import json

import pytest

from drafttree.drafters import PromptLookupDrafter
from drafttree.evaluation.tune import tuning
from drafttree.loading import policy_spec
from drafttree.measure.run_store import RUNS
from helpers.timed_metrics import CHAIN, CURVE, timed
from testing.command_line import complaint, run


@pytest.fixture
def speeds(monkeypatch):
    """Seconds of a text by policy, or by policy and draft temperature; plain decoding takes 1.0, other texts 1.5."""
    seconds: dict[str | tuple[str, float], float] = {}

    def time_text(decoder, prompt, options):
        rest = 0.001 * len(prompt)
        if decoder.drafter is None:
            return timed(1.0 + rest)
        spec, warm = policy_spec(decoder.policy), decoder.defaults.get("draft_temperature", 1.0)
        return timed(seconds.get((spec, warm), seconds.get(spec, 1.5)) + rest, **CHAIN)

    monkeypatch.setattr(tuning, "time_text", time_text)
    monkeypatch.setattr(tuning, "measure_costs", lambda decoder, greedy: tuning.MeasuredCosts(CURVE, 0.5))
    return seconds


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(
        "".join(f"The old man looked at the {thing}\n" for thing in ("sea", "sky", "boat", "fish and oars"))
    )
    return path


def tune(prompts, *options):
    return run("tune", "--dtype", "float32", "--prompts", prompts, "--max-new-tokens", 8, *options)


@pytest.mark.usefixtures("embedded")
def test_the_recommendation_is_printed_saved_and_loaded(prompts, tmp_path, speeds):
    speeds["chain:depth=2"], saved = 0.5, tmp_path / "tuned.json"
    result = tune(prompts, "--drafter", "lookup", "--save", saved)
    assert result.exit_code == 0, result.output
    assert "Speculate: lookup with chain:depth=2. It is 1.98 times as fast as plain decoding" in result.stdout
    assert "; confirmed on the prompts it was chosen on). By the costs measured at first, it " in result.stdout
    assert "it would be 1.47 times." in result.stdout
    assert "R = tau (1 + h0) / (v + c*delta + h)" in result.stdout
    assert "limits the gain" in result.stdout
    assert f"decoder = drafttree.load('embedded', policy='{saved}')" in result.stdout
    written = run("generate", "one two one two", "--policy", saved, "--max-new-tokens", 4)
    assert written.exit_code == 0
    assert f"drafter: lookup ({saved})" in written.stderr


@pytest.mark.usefixtures("embedded")
def test_a_draft_temperature_is_told_saved_and_used(prompts, tmp_path, speeds):
    speeds |= {"talon": 0.6, ("talon", 0.6): 0.48}
    result = tune(prompts, "--drafter", "lookup", "--minutes", 60)
    assert "Speculate: lookup with talon at draft temperature 0.6. " in result.stdout
    assert "\nDraft temperature 0.6 is 1.25 times as fast as 1.0 (95 % interval 1.24 to 1.25).\n" in result.stdout
    assert 'print(decoder.generate("Once upon a time", draft_temperature=0.6).text)' in result.stdout
    assert "On the command line: --drafter lookup --policy talon --draft-temperature 0.6" in result.stdout
    saved = tmp_path / "tuned.json"
    result = tune(prompts, "--drafter", "lookup", "--minutes", 60, "--save", saved)
    assert 'print(decoder.generate("Once upon a time").text)' in result.stdout
    assert f"On the command line: --policy {saved}" in result.stdout
    assert json.loads(saved.read_text())["draft_temperature"] == 0.6
    written = run("generate", "one two one two", "--policy", saved, "--max-new-tokens", 4)
    assert written.exit_code == 0
    assert f"drafter: lookup, draft temperature 0.6 ({saved})" in written.stderr
    assert "the model's own options" not in written.stderr


def test_the_json_has_everything(prompts, speeds):
    found = json.loads(tune(prompts, "--drafter", "lookup", "--drafter", "no/such", "--json").stdout)
    assert found["speculate"] is False
    assert found["best"]["drafter"] == "lookup"
    assert set(found["left_out"]) == {"no/such"}
    assert found["costs"] == CURVE
    assert found["python"][1] == "decoder = drafttree.load('embedded', drafter='none')"


def test_do_not_speculate_saves_that_too(prompts, speeds, tmp_path):
    result = tune(prompts, "--drafter", "lookup", "--save", tmp_path / "none.json")
    assert "Do not speculate: even the best way" in result.stdout
    assert json.loads((tmp_path / "none.json").read_text())["drafter"] is None


def test_without_a_file_the_lines_name_the_pair(prompts, speeds):
    speeds["chain:depth=2"] = 0.5
    result = tune(prompts, "--drafter", "lookup", "--verifier", "point-mass")
    line = (
        "drafttree.load('embedded', drafter='lookup', policy='chain:depth=2', dtype='float32', verifier='point-mass')"
    )
    assert line in result.stdout


def test_nothing_is_saved_where_nothing_was_measured(prompts, speeds, tmp_path):
    saved = tmp_path / "tuned.json"
    result = tune(prompts, "--drafter", "lookup", "--minutes", 0.001, "--save", saved)
    assert result.exit_code == 3
    assert "Stopped after 0.001 minutes; not everything was measured: none of 13 ways was tried" in result.stdout
    assert "No recommendation, and nothing saved" in result.stdout
    assert "import drafttree" not in result.stdout
    assert not saved.exists()


def test_an_interrupted_race_recommends_and_saves_nothing(prompts, speeds, tmp_path, monkeypatch):
    speeds["auto"], saved, usual, texts = 0.5, tmp_path / "tuned.json", tuning.time_text, []

    def time_text(*arguments):
        texts.append(arguments)
        if len(texts) > 10:
            raise KeyboardInterrupt
        return usual(*arguments)

    monkeypatch.setattr(tuning, "time_text", time_text)
    result = tune(prompts, "--drafter", "lookup", "--save", saved)
    assert result.exit_code == 130
    assert "Interrupted; not everything was measured: " in result.stdout
    assert "No recommendation, and nothing saved. So far the best way is lookup with " in result.stdout
    assert "import drafttree" not in result.stdout
    assert not saved.exists()


@pytest.mark.few(1)
@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("others", ["", "The\n", "The old man looked at the sea\n"])
def test_one_usable_prompt_recommends_and_saves_nothing(others, speeds, tmp_path):
    speeds["chain:depth=2"], saved = 0.5, tmp_path / "tuned.json"
    one = tmp_path / "one.txt"
    one.write_text(f"The old man looked at the sea\n{others}")
    result = tune(one, "--drafter", "lookup", "--save", saved)
    assert result.exit_code == 0, result.output
    assert "No recommendation, and nothing saved: one usable prompt says nothing about others" in result.stdout
    assert "(confirmed)" not in result.stdout
    assert not any(said in result.stdout for said in ("Speculate", "drafttree.load", "On the command line"))
    assert not saved.exists()
    found = json.loads(tune(one, "--drafter", "lookup", "--json").stdout)
    assert (found["speculate"], found["confirmed"], found["one prompt"], found["python"]) == (False, False, True, [])


def test_too_short_says_so_and_more_minutes_go_on(prompts, speeds, tmp_path):
    speeds["auto"], out = 0.5, tmp_path / "out"
    result = tune(prompts, "--drafter", "lookup", "--minutes", 0.15, "--out", out)
    assert "Stopped after 0.15 minutes; not everything was measured: 12 of 13 ways were not tried" in result.stdout
    assert f"(the same command continues from {out})" in result.stdout
    assert "No recommendation, and nothing saved. So far the best way is lookup with " in result.stdout
    assert result.exit_code == 3
    longer = tune(prompts, "--drafter", "lookup", "--minutes", 60, "--out", out)
    assert "Stopped" not in longer.stdout
    assert "Speculate: lookup with auto" in longer.stdout


def test_mistakes_are_one_line(prompts, tmp_path, capsys):
    short, there = tmp_path / "short.txt", ["tune", "--dtype", "float32", "--prompts", prompts]
    short.write_text("a\nb\n")
    cases = {
        "--minutes is 0; give a number above 0": [*there, "--minutes", 0],
        "does not end in .json": [*there, "--save", tmp_path / "tuned.yaml"],
        "no prompt has 4 tokens or more": ["tune", "--prompts", short, "--drafter", "lookup", "--max-new-tokens", 8],
        "'none' is not a drafter": [*there, "--drafter", "none"],
        "no drafter can be used for this target (no/such: ": [*there, "--drafter", "no/such"],
        "max_new_tokens=100000 fills": [*there, "--drafter", "lookup", "--max-new-tokens", 100_000],
    }
    for message, arguments in cases.items():
        assert message in complaint(capsys, *arguments)


def test_a_head_of_another_target_is_left_out_by_name(prompts, speeds, monkeypatch):
    def find(name, *_):
        if name == "lookup":
            return PromptLookupDrafter(4096, "cpu")
        raise tuning.ModelError("the head does not fit the target")

    monkeypatch.setattr(tuning, "find_drafter", find)
    result = tune(prompts, "--drafter", "lookup", "--drafter", "theirs")
    assert "Left out: theirs: the head does not fit the target" in result.stdout


def test_a_real_run_of_a_few_seconds_keeps_its_runs(prompts, tmp_path):
    out = tmp_path / "out"
    result = tune(prompts, "--drafter", "lookup", "--minutes", 0.05, "--limit", 1, "--out", out, "--json")
    found = json.loads(result.stdout)
    assert found["expected"] >= 0
    runs = [json.loads(line)["run"] for line in (out / RUNS).read_text().splitlines()]
    assert runs[:2] == [["costs", "lookup"], ["choose", 0, "plain"]]
