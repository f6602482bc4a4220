"""The Markdown table of claims, from results made by hand."""

from drafttree_lab.report import write_report
from lab_helpers.kept_results import kept, summary, verdict


def test_main_claims_stand_first_and_those_without_a_verdict_are_counted(tmp_path):
    later = verdict(text="wide | deep", main=False, outcome="undecided", said="1.0 [0.9, 1.1]", prompts=4)
    absent = verdict(text="never told", outcome="not run", said="no drafter")
    results = [kept(summary([], verdicts=[later, absent])), kept(summary([], id="talon/3", verdicts=[verdict()]))]
    path = tmp_path / "claims.md"
    write_report(results, path)
    lines = path.read_text().splitlines()
    assert lines[2] == "| talon/3 | A tree is faster | reproduced | tree / chain 1.25 [1.10, 1.40] | 9 |"
    assert lines[3] == "| talon/1 | wide \\| deep | undecided | 1.0 [0.9, 1.1] | 4 |"
    assert lines[5] == "Besides: 0 not comparable, 1 not run. drafttree 0.1.0, device x86_64."
    assert "never told" not in path.read_text()
