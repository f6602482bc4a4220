"""The bench of products: every kind of weights and number of rows, and its tables."""

import pytest

from drafttree_lab.micro import products
from testing.command_line import complaint


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes that take no time."""
    for name, value in {"INPUTS": 64, "OUTPUTS": 96, "LAYERS": 2, "ROWS": (1, 3), "CONTEXT": 4}.items():
        monkeypatch.setattr(products, name, value)


def test_every_kind_is_timed_by_rows():
    seen = []
    found = products.bench_products(shape=None, rows=(1, 3), repeats=2, progress=seen.append)
    assert [row.kind for row in found.rows] == ["float32", "bfloat16", "int8"]
    assert [row.weight_bytes for row in found.rows] == [4 * 64 * 96, 2 * 64 * 96, 64 * 96]
    assert all(set(row.product) == {1, 3} and min(row.product.values()) > 0 for row in found.rows)
    assert sorted(seen) == sorted(["float32", "bfloat16", "int8"] * 3)
    assert found.summary()["bandwidth"]["int8"] == pytest.approx(64 * 96 / found.rows[2].product[1])


def test_an_unknown_size_is_named(capsys):
    assert "100m" in complaint(capsys, "bench", "products", "--inflate", "1b")
