"""`drafttree certify`: texts compared, and pairs proven."""

import json

import pytest

import drafttree
from drafttree.evaluation import pair_sweep
from drafttree.measure.reference import Difference
from testing.command_line import complaint, run
from testing.marks import needs_native


@pytest.mark.usefixtures("quick")
def test_certifying(prompts):
    result = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain;talon:budget=9,width=3")
    assert result.exit_code == 0
    assert ["talon:budget=9,width=3", "2/2", "0", "ok", "2/2"] in [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.splitlines()[-2:] == [
        "6 of 6 texts are identical to transformers generate.",
        "All texts are identical to plain decoding, token for token.",
    ]
    options = ["--max-new-tokens", 8, "--policies", "talon", "--repetition-penalty", 1.3, "--no-repeat-ngram-size", 3]
    shown = run("certify", "--prompts", prompts, *options, "--logit-bias", "13=2").stdout
    assert ["talon", "2/2", "0", "ok", "2/2"] in [line.split() for line in shown.splitlines()]


@pytest.mark.cuda
@pytest.mark.parametrize("options", [["--dtype", "float32"], ["--dtype", "bfloat16"], ["--quantize", "int8"]])
def test_certifying_on_a_gpu(options, prompts):
    result = run(
        "certify", "--prompts", prompts, "--max-new-tokens", 48, "--policies", "all", "--device", "cuda", *options
    )
    assert result.exit_code == 0


@needs_native
def test_a_quantised_target_is_certified_against_itself_and_named(prompts):
    options = ["--quantize", "int8", "--quantize-drafter", "int8", "--max-new-tokens", 8, "--policies", "chain"]
    result = run("certify", "--prompts", prompts, "--drafter", "embedded-draft", *options)
    assert result.exit_code == 0
    assert "tokens of transformers generate, bfloat16 with int8 weights." in " ".join(result.stdout.split())


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
def test_law_and_text_are_told_apart_below_float32(prompts, monkeypatch):
    """A tie that falls the other way changes the text, not the law; with exact_text it may not happen."""
    monkeypatch.setattr("drafttree.evaluation.certify.find_difference", tie)
    monkeypatch.setattr("drafttree.verifiers.Greedy.verify", biased(drafttree.verifiers.Greedy.verify))
    options = ["--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain", "--limit", 1, "--dtype", "bfloat16"]
    result = run("certify", *options)
    assert result.exit_code == 0
    assert ["chain", "0/1", "1", "2.5", "units", "ties", "only", "0/1"] in [
        line.split() for line in result.stdout.splitlines()
    ]
    assert "1 differs only by a tie, which at most 6 units of rounding decide." in result.stdout
    assert "NOT all texts are identical to plain decoding: in bfloat16, rounding may decide a tie" in result.stdout
    promised = run("certify", *options, "--exact-text")
    assert promised.exit_code == 1
    assert promised.stdout.splitlines()[-1].endswith("plain decoding, which they must be here.")


def tie(decoder, prompt, expected, got, **options):
    return None if expected == got else Difference(0, 1, 2, 0.125, 0.05)


def biased(verify):
    def verify_otherwise(self, tree, logits, *rest):
        return verify(self, tree, logits.roll(1, -1) if tree.size > 1 else logits, *rest)

    return verify_otherwise


@pytest.mark.usefixtures("quick")
def test_a_failed_certificate_shows_every_difference(prompts, monkeypatch):
    monkeypatch.setattr("drafttree.verifiers.Greedy.verify", biased(drafttree.verifiers.Greedy.verify))
    result = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain", "--limit", 1)
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stdout
    assert ["plain", "1/1", "0", "ok", "1/1"] in [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.splitlines()[-2] == "1 of 2 texts are identical to transformers generate; 1 is DIFFERENT."
    report = run("certify", "--prompts", prompts, "--max-new-tokens", 8, "--policies", "chain", "--json")
    assert json.loads(report.stdout)["policies"][1]["differences"]["0"]["position"] == 0


@pytest.mark.slow
def test_proving_by_enumeration(monkeypatch):
    """In rounds; the test below says what else is tried."""
    monkeypatch.setattr(pair_sweep, "text_trials", lambda *_: [])
    options = ["certify", "--exact", "--models", 1, "--policies", "chain;eagle"]
    shown = run(*options, "--verifiers", "coupled,rrsw,lossy-typical")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["chain", "coupled", "exact", "lossy"] in lines
    assert ["eagle", "coupled", "refused", "lossy"] in lines
    assert "exact by coupling: 100 of 100 texts equal plain decoding's" in shown.stdout
    assert "eagle with rrsw: refused, Eagle exists in selected form only" in shown.stdout
    shaping = ["--temperature", 0.5, "--top-k", 2]
    report = json.loads(run(*options, "--verifier", "traversal", *shaping, "--json").stdout)
    assert (report["temperature"], report["top_k"]) == (0.5, 2)
    assert [finding["verdict"] for finding in report["findings"]] == ["exact", "refused"]
    assert report["findings"][0]["total_variation"] < 1e-12


def test_a_proof_says_which_trees_it_covers():
    options = ["certify", "--exact", "--models", 1, "--verifier", "point-mass"]
    shown = run(*options, "--policies", "chain:depth=12;template").stdout
    trees = [line.split()[3:5] for line in shown.splitlines() if "exact by enumeration" in line]
    assert trees == [["1", "12"], ["4", "15"]]
    told = " ".join(shown.split())
    assert "Checked: up to 7 rounds of a text, starting positions up to " in told
    assert "4 siblings and 15 levels, up to 4,200 logits a token, up to 3 texts at once, float64 and float32." in told
    assert "Nothing beyond these limits was checked. Not checked here: grammars: JSON schemas" in told
    assert "Temperature 1. Every pair is what it claims to be." in told
    assert "Random numbers: 325 tests of 25 streams of 3,000 seeds, smallest p-value " in told
    assert "each after a different edit of its weights: all identical to transformers." in told


def test_a_quick_proof_covers_less():
    options = ["certify", "--exact", "--quick", "--models", 1, "--verifier", "point-mass", "--policy", "chain"]
    shown = run(*options).stdout
    assert "up to 2 texts at once" in " ".join(shown.split())
    assert "Random numbers" not in shown


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


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        (("--verifiers", "traversal"), "--exact and --live"),
        (("--verifier", "rrsw"), "--exact and --live"),
        (("--models", 4), "--exact;"),
        (("--quick",), "--exact;"),
        (("--tokens", 4), "--live;"),
        (("--max-batch", 4), "--live;"),
    ],
)
def test_what_another_mode_heeds_is_refused_without_it(capsys, prompts, arguments, mode):
    assert f"applies only to {mode}" in complaint(capsys, "certify", "--prompts", prompts, *arguments)


def test_a_pair_is_looked_at_while_it_writes(tmp_path):
    options = ["certify", "--live", "--dtype", "float32", "--max-new-tokens", 30, "--tokens", 100]
    shown = run(*options, "--verifier", "rrsw", "--policy", "chain:depth=2", "--out", tmp_path / "runs")
    assert shown.exit_code == 0
    told = " ".join(shown.stdout.split())
    assert "RRSw with Chain(depth=2), float32" in told
    assert "temperature 1, texts written one at a time." in told
    assert "No evidence against the target's distribution (an e-value above 1e+06 would refute it)." in told
    report = run(*options, "--verifier", "traversal", "--policy", "chain", "--max-batch", 2, "--json")
    found = json.loads(report.stdout)
    assert found["passed"]
    assert (found["verifier"], found["max_batch"], found["written"]["texts"]) == ("Traversal", 2, 4)
    lossy = run(*options[:-1], 3000, "--verifier", "lossy-typical")
    assert lossy.exit_code == 1
    assert "REFUTED: texts do not follow the target's distribution (e-value above 1e+06), as expected" in lossy.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--verifier", "greedy"), "greedy draws nothing"),
        (("--temperature", 0), "at temperature 0 nothing is drawn"),
        (("--verifier", "rrsw,traversal"), "--live tests one pair"),
        (("--policy", "chain", "--policy", "talon"), "--live tests one pair"),
        (("--verifier", "block", "--policy", "talon"), "is not lossless"),
        (("--exact",), "--exact does not apply to --live"),
        (("--models", 3), "--models does not apply to --live"),
    ],
)
def test_pairs_that_cannot_be_looked_at_are_refused(capsys, arguments, message):
    assert message in complaint(capsys, "certify", "--live", *arguments)


def test_a_pair_that_is_not_what_it_claims_to_be_fails(monkeypatch):
    monkeypatch.setattr(drafttree.verifiers.LossyTypical, "lossless", True)
    result = run("certify", "--exact", "--models", 1, "--policy", "chain", "--verifier", "lossy-typical")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "Temperature 1. A pair is BIASED."
