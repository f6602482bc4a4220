"""`drafttree generate`: the text, its options, and what is said of it."""

import json
import re
import shutil

import pytest
from rich.console import Console

import drafttree
from drafttree import Chunk
from drafttree.interfaces import display
from drafttree.loading import zoo
from drafttree.models.native import kernels
from testing.command_line import PROMPT, complaint, run
from testing.given_times import give_times, idle


def test_generating_with_the_embedded_pair(embedded):
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--dtype", "float32")
    assert result.exit_code == 0
    assert result.stdout == embedded.generate(PROMPT, max_new_tokens=8).text + "\n"
    assert "tokens per target pass" in result.stderr


@pytest.mark.usefixtures("quick")
def test_the_prompt_may_come_from_standard_input(embedded):
    expected = embedded.generate(PROMPT, max_new_tokens=8, temperature=1.0, seed=3).text + "\n"
    for arguments in ([], ["-"]):
        options = ["--max-new-tokens", 8, "--temperature", 1, "--seed", 3]
        assert run("generate", *arguments, *options, input=PROMPT + "\n").stdout == expected


@pytest.mark.usefixtures("quick")
def test_json_is_one_object_with_every_figure(monkeypatch):
    give_times(monkeypatch, idle)
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--json", "--compare", "--repeats", 1)
    report = json.loads(result.stdout)
    assert len(report["tokens"]) == report["metrics"]["tokens"] == 8
    assert report["finish_reason"] == "length"
    assert report["comparison"]["from_transformers"] is None
    assert report["comparison"]["limit"].keys() == {"factor", "possible", "sentence"}
    assert set(report["comparison"]["tokens_per_second"]) == {"speculative", "plain", "transformers"}


@pytest.mark.usefixtures("quick")
def test_comparing_ends_with_how_much_faster_and_why(monkeypatch):
    give_times(monkeypatch, idle)
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--compare", "--repeats", 1)
    for term in ("tau", "delta", "R predicted", "R measured", "identical, token for token", "transformers generate"):
        assert term in result.stdout
    assert "target passes by NativeBackend" in result.stdout or kernels.native is None
    verdict, limit = result.stdout.splitlines()[-2:]
    assert "times as fast as plain decoding" in verdict
    assert "each target pass yields" in verdict
    assert re.fullmatch(
        r"(Acceptance|Verification|Drafting|Overhead) limits the gain: .+ \(without this limit: \d+\.\d\d times plain "
        r"decoding\)\.",
        limit,
    )


@pytest.mark.usefixtures("quick")
def test_stop_strings_end_the_text(embedded):
    text = embedded.generate(PROMPT, max_new_tokens=8).text
    stop = text.split()[1]
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--stop", "@@", "--stop", stop)
    assert result.stdout == text[: text.index(stop)] + "\n"


@pytest.mark.usefixtures("quick")
def test_options_of_transformers_shape_the_text(embedded):
    common = ["generate", PROMPT, "--max-new-tokens", 12, "--seed", 3, "--json"]
    for arguments, options in [
        (["--repetition-penalty", 1.5], {"repetition_penalty": 1.5}),
        (["--no-repeat-ngram-size", 1], {"no_repeat_ngram_size": 1}),
        (["--logit-bias", "7=9", "--logit-bias", "7,8=-1.5"], {"sequence_bias": [[[7], 9.0], [[7, 8], -1.5]]}),
        (["--temperature", 1, "--typical-p", 0.4], {"temperature": 1.0, "typical_p": 0.4}),
        (["--temperature", 1, "--epsilon-cutoff", 0.1], {"temperature": 1.0, "epsilon_cutoff": 0.1}),
        (["--temperature", 1, "--eta-cutoff", 0.3], {"temperature": 1.0, "eta_cutoff": 0.3}),
        (["--temperature", 1, "--top-h", 0.2], {"temperature": 1.0, "top_h": 0.2}),
        (["--min-new-tokens", 12], {"min_new_tokens": 12}),
    ]:
        expected = embedded.generate(PROMPT, max_new_tokens=12, seed=3, **options).tokens
        assert json.loads(run(*common, *arguments).stdout)["tokens"] == expected, arguments


@pytest.mark.usefixtures("quick")
def test_grammars_shape_the_text(tmp_path):
    pytest.importorskip("llguidance")
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.ebnf"
    schema.write_text('{"enum": ["yes", "no"]}')
    rules.write_text('root ::= " yes" | " no"')
    common = ["generate", PROMPT, "--max-new-tokens", 12]
    assert run(*common, "--json-schema", schema).stdout in ('"yes"\n', '"no"\n')
    assert run(*common, "--ebnf", rules).stdout in (" yes\n", " no\n")
    assert run(*common, "--regex", " (yes|no)!").stdout in (" yes!\n", " no!\n")
    compared = run(*common, "--regex", " (yes|no)!", "--compare", "--repeats", 1).stdout
    assert "identical, token for token" in compared


def test_a_file_of_a_grammar_that_cannot_be_read_is_named(tmp_path, capsys):
    pytest.importorskip("llguidance")
    path = tmp_path / "wrong"
    path.write_text('{"type": nope')
    for option, words in (
        ("--json-schema", "invalid JSON schema: Expecting value"),
        ("--ebnf", "invalid EBNF grammar"),
    ):
        said = complaint(capsys, "generate", PROMPT, option, path)
        assert f"{path}: {words}" in said
        assert said.count(str(path)) == 1


@pytest.mark.usefixtures("quick")
def test_the_chat_template_is_applied(embedded, monkeypatch):
    ids = embedded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    expected = embedded.generate(list(ids["input_ids"]), max_new_tokens=4).tokens
    options = ["Hi", "--chat", "--max-new-tokens", 4, "--json"]
    assert json.loads(run("generate", *options).stdout)["tokens"] == expected
    monkeypatch.setattr(embedded.tokenizer, "chat_template", None)
    assert "chat template" in str(run("generate", *options).exception)


def test_drafted_characters_are_coloured(capsys):
    console = Console(force_terminal=True, color_system="standard", width=80)
    display.show_chunk(console, Chunk("abc[d]", [1, 2], [True, False], None, [True, True, False, False, False, False]))
    assert capsys.readouterr().out == "\x1b[32mab\x1b[0mc[d]"


@pytest.mark.usefixtures("quick")
def test_what_auto_stands_for_is_said_where_it_is_a_choice():
    options = ["generate", PROMPT, "--max-new-tokens", 2]
    assert "drafter:" not in run(*options).stderr
    assert "drafter:" not in run(*options, "--target", "some/model", "--drafter", "lookup").stderr
    said = run(*options, "--target", "some/model").stderr.splitlines()[0]
    assert said.startswith("drafter: lookup (no model is known to draft for some/model; ")


def test_any_target_can_be_compared_with_lookup():
    options = ["--max-new-tokens", 8, "--compare", "--repeats", 1, "--dtype", "float32", "--policy", "talon"]
    result = run("generate", "one two three one two three one two", "--drafter", "suffix", *options)
    assert result.stdout.count("identical, token for token") == 2


@pytest.mark.usefixtures("quick")
def test_an_interrupt_ends_with_what_was_produced(embedded, monkeypatch):
    step, calls = drafttree.Decoder.step, []

    def interrupted(self, sequence):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return step(self, sequence)

    monkeypatch.setattr(drafttree.Decoder, "step", interrupted)
    result = run("generate", PROMPT, "--json", "--compare")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["finish_reason"] == "interrupted"
    assert json.loads(result.stdout)["tokens"]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_logit_bias_is_finite(capsys, value):
    assert "--logit-bias '5=" in complaint(capsys, "generate", PROMPT, "--logit-bias", f"5={value}")


def test_without_a_seed_texts_differ_and_tell_their_seed():
    sampled = ["generate", PROMPT, "--max-new-tokens", 12, "--temperature", 1, "--json", "--dtype", "float32"]
    first, second = (json.loads(run(*sampled).stdout) for _ in range(2))
    assert first["tokens"] != second["tokens"]
    again, same = (json.loads(run(*sampled, "--seed", first["seed"]).stdout) for _ in range(2))
    assert again["tokens"] == same["tokens"]
    assert again["seed"] == first["seed"]


def test_the_models_own_options_hold_and_are_shown(embedded, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(zoo.folder("embedded"), folder)
    own = {"repetition_penalty": 1.5, "max_new_tokens": 9, "eos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(own))
    common = ["generate", PROMPT, "--target", folder, "--drafter", "lookup", "--dtype", "float32"]
    result = run(*common)
    expected = embedded.generate(PROMPT, max_new_tokens=9, repetition_penalty=1.5).text
    assert result.stdout == expected + "\n"
    assert "the model's own options: max_new_tokens=9, repetition_penalty=1.5" in result.stderr
    free = run(*common, "--repetition-penalty", 1)
    assert free.stdout == embedded.generate(PROMPT, max_new_tokens=9).text + "\n" != result.stdout


TYPICAL = "NOT lossless: the verifier lossy-typical does not follow the target's distribution"
FIDELITIES = [
    ([], "lossless", {"lossless": True}),
    (["--verifier", "lossy-typical"], TYPICAL, {"lossless": False, "lossy": TYPICAL.partition(": ")[2]}),
]


@pytest.mark.parametrize(("options", "words", "fields"), FIDELITIES, ids=lambda each: str(each)[:32])
def test_it_is_said_whether_a_text_is_lossless_and_why_not(options, words, fields):
    common = ["generate", PROMPT, "--temperature", 0.8, "--dtype", "float32", "--max-new-tokens", 4, *options]
    compared = run(*common, "--compare", "--repeats", 1)
    assert compared.exit_code == 0
    assert words in compared.stdout.splitlines()
    report = json.loads(run(*common, "--json").stdout)
    assert {name: report[name] for name in report if name in ("lossless", "lossy", "quantization")} == fields
    told = run(*common).stderr.splitlines()
    assert [line for line in told if "lossless" in line] == ([words] if words.startswith("NOT") else [])
