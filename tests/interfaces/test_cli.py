import json
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

import drafttree
from drafttree.engine.request import Chunk
from drafttree.interfaces import cli, display
from drafttree.interfaces.cli import bench, command_line, decoders
from drafttree.loading import make_policy
from drafttree.policies import POLICIES
from drafttree.verifiers import VERIFIERS
from helpers import eagle3_files as files

PROMPT = "The old man looked at the sea"


@pytest.fixture(scope="module")
def embedded():
    return drafttree.load(dtype="float32")


@pytest.fixture
def quick(embedded, monkeypatch):
    """`load` without reading the weights again."""

    def load(target, drafter="auto", policy="dynatree", *_, **__):
        decoder = embedded.plain() if drafter == "none" else embedded
        return decoder.with_policy(make_policy(policy))

    monkeypatch.setattr(decoders, "load", load)
    monkeypatch.setattr(bench, "load", load)


def run(*arguments, **options):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], **options)


def complaint(capsys, *arguments):
    """What `main` prints on standard error, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("drafttree: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(f"{PROMPT}\nOnce upon a time\n")
    return path


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
def test_json_is_one_object_with_every_figure():
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--json", "--compare", "--repeats", 1)
    report = json.loads(result.stdout)
    assert len(report["tokens"]) == report["metrics"]["tokens"] == 8
    assert report["finish_reason"] == "length"
    assert report["comparison"]["from_transformers"] is None
    assert set(report["comparison"]["tokens_per_second"]) == {"speculative", "plain", "transformers"}


@pytest.mark.usefixtures("quick")
def test_comparing_ends_with_how_much_faster_and_why():
    result = run("generate", PROMPT, "--max-new-tokens", 8, "--compare", "--repeats", 1)
    for term in ("tau", "delta", "R predicted", "R measured", "identical, token for token", "transformers generate"):
        assert term in result.stdout
    last = result.stdout.splitlines()[-1]
    assert "times as fast as plain decoding" in last
    assert "each target pass yields" in last


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
    pytest.importorskip("xgrammar")
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.ebnf"
    schema.write_text('{"enum": ["yes", "no"]}')
    rules.write_text('root ::= " yes" | " no"')
    common = ["generate", PROMPT, "--max-new-tokens", 12]
    assert run(*common, "--json-schema", schema).stdout in ('"yes"\n', '"no"\n')
    assert run(*common, "--ebnf", rules).stdout in (" yes\n", " no\n")
    assert run(*common, "--regex", " (yes|no)!").stdout in (" yes!\n", " no!\n")
    compared = run(*common, "--regex", " (yes|no)!", "--compare", "--repeats", 1).stdout
    assert "identical, token for token" in compared


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


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_every_streamed_character_knows_its_token(embedded, seed):
    options = {"temperature": 1.0, "seed": seed} if seed else {}
    chunks = list(embedded.stream(PROMPT, max_new_tokens=24, **options))
    assert all(len(chunk.text) == len(chunk.drafted_text) for chunk in chunks)
    drafted = [each for chunk in chunks for each in chunk.drafted]
    tokens = [token for chunk in chunks for token in chunk.tokens]
    text = "".join(chunk.text for chunk in chunks)
    if text.isascii():
        pieces = [embedded.tokenizer.decode([token]) for token in tokens]
        flags = [flag for piece, flag in zip(pieces, drafted, strict=True) for _ in piece]
        assert flags == [flag for chunk in chunks for flag in chunk.drafted_text]


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


def test_an_interrupt_anywhere_else_is_quiet(capsys, monkeypatch):
    def load(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(decoders, "load", load)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["generate", PROMPT])
    assert stopped.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_policies_and_verifiers_are_listed_in_full():
    listing = run("policies").stdout
    for name, policy in POLICIES.items():
        assert f"{name}  {policy.source}" in listing
        for key, field in policy.model_fields.items():
            assert key in listing
            assert field.description in listing
    assert "1 to 4096" in listing
    verifiers = run("verifiers").stdout
    assert all(f"{name}  {verifier.source}" in verifiers for name, verifier in VERIFIERS.items())


@pytest.mark.usefixtures("quick")
def test_certifying(prompts):
    result = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain;talon:budget=9,width=3")
    assert result.exit_code == 0
    assert "talon:budget=9,width=3  2/2        ok" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("Certified.")
    options = ["--max-new-tokens", 8, "--policies", "talon", "--repetition-penalty", 1.3, "--no-repeat-ngram-size", 3]
    assert "talon   2/2        ok" in run("certify", "--prompts", prompts, *options, "--logit-bias", "13=2").stdout


@pytest.mark.usefixtures("quick")
def test_a_failed_certificate_shows_every_difference(prompts, monkeypatch):
    verify = drafttree.verifiers.Greedy.verify

    def biased(self, tree, logits, *rest):
        return verify(self, tree, logits.roll(1, -1) if tree.size > 1 else logits, *rest)

    monkeypatch.setattr(drafttree.verifiers.Greedy, "verify", biased)
    result = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain", "--limit", 1)
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stdout
    assert "plain   1/1        ok" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("NOT certified.")
    report = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain", "--json")
    assert json.loads(report.stdout)["policies"][1]["findings"][0]["difference"]["position"] == 0


def test_proving_by_enumeration(monkeypatch):
    options = ["certify", "--exact", "--models", 2, "--policies", "chain;eagle;chain:depth=2"]
    shown = run(*options, "--verifiers", "coupled,rrsw,lossy-typical")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["chain", "coupled", "exact", "lossy"] in lines
    assert ["eagle", "coupled", "refused", "lossy"] in lines
    assert "exact by coupling: 40 of 40 texts equal plain decoding's" in shown.stdout
    assert "eagle with rrsw: refused, Eagle exists in selected form only" in shown.stdout
    shaping = ["--temperature", 0.5, "--top-k", 2]
    report = json.loads(run(*options, "--verifier", "traversal", *shaping, "--json").stdout)
    assert (report["temperature"], report["top_k"]) == (0.5, 2)
    assert [finding["verdict"] for finding in report["findings"]] == ["exact", "refused", "exact"]
    assert report["findings"][0]["total_variation"] < 1e-12


def test_a_proof_says_which_models_it_covers():
    shown = run("certify", "--exact", "--models", 2, "--policies", "chain:depth=12", "--verifier", "rrsw")
    *_, covered, conclusion = shown.stdout.splitlines()
    assert "3 tokens and trees of at most 3 levels; 4 tokens and trees of at most 2 levels" in covered
    assert covered.endswith("Deeper trees are not covered.")
    assert conclusion == "Temperature 1. Every pair is what it claims to be."


def test_what_a_proof_cannot_heed_is_refused(capsys, prompts):
    for arguments in [
        ("--prompts", prompts),
        ("--target", "x"),
        ("--drafter", "lookup"),
        ("--seed", 0),
        ("--limit", 1),
        ("--repetition-penalty", 1.2),
        ("--regex", "a"),
        ("--logit-bias", "1=2"),
    ]:
        assert f"{arguments[0]} does not apply to --exact" in complaint(capsys, "certify", "--exact", *arguments)
    assert "--temperature 0 draws nothing" in complaint(capsys, "certify", "--exact", "--temperature", 0)


@pytest.mark.parametrize("arguments", [("--verifiers", "traversal"), ("--verifier", "rrsw"), ("--models", 4)])
def test_what_only_a_proof_heeds_is_refused_without_it(capsys, prompts, arguments):
    assert "is for --exact alone" in complaint(capsys, "certify", "--prompts", prompts, *arguments)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_logit_bias_is_finite(capsys, value):
    assert "--logit-bias '5=" in complaint(capsys, "generate", PROMPT, "--logit-bias", f"5={value}")


def test_a_pair_that_is_not_what_it_claims_to_be_fails(monkeypatch):
    monkeypatch.setattr(drafttree.verifiers.LossyTypical, "lossless", True)
    result = run("certify", "--exact", "--models", 1, "--policy", "chain", "--verifier", "lossy-typical")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "Temperature 1. A pair is BIASED."


def test_without_a_seed_texts_differ_and_tell_their_seed():
    sampled = ["generate", PROMPT, "--max-new-tokens", 12, "--temperature", 1, "--json", "--dtype", "float32"]
    first, second = (json.loads(run(*sampled).stdout) for _ in range(2))
    assert first["tokens"] != second["tokens"]
    again, same = (json.loads(run(*sampled, "--seed", first["seed"]).stdout) for _ in range(2))
    assert again["tokens"] == same["tokens"]
    assert again["seed"] == first["seed"]


@pytest.mark.usefixtures("quick")
def test_the_benchmarks_print_tables(prompts):
    common = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    result = run("bench", "policies", *common)
    assert json.loads(result.stdout.splitlines()[-1])["prompts"] == 1
    assert "texts loop" in result.stdout
    assert "growth" in run("bench", "overhead", *common).stdout


@pytest.mark.usefixtures("quick")
def test_the_lookup_benchmark_prints_two_tables(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"prompt": "one two three one two", "reference": " three one two"}) + "\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--repeats", 1, "--limit", 1]
    result = run("bench", "lookup", *options)
    summary = json.loads(result.stdout.splitlines()[-1])
    assert {(row["prompts"], row["way"]) for row in summary["rows"]} == {
        (name, way) for name in ("code edits", "sums") for way in ("target", "replay")
    }
    assert "sums, replay: suffix, chain" in result.stdout
    assert "8192" in result.stdout


def test_the_drafter_benchmark_prints_a_table_a_file_and_the_costs(tmp_path):
    path = tmp_path / "sums.txt"
    path.write_text("one two three one two\nfour five six four\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1]
    result = run("bench", "drafters", *options, "--drafters", "lookup;suffix")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert [(each["drafter"], each["row"]["prompts"]) for each in summary["rows"]] == [
        ("none", 1),
        ("lookup", 1),
        ("suffix", 1),
    ]
    assert "sums: 1 prompts" in result.stdout
    assert "passes a round" in result.stdout


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "sums.txt", tmp_path / "b" / "sums.txt", tmp_path / "sums.test.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one two three one two\n")
    files = [part for path in paths for part in ("--prompts", path)]
    result = run("bench", "drafters", *files, "--policies", "chain", "--max-new-tokens", 2, "--drafters", "lookup")
    groups = {each["row"]["group"] for each in json.loads(result.stdout.splitlines()[-1])["rows"]}
    assert groups == {str(paths[0]), str(paths[1]), "sums.test"}


def test_mistakes_are_one_line_and_exit_with_2(capsys, prompts, tmp_path):
    pytest.importorskip("xgrammar")
    missing, schema = tmp_path / "missing", tmp_path / "schema.json"
    schema.write_text('{"type": "strng"}')
    for arguments, reason in [
        (["generate", PROMPT, "--policy", "talom"], "did you mean 'talon'"),
        (["generate", PROMPT, "--policy", "talon:margn=1"], "did you mean 'margin'"),
        (["generate", PROMPT, "--policy", "talon:margin=3"], "between 0 and 1"),
        (["generate", PROMPT, "--temperature", "-1"], "at least 1e-06"),
        (["generate", PROMPT, "--typical-p", "0"], "typical_p is 0.0; it must be in (0, 1]"),
        (["generate", PROMPT, "--logit-bias", "7"], "--logit-bias '7' is not of the form ID=VALUE"),
        (["generate", PROMPT, "--regex", "a("], "parenthesis is not closed"),
        (["generate", PROMPT, "--json-schema", missing], "cannot be read: No such file"),
        (["generate", PROMPT, "--json-schema", schema], 'Unsupported type "strng"'),
        (["generate", PROMPT, "--json-schema", schema, "--regex", "a"], "one of --json-schema, --regex and --ebnf"),
        (["generate", PROMPT, "--verifier", "greddy"], "did you mean 'greedy'"),
        (["generate", PROMPT, "--dtype", "float23"], "float32"),
        (["generate", PROMPT, "--device", "nowhere"], "not available"),
        (["generate", PROMPT, "--target", "embeded"], "did you mean 'embedded'"),
        (["generate", PROMPT, "--target", missing], "does not exist"),
        (["generate", ""], "prompt is empty"),
        (["generate", PROMPT, "--max-new-tokens", "many"], "--max-new-tokens"),
        (["generate", "--no-such-option"], "--no-such-option"),
        (["bench", "drafters", "--drafters", "lookup;none"], "'none' is no drafter of its own"),
        (["nonsense"], "nonsense"),
        (["certify"], "--prompts"),
        (["certify", "--prompts", missing], "not a prompt file"),
        (["certify", "--prompts", prompts, "--policies", "chian"], "did you mean 'chain'"),
        (["certify", "--exact", "--verifiers", "travesal"], "did you mean 'traversal'"),
        (["certify", "--exact", "--verifiers", ","], "no verifier"),
    ]:
        assert reason in complaint(capsys, *arguments), arguments


@pytest.mark.usefixtures("quick")
def test_mistakes_found_after_loading(capsys, prompts):
    for arguments, reason in [
        (["generate", PROMPT, "--max-new-tokens", 0], "greater than or equal to 1"),
        (["generate", PROMPT, "--max-new-tokens", 5000], "context of 2048"),
        (["generate", PROMPT, "--stop", ""], "stop strings"),
        (["generate", PROMPT, "--repetition-penalty", -1], "repetition_penalty is -1.0"),
        (["generate", PROMPT, "--min-new-tokens", 9, "--max-new-tokens", 8], "min_new_tokens is 9"),
        (["generate", PROMPT, "--logit-bias", "4096=1"], "token id 4096 is outside the vocabulary of 4096"),
        (["certify", "--prompts", prompts, "--max-new-tokens", 4096], "context of 2048"),
        (["certify", "--prompts", prompts, "--drafter", "none"], "no drafter"),
    ]:
        assert reason in complaint(capsys, *arguments), arguments


def test_no_arguments_print_the_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 0
    assert "generate" in capsys.readouterr().out


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == drafttree.__version__


def test_a_closed_pipe_is_quiet(capfd, monkeypatch):
    def policies():
        raise BrokenPipeError

    monkeypatch.setattr(command_line, "app", lambda *_, **__: policies())
    descriptor = sys.stdout.fileno
    monkeypatch.setattr(command_line.os, "dup2", lambda *_: descriptor)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["policies"])
    assert stopped.value.code == 1
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("quick")
def test_the_drafter_taken_is_told_and_why():
    result = run("generate", PROMPT, "--max-new-tokens", 4, "--target", "some/model")
    assert "drafter: lookup (no model is known to draft for some/model" in result.stderr
    for arguments in ([], ["--target", "some/model", "--drafter", "none"]):
        assert "drafter:" not in run("generate", PROMPT, "--max-new-tokens", 4, *arguments).stderr


def test_inspect(tmp_path, capsys):
    kind = files.KINDS["SafeAILab"]
    tensors = files.weights(kind)
    result = run("inspect", files.write(tmp_path, kind, tensors))
    assert result.exit_code == 0
    shown = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in result.stdout.splitlines()}
    assert shown["kind"] == "eagle3"
    assert shown["target's hidden size"] == "32"
    assert shown["target's vocabulary"] == "23"
    assert shown["missing or wrong"] == "nothing"
    del tensors["norm.weight"]
    result = run("inspect", files.write(tmp_path, kind, tensors))
    assert result.exit_code == 1
    assert "missing norm.weight" in result.stdout
    assert "does not exist" in complaint(capsys, "inspect", "./nowhere")
