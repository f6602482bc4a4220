"""Rotation and storing of new keys and values, with the roundings of `PassContext.rotate`."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drafttree.models.fused.fused_layer import PassContext
from drafttree.models.fused.rotary_angles import RotaryAngles
from drafttree.models.triton.rotary import rotate, rotate_and_store

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NOBODY: Any = None


class Case(NamedTuple):
    """The inputs of a launch."""

    heads: Tensor
    cosine: Tensor
    sine: Tensor
    rows: tuple[Tensor, Tensor]
    new_rows: Tensor

    @classmethod
    def draw(cls, dtype: torch.dtype, groups: int = 3, width: int = 24, rotated: int = 24, nodes: int = 5) -> "Case":
        generator = torch.Generator().manual_seed(0)
        frequencies = 10000 ** -torch.linspace(0, 1, rotated // 2)
        positions = torch.randint(0, 900, (1, nodes), generator=generator)
        return cls(
            torch.randn(nodes, 2 * groups + 4, width, generator=generator).to(dtype),
            *RotaryAngles(frequencies, 1.0, dtype).of(positions),
            (torch.full((2, 40, width), torch.nan, dtype=dtype), torch.full((2, 40, width), torch.nan, dtype=dtype)),
            torch.tensor([31, 7, 8, 39, 1])[:nodes],
        )

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Views of the queries, keys and values, as a product returns them."""
        return self.heads[:, :-4], self.heads[:, -4:-2], self.heads[:, -2:]

    def run(self) -> Tensor:
        """The rotated queries, from views of a copy."""
        query, key, value = self._replace(heads=self.heads.clone()).split()
        rotate_and_store(query, key, value, self.rows, self.new_rows, self.cosine, self.sine)
        return query


def close(found: Tensor, wanted: Tensor) -> None:
    """Equal bits; in float32 the kernel's last sum is fused, as on a GPU, and torch's on a CPU may not be."""
    if found.dtype == torch.float32:
        torch.testing.assert_close(found, wanted, atol=3e-7, rtol=2e-7)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "rotated"), [(24, 24), (24, 10), (80, 20), (128, 128), (8, 2)])
@pytest.mark.parametrize("groups", [1, 3])
def test_queries_keys_and_values_are_those_of_fused_layers(dtype, width, rotated, groups):
    case = Case.draw(dtype, groups, width, rotated)
    query, key, value = (states.clone() for states in case.split())
    context = PassContext(case.cosine, case.sine, NOBODY)
    context.rotate(query)
    context.rotate(key)
    close(case.run(), query)
    keys, values = case.rows
    close(keys[:, case.new_rows], key.transpose(0, 1))
    assert torch.equal(values[:, case.new_rows], value.transpose(0, 1))
    others = [row for row in range(40) if row not in case.new_rows]
    assert keys[:, others].isnan().all()
    assert values[:, others].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_node_has_the_same_bits_alone(dtype):
    case = Case.draw(dtype)
    together = case.run()
    keys = case.rows[0][:, case.new_rows]
    for node in range(5):
        alone = Case(*(states[node : node + 1] for states in case[:3]), case.rows, case.new_rows[node : node + 1].int())
        assert torch.equal(alone.run()[0], together[node])
        assert torch.equal(case.rows[0][:, case.new_rows[node]], keys[:, node])


def test_a_key_that_is_the_value_too_stays_as_it_is():
    case = Case.draw(torch.bfloat16)
    query, key, _ = case.split()
    unchanged = key.clone()
    rotate_and_store(query, key, key, case.rows, case.new_rows, case.cosine, case.sine)
    assert torch.equal(case.rows[1][:, case.new_rows], unchanged.transpose(0, 1))
    assert torch.equal(key, unchanged)
    assert not torch.equal(case.rows[0][:, case.new_rows], unchanged.transpose(0, 1))


def test_layers_without_rotation_only_store():
    case = Case.draw(torch.bfloat16)
    query, key, value = case.split()
    unchanged = query.clone()
    rotate_and_store(query, key, value, case.rows, case.new_rows)
    assert torch.equal(query, unchanged)
    assert torch.equal(case.rows[0][:, case.new_rows], key.transpose(0, 1))
    assert torch.equal(case.rows[1][:, case.new_rows], value.transpose(0, 1))


def test_layers_that_read_the_rows_of_others_only_rotate():
    case = Case.draw(torch.bfloat16)
    wanted = case.run()
    query = case.heads.clone()[:, :-4]
    rotate(query, case.cosine, case.sine)
    assert torch.equal(query, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_interleaved_heads(dtype):
    """GPT-NeoX: each head's query, key and value are next to each other, and a quarter of each head is rotated."""
    case = Case.draw(dtype, groups=1, width=16, rotated=4)
    states = torch.randn(5, 2, 3, 16).to(dtype)
    query, key, value = states.clone().unbind(2)
    rotate_and_store(query, key, value, case.rows, case.new_rows, case.cosine, case.sine)
    wanted_query, wanted_key, _ = states.unbind(2)
    context = PassContext(case.cosine, case.sine, NOBODY)
    context.rotate(wanted_query)
    context.rotate(wanted_key)
    close(query, wanted_query)
    close(case.rows[0][:, case.new_rows], wanted_key.transpose(0, 1))


def test_nan_stays_where_it_is():
    case = Case.draw(torch.bfloat16)
    wanted = case.run()
    case.heads[2] = torch.nan
    found = case.run()
    others = [0, 1, 3, 4]
    assert torch.equal(found[others], wanted[others])
    assert found[2].isnan().all()


def test_what_does_not_fit_is_refused():
    case = Case.draw(torch.float32)
    query, key, value = case.split()
    angles = case.cosine, case.sine
    for arguments in (
        (query, key[:, :1], value, case.rows, case.new_rows, *angles),
        (query[:, :5], key, value, case.rows, case.new_rows, *angles),
        (query, key, value, (case.rows[0][:1], case.rows[1]), case.new_rows, *angles),
        (query, key, value, case.rows, case.new_rows, case.cosine[:3], case.sine[:3]),
        (query, key, value, case.rows, case.new_rows, case.cosine[..., :5], case.sine[..., :5]),
        (query.transpose(1, 2).contiguous().transpose(1, 2), key, value, case.rows, case.new_rows, *angles),
    ):
        with pytest.raises(ValueError, match=r"fit|stride"):
            rotate_and_store(*arguments)
