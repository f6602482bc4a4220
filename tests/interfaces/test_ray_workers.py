"""Workers of Ray: what they write, how they share a cluster, and that a death loses nothing."""

import json
import subprocess
import sys
import time
from functools import partial

import pytest

import drafttree
from drafttree.errors import ConfigError, ModelError
from drafttree.interfaces.batch import read_jobs, write_texts
from drafttree.interfaces.ray_workers import Worker, block_size, checked, share_cluster
from testing.command_line import complaint, run

WORDS = ("Once upon a time", "The old man looked at the sea", "She opened the letter", "It was a dark night")
LENGTH = 24


@pytest.fixture
def source(tmp_path):
    """Greedy and seeded lines, and one that fails."""
    path = tmp_path / "in.jsonl"
    drawn = {"temperature": 1.0, "seed": 5}
    lines = [{"id": n, "prompt": f"{WORDS[n % 4]} {n}"} | (drawn if n % 2 else {}) for n in range(24)]
    path.write_text("\n".join([*map(json.dumps, lines), "no JSON"]))
    return path


@pytest.fixture
def jobs(source):
    return read_jobs(source, "a command")[-4:]


def blocks(jobs):
    """The lines as Ray Data hands them over."""
    return {name: [getattr(job, name) for job in jobs] for name in ("line", "text", "digest")}


def timeless(records):
    """Records without the time that each took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def test_a_worker_gives_the_records_that_are_written_without_ray(jobs):
    decoder = drafttree.load(dtype="float32")
    worker = Worker(lambda: decoder, {"max_new_tokens": 6}, max_batch=2)
    found = [json.loads(line) for line in worker(blocks(jobs))["record"]]
    assert timeless(found) == timeless(write_texts(decoder, jobs, {"max_new_tokens": 6}))
    assert [record["line"] for record in found] == [22, 23, 24, 25]


def test_a_worker_answers_requests_in_openais_form(tmp_path):
    body = {"model": "mine", "prompt": WORDS[0], "max_tokens": 2}
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body})
    )
    worker = Worker(lambda: drafttree.load(dtype="float32"), {}, 2, ["mine"])
    (record,) = worker(blocks(read_jobs(tmp_path / "in.jsonl", "a command")))["record"]
    assert json.loads(record)["response"]["body"]["usage"]["completion_tokens"] == 2


def test_a_worker_loads_once_for_all_blocks(jobs):
    loads = []
    worker = Worker(lambda: loads.append(1) or drafttree.load(dtype="float32"), {"max_new_tokens": 2}, max_batch=2)
    for job in jobs[:2]:
        worker(blocks([job]))
    assert loads == [1]


def test_a_decoder_that_cannot_be_loaded_is_refused_with_its_own_error(jobs):
    worker = Worker(partial(drafttree.load, "./nowhere"), {}, max_batch=2)
    (record,) = worker(blocks(jobs))["record"]
    with pytest.raises(ModelError, match=r"model folder '\./nowhere' does not exist"):
        checked(json.loads(record))


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([{"CPU": 8.0}], None, (1, 8, 0)),
        ([{"CPU": 8.0}], 2, (2, 4, 0)),
        ([{"CPU": 8.0}, {"CPU": 3.0}], 3, (3, 3, 0)),
        ([{"CPU": 2.0}, {"memory": 1.0}], 2, (2, 1, 0)),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}], None, (3, 1, 1)),
        ([{"CPU": 8.0, "GPU": 2.0}], 1, (1, 1, 1)),
    ],
)
def test_every_worker_gets_as_much_of_one_machine_as_there_is_for_all(nodes, workers, expected):
    assert share_cluster(nodes, workers) == expected


def test_workers_that_shall_not_use_gpus_share_the_cores():
    assert share_cluster([{"CPU": 8.0, "GPU": 1.0}], 4, use_gpus=False) == (4, 2, 0)


@pytest.mark.parametrize(
    ("node", "has"), [({"CPU": 2.0}, "2 CPUs"), ({"CPU": 9.0, "GPU": 1.0}, "1 GPUs"), ({}, "0 CPUs")]
)
def test_more_workers_than_the_cluster_has_room_for_are_refused(node, has):
    with pytest.raises(ConfigError, match=f"--workers is 3, but the cluster has {has}"):
        share_cluster([node], 3)


def test_workers_without_ray_are_refused(source, tmp_path, capsys):
    assert "--workers 2 is for --ray" in complaint(capsys, "batch", source, tmp_path / "out.jsonl", "--workers", 2)


def test_blocks_fill_batches_but_leave_lines_for_every_worker():
    assert block_size(lines=10_000, workers=4, max_batch=16) == 64
    assert block_size(lines=100, workers=4, max_batch=16) == 13
    assert block_size(lines=1, workers=4, max_batch=16) == 1


@pytest.mark.slow  # starting Ray and loading twice takes half a minute
def test_a_worker_killed_in_the_middle_loses_nothing(source, tmp_path):
    pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install drafttree[ray]")
    plain, out = tmp_path / "plain.jsonl", tmp_path / "ray.jsonl"
    command = ["batch", source, "--dtype", "float32", "--max-new-tokens", LENGTH]
    assert run(*command, plain).exit_code == 1  # for the line that fails
    ray = [*command, out, "--ray", "--workers", 2, "--max-batch", 2]
    running = subprocess.Popen([sys.executable, "-m", "drafttree", *map(str, ray)])
    kill_worker(running, out)
    assert 0 < len(read(out)) < len(read(plain))
    assert running.wait() == 1
    assert timeless(read(out)) == timeless(read(plain))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill_worker(running, out):
    """Kill a worker while it writes, as soon as there is a record."""
    psutil = pytest.importorskip("psutil", reason="psutil, by which the worker is found, is not installed")
    while not (out.exists() and out.read_text()):
        assert running.poll() is None
        time.sleep(0.02)
    below = psutil.Process(running.pid).children(recursive=True)
    next(each for each in below if each.cmdline() and each.cmdline()[0].startswith("ray::MapWorker")).kill()
