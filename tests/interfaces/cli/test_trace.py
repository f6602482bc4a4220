"""`drafttree trace`: the page, the summary, JSON, and what is refused before a model runs."""

import json
import re

import pytest

import drafttree
from drafttree.interfaces.cli import decoders
from testing.command_line import PROMPT, complaint, run

SHORT = ["trace", PROMPT, "--max-new-tokens", 12, "--temperature", 0]


@pytest.mark.usefixtures("quick")
def test_a_page_is_written_and_the_text_is_the_one_of_generate(embedded, tmp_path):
    path = tmp_path / "trace.html"
    result = run(*SHORT, "-o", path)
    assert result.exit_code == 0
    data = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1]
    expected = embedded.generate(PROMPT, max_new_tokens=12, temperature=0.0).text
    assert "".join(json.loads(data)["pieces"]) == expected
    assert f"{PROMPT}{expected}\n" in result.stdout
    assert f"wrote the page to {path}" in result.stderr


@pytest.mark.usefixtures("quick")
def test_without_a_page_there_is_a_summary_and_how_to_get_one():
    shown = run(*SHORT, "--policy", "talon").stdout
    for part in (
        "per target pass",
        "Candidates dropped: ",
        " by the policy",
        "accepted, by rank (rows) and depth",
        "per round",
        "-o trace.html",
    ):
        assert part in shown


@pytest.mark.usefixtures("quick")
def test_json_is_one_document(embedded):
    report = json.loads(run(*SHORT, "--json").stdout)
    assert report["text"] == embedded.generate(PROMPT, max_new_tokens=12, temperature=0.0).text
    assert report["rounds"][0]["nodes"][0]["outcome"] == "root"


def test_mistakes_are_told_before_a_model_is_loaded(capsys, monkeypatch, tmp_path):
    def load(*_, **__):
        raise AssertionError

    monkeypatch.setattr(decoders, "load", load)
    for arguments, reason in [
        (["-o", tmp_path], "is a folder"),
        (["-o", tmp_path / "nowhere" / "trace.html"], "its folder does not exist"),
        (["--live"], "--live needs a terminal"),
        (["--live", "--json"], "give one of them"),
        (["--policy", "talom"], "did you mean 'talon'"),
    ]:
        assert reason in complaint(capsys, "trace", PROMPT, *arguments), arguments


@pytest.mark.usefixtures("quick")
def test_an_interrupt_ends_with_a_page_of_what_was_written(monkeypatch, tmp_path):
    step, calls, path = drafttree.Decoder.step, [], tmp_path / "trace.html"

    def interrupted(self, request):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return step(self, request)

    monkeypatch.setattr(drafttree.Decoder, "step", interrupted)
    result = run(*SHORT, "-o", path)
    assert result.exit_code == 130
    assert '"finish":"interrupted"' in path.read_text(encoding="utf-8")
