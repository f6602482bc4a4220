"""The examples run offline, and print what they promise."""

import ast
import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example with arguments and returns the lines it prints."""

    def run_example(name: str, *arguments: object) -> list[str]:
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run_example


def test_own_pair_saves_a_pair_and_writes_the_text_of_the_target(run, tmp_path):
    assert run("own_pair.py", tmp_path)[-1] == "the same text as without speculation: True"
    for part in ("target", "draft"):
        assert {file.name for file in (tmp_path / part).iterdir()} >= {"config.json", "tokenizer.json"}


def test_inside_transformers_writes_the_text_of_generate(run):
    assert run("inside_transformers.py")[-1] == "the text of generate itself: True"


def test_streaming_marks_what_was_drafted(run):
    printed = "\n".join(run("streaming.py", "Call me"))
    assert printed.startswith("Call me")
    assert printed.count("[") == printed.count("]") > 3


def test_grammar_writes_a_ship(run):
    pytest.importorskip("llguidance")
    written, parsed = run("grammar.py")
    ship = json.loads(written)
    assert ship["kind"] in ("sloop", "brig", "frigate")
    assert parsed == f"name={ship['name']!r} kind={ship['kind']!r} guns={ship['guns']}"


def test_own_policy_is_lossless(run):
    assert run("own_policy.py")[-1] == "sampled texts follow the target's law: True"


def test_chat_answers_every_question(run):
    printed = run("chat.py", "Where is the ship?", "And who is on it?")
    assert [line for line in printed if line.startswith("> ")] == ["> Where is the ship?", "> And who is on it?"]
    assert len(printed) == 4


def test_many_requests_writes_every_text(run):
    printed = run("many_requests.py")
    assert len(printed) == 8
    assert printed[6].startswith("48 tokens in ")
    assert sorted(ast.literal_eval(printed[7])) == sorted(map(ast.literal_eval, printed[:3]))


def test_every_example_is_tested():
    source = Path(__file__).read_text()
    assert all(f'run("{example.name}"' in source for example in FOLDER.glob("*.py"))
