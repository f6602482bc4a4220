"""The Markdown table of claims, from results made by hand."""

from drafttree_lab.report.page import write_report
from lab_helpers.kept_results import judgement, kept, summary, verdict


def lines(tmp_path, *results):
    """The lines of the table of results."""
    path = tmp_path / "claims.md"
    write_report([kept(each) for each in results], path)
    return path.read_text().splitlines()


def test_main_claims_stand_first_with_both_judgements_and_the_others_are_counted(tmp_path):
    few = judgement("too few", low=None, high=None, prompts=4)
    later = verdict(text="wide | deep", main=False, by_time=None, by_counts=few)
    absent = verdict("not run", None, text="never told")
    found = lines(tmp_path, summary([], verdicts=[later, absent]), summary([], id="talon/3", verdicts=[verdict()]))
    kinds = ["with our drafters", "on this machine"]  # no claim has a judgement with a fitted one
    assert found[0] == f"| result | claim | {' | '.join(kinds)} | why | prompts |"
    assert found[2:-2] == [
        "| talon/3 | A tree is faster | reproduced 1.25 [1.10, 1.40] | undecided 1.25 [1.10, 1.40] |  | 12 |",
        "| talon/1 | wide \\| deep | too few 1.25 |  |  | 4 |",
    ]
    assert found[-1] == (
        "With our drafters: 1 reproduced, 1 too few, 1 not run. On this machine: 1 undecided. "
        "Numbers are ratios; for an order of methods they are Kendall's tau. drafttree 0.1.0, device x86_64."
    )


def test_a_reason_is_told_once_and_another_term_by_time_beside_it(tmp_path):
    counts, time = (judgement("contradicted", reason=reason) for reason in ("tau decides (2 to 3)", "h decides (1)"))
    again = judgement("contradicted", reason="tau decides (2.0 to 3.0)")
    claims = [verdict(by_counts=counts, by_time=other) for other in (time, again, judgement())] + [
        verdict(by_time=time)
    ]
    whys = [line.split(" | ")[4] for line in lines(tmp_path, summary([], verdicts=claims))[2:6]]
    assert whys == [
        "tau decides (2 to 3); on this machine h decides",
        "tau decides (2 to 3)",
        "tau decides (2 to 3)",
        "h decides (1)",
    ]


def test_prompts_are_told_apart_where_the_judgements_rest_on_different_ones(tmp_path):
    claim = verdict(by_time=judgement(prompts=10))
    assert lines(tmp_path, summary([], verdicts=[claim]))[2].endswith("| 12 / 10 |")


def test_where_nothing_is_decided_the_judgements_have_columns_and_the_table_is_whole(tmp_path):
    few = judgement("too few", low=None, high=None, p=None, prompts=3)
    found = lines(tmp_path, summary([], verdicts=[verdict(by_counts=few, by_time=None)]))
    assert found[:3] == [
        "| result | claim | with our drafters | why | prompts |",
        "| --- | --- | --- | --- | --- |",
        "| talon/1 | A tree is faster | too few 1.25 |  | 3 |",
    ]


def test_a_claim_without_anything_in_the_columns_has_no_row(tmp_path):
    few = judgement("too few", low=None, high=None, p=None, prompts=2)
    claims = [verdict(by_time=None), verdict(by_counts=None, by_time=few, text="more memory")]
    found = lines(tmp_path, summary([], verdicts=claims))
    assert [line.split(" | ")[1] for line in found[2:-2]] == ["A tree is faster"]
    assert "On this machine: 1 too few." in found[-1]
