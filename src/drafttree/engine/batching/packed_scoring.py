"""The packed target pass of a round: trees, single nodes and parts of prompts behind each other."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from drafttree.core.tree import DraftTree
from drafttree.engine.batching.prompt_reading import Part
from drafttree.engine.request import Request
from drafttree.engine.request_rounds import RequestRounds, tree_segment
from drafttree.models import Output, Segment, forward_packed


def score(
    rounds: RequestRounds, requests: Sequence[Request], trees: Sequence[DraftTree], parts: Sequence[Part]
) -> tuple[list[Output], list[Output]]:
    """Score the trees of requests and read parts of prompts.

    Args:
        rounds: the decoder.
        requests: that a token is chosen for.
        trees: one for each of them.
        parts: of prompts.

    Returns:
        The target's output for every tree, and that for every part, with logits where those of a prompt are wanted.
    """
    known = [request.take_root_output() for request in requests]
    open_requests = [request for request, output in zip(requests, known, strict=True) if output is None]
    open_trees = [tree for tree, output in zip(trees, known, strict=True) if output is None]
    with ExitStack() as timed:
        for request in open_requests:
            timed.enter_context(request.clock.target)
        device = rounds.target.device
        segments = [_segment(*each, device) for each in zip(open_requests, open_trees, strict=True)]
        segments += [_part(rounds, part) for part in parts]
        outputs = forward_packed(rounds.target, segments, hidden_layers=rounds.hidden_layers) if segments else []
        if rounds.target.device.type == "cuda":
            torch.cuda.synchronize(rounds.target.device)  # the verifiers would wait for it anyway, and be timed for it
    scored = iter(outputs)
    return [output or next(scored) for output in known], list(scored)


def _segment(request: Request, tree: DraftTree, device: torch.device) -> Segment:
    with request.clock.masks:
        return tree_segment(request.cache, tree, device)


def _part(rounds: RequestRounds, part: Part) -> Segment:
    """A part of a prompt, of which no logits are wanted unless its request wants log-probabilities."""
    text = Segment.of_text(part.served.request.cache, part.tokens, rounds.target.device)
    return text._replace(wanted=slice(None) if part.served.request.prompt_logprobs else slice(0, 0))
