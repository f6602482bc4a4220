"""Small random models, random trees, and the logits transformers itself gives along every path of a tree."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from drafttree import DraftTree
from drafttree.models import Model, Output, Segment, TargetModel, TreeCache

VOCAB = 97
WINDOW = 5
LAYERS = 3
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES),
    "llama": lambda: LlamaConfig(**GROUPED),
    "qwen2": lambda: Qwen2Config(**GROUPED),
    "qwen3": lambda: Qwen3Config(**GROUPED, head_dim=12),
    "mistral": lambda: MistralConfig(**GROUPED, sliding_window=None),
    "mistral_sliding": lambda: MistralConfig(**GROUPED, sliding_window=WINDOW),
    "gemma3": lambda: Gemma3TextConfig(
        **GROUPED,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gpt2": lambda: GPT2Config(**SIZES),
    "qwen2_moe_sliding": lambda: Qwen2MoeConfig(
        **GROUPED,
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        shared_expert_intermediate_size=16,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
}

OPTIONS: dict[str, object] = {
    "sequence_bias": [[[5], 4.0], [[7, 8], -2.0], [[11], -3.0]],
    "repetition_penalty": 1.6,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": "words",
    "min_length": 20,
    "min_new_tokens": 15,
    "prefix_allowed_tokens_fn": lambda row, ids: [(int(ids[-1]) * 3 + n) % VOCAB for n in range(40 + row)],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 96,
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": (2, 2.5),
    "suppress_tokens": "tokens",
    "begin_suppress_tokens": "first",
}
"""Generation options of transformers, each with a value; strings stand for tokens of the text without options."""
IDLE = {"forced_bos_token_id", "remove_invalid_values"}
"""Options without effect in these tests: they act on texts of one token and on infinite logits."""


def options(name: str, text: Sequence[int]) -> dict[str, object]:
    """An option of `OPTIONS`, or several at once, given the text that is written without options."""
    if name == "everything":
        several = ("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "min_new_tokens", "suppress_tokens")
        return {key: value for each in several for key, value in options(each, text).items()}
    words = {
        "bad_words_ids": [[text[2]], [text[3], text[4]], [text[0], text[1]]],
        "suppress_tokens": [text[1], text[5]],
        "begin_suppress_tokens": [text[0]],
    }
    long = {"min_new_tokens": len(text)} if name == "forced_eos_token_id" else {}
    return {name: words.get(name, OPTIONS[name])} | long


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of an architecture."""
    return from_config(CONFIGS[name](), seed)


@torch.no_grad()
def from_config(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A random model with noise on every bias and norm weight too, so that each token it sees shows in the logits."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.normal_(float(parameter.mean().round()), 0.2, generator=generator)
    for name, buffer in module.named_buffers():
        if name.endswith("layer_scalar"):  # 1 in a new module of Gemma 4
            buffer.uniform_(0.5, 1, generator=generator)
    return module


def wrap(module: PreTrainedModel) -> tuple[TargetModel, PreTrainedModel]:
    """The wrapped module, and an untouched clone of it to compare with."""
    clone = deepcopy(module)
    return TargetModel(module), clone


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass(frozen=True)
class ArrayTree:
    """A tree as a model is handed it, `[nodes]`; `ancestors` is `[nodes, nodes]`."""

    tokens: Array
    parents: Array
    ancestors: Array
    levels: int

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> Array:
        return self.ancestors.sum(-1) - 1


def random_tree(widths: Sequence[int], seed: int) -> ArrayTree:
    """A tree with the given numbers of nodes per level, random parents, and different tokens within a level."""
    generator = torch.Generator().manual_seed(seed)
    tokens, parents, first, above = random_tokens(1, seed), [-1], 0, 1
    for width in widths:
        hung = torch.randint(above, (width,), generator=generator).sort().values + first
        tokens += torch.randperm(VOCAB, generator=generator)[:width].tolist()
        parents += hung.tolist()
        first, above = first + above, width
    zero = [0.0] * len(tokens)
    ancestors = DraftTree(tokens, parents, zero, zero, len(widths)).ancestors
    return ArrayTree(np.array(tokens), np.array(parents), ancestors, len(widths))


def path_to(tree: ArrayTree, node: int) -> list[int]:
    """Node indices from the root down to a node."""
    return tree.ancestors[node].nonzero()[0].tolist()


def leaf_paths(tree: ArrayTree) -> list[list[int]]:
    """Every root-to-leaf path."""
    inner = set(tree.parents.tolist())
    return [path_to(tree, node) for node in range(tree.size) if node not in inner]


def run(
    model: Model,
    cache: TreeCache,
    tokens: Array,
    positions: Array,
    visible: Array,
    wanted: slice = slice(None),
    hidden_layers: tuple[int, ...] = (),
) -> Output:
    """The output of a pass over one request."""
    (output,) = model.forward([Segment(cache, tokens, positions, visible, wanted)], hidden_layers=hidden_layers)
    return output


def score(model: TargetModel, cache: TreeCache, tree: ArrayTree) -> Tensor:
    """Logits of every node of a tree in one pass."""
    return run(model, cache, tree.tokens, tree.depths + cache.length, tree.ancestors).logits


@torch.inference_mode()
def decode(module: PreTrainedModel, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits `[tokens, vocab]` that transformers computes along each path of token ids, one token at a time."""
    cache = DynamicCache(config=module.config)
    if prefix:
        module(input_ids=torch.tensor([list(prefix)]), **_as_cache(module, cache))
    return [_decode(module, deepcopy(cache), path, len(prefix)) for path in paths]


def _decode(module: PreTrainedModel, cache: DynamicCache, path: Sequence[int], start: int) -> Tensor:
    return torch.cat([_step(module, cache, token, position) for position, token in enumerate(path, start)])


def _step(module: PreTrainedModel, cache: DynamicCache, token: int, position: int) -> Tensor:
    positions = torch.tensor([[position]])  # Bamba counts from 0 in every pass if it is not told
    return module(input_ids=torch.tensor([[token]]), position_ids=positions, **_as_cache(module, cache)).logits[0]


def _as_cache(module: PreTrainedModel, cache: DynamicCache) -> dict[str, DynamicCache]:
    """The KV cache by the name that the version of transformers has for it."""
    names = signature(module.forward).parameters
    return {next(name for name in ("cache", "cache_params", "past_key_values") if name in names): cache}


def worst_gap(logits: Tensor, module: PreTrainedModel, prefix: Sequence[int], tree: ArrayTree) -> float:
    """Largest difference between a tree's logits `[nodes, vocab]` and transformers' own, over every path."""
    paths = leaf_paths(tree)
    expected = decode(module, prefix, [tree.tokens[path].tolist() for path in paths])
    gaps = [(logits[path] - along).abs().max() for path, along in zip(paths, expected, strict=True)]
    return float(torch.stack(gaps).max())
