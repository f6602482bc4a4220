"""The law of the kernels in Triton as a table: how near they are to float64, and whether bits depend on other texts.

    python -m helpers.triton_law [--passes N] [--seed S] [FAMILY ...]

Each family has a small random model. A text is scored alone, then in passes with random other texts, in random order
and behind a prefix that was read in random parts. It exits with 1 if a row of the table breaks the law.
"""

import helpers.triton_interpreter  # noqa: F401, I001

import argparse
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from drafttree.models import Segment
from drafttree.models.base import Backend
from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.triton.triton_backend import TritonBackend
from testing import tiny
from testing.fused_families import CONFIGS

EXPERTS = {"gemma4_experts", "qwen3_moe"}
"""Models whose experts have no kernels."""
FAMILIES = {CONFIGS[name]().model_type: name for name in reversed(CONFIGS) if name not in EXPERTS}
"""The first config of each family."""
LARGEST_GAPS = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.1}
"""The largest gap to float64, relative to the largest logit, by the kind of weights; rows of int8 are in bfloat16."""
PREFIX = tiny.random_tokens(9, 1)
TREE = tiny.random_tree((2, 3, 2), 2)
LAYERS = 2


class Law(NamedTuple):
    """A row of the table.

    Attributes:
        family: the family of the model.
        weights: a key of `LARGEST_GAPS`.
        gap: largest gap of a logit to float64, relative to the largest logit.
        equal: number of passes in which the text had the bits that it has alone.
        passes: number of passes.
    """

    family: str
    weights: str
    gap: float
    equal: int
    passes: int

    @property
    def holds(self) -> bool:
        return self.equal == self.passes > 0 and self.gap <= LARGEST_GAPS[self.weights]

    def __str__(self) -> str:
        bits = f"bits equal in {self.equal} of {self.passes} random passes"
        return f"| {self.family} | {self.weights} | {self.gap:.1e} | {bits} |{'' if self.holds else ' BROKEN'}"


class InFloat64(TorchFunctionMode):
    """Computes in float64 where modules ask for float32, as norms and softmax do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        arguments = [torch.float64 if argument is torch.float32 else argument for argument in args]
        options = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*arguments, **options)


class Company(NamedTuple):
    """What a text shares its passes with.

    Attributes:
        place: index of the text.
        prefixes: the prefixes of all texts.
        trees: their trees.
        parts: number of passes in which the prefixes are read.
    """

    place: int
    prefixes: list[list[int]]
    trees: list[tiny.ArrayTree]
    parts: int

    @classmethod
    def random(cls, generator: np.random.Generator) -> "Company":
        others = int(generator.integers(1, 4))
        prefixes = [tiny.random_tokens(int(generator.integers(15)), int(generator.integers(99))) for _ in range(others)]
        trees = []
        for _ in range(others):
            widths = generator.integers(1, 5, size=int(generator.integers(4))).tolist()
            trees.append(tiny.random_tree(widths, int(generator.integers(99))))
        place = int(generator.integers(others + 1))
        prefixes.insert(place, PREFIX)
        trees.insert(place, TREE)
        return cls(place, prefixes, trees, int(generator.integers(1, 4)))


ALONE = Company(0, [PREFIX], [TREE], 1)


def make_module(name: str, weights: str) -> PreTrainedModel:
    """A small random model of `CONFIGS`."""
    config = CONFIGS[name]()
    if "layer_types" not in config.to_diff_dict():
        config.num_hidden_layers = LAYERS
    module = tiny.from_config(config).to(torch.float32 if weights == "float32" else torch.bfloat16)
    if weights == "int8":
        quantize_int8(module, head=not config.tie_word_embeddings)
    return module


@torch.inference_mode()
def logits_in_company(backend: Backend, company: Company) -> Tensor:
    """The logits `[nodes, vocab]` of the text, all passes shared with its company."""
    caches = [backend.new_cache(32) for _ in company.prefixes]
    parts_by_text: list[list[Array]] = [np.array_split(prefix, company.parts) for prefix in company.prefixes]
    for parts in zip(*parts_by_text, strict=True):
        segments = [
            Segment.of_text(cache, part.tolist()) for cache, part in zip(caches, parts, strict=True) if len(part)
        ]
        backend.forward(segments)
        for segment in segments:
            segment.cache.commit(range(segment.nodes))
    segments = []
    for cache, tree in zip(caches, company.trees, strict=True):
        segments.append(Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors))
    return backend.forward(segments)[company.place].logits[0]


def float64_logits(module: PreTrainedModel) -> Tensor:
    """The logits `[nodes, vocab]` of the text that the module computes in float64, path by path."""
    exact = deepcopy(module)
    layers = [(name, layer) for name, layer in exact.named_modules() if isinstance(layer, Int8Linear)]
    for name, layer in layers:
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain.weight.data = layer.quantized.double() * layer.scale.double()[:, None]
        if layer.bias is not None:
            plain.bias.data = layer.bias.data
        exact.set_submodule(name, plain)
    paths = tiny.leaf_paths(TREE)
    logits = torch.empty(TREE.size, tiny.VOCAB, dtype=torch.float64)
    with InFloat64():
        exact.double()
        found = tiny.decode(exact, PREFIX, [TREE.tokens[path].tolist() for path in paths])
    for path, along in zip(paths, found, strict=True):
        logits[path] = along
    return logits


def measure(
    family: str, weights: str, passes: int, seed: int = 0, make_backend: Callable[[Any], Backend] = TritonBackend
) -> Law:
    """Measure a family's row of the table.

    Args:
        family: a key of `FAMILIES`.
        weights: a key of `LARGEST_GAPS`.
        passes: number of random passes.
        seed: what they are drawn from.
        make_backend: makes the backend.
    """
    module = make_module(FAMILIES[family], weights)
    exact_logits = float64_logits(module)
    backend = make_backend(module)
    alone = logits_in_company(backend, ALONE)
    gap = float((alone.double() - exact_logits).abs().max() / exact_logits.abs().max())
    generator = np.random.default_rng(seed)
    equal = sum(torch.equal(logits_in_company(backend, Company.random(generator)), alone) for _ in range(passes))
    return Law(family, weights, gap, equal, passes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, row by row; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(sorted(FAMILIES))}; default all")
    parser.add_argument("--passes", type=int, default=4, help="random passes of each row (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="what the passes are drawn from (default 0)")
    options = parser.parse_args(arguments)
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"unknown family {', '.join(sorted(unknown))}; known: {', '.join(sorted(FAMILIES))}")
    print("| family | weights | largest gap to float64 | in company |\n| --- | --- | --- | --- |", flush=True)
    is_kept = True
    for family in options.families or sorted(FAMILIES):
        for weights in LARGEST_GAPS:
            law = measure(family, weights, options.passes, options.seed)
            print(law, flush=True)
            is_kept &= law.holds
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
