"""The plot of batch sizes, read back from its SVG."""

import re

import pytest

from drafttree.errors import InputError
from drafttree.evaluation.estimate import RatioEstimate
from drafttree_lab.display.batch_plot import write_plot
from drafttree_lab.load.batch import BatchBench
from lab_helpers.batch_runs import row

RESULT = BatchBench(
    rows=[row(1, RatioEstimate(2.0, 1.9, 2.1)), row(16, RatioEstimate(1.2), over_best_fixed=None), row(64, None)],
    target="",
    threads=1,
    prompts=8,
    texts=8,
    differences=[],
    drafter_failures=0,
    alone=None,
    transformers="",
)


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_axes_and_series_are_named(tmp_path):
    write_plot(RESULT, tmp_path / "plot.svg")
    found = texts(tmp_path / "plot.svg")
    assert {"speculative", "plain", "fixed 2", "speculative / plain", "speculative / best fixed budget"} <= {*found}
    assert found.count("requests at once (batch size)") == 2
    assert {"tokens per second, steady state", "ratio, 95 % interval over turns"} <= {*found}
    assert [found.count(size) for size in ("1", "16", "64")] == [2, 2, 2]
    assert "speculative / transformers" not in found


def test_a_picture_of_pixels_can_be_had(tmp_path):
    write_plot(RESULT, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"plot\.svg: cannot be written: .*; name another with -o"):
        write_plot(RESULT, tmp_path / "nowhere" / "plot.svg")
