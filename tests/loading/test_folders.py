"""Models of a hub that does not answer, or is slow."""

import errno
import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import drafttree
from drafttree.drafters.formats import hub
from drafttree.errors import ModelError
from drafttree.loading import find_folder, folders
from drafttree.loading.inspect import inspect
from drafttree.loading.names import PartNames
from helpers.hubs import COMMIT, silent_hub, slow_hub
from helpers.refusals import told
from testing import gguf_files, tiny

NAME = "someone/some-model"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's files, and a short patience with a hub that nobody has asked yet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "SECONDS", 0.3)
    monkeypatch.setattr(hub, "_asked", {})
    folders._tell.cache_clear()
    return tmp_path / "hub"


def downloaded(cache, folder):
    """Put the files of a folder where the hub's cache has them."""
    repository = cache / f"models--{NAME.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    files = shutil.ignore_patterns("hub")
    folder.mkdir(exist_ok=True)
    return shutil.copytree(folder, repository / "snapshots" / COMMIT, ignore=files)


@pytest.mark.usefixtures("cache")
def test_a_hub_that_never_answers_is_asked_once_and_told(monkeypatch):
    with silent_hub() as (address, connections):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        message = told(ModelError, drafttree.load, NAME, "none")
        assert message == (
            f"'{NAME}' is not on this machine, and the hub {address} does not answer within 0.3 seconds; check the "
            "connection or give a folder"
        )
        message = told(ModelError, drafttree.load, "embedded", NAME)
        assert f"cannot download '{NAME}': the hub {address} does not answer within 0.3 seconds" in message
        assert len(connections) == 1


@pytest.mark.usefixtures("cache")
def test_a_hub_that_cannot_be_reached_is_told_at_once_with_the_reason(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"  # nobody listens there when it is closed
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    reason = f"the hub {address} cannot be reached ([Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)})"
    advice = "check the connection or give a folder"
    assert told(ModelError, drafttree.load, NAME) == f"'{NAME}' is not on this machine, and {reason}; {advice}"
    assert told(ModelError, find_folder, NAME) == f"cannot download '{NAME}': {reason}; {advice}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://nowhere.invalid")
    assert "the hub http://nowhere.invalid cannot be reached (" in told(ModelError, drafttree.load, NAME)


def test_the_hub_is_given_less_than_ten_seconds():
    assert hub.SECONDS < 10


@pytest.mark.slow
def test_the_command_line_tells_it():
    with silent_hub() as (address, _):
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "drafttree", "generate", "Hello", "--target", NAME]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"the hub {address} does not answer within 1 seconds; check the connection" in done.stderr


def test_what_was_downloaded_before_does_without_the_hub(cache, folder, monkeypatch, caplog):
    snapshot = downloaded(cache, folder)
    with silent_hub() as (address, connections):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        decoder = drafttree.load(NAME, NAME, dtype="float32")
        assert find_folder(NAME) == snapshot
        assert len(connections) == 1
    assert decoder.tokenizer is not None
    assert caplog.text.count(f"does not answer within 0.3 seconds; the copy of {NAME} on this machine is used") == 1


@pytest.mark.slow
def test_a_hub_that_is_slow_but_answers_is_waited_for(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_file({f"{head}.1.weight": torch.ones(4, 2) for head in range(2)}, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    finding = (
        "from drafttree.drafters.formats import hub; from drafttree.loading import find_folder; hub.SECONDS = 0.5; "
        f"print(*(path.name for path in find_folder({NAME!r}).iterdir()))"
    )
    with slow_hub(NAME, source, 0.8) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", finding]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert set(done.stdout.split()) == {"config.json", "model.safetensors"}, done.stderr


def test_offline_mode_asks_no_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with silent_hub() as (address, connections):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        assert "cannot download" in told(ModelError, find_folder, NAME)
        assert connections == []


def test_a_file_is_refused_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_ask", lambda *_: pytest.fail("the hub was asked"))
    monkeypatch.chdir(tmp_path)
    for name in ("medusa_lm_head.pt", "model.safetensors"):
        (tmp_path / name).touch()
        for call in (inspect, find_folder, drafttree.load):
            assert f"{name!r} is a file; give its folder" in told(ModelError, call, name)


def test_a_gguf_file_of_the_hub_is_named_behind_its_repository(cache, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    snapshot = downloaded(cache, tmp_path / "nothing")
    gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), snapshot / "model-q4.gguf")
    name = f"{NAME}:model-q4.gguf"
    with drafttree.load(name, f"mixed:{name}", "chain", dtype="float32") as decoder:
        assert PartNames.of(decoder)[:2] == (name, f"mixed:{name}")
        assert decoder.generate("The old man", max_new_tokens=8, temperature=0).tokens
    assert inspect(name).details["architecture"] == "llama"
    message = told(ModelError, drafttree.load, f"{NAME}:other.gguf")
    assert message.startswith(f"cannot download '{NAME}:other.gguf' (")
