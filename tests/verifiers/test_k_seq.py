"""K-SEQ: its scale solves the equation, and one level accepts as the paper says."""

import pytest
import torch

from drafttree.core import Proposal
from drafttree.exactness import law
from drafttree.policies import Template
from drafttree.verifiers import KSeq
from drafttree.verifiers.k_seq import scale_of
from testing.toy_pairs import constant, drawn_tree, judged

P, Q = [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 6, generator=generator, dtype=torch.float64).mul(1 + seed % 3).softmax(-1)
    return p, q


def share(p: torch.Tensor, q: torch.Tensor, scale: float) -> float:
    return float(torch.minimum(q, p / scale).sum())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(10))
def test_the_scale_solves_its_equation_from_above(seed, count):
    p, q = rows(seed)
    scale = scale_of(p, q, count)
    beta = share(p, q, scale)
    accepted = 1 - (1 - beta) ** count
    assert 1 <= scale <= count
    assert accepted == pytest.approx(scale * beta, abs=1e-5)
    assert accepted <= scale * beta + 1e-12


def test_equal_rows_and_single_children_need_no_scale():
    p, q = rows(1)
    assert scale_of(p, p, 3) == pytest.approx(1, abs=1e-3)
    assert scale_of(p, q, 1) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_level_accepts_as_the_paper_says(count):
    p, q = (torch.tensor(row, dtype=torch.float64) for row in (P, Q))
    tables = constant(P, Q)
    policy = Template(paths=tuple((rank,) for rank in range(count)))
    beta = share(p, q, scale_of(p, q, count))
    found = law(tables.target, tables.draft, policy, KSeq)
    assert found.expected_accepted == pytest.approx(1 - (1 - beta) ** count)


def test_where_draft_and_target_share_nothing_the_bonus_is_the_targets():
    tree = drawn_tree([2, 2], [0, 0], [0.0, 0.0, 1.0], Proposal.WITH_REPLACEMENT)
    verdict, randomness = judged(KSeq, tree, [0.4, 0.6, 0.0], False, False)
    assert randomness.asked == [0.0, 0.0]
    assert randomness.drawn == [pytest.approx([0.4, 0.6, 0.0])]
    assert verdict.path == [0]
