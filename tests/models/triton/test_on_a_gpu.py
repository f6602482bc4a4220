"""The kernels where they are compiled for a GPU: near to float64, the same bits in any company, the same texts.

`-m cuda` runs each test on the GPU, at true widths. Elsewhere it runs in the interpreter, at small ones, so that what
is to run on a GPU has run before.
"""

import pytest

pytest.importorskip("triton")

import torch

if not torch.cuda.is_available():
    import helpers.triton_interpreter  # noqa: F401

import os
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import numpy as np
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from triton.runtime.jit import JITFunction

import drafttree
from drafttree import Decoder
from drafttree.models import Segment
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import Backend, append
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.triton import attention
from drafttree.models.triton.attention import PackedTrees, TextNodes, TreeSizes, attend_to_trees
from drafttree.models.triton.norms import RowNorm
from drafttree.models.triton.products import Addition, LinearWeight, activate_linear, add_linear, linear
from drafttree.models.triton.triton_backend import TritonBackend
from helpers.replays import Replays
from testing import tiny

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
FLOATS = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-8}
"""The dtypes, each with the largest gap of a number that is rounded once, relative to the largest number."""
INT8 = "int8"
every_kind = pytest.mark.parametrize("kind", [*FLOATS, INT8], ids=str)


class Sizes(NamedTuple):
    """What is tried on a device.

    Attributes:
        weights: outputs and inputs of weights, of one split and of several.
        rows: numbers of rows, one of each width of a tile and more than the widest.
        heads: query heads, key heads and their width.
        prefixes: committed rows of texts.
        hidden: hidden size of a model.
        layers: its layers.
        prompts: lengths of prompts.
        new_tokens: tokens of a text.
    """

    weights: Sequence[tuple[int, int]]
    rows: Sequence[int]
    heads: tuple[int, int, int]
    prefixes: Sequence[int]
    hidden: int
    layers: int
    prompts: Sequence[int]
    new_tokens: int


SIZES = {
    "cpu": Sizes([(20, 40), (20, 1030)], (1, 3, 17), (4, 2, 16), (0, 70, 270), 32, 1, (5, 2), 2),
    "cuda": Sizes(
        weights=[(28672, 4096), (4096, 14336), (6144, 4096), (1000, 1000)],
        rows=(1, 2, 16, 17, 33, 64, 65, 128, 129, 300),
        heads=(32, 8, 128),
        prefixes=(0, 1, 255, 256, 1000, 5000),
        hidden=1024,
        layers=4,
        prompts=(5, 300, 40, 700),
        new_tokens=96,
    ),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request, monkeypatch):
    """The device, on which passes prefer the kernels."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU here, not interpreted")
    monkeypatch.setenv("DRAFTTREE_TRITON", "1")
    return request.param


def randoms(device: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def weight_of(device: str, shape: tuple[int, int], kind: torch.dtype | str) -> tuple[LinearWeight, Tensor]:
    """A weight, and its numbers in float64."""
    values = randoms(device, *shape, seed=1) * shape[1] ** -0.5
    if kind != INT8:
        weight = LinearWeight(values.to(kind))
        return weight, weight.values.double()
    scale = values.abs().amax(1) / 127
    integers = (values / scale[:, None]).round().char()
    return LinearWeight(integers, None, scale), integers.double() * scale[:, None].double()


def gap(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def test_kernels_are_compiled_on_a_gpu_alone(device):
    is_compiled = device == "cuda"
    assert (os.environ.get("TRITON_INTERPRET") == "1") != is_compiled
    assert isinstance(attention._common_kernel, JITFunction) == is_compiled


def all_products(weight: LinearWeight, addition: Addition, x: Tensor, residual: Tensor) -> Tensor:
    """Every kind of product, side by side."""
    added = add_linear(x, weight, residual, addition)
    assert added.normed is not None
    gated = activate_linear(x, weight, "silu", gated=True)
    return torch.cat((linear(x, weight), added.residual, added.normed, gated), 1)


@pytest.mark.few(3)
@every_kind
@torch.inference_mode()
def test_products(device, kind):
    """A row among all rows, among few and alone, whatever the others hold."""
    dtype = torch.bfloat16 if kind == INT8 else kind
    sizes = SIZES[device]
    for shape in sizes.weights:
        weight, exact_weight = weight_of(device, shape, kind)
        most_rows = max(sizes.rows)
        x = randoms(device, most_rows, shape[1]).to(dtype)
        residual = randoms(device, most_rows, shape[0], seed=2).to(dtype)
        addition = Addition(norm=RowNorm(randoms(device, shape[0], seed=3), None, 1e-6))

        results = partial(all_products, weight, addition)
        expected = results(x, residual)
        assert gap(expected[:, : shape[0]], x.double() @ exact_weight.t()) < FLOATS[dtype]
        for rows in sizes.rows:
            chosen = torch.randperm(most_rows, generator=torch.Generator().manual_seed(rows))[:rows].to(device)
            assert torch.equal(results(x[chosen], residual[chosen]), expected[chosen]), (shape, rows)
        x[1:], residual[1:] = torch.nan, torch.inf
        assert torch.equal(results(x, residual)[0], expected[0])


class Text(NamedTuple):
    """A text with a tree: its place in the rows, and the nodes that each node sees."""

    first_row: int
    prefix: int
    visible: np.ndarray

    @property
    def end(self) -> int:
        return self.first_row + self.prefix + len(self.visible)


def texts_of(device: str, nodes: int) -> list[Text]:
    """Texts behind all prefixes, one after the other, each with a random tree."""
    texts, first_row = [], 1
    for seed, prefix in enumerate(SIZES[device].prefixes):
        generator = np.random.default_rng(seed)
        visible = np.eye(nodes, dtype=bool)
        for node in range(1, nodes):
            visible[node] |= visible[generator.integers(max(node - 4, 0), node)]
        texts.append(Text(first_row, prefix, visible))
        first_row = texts[-1].end
    return texts


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("nodes", [1, 7, 60])
@torch.inference_mode()
def test_attention(device, dtype, nodes):
    heads, key_heads, width = SIZES[device].heads
    texts = texts_of(device, nodes)
    keys, values = randoms(device, 2, key_heads, texts[-1].end, width).to(dtype)
    query = randoms(device, len(texts) * nodes, heads, width, seed=1).to(dtype)

    def attend(chosen: Sequence[int]) -> Tensor:
        packed = [TextNodes(texts[index].first_row, texts[index].prefix, texts[index].visible) for index in chosen]
        sizes = TreeSizes.of(packed)
        trees = PackedTrees(*(torch.from_numpy(array).to(device) for array in PackedTrees.of(packed, sizes)))
        queries = torch.cat([query[index * nodes : (index + 1) * nodes] for index in chosen])
        return attend_to_trees(queries, (keys, values), trees, sizes, width**-0.5)

    together = attend(range(len(texts)))
    backwards = attend(range(len(texts))[::-1]).unflatten(0, (-1, nodes)).flip(0).flatten(0, 1)
    assert torch.equal(together, backwards)
    tolerance = 4 * FLOATS[dtype]  # weights are rounded before they multiply the values
    for index, text in enumerate(texts):
        found = together[index * nodes : (index + 1) * nodes]
        assert torch.equal(attend([index]), found)
        rows = slice(text.first_row, text.end)
        visible = torch.ones(nodes, text.prefix + nodes, dtype=torch.bool)
        visible[:, text.prefix :] = torch.from_numpy(text.visible)
        own_keys, own_values = (
            states[:, rows].double().repeat_interleave(heads // key_heads, 0) for states in (keys, values)
        )
        own_query = query[index * nodes : (index + 1) * nodes].double().transpose(0, 1)
        scores = (own_query @ own_keys.mT * width**-0.5).masked_fill(~visible.to(device), -torch.inf)
        assert gap(found, (scores.softmax(-1) @ own_values).transpose(0, 1).flatten(1)) < tolerance


def module_of(device: str, kind: torch.dtype | str) -> PreTrainedModel:
    """A random Llama, whose logits are not nearly equal."""
    sizes = SIZES[device]
    heads, key_heads, width = sizes.heads
    config = LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=sizes.hidden,
        intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=heads // 2,
        num_key_value_heads=key_heads // 2,
        head_dim=width,
        initializer_range=0.02,
        max_position_embeddings=2048,
    )
    module = tiny.from_config(config)
    for parameter in module.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(5 * parameter.shape[1] ** -0.5)
    module = module.to(device, torch.bfloat16 if kind == INT8 else kind)
    if kind == INT8:
        quantize_int8(module)
    return module


def segment_behind(backend: Backend, length: int, parts: int = 1) -> Segment:
    """A tree behind a prompt that is read in parts."""
    tree = tiny.random_tree((2, 3), length)
    cache = backend.new_cache(length + 2 * tree.size)
    for part in np.array_split(tiny.random_tokens(length, length), parts):
        append(backend, cache, part.tolist())
    return Segment(cache, tree.tokens, tree.depths + length, tree.ancestors)


@pytest.mark.few(1)
@every_kind
@torch.inference_mode()
def test_passes(device, kind):
    """A tree alone, in company, behind a prompt in parts, as plain decoding writes it, recorded, and beside float64."""
    module = module_of(device, kind)
    if device == "cuda":
        recorded = choose_backend(module, Wants(exact_text=True))
    else:
        recorded = RecordedBackend(TritonBackend(module), Replays())
    assert isinstance(recorded, RecordedBackend)
    backend = recorded._backend
    assert isinstance(backend, TritonBackend)
    lengths = SIZES[device].prompts
    for length in lengths:
        segment = segment_behind(backend, length)
        (alone,) = backend.forward([segment])
        company = [segment_behind(backend, other, parts=2) for other in lengths]
        together = backend.forward(company)[lengths.index(length)]
        assert torch.equal(together.logits, alone.logits)
        for _ in range(2):  # the first is recorded
            (replayed,) = recorded.forward([segment_behind(recorded, length, parts=2)])
            assert torch.equal(replayed.logits, alone.logits)
        path = tiny.leaf_paths(tiny.random_tree((2, 3), length))[-1]
        cache = segment_behind(backend, length).cache
        for node in path:
            plain = append(backend, cache, [int(segment.tokens[node])])
            assert torch.equal(plain.logits[0, 0], alone.logits[0, node])
        if kind == INT8:
            continue
        ids = torch.tensor([[*tiny.random_tokens(length, length), *segment.tokens[path]]], device=device)
        own = module(ids).logits[0, length:]
        exact = deepcopy(module).double()(ids).logits[0, length:]
        assert gap(alone.logits[0, path], exact) <= max(3 * gap(own, exact), 1e-5)


def kernels_of(decoder: Decoder) -> object:
    """The backend that runs the layers of a decoder's target, recorded or not."""
    backend = decoder.target.backend
    return backend._backend if isinstance(backend, RecordedBackend) else backend


def texts_by(decoder: Decoder, device: str) -> list[list[int]]:
    """Greedy texts, each alone and all together, which must be the same."""
    sizes = SIZES[device]
    prompts = [tiny.random_tokens(length, length) for length in sizes.prompts]
    alone = [decoder.generate(prompt, max_new_tokens=sizes.new_tokens, ignore_eos=True).tokens for prompt in prompts]
    together = decoder.generate(prompts, max_new_tokens=sizes.new_tokens, ignore_eos=True)
    assert [text.tokens for text in together] == alone
    return alone


@pytest.mark.few(0)
def test_greedy_texts_are_those_of_other_backends(device, monkeypatch):
    """In float32, of the embedded target: plain decoding on both, and drafts of a head on the kernels."""
    load_options = {"device": device, "dtype": "float32"}
    plain = drafttree.load("embedded", "none", **load_options)
    drafted = drafttree.load("embedded", "embedded-eagle3", "talon:budget=16,width=4", **load_options)
    monkeypatch.setenv("DRAFTTREE_TRITON", "0")
    other = drafttree.load("embedded", "none", **load_options)
    is_ours = [isinstance(kernels_of(decoder), TritonBackend) for decoder in (plain, drafted, other)]
    assert is_ours == [True, True, False]
    wanted = texts_by(other, device)
    assert texts_by(plain, device) == wanted
    assert texts_by(drafted, device) == wanted
