"""A worker's process under its supervisor: however it ends, the fleet knows."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from drafttree.errors import ConfigError
from drafttree.interfaces.dynamo import supervisor
from drafttree.interfaces.dynamo.supervisor import supervise
from helpers import fleet_processes

PATIENCE = 60


@pytest.fixture(autouse=True)
def fleet(tmp_path, monkeypatch):
    """A discovery folder of its own, and the signal handlers of before."""
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_that_ends_leaves_no_complaint(capfd):
    assert supervise(fleet_processes.ends) == 0
    assert capfd.readouterr().err == ""


def test_the_error_of_a_worker_is_the_supervisors():
    with pytest.raises(ConfigError, match="there is no fleet"):
        supervise(fleet_processes.fails)


def test_a_killed_worker_is_removed_from_the_fleet(capfd):
    assert supervise(fleet_processes.is_killed) == 1
    assert "killed by SIGKILL" in capfd.readouterr().err
    assert not fleet_processes.entry().exists()


def test_a_worker_that_the_fleet_has_forgotten_ends(capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "MISSING_SECONDS", 0.2)
    assert supervise(fleet_processes.is_forgotten) == 1
    assert "forgotten" in capfd.readouterr().err


def test_a_signal_to_end_is_passed_on():
    def tell():
        wait_for(fleet_processes.entry().exists)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=tell).start()
    assert supervise(fleet_processes.waits) == 0
    assert not fleet_processes.entry().exists()


def test_a_worker_ends_with_its_supervisor(fleet):
    program = "from helpers import fleet_processes as p; from drafttree.interfaces.dynamo.supervisor import supervise\n"
    program += "if __name__ == '__main__': supervise(p.waits)\n"
    script = fleet / "supervisor.py"
    script.write_text(program)
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, script], env={**paths, "DYN_FILE_KV": str(fleet)})
    try:
        wait_for(fleet_processes.entry().exists)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not fleet_processes.entry().exists())
