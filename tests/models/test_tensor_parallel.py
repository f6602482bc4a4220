"""A target sharded over two processes, which write what one writes, and refuse what they could not decide alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import drafttree
from drafttree.models.tensor_parallel import whole
from helpers import sharded_run

pytestmark = pytest.mark.slow  # two processes that import torch take half a minute
TESTS = Path(__file__).parents[1]
REFUSED = {
    "verifier": "ConfigError: Traversal cannot verify for a sharded target",
    "auto": "ConfigError: costs, which the policy auto weighs, are measured by a clock",
    "engine": "ConfigError: the drafts of many requests at once are budgeted by a clock",
    "several": "ConfigError: the drafts of many requests at once are budgeted by a clock",
    "max_time": "ConfigError: max_time ends a text by a clock",
    "exact_text": "ConfigError: exact_text is not available for a target that is sharded over 2 processes",
    "quantize": "ConfigError: quantize is not available for a target that is sharded over 2 processes",
    "loaded": "ConfigError: tensor_parallel_size=2 is for a target that is loaded by name",
    "different prompts": "ModelError: the processes of the sharded target drafted different trees",
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What each of the two processes has found."""
    folder = tmp_path_factory.mktemp("sharded")
    folders = TESTS, TESTS.parent, TESTS.parent / "src", os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(map(str, folders))
    environment = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, "-m", "helpers.sharded_run", folder], env=environment, check=True, timeout=300)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone():
    return drafttree.load("embedded", "embedded-draft", dtype="float32")


def test_both_processes_find_the_same(processes):
    assert processes[0] == processes[1]


@pytest.mark.parametrize("drafter", sharded_run.DRAFTERS)
def test_two_processes_write_the_text_of_one(processes, alone, drafter):
    expected = [alone.generate(sharded_run.PROMPT, **options).tokens for options in sharded_run.TEXTS]
    assert processes[0][drafter] == expected


def test_a_seed_that_nobody_gave_is_shared_and_repeats_the_text(processes, alone):
    seed, tokens = processes[0]["unseeded"]
    assert alone.generate(sharded_run.PROMPT, max_new_tokens=8, temperature=1.0, seed=seed).tokens == tokens


def test_auto_takes_part_with_costs_that_are_given(processes, alone):
    assert processes[0]["auto with costs"] == alone.generate(sharded_run.PROMPT, **sharded_run.GREEDY).tokens


def test_a_window_is_that_of_one_process(processes):
    windowed = drafttree.load("embedded", "embedded-draft", dtype="float32", lossy_window=8)
    assert processes[0]["window"] == windowed.generate(sharded_run.PROMPT, **sharded_run.GREEDY).tokens


def test_each_process_keeps_its_share_of_the_heads(processes, alone):
    (heads,) = sharded_run.cache_heads(alone)
    assert processes[0]["heads"] == [heads // 2]
    assert processes[0]["backend"] == "ShardedBackend"


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_processes_could_not_decide_alike_is_refused(processes, what):
    assert processes[0]["refused"][what].startswith(REFUSED[what])


def test_a_whole_weight_is_itself():
    weight = torch.ones(2)
    assert whole(weight) is weight
