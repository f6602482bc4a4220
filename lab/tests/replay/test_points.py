"""Points of figures, by hand."""

from dataclasses import replace

import pytest

from drafttree_lab.replay.results import LAST_RANK, figure_data
from lab_helpers.replay_cells import counted, measured

TREE = [counted([2, 0], ranks=[[1, 3], []]), counted([1, 1], ranks=[[12], [1]])]
AR = counted([0, 0])


@pytest.fixture
def draw(experiment):
    """The points of a figure of one set with two texts."""

    def points(figure):
        result = experiment.result.model_copy(update={"figure": figure})
        ways = {name: experiment.blocks[0].ways[name] for name in ("AR", "tree")}
        one = replace(experiment, result=result, blocks=[replace(experiment.blocks[0], ways=ways)])
        return figure_data(measured(one, {"a": [{"AR": AR, "tree": each} for each in TREE]}))

    return points


def test_a_heat_map_has_shares_of_rounds_by_level_and_rank(draw):
    first, second = draw("heatmap")["tree"]
    # of four rounds, two accepted rank 1 on the first level and one rank 12, which counts with the last
    assert first == [0.5, *[0.0] * (LAST_RANK - 2), 0.25]
    assert second == [0.0, 0.0, 0.25, *[0.0] * (LAST_RANK - 3)]


def test_a_scatter_plot_counts_rounds_of_equal_passes_and_tokens(draw):
    assert draw("scatter")["tree"] == [(3, 1, 1), (3, 2, 2), (3, 3, 1)]


def test_a_box_has_the_tokens_per_round_of_every_text(draw):
    assert draw("boxes")["tree"] == {"a": [2.0, 2.0]}


def test_tokens_are_those_of_the_first_text(draw):
    assert draw("tokens")["tree"] == [2, 0]


@pytest.mark.parametrize("figure", [None, "bars", "lines"])
def test_other_figures_are_drawn_from_the_table(draw, figure):
    assert draw(figure) == {}
