"""Logits processors along every path of a tree.

transformers' processors look at the tokens before a position: a repetition penalty, banned n-grams, forced tokens. In a
tree every node has a text of its own, so each level is processed as one batch of texts, the node's own path included.
Accepted tokens obey them as the bonus token does.
"""

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from drafttree.errors import ConfigError
from drafttree.tree import DraftTree


def process_paths(processors: LogitsProcessorList, tokens: list[int], tree: DraftTree, logits: Tensor) -> Tensor:
    """Logits `[1, nodes, vocab]` after the processors, each node seeing the text up to itself.

    Args:
        processors: of transformers, stateless between calls.
        tokens: the committed text; its last token is the root.
        tree: a lone draft tree.
        logits: `[1, nodes, vocab]` of the target.

    Raises:
        ConfigError: a processor returns another shape, or leaves no token possible where the text can go.
    """
    processed = torch.empty_like(logits, dtype=torch.float32)
    depths = tree.depths[0]
    paths = _paths(tree)
    for depth in range(tree.levels + 1):
        nodes = (depths == depth).nonzero()[:, 0]
        if len(nodes):
            texts = torch.tensor([tokens + paths[node] for node in nodes.tolist()], device=logits.device)
            processed[0, nodes] = _apply(processors, texts, logits[0, nodes].float())
    _check_possible(processors, tokens, tree, paths, logits, processed)
    return processed


def _apply(processors: LogitsProcessorList, texts: Tensor, scores: Tensor) -> Tensor:
    for processor in processors:
        result = processor(texts, scores)
        if result.shape != scores.shape:
            raise ConfigError(
                f"{type(processor).__name__} returned logits of shape {tuple(result.shape)} at position "
                f"{texts.shape[1]}; it must keep the shape {tuple(scores.shape)}"
            )
        scores = result
    return scores


def _check_possible(
    processors: LogitsProcessorList,
    tokens: list[int],
    tree: DraftTree,
    paths: list[list[int]],
    logits: Tensor,
    processed: Tensor,
) -> None:
    """Every node the text can reach must leave some token possible."""
    possible = processed[0] > -torch.inf
    allowed = possible[tree.parents[0].clamp_min(0), tree.tokens[0]] | (tree.parents[0] < 0)
    reached = (allowed | ~tree.ancestors[0]).all(1)
    stuck = (reached & ~possible.any(1)).nonzero()[:, 0].tolist()
    if not stuck:
        return
    text = torch.tensor([tokens + paths[stuck[0]]], device=logits.device)
    scores = logits[0, stuck[:1]].float()
    for processor in processors:
        scores = processor(text, scores)
        if not (scores > -torch.inf).any():
            raise ConfigError(f"{type(processor).__name__} leaves no token possible at position {text.shape[1]}")


def _paths(tree: DraftTree) -> list[list[int]]:
    """The tokens from below the root to each node."""
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens[0].tolist(), tree.parents[0].tolist(), strict=True):
        paths.append([] if parent < 0 else [*paths[parent], token])
    return paths
