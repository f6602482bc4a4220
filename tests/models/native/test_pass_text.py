"""Texts as drafttree-native reads them: each number has a name, and arrays are read wherever they lie."""

import gc
from typing import Any

import numpy as np
import pytest
import torch

from drafttree.models import Segment, TargetModel
from drafttree.models.base import append
from drafttree.models.native import kernels
from drafttree.models.native.native_backend import NativeBackend
from testing import tiny
from testing.marks import needs_native

pytestmark = needs_native
PREFIX = 20


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return TargetModel(tiny.build("llama"), NativeBackend)


def tree_segment(model: TargetModel) -> Segment:
    """A tree behind a prefix."""
    cache = model.new_cache(PREFIX)
    append(model, cache, tiny.random_tokens(PREFIX, 1))
    tree = tiny.random_tree((3, 4, 2), 1)
    return Segment(cache, tree.tokens, tree.depths + PREFIX, tree.ancestors)


def logits(model: TargetModel, segment: Segment) -> torch.Tensor:
    (output,) = model.forward([segment])
    segment.cache.commit([])
    return output.logits


def fields(**changes: Any) -> dict[str, Any]:
    """The fields of a text of three nodes without a cache."""
    return {
        "tokens": np.arange(3),
        "positions": np.arange(3),
        "visible": np.tri(3, dtype=bool),
        "length": 0,
        "first_position": 0,
        "long_rope": False,
        "wanted_first": 0,
        "wanted_end": 3,
        "buffers": [],
    } | changes


def every_other(array: np.ndarray) -> np.ndarray:
    """The same numbers, with others between them."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("laid", [every_other, read_only, np.asfortranarray, lambda array: array.astype(np.int32)])
@torch.inference_mode()
def test_arrays_may_lie_in_any_way(model, laid):
    segment = tree_segment(model)
    expected = logits(model, segment)
    arrays = {name: laid(getattr(segment, name)) for name in ("tokens", "positions", "visible")}
    assert torch.equal(logits(model, segment._replace(**arrays)), expected)


@torch.inference_mode()
def test_a_text_keeps_its_arrays(model):
    segment = tree_segment(model)
    expected = logits(model, segment)
    like = torch.empty(0)
    copies = {name: every_other(getattr(segment, name)) for name in ("tokens", "positions", "visible")}
    text = kernels._pass_text(segment._replace(**copies), like)
    del copies
    gc.collect()
    overwriting = [np.full_like(segment.tokens, -1) for _ in range(100)]
    found = torch.empty(segment.nodes, model.backend._model.room)
    model.backend._model.forward(threads=1, texts=[text], inputs=0, logits=found.data_ptr(), states=[])
    assert torch.equal(found[:, : tiny.VOCAB], expected[0])
    del overwriting


def test_fields_are_given_by_name_and_none_is_left_out():
    kernels.native.PassText(**fields())
    with pytest.raises(TypeError):
        kernels.native.PassText(*fields().values())
    for name in fields():
        with pytest.raises(TypeError):
            kernels.native.PassText(**{field: value for field, value in fields().items() if field != name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": np.arange(2)}, "several numbers of nodes"),
        ({"visible": np.tri(2, 3, dtype=bool)}, "several numbers of nodes"),
        ({"visible": np.tri(3, 2, dtype=bool)}, "several numbers of nodes"),
        ({"wanted_end": 4}, "nodes that a text does not have"),
        ({"wanted_first": -1}, "nodes that a text does not have"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        kernels.native.PassText(**fields(**changes))


@torch.inference_mode()
def test_other_rows_than_those_drafted_are_refused(model):
    segment = tree_segment(model)
    nodes = segment.nodes
    visible = np.concatenate((segment.visible, segment.visible), axis=1)
    with pytest.raises(ValueError, match=rf"of {nodes} drafted rows, the visible ones are \[{nodes}, {2 * nodes}\]"):
        model.forward([segment._replace(visible=visible)])


@pytest.mark.parametrize("wrong", ["tokens", "logprobs"])
def test_results_are_not_written_to_a_copy(wrong):
    logits = torch.randn(2, 40)
    arrays = {"logprobs": np.empty((2, 3), np.float32), "tokens": np.empty((2, 3), np.int64)}
    columns = {"logits": logits.data_ptr(), "stride": 40, "columns": 40, "allowed": 40}
    kernels.native.best_tokens(threads=1, **columns, **arrays)
    arrays[wrong] = np.asfortranarray(arrays[wrong])
    with pytest.raises(TypeError):
        kernels.native.best_tokens(threads=1, **columns, **arrays)
