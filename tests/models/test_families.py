"""Families unlike Llama give the logits of transformers along every path of a tree."""

import pytest
import torch

from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from testing import families, tiny

TOLERANCE = 1e-3  # rounding grows in recurrent layers
every_family = pytest.mark.parametrize("name", families.known())


@pytest.mark.few(4)
@every_family
@pytest.mark.parametrize("prefix_length", [0, 13])
def test_rounds_of_trees_equal_incremental_decoding_along_every_path(name, prefix_length):
    committed = tiny.random_tokens(prefix_length, 1)
    model, reference = tiny.wrap(tiny.from_config(families.config(name)))
    cache = model.new_cache(24)
    prefill(model, cache, committed, chunk=8)
    for seed, widths in enumerate([(3, 5, 4), (2, 4, 2, 3, 1)]):
        tree = tiny.random_tree(widths, seed)
        assert tiny.worst_gap(tiny.score(model, cache, tree)[0], reference, committed, tree) < TOLERANCE
        path = tiny.leaf_paths(tree)[-1]
        cache.commit(path)
        committed = committed + tree.tokens[path].tolist()


@pytest.mark.few(13)
@every_family
def test_loading_accepts_it(name):
    model = TargetModel(tiny.from_config(families.config(name)), choose_backend)
    assert model.unseen is None


def test_attention_sinks_count():
    """The comparison would notice sinks that are left out: without them, the untouched module says something else."""
    module = tiny.from_config(families.config("gpt_oss"))
    ids = torch.tensor([tiny.random_tokens(6, 1)])
    with torch.no_grad():
        before = module(ids).logits
        for name, parameter in module.named_parameters():
            if name.endswith("sinks"):
                parameter.fill_(-1e4)
        assert (module(ids).logits - before).abs().max() > 100 * TOLERANCE
