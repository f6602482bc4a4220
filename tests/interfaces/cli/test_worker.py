"""`drafttree worker`: what it hands to the fleet, and what it says where there is none."""

import subprocess
import sys

import pytest

from drafttree.interfaces.cli import worker
from drafttree.interfaces.dynamo import supervisor
from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
from testing.command_line import complaint, run


@pytest.fixture
def supervised(monkeypatch):
    """The function that would be served by another process."""
    served = []
    monkeypatch.setattr(worker, "check_requirements", lambda *_: None)
    monkeypatch.setattr(supervisor, "supervise", lambda serve: served.append(serve) or 0)
    return served


def test_options_that_do_not_exist_are_told_before_a_process_starts(capsys, supervised):
    assert "talon" in complaint(capsys, "worker", "--policy", "tallon")
    assert "etcd" in complaint(capsys, "worker", "--discovery", "dns")
    assert not supervised


def test_file_discovery_is_supervised(supervised):
    assert run("worker", "--dtype", "float32", "--max-batch", 3, "--max-model-len", 512).exit_code == 0
    target, models, settings = supervised[0].args
    assert (target, models.drafter) == ("embedded", "auto")
    assert models.dtype == "float32"
    assert settings == FleetSettings("embedded", "embedded", "file", "dynamo", 3, None, max_model_len=512)


def test_the_frontend_finds_the_embedded_tokenizer(supervised):
    run("worker")
    assert supervised[0].args[2].files.endswith("zoo/target")


def test_the_supervisor_imports_no_model():
    program = "import sys, drafttree.interfaces.cli, drafttree.interfaces.dynamo.supervisor as _\n"
    program += "import drafttree.interfaces.dynamo.fleet_settings; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
