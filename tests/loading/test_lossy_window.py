"""`load(lossy_window=...)` and `--lossy-window`."""

import json

import pytest

import drafttree
from drafttree.errors import ConfigError
from drafttree.models import LossyWindow
from testing.command_line import PROMPT, complaint, run


def test_a_loaded_window_is_the_targets_and_speculation_writes_plain_decodings_text():
    decoder = drafttree.load(dtype="float32", lossy_window=16, sinks=2)
    assert decoder.target.lossy_window == LossyWindow(16, 2)
    options = {"max_new_tokens": 40, "ignore_eos": True}
    text = decoder.generate(PROMPT, **options).tokens
    assert text == decoder.plain().generate(PROMPT, **options).tokens
    assert text != drafttree.load(dtype="float32").generate(PROMPT, **options).tokens


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lossy_window": 0}, "lossy_window is 0; give a whole number of tokens, at least 1"),
        ({"lossy_window": 2.5}, "lossy_window is 2.5"),
        ({"lossy_window": True}, "lossy_window is True"),
        ({"lossy_window": 8, "sinks": -1}, "sinks is -1; give a whole number of tokens, at least 0"),
        ({"sinks": 2}, "sinks is 2, but there is no lossy_window; give one, or leave sinks out"),
        ({"lossy_window": 8, "exact_text": True}, "exact_text cannot hold with a lossy_window"),
    ],
)
def test_what_no_window_can_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        drafttree.load(**options)


def test_the_command_line_takes_a_window(capsys):
    options = ["generate", PROMPT, "--max-new-tokens", 24, "--dtype", "float32", "--ignore-eos", "--json"]
    cut = json.loads(run(*options, "--lossy-window", 8, "--sinks", 1).stdout)["tokens"]
    decoder = drafttree.load(drafter="none", dtype="float32", lossy_window=8, sinks=1)
    assert cut == decoder.generate(PROMPT, max_new_tokens=24, ignore_eos=True).tokens
    assert "--lossy-window" in complaint(capsys, "generate", PROMPT, "--lossy-window", 0)
