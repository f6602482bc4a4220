"""The bench of products: every kind of weights and number of rows, and its tables."""

import pytest

from drafttree.evaluation.shapes import SHAPES, Shape
from drafttree.models.native import kernels
from drafttree_lab.micro import products
from testing.command_line import complaint


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes that take no time."""
    for name, value in {"INPUTS": 64, "OUTPUTS": 96, "LAYERS": 2, "ROWS": (1, 3), "CONTEXT": 4}.items():
        monkeypatch.setattr(products, name, value)


@pytest.fixture
def embedded_shape(monkeypatch):
    """A shape little larger than the embedded target's."""
    sizes = Shape(hidden=320, layers=13, intermediate=800, heads=8, key_value_heads=4)
    monkeypatch.setitem(SHAPES, "slightly-larger", sizes)
    return "slightly-larger"


def test_every_kind_is_timed_by_rows():
    seen = []
    found = products.bench_products(shape=None, rows=(1, 3), repeats=2, progress=seen.append)
    assert [row.kind for row in found.rows] == ["float32", "bfloat16", "int8"][: 3 if kernels.native else 2]
    assert [row.weight_bytes for row in found.rows[:2]] == [4 * 64 * 96, 2 * 64 * 96]
    assert all(set(row.product) == {1, 3} and min(row.product.values()) > 0 for row in found.rows[:2])
    assert sorted(seen) == sorted(["float32", "bfloat16"] * 3)
    assert found.summary()["bandwidth"]["bfloat16"] == pytest.approx(2 * 64 * 96 / found.rows[1].product[1])


def test_passes_are_timed_on_torch_and_in_one_call(embedded_shape):
    found = products.bench_products(shape=embedded_shape, rows=(1, 3), repeats=1)
    assert all(set(row.passes) == {1, 3} for row in found.rows[:2])
    by_kind = {row.kind: row.native and set(row.native) for row in found.rows}
    assert by_kind["float32"] == ({1, 3} if kernels.native else None)
    if kernels.native:
        assert by_kind["int8"] == {1, 3}


def test_an_unknown_size_is_named(capsys):
    assert "100m" in complaint(capsys, "bench", "products", "--inflate", "1b")
