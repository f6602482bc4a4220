"""What is said of batch sizes that were made by hand."""

from drafttree.evaluation.estimate import RatioEstimate
from drafttree_lab.load.batch_aims import batch_aims
from lab_helpers.batch_runs import row

ROWS = [
    row(1, RatioEstimate(2.0, 1.9, 2.1)),
    row(4, RatioEstimate(1.4, 1.2, 1.6), over_best_fixed=RatioEstimate(0.96, 0.9, 1.02)),
    row(16, RatioEstimate(0.9, 0.8, 0.98), plain_over_one_by_one=RatioEstimate(4.5, 4.0, 5.0)),
]


def test_each_aim_is_judged_by_the_lowest_size():
    assert [(aim.value, aim.least, aim.verdict) for aim in batch_aims(ROWS)] == [
        (0.98, 0.97, "reached"),
        (1.4, 1.5, "MISSED"),
        (0.96, 0.97, "MISSED"),
        (4.5, 4.0, "reached"),
    ]


def test_the_figure_and_its_size_are_said():
    assert [aim.sentence for aim in batch_aims(ROWS)] == [
        "lowest upper end of speculative over plain: 0.980 at 16, of 3 sizes",
        "lowest speculative over plain up to size 4: 1.400 at 4, of 2 sizes",
        "lowest speculative over the best fixed budget: 0.960 at 4, of 3 sizes",
        "lowest plain over one by one at size 16: 4.500 at 16, of 1 sizes",
    ]


def test_an_aim_without_a_figure_is_not_measured():
    found = batch_aims([row(2, RatioEstimate(1.6), over_best_fixed=None)])
    assert [aim.verdict for aim in found] == ["not measured", "reached", "not measured", "not measured"]


def test_an_interval_of_two_turns_reaches_nothing():
    wide = row(8, RatioEstimate(0.9, 0.1, 8.1), turns=2)
    assert batch_aims([wide])[0].verdict == "not measured"
    assert (
        batch_aims([wide, ROWS[0]])[0].sentence == "lowest upper end of speculative over plain: 2.100 at 1, of 1 sizes"
    )
