"""Shared code of the tests of trained heads: a target that a head can be right about, and its roots in the loop."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree import Decoder
from helpers.checkpoints import Format, MtpFormat, Tensors
from testing import tiny

HIDDEN, VOCAB = tiny.SIZES["hidden_size"], tiny.VOCAB
PROMPT = tiny.random_tokens(6, seed=3)
LENGTH = 24


@torch.no_grad()
def counting() -> PreTrainedModel:
    """A target that mostly predicts the last token plus one, so that a head can be right for several levels."""
    module = tiny.build("llama")
    for layer in module.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)
    module.lm_head.weight.copy_(module.model.embed_tokens.weight.roll(1, 0))
    return module


def randomness(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """A random tensor of each shape."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def states(count: int, seed: int) -> Tensor:
    """Hidden states `[1, count, hidden]`."""
    return torch.randn(1, count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def check_roots(
    decoder: Decoder, clone: Any, form: Format | MtpFormat, tensors: Tensors, prompt: list[int], length: int
) -> list[int]:
    """Compare the first drafts of all rounds of a text with the formula on the states that transformers computes.

    Returns:
        how many tokens there were before each round.
    """
    request, drafter = decoder.new_request(prompt, max_new_tokens=length), decoder.drafter
    rounds, root = [], drafter.draft_root
    drafter.draft_root = lambda sessions: rounds.append((list(request.tokens), root(sessions))) or rounds[-1][1]
    while not request.text.finish_reason:
        decoder.step(request)
    for tokens, logits in rounds:
        with torch.inference_mode():
            known = clone(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        expected = form.logits(tensors, clone, [known[state][0] for state in form.states], tokens, [])
        torch.testing.assert_close(logits[0].double(), expected.double(), atol=1e-3, rtol=1e-4)
    return [len(tokens) for tokens, _ in rounds]
