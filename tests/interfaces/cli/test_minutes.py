"""`--minutes` of every command that has it: what is finished is shown, the exit code is 3, and --out goes on."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
from transformers import LlamaForCausalLM

from drafttree.interfaces import cli
from drafttree.measure import run_store
from drafttree.measure.run_store import RUNS
from drafttree_lab import device_clock
from testing import gguf_files
from testing.command_line import COMMANDS, complaint, run
from testing.device_clocks import StandInClock

SHORT = ["--policies", "chain", "--max-new-tokens", 6, "--dtype", "float32"]
GIVEN = ["--prompts", "{prompts}"]
UNFINISHED = {
    "tune": [*GIVEN, "--drafter", "lookup"],
    "certify": [*GIVEN, *SHORT],
    "bench acceptance": GIVEN,
    "bench batch": ["--batches", "1", *SHORT[2:4]],
    "bench images": ["--images", "1"],
    "bench kernels": [],
    "bench loading": ["embedded-draft"],
    "bench memory": [*GIVEN, *SHORT[2:]],
    "bench methods": [*GIVEN, *SHORT, "--repeats", 1],
    "bench micro": ["--vocab", "30"],
    "bench perplexity": ["embedded-draft", "--text", "{prompts}", "--tokens", 8, "--length", 4],
    "bench real": ["{models}"],
    "replay run": ["talon/1", "--limit", 1, "--counts-only", "--no-agreement", "--out", "{out}"],
    "replay map": ["--limit", 1, "--out", "{out}"],
}
"""Every command with `--minutes`, and arguments by which it takes longer than no time."""
SLOW = dict.fromkeys(["replay run", "replay map", "bench images"], pytest.mark.slow)
"""They load or make a target of their own; `lab/tests/commands/test_replay.py` ends a replay for its time, quickly."""


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    """A device for benches of kernels, which are refused without one."""
    monkeypatch.setattr(device_clock, "open_clock", lambda *_: StandInClock())


@pytest.fixture
def stopped(capsys):
    """What `main` prints on standard error of a command that ends with exit code 3."""

    def stop(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        assert ended.value.code == 3
        return capsys.readouterr()

    return stop


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model as a GGUF file."""
    folder = tmp_path_factory.mktemp("models")
    gguf_files.write(LlamaForCausalLM(gguf_files.CONFIGS["llama"]()), folder / "llama.gguf")
    return folder


@pytest.mark.usefixtures("quick")
def test_a_bench_that_is_out_of_time_shows_what_it_has_and_goes_on(prompts, tmp_path, monkeypatch):
    out = tmp_path / "out"
    bench = ["bench", "methods", *SHORT, "--prompts", prompts, "--repeats", 1, "--out", out, "--json"]
    seconds = count()
    with monkeypatch.context() as patch:
        patch.setattr(run_store, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        cut = run(*bench, "--minutes", 3.5 / 60)  # one prompt in two ways, and the next one in one
    assert (cut.exit_code, json.loads(cut.stdout)["prompts"]) == (3, 1)
    assert f"the time limit is reached; the same command continues from {out}" in cut.stderr
    kept = (out / RUNS).read_text().splitlines()
    assert len(kept) == 3
    result = run(*bench, "--minutes", 60)
    assert (result.exit_code, json.loads(result.stdout)["prompts"]) == (0, 2)
    assert (out / RUNS).read_text().splitlines()[:3] == kept


def test_every_command_with_minutes_is_here():
    with_minutes = {name for name, command in COMMANDS.items() if "minutes" in {each.name for each in command.params}}
    assert with_minutes == UNFINISHED.keys()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", [pytest.param(each, marks=SLOW.get(each, [])) for each in UNFINISHED])
def test_a_command_that_finished_nothing_in_time_says_so(command, prompts, models, tmp_path, stopped):
    places = {"prompts": prompts, "models": models, "out": tmp_path / "out"}
    options = [str(each).format(**places) for each in UNFINISHED[command]]
    shown = stopped(*command.split(), *options, "--minutes", 1e-9)
    if command == "tune":
        assert "minutes; not everything was measured" in " ".join(shown.out.split())
    elif command != "replay run":  # which shows every result without figures
        assert shown.out == ""
        assert "nothing is finished" in shown.err
    if "--out" in options:
        assert f"the time limit is reached; the same command continues from {tmp_path / 'out'}" in shown.err
    elif command != "tune":
        assert "the time limit is reached; --out FOLDER keeps finished runs" in shown.err


@pytest.mark.parametrize("minutes", [0, -1, "nan", "inf"])
def test_minutes_are_above_0(minutes, capsys):
    for command in (["bench", "micro"], ["certify", "--exact"], ["replay", "talon/1"]):
        said = complaint(capsys, *command, "--minutes", minutes)
        assert f"--minutes is {minutes}; give a number above 0" in said


def test_a_proof_that_is_out_of_time_is_none(stopped):
    shown = stopped("certify", "--exact", "--policies", "chain", "--verifiers", "rrsw", "--minutes", 1e-9)
    assert "INTERRUPTED: these results are not complete" in shown.out
