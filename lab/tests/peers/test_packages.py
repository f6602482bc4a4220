"""Peers that are not installed are refused by name."""

import pytest

from drafttree_lab.peers import packages
from testing.command_line import complaint


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("llama_cpp", "llama.cpp needs llama-cpp-python"),
        ("gguf", "llama.cpp needs gguf"),
        ("openvino_genai", "openvino needs openvino-genai"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch, capsys, lacking, said):
    monkeypatch.setattr(packages, "find_spec", lambda module: None if module == lacking else object())
    found = complaint(capsys, "bench", "peers")
    assert f'{said}, which is not installed: pip install "drafttree-lab[peers]" (from a clone' in found
    assert "out of --peers" in found


def test_transformers_needs_nothing_more():
    packages.check_installed(["transformers"])
    assert packages.versions(["transformers"]).keys() == {"transformers"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peers", "lama.cpp"], "unknown peer 'lama.cpp'"),
        (["--peers", "transformers", "--dtypes", "int4"], "unknown dtype 'int4'"),
        (["--peers", "transformers", "--passes", "0"], "--passes is '0'; give whole numbers above 0"),
        (["--peers", "transformers", "--inflate", "1b"], "unknown shape '1b'"),
        (["--peers", "transformers", "--methods", "lookup|nope"], "unknown policy 'nope'"),
    ],
)
def test_wrong_options_are_named(capsys, options, said):
    assert said in complaint(capsys, "bench", "peers", *options)
