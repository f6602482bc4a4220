"""Lists, help, exit codes, and mistakes told in one line."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from safetensors.torch import load_file, save_file

import drafttree
from drafttree.drafters import LOOKUPS
from drafttree.drafters.formats import ASSISTANT, FORMATS, LANGUAGE_MODEL
from drafttree.interfaces import cli
from drafttree.interfaces.cli import command_line, decoders
from drafttree.loading import zoo
from drafttree.policies import POLICIES
from drafttree.verifiers import VERIFIERS
from helpers import checkpoints
from testing.command_line import COMMANDS, PROMPT, complaint, run

CHAT_AND_BATCH = Path(__file__).parents[3] / "docs" / "chat-and-batch.md"


def test_an_interrupt_anywhere_else_is_quiet(capsys, monkeypatch):
    def load(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(decoders, "load", load)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["generate", PROMPT])
    assert stopped.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_policies_and_verifiers_are_listed_in_full():
    listing = run("policies").stdout
    for name, policy in POLICIES.items():
        assert f"{name}  {policy.source}" in listing
        for key, field in policy.model_fields.items():
            assert key in listing
            assert field.description in listing
    assert "1 to 4096" in listing
    verifiers = run("verifiers").stdout
    assert all(f"{name}  {verifier.source}" in verifiers for name, verifier in VERIFIERS.items())


def test_drafters_are_listed_with_what_to_write():
    own = {*LOOKUPS, *zoo.NAMES} - {"embedded"}
    lines = run("drafters").stdout.splitlines()
    for name in (*own, "auto", "none", "mtp", "mixed:MODEL"):
        assert [line for line in lines if re.match(rf"(\w+( \w+)?)? +{name}  +\w.*\.", line)], name
    found = json.loads(run("drafters", "--json").stdout)
    assert found["lookup"]["kind"] == "built in"
    assert {f"{kind} files" for kind in (*FORMATS, ASSISTANT, LANGUAGE_MODEL)} <= found.keys()
    for name in own:
        assert run("generate", PROMPT, "--max-new-tokens", "4", "--drafter", found[name]["write"]).stdout
    assert all(zoo.folder(name) for name, each in found.items() if each["kind"] == "embedded")


def test_lists_and_inspections_as_json():
    found = json.loads(run("policies", "--json").stdout)
    assert found.keys() == POLICIES.keys()
    parameters = {each["name"]: each for each in found["talon"]["parameters"]}
    assert parameters.keys() == POLICIES["talon"].model_fields.keys()
    assert (parameters["depth"]["default"], parameters["margin"]["default"]) == (None, 0.03)
    verifiers = json.loads(run("verifiers", "--json").stdout)
    assert {name: each["source"] for name, each in verifiers.items()} == {
        name: verifier.source for name, verifier in VERIFIERS.items()
    }
    inspected = json.loads(run("inspect", "embedded-medusa", "--json").stdout)
    assert (inspected["kind"], inspected["problems"]) == ("medusa", [])


def test_mistakes_are_one_line_and_exit_with_2(capsys, prompts, tmp_path):
    pytest.importorskip("llguidance")
    missing, schema = tmp_path / "missing", tmp_path / "schema.json"
    schema.write_text('{"type": "strng"}')
    for arguments, reason in [
        (["generate", PROMPT, "--policy", "talom"], "did you mean 'talon'"),
        (["generate", PROMPT, "--policy", "talon:margn=1"], "did you mean 'margin'"),
        (["generate", PROMPT, "--temperature", "-1"], "at least 1e-06"),
        (["generate", PROMPT, "--logit-bias", "7"], "--logit-bias '7' is not of the form ID=VALUE"),
        (["generate", PROMPT, "--regex", "a("], "unclosed group"),
        (["generate", PROMPT, "--json-schema", missing], "cannot be read: No such file"),
        (["generate", PROMPT, "--json-schema", schema], "Invalid type: strng at #"),
        (["generate", PROMPT, "--json-schema", schema, "--regex", "a"], "one of --json-schema, --regex and --ebnf"),
        (["generate", PROMPT, "--verifier", "greddy"], "did you mean 'greedy'"),
        (["generate", PROMPT, "--dtype", "float23"], "float32"),
        (["generate", PROMPT, "--device", "nowhere"], "not available"),
        (["generate", PROMPT, "--target", "embeded"], "did you mean 'embedded'"),
        (["generate", PROMPT, "--target", missing], "does not exist"),
        (["generate", ""], "prompt is empty"),
        (["generate", PROMPT, "--max-new-tokens", "many"], "--max-new-tokens"),
        (["generate", "--no-such-option"], "--no-such-option"),
        (["generate", "--sead", "3"], "--seed"),
        (["bench", "methods", "--drafters", "lookup;none"], "'none' is not a drafter"),
        (["nonsense"], "nonsense"),
        (["certify"], "--prompts"),
        (["certify", "--prompts", missing], "not a prompt file"),
        (["certify", "--prompts", prompts, "--policies", "chian"], "did you mean 'chain'"),
        (["certify", "--exact", "--verifiers", "travesal"], "did you mean 'traversal'"),
        (["certify", "--exact", "--verifiers", ","], "no verifier"),
    ]:
        assert reason in complaint(capsys, *arguments), arguments


def test_an_option_like_no_other_suggests_none(capsys):
    assert "--seed" not in complaint(capsys, "generate", "--nonsense")


@pytest.mark.usefixtures("quick")
def test_mistakes_found_after_loading(capsys, prompts):
    for arguments, reason in [
        (["generate", PROMPT, "--max-new-tokens", 0], "Invalid value for '--max-new-tokens'"),
        (["generate", PROMPT, "--max-new-tokens", 5000], "context of 2048"),
        (["generate", PROMPT, "--stop", ""], "stop strings"),
        (["generate", PROMPT, "--logit-bias", "4096=1"], "token id 4096 is outside the vocabulary of 4096"),
        (["certify", "--prompts", prompts, "--max-new-tokens", 4096], "context of 2048"),
        (["certify", "--prompts", prompts, "--drafter", "none"], "no drafter"),
    ]:
        assert reason in complaint(capsys, *arguments), arguments


def test_no_arguments_print_the_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 0
    assert "generate" in capsys.readouterr().out


def test_every_command_has_a_help():
    whole = typer.main.get_command(cli.app)
    bench = whole.get_command(None, "bench")
    for start, group in (([], whole), (["bench"], bench)):
        for arguments in [start, *([*start, name] for name in group.list_commands(None))]:
            shown = run(*arguments, "--help")
            assert shown.exit_code == 0, arguments
            assert "Usage" in shown.output, arguments
            assert "..." not in shown.output.partition("Commands:")[2], "a summary is cut"


def test_a_prompt_that_is_left_out_is_the_demos_own_or_standard_input():
    said = "no prompt reads standard input"
    assert said in run("generate", "--help").stdout
    assert said not in " ".join(run("demo", "--help").stdout.split())


def test_every_command_has_json_but_those_that_the_docs_name():
    (sentence,) = re.findall(r"All commands have this option except (.*?)\.", CHAT_AND_BATCH.read_text(), re.DOTALL)
    without = {name for name, command in COMMANDS.items() if "json_" not in {each.name for each in command.params}}
    assert set(re.findall(r"`([^`]+)`", sentence)) == without


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == drafttree.__version__


def test_a_closed_pipe_is_quiet(capfd, monkeypatch):
    def policies():
        raise BrokenPipeError

    monkeypatch.setattr(command_line, "app", lambda *_, **__: policies())
    descriptor = sys.stdout.fileno
    monkeypatch.setattr(command_line.os, "dup2", lambda *_: descriptor)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["policies"])
    assert stopped.value.code == 1
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "drafttree", "--version"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"drafttree: error: standard output: No space left on device\n"


def test_closed_streams_are_no_obstacle(monkeypatch, prompts):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["policies"])
    assert stopped.value.code == 0
    with pytest.raises(SystemExit) as stopped:
        cli.main(["certify", "--prompts", str(prompts), "--policies", "chian"])
    assert stopped.value.code == 2


@pytest.mark.usefixtures("quick")
def test_files_that_cannot_be_read_are_one_line(capsys, tmp_path):
    empty, folder, broken = tmp_path / "empty.txt", tmp_path / "folder.txt", tmp_path / "broken.jsonl"
    empty.touch()
    folder.mkdir()
    broken.write_text('{"prompt": "a"}\n{"prompt": \n')
    for arguments, reason in [
        (["certify", "--prompts", empty], "empty.txt: no prompts in it"),
        (["certify", "--prompts", folder], "folder.txt: cannot be read: Is a directory"),
        (["certify", "--prompts", broken], "broken.jsonl, line 2: not JSON"),
        (["generate", PROMPT, "--ebnf", folder], "folder.txt: cannot be read: Is a directory"),
        (["generate", PROMPT, "--max-new-tokens", 10**30], "context of 2048"),
        (["generate", PROMPT, "--policy", f"chain:depth={10**30}"], "depth is"),
        (["inspect", broken], "broken.jsonl"),
    ]:
        assert reason in complaint(capsys, *arguments), arguments


def test_inspect(tmp_path, capsys):
    head = checkpoints.FORMATS["SafeAILab"]
    result = run("inspect", head.write(tmp_path))
    assert result.exit_code == 0
    shown = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in result.stdout.splitlines()}
    assert shown["kind"] == "eagle3"
    assert shown["target's hidden size"] == "32"
    assert shown["target's vocabulary"] == "23"
    assert shown["missing or wrong"] == "nothing"
    lacking = {name: tensor for name, tensor in head.tensors().items() if name != "norm.weight"}
    result = run("inspect", head.write(tmp_path, lacking))
    assert result.exit_code == 1
    assert "missing norm.weight" in result.stdout
    assert "does not exist" in complaint(capsys, "inspect", "./nowhere")


def test_inspect_tries_a_head_with_a_target(capsys, tmp_path):
    shown = json.loads(run("inspect", "embedded-eagle3", "--target", "embedded", "--json").stdout)
    rounds, found, claimed = [*shown["details"].values()][-3:]
    assert rounds >= 32
    assert 0.7 * claimed < found < 1.5 * claimed
    assert shown["problems"] == []
    folder = tmp_path / "eagle3"
    shutil.copytree(zoo.folder("embedded-eagle3"), folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[key := f"midlayer.self_attn.{name}.weight"]
        tensors[key] = weight.roll(weight.shape[1] // 2, 1).contiguous()
    save_file(tensors, folder / "model.safetensors")
    result = run("inspect", folder, "--target", "embedded")
    assert result.exit_code == 1
    assert "it may be misread: its tokens are right far less often than its own probabilities say" in result.stdout
    assert "leave --target out" in complaint(capsys, "inspect", "embedded-draft", "--target", "embedded")


def test_modules_of_the_working_folder_are_found(capsys, tmp_path, monkeypatch):
    (tmp_path / "local_trees.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    reason = "cannot import policy 'local_trees.Wide' (AttributeError: module 'local_trees' has no attribute 'Wide')"
    assert reason in complaint(capsys, "generate", PROMPT, "--policy", "local_trees.Wide")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--inflate", "huge"], "unknown shape 'huge'"),
        (["demo", "--policy", "nonsense"], "unknown policy 'nonsense'"),
        (
            ["generate", "Hi", "--inflate", "100m", "--exact-text"],
            "--inflate and --exact-text cannot be combined; leave one of them out",
        ),
        (["generate", "Hi", "--inflate", "huge"], "unknown shape 'huge'"),
    ],
)
def test_what_inflated_targets_do_not_have_is_named(arguments, said):
    assert said in str(run(*arguments).exception)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["generate", PROMPT, "-n", "5"], "-n (Possible options: --max-new-tokens)"),
        (["generate", PROMPT, "--temp", "1"], "--temp (Possible options: --temperature)"),
        (["generate", PROMPT, "--max-tokens", "4"], "--max-tokens (Possible options: --max-new-tokens)"),
        (["generate", PROMPT, "--polici", "chain"], "--polici (Possible options: --policy)"),
        (["generate", PROMPT, "-x"], "-x"),
        (["policies", "-n", "5"], "-n"),
        (["-V"], "-V (Possible options: --version)"),
        (["serve", "--model", "embedded"], "--model (Possible options: --target)"),
        (["worker", "-m", "embedded"], "-m (Possible options: --target)"),
    ],
)
def test_an_unknown_option_gets_a_hint_at_the_one_that_is_meant(arguments, meant, capsys):
    assert complaint(capsys, *arguments) == f"drafttree: error: No such option: {meant}\n"


@pytest.mark.parametrize("option", ["--target", "--model", "-m"])
def test_a_command_whose_model_is_an_argument_says_so(option, capsys):
    message = complaint(capsys, "bench", "serve", option, "embedded")
    assert "the model is an argument here: drafttree bench serve MODEL" in message
