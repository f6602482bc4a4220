"""Shared code of the tests of trained heads: random checkpoints, formulas in float64 numpy, a recording drafter."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree import Decoder
from drafttree.drafters import Drafter
from drafttree.models import TargetModel
from drafttree.policies import POLICIES, TreePolicy
from testing import tiny
from testing.costs import toy_decoder
from testing.small_trees import SMALL

HIDDEN, VOCAB = tiny.SIZES["hidden_size"], tiny.VOCAB
PROMPT = tiny.random_tokens(6, seed=3)
LENGTH = 24
SAMPLINGS = {"greedy": {}, "coupled": {"temperature": 1.0, "seed": 5}}
Tensors = dict[str, Tensor]


@torch.no_grad()
def counting() -> PreTrainedModel:
    """A target that mostly predicts the last token plus one, so that a head can be right for several levels."""
    module = tiny.build("llama")
    for layer in module.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)
    module.lm_head.weight.copy_(module.model.embed_tokens.weight.roll(1, 0))
    return module


def randomness(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, scale: float = 0.2) -> Tensors:
    """A random tensor of each shape; norm weights lie around one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * scale + float("norm" in name) for name, shape in shapes.items()
    }


def states(count: int, seed: int) -> Tensor:
    """Hidden states `[1, count, hidden]`."""
    return torch.randn(1, count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def exact(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def affine(x: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    """W x + b for a layer by its name; b is zero where it is not stored."""
    bias = tensors.get(f"{name}.bias")
    return x @ exact(tensors[f"{name}.weight"]).T + (0 if bias is None else exact(bias))


def assert_close(logits: Tensor, expected: np.ndarray) -> None:
    """Logits `[1, nodes, vocab]` against `[nodes, vocab]`, to 1e-5."""
    assert logits.shape == (1, *expected.shape)
    np.testing.assert_allclose(exact(logits[0]), expected, atol=1e-5, rtol=1e-5)


def small(name: str) -> TreePolicy:
    return POLICIES[name](**SMALL.get(name, {}))


class Watched:
    """Wraps a drafter and records the calls of its session with their results.

    Attributes:
        calls: per call, the committed text, the paths of the frontier, and the logits.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.calls = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def start(self, prompt, capacity):
        return WatchedDraft(self.inner.start(prompt, capacity), list(prompt), self.calls)


class WatchedDraft:
    def __init__(self, inner, text, calls) -> None:
        self.inner, self.text, self.calls = inner, text, calls

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def root(self):
        self.frontier = [[]]
        return self._record(self.inner.root())

    def expand(self, tokens, origins):
        pairs = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
        self.frontier = [[*self.frontier[origin], token] for token, origin in pairs]
        return self._record(self.inner.expand(tokens, origins))

    def commit(self, tokens, hidden_states):
        self.inner.commit(tokens, hidden_states)
        self.text = self.text + tokens

    def _record(self, logits):
        self.calls.append((self.text, self.frontier, logits.clone()))
        return logits


def watched(target: TargetModel, drafter: Drafter, policy: TreePolicy, prompt=PROMPT) -> tuple[list, Decoder]:
    """The calls of a drafter while a text is decoded with it, and the decoder."""
    recorder = Watched(drafter)
    decoder = toy_decoder(target, recorder, policy)
    decoder.generate(prompt, max_new_tokens=LENGTH)
    return recorder.calls, decoder
