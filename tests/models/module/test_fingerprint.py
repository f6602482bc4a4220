"""The entries of a weight that are compared reach all of it, and are few views."""

import pytest
import torch

from drafttree.models.module.fingerprint import samples


@pytest.mark.parametrize("shape", [(6,), (5, 8), (8, 5), (256, 256, 1, 1), (4, 16, 12), (12, 16, 4)])
def test_every_row_and_column_is_sampled_by_few_views(shape):
    weight = torch.zeros(shape)
    views = samples(weight)
    for view in views:
        view.fill_(1)
    assert len(views) <= 6
    last = weight.view(-1, shape[-1]) if weight.ndim > 1 else weight[None]
    assert bool(last.any(0).all())
    assert bool(weight.flatten(1).any(1).all() if weight.ndim > 1 else weight.all())
