"""Commands in several processes of torchrun, of which the first prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drafttree.interfaces.cli.processes import one_voice
from testing.command_line import PROMPT, complaint, run

SHARDED = ("generate", PROMPT, "--tensor-parallel-size", 2)


@pytest.mark.parametrize(("rank", "printed"), [("0", "text\n"), ("1", "")])
def test_the_first_process_prints(monkeypatch, capsys, rank, printed):
    monkeypatch.setenv("RANK", rank)
    with one_voice():
        print("text")
        print("text", file=sys.stderr)
    assert capsys.readouterr() == (printed, printed)


def test_every_process_tells_its_errors(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "4 of torchrun's processes run; start as many" in complaint(capsys, *SHARDED)


def test_what_processes_cannot_share_is_refused(capsys):
    assert "every process needs the prompt" in complaint(capsys, "generate", "-", *SHARDED[2:])
    assert "--compare and --tensor-parallel-size cannot be combined" in complaint(capsys, *SHARDED, "--compare")


@pytest.mark.slow  # two processes that import torch
def test_generate_under_torchrun_prints_the_text_of_one_process_once():
    options = ("--max-new-tokens", 12, "--dtype", "float32", "--temperature", 0.8, "--seed", 3)
    expected = run("generate", PROMPT, *options).stdout
    source = Path(__file__).parents[3] / "src"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(source)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "drafttree", *map(str, [*SHARDED, *options])]
    found = subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True, text=True)
    assert found.stdout == expected
    assert found.stderr.count("tokens per target pass") == 1
