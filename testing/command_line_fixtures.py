"""The embedded pair, loaded once, and prompts in a file, for tests of commands."""

import pytest

import drafttree
from drafttree.interfaces.cli import decoders
from drafttree.loading import make_policy
from testing.command_line import PROMPT


@pytest.fixture(scope="session")
def embedded():
    return drafttree.load(dtype="float32")


@pytest.fixture
def quick(embedded, monkeypatch):
    """`load` without reading the weights again, and without looking for others on a hub."""

    def load(target, drafter="auto", policy=None, *_, **__):
        decoder = embedded.plain() if drafter == "none" else embedded
        if drafter.startswith("embedded-"):
            decoder = decoder.with_drafter(drafter)
        return decoder.with_policy(make_policy(policy)) if policy else decoder

    monkeypatch.setattr(decoders, "load", load)
    monkeypatch.setattr(decoders, "find_folder", lambda name: None)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(f"{PROMPT}\nOnce upon a time\n")
    return path
