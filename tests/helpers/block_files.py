"""Checkpoints of block drafters of every format with random weights, and their logits in plain float64."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from helpers import eagle3_files

VOCAB, HIDDEN, DEPTH, BLOCK, MASK = eagle3_files.VOCAB, eagle3_files.TARGET_HIDDEN, 6, 5, 21
HEADS, GROUPS, WIDTH, LAYERS, RANK, EPS = 4, 2, 8, 2, 4, 1e-6
target = eagle3_files.target


@dataclass(frozen=True)
class Kind:
    """What one checkpoint is like.

    `states` are the target's hidden states it reads, as transformers counts them; the first `first` rows of a block
    predict nothing.
    """

    config: dict[str, Any]
    first: int = 1
    causal: tuple[bool, ...] = (False, False)
    windows: tuple[int | None, ...] = (None, None)
    transition: str | None = None
    draft_vocab: int = VOCAB
    own: bool = False
    states: tuple[int, ...] = (2, 4)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def levels(self) -> int:
        return BLOCK - self.first


LAYER = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": 20,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": WIDTH,
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
}
ZLAB = {**LAYER, "architectures": ["DFlashDraftModel"], "num_target_layers": DEPTH, "block_size": BLOCK}
READ = {"target_layer_ids": [1, 3], "mask_token_id": MASK}
DSPARK = {**LAYER, **READ, "architectures": ["Qwen3DSparkModel"], "num_target_layers": DEPTH, "block_size": BLOCK}
SPECULATORS = {
    "transformer_layer_config": LAYER,
    "block_size": BLOCK,
    "aux_hidden_state_layer_ids": [2, 4],
    "mask_token_id": MASK,
    "draft_vocab_size": 11,
}
WINDOWED = ["sliding_attention", "full_attention"]
SELECTOR = {"selector_rank": RANK, "selector_top_k": 6, "input_embedding_scale": 0.5, "output_multiplier": 0.25}
KINDS = {
    "DFlash": Kind({**ZLAB, "dflash_config": READ}),
    "DFlash, block size within": Kind(
        {**{key: value for key, value in ZLAB.items() if key != "block_size"}}
        | {"dflash_config": {**READ, "block_size": BLOCK}}
    ),
    "JetSpec": Kind({**ZLAB, "dflash_config": {**READ, "causal": True}}, causal=(True, True)),
    "DSpark": Kind({**DSPARK, "markov_rank": RANK, "markov_head_type": "vanilla"}, 0, transition="vanilla", own=True),
    "DSpark, gated": Kind(
        {**DSPARK, "markov_rank": RANK, "markov_head_type": "gated"}, 0, transition="gated", own=True
    ),
    "DSpark, recurrent": Kind(
        {**DSPARK, "markov_rank": RANK, "markov_head_type": "rnn"}, 0, transition="rnn", own=True
    ),
    "speculators, DFlash": Kind(
        {**SPECULATORS, "speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"]},
        draft_vocab=11,
        own=True,
    ),
    "speculators, DSpark": Kind(
        {**SPECULATORS, "speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"]}
        | {"markov_rank": RANK, "markov_head_type": "vanilla", "sample_from_anchor": True},
        0,
        transition="vanilla",
        draft_vocab=11,
        own=True,
    ),
    "speculators, windows": Kind(
        {**SPECULATORS, "speculators_model_type": "dflash", "draft_vocab_size": VOCAB}
        | {"transformer_layer_config": {**LAYER, "sliding_window": 4, "layer_types": WINDOWED}},
        own=True,
        causal=(True, False),
        windows=(4, None),
    ),
    "DFlash2": Kind(
        {**ZLAB, "architectures": ["DFlash2DraftModel"], "layer_types": WINDOWED, "sliding_window": 4}
        | {"dflash_config": {**READ, "conv_kernel_size": 3, "conv_group_size": 8, **SELECTOR}},
        transition="selector",
        causal=(True, False),
        windows=(4, None),
        renamed={
            f"candidate_selector.{name}_codebook.weight": f"candidate_selector.{name}_codebook"
            for name in ("predecessor", "successor")
        },
    ),
    "transformers": Kind(
        {
            **LAYER,
            **READ,
            "model_type": "muse_glimmer_assistant",
            "block_size": BLOCK,
            "layer_types": ["full_attention"] * 2,
        },
        renamed={"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."},
    ),
}


def weights(kind: Kind, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors, by the names of z-lab and DeepSpec."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, len(kind.states) * HIDDEN)}
    for index in range(LAYERS):
        name = f"layers.{index}."
        shapes |= {name + "self_attn.q_proj.weight": (HEADS * WIDTH, HIDDEN)}
        shapes |= {f"{name}self_attn.{each}_proj.weight": (GROUPS * WIDTH, HIDDEN) for each in "kv"}
        shapes |= {name + "self_attn.o_proj.weight": (HIDDEN, HEADS * WIDTH)}
        shapes |= {f"{name}mlp.{each}_proj.weight": (20, HIDDEN) for each in ("gate", "up")}
        shapes |= {name + "mlp.down_proj.weight": (HIDDEN, 20)}
    if kind.own:
        shapes |= {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (kind.draft_vocab, HIDDEN)}
    if kind.transition == "selector":
        shapes |= {f"candidate_selector.{name}_codebook.weight": (VOCAB, RANK) for name in ("predecessor", "successor")}
        shapes |= {"candidate_selector.hidden_projection.weight": (RANK, HIDDEN)}
        for name in (f"layers.{index}.{part}_conv." for index in range(LAYERS) for part in ("attention", "mlp")):
            shapes |= {name + "base_kernel": (2, 3, HIDDEN), name + "kernel_projection.weight": (2 * 3 * 4, HIDDEN)}
    elif kind.transition:
        shapes |= {"markov_head.markov_w1.weight": (VOCAB, RANK)}
        shapes |= {"markov_head.markov_w2.weight": (kind.draft_vocab, RANK)}
    if kind.transition == "gated":
        shapes |= {"markov_head.gate_proj.weight": (RANK, HIDDEN + RANK), "markov_head.gate_proj.bias": (RANK,)}
    if kind.transition == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN)}
        shapes |= {"markov_head.joint_proj.bias": (3 * RANK,)}
    made = {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    norms = {"hidden_norm.weight": HIDDEN, "norm.weight": HIDDEN}
    for index in range(LAYERS):
        norms |= {f"layers.{index}.{each}_layernorm.weight": HIDDEN for each in ("input", "post_attention")}
        norms |= {f"layers.{index}.self_attn.{each}_norm.weight": WIDTH for each in "qk"}
    made |= {name: 1 + 0.3 * torch.randn(size, generator=generator) for name, size in norms.items()}
    if kind.draft_vocab != VOCAB:
        ids = torch.randperm(VOCAB, generator=generator)[: kind.draft_vocab].sort().values
        made |= {
            "d2t": ids - torch.arange(len(ids)),
            "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True),
        }
    return made


def write(folder: Path, kind: Kind, tensors: dict[str, Tensor]) -> Path:
    """Write a checkpoint in its format."""
    named = {}
    for name, tensor in tensors.items():
        new = next((new + name.removeprefix(old) for old, new in kind.renamed.items() if name.startswith(old)), name)
        named[new] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(kind.config))
    return folder


def path_logits(kind: Kind, tensors: dict[str, Tensor], states: Sequence[Tensor], path: Sequence[int]) -> list[Tensor]:
    """The logits `[draft_vocab]` after a root and after each token drafted behind it, by the authors' formulas.

    Args:
        kind: of the checkpoint.
        tensors: its tensors, with the target's embedding and head where it has none.
        states: the target's hidden states `[tokens, hidden]` that it reads, of all tokens before the root.
        path: the root and the drafted tokens.
    """
    own = {name: tensor.double() for name, tensor in tensors.items()}
    context = _norm(torch.cat([*states], -1).double() @ own["fc.weight"].T, own["hidden_norm.weight"])
    convolved = kind.transition == "selector"
    x = own["embed_tokens.weight"][[path[0], *[MASK] * (BLOCK - 1)]] * (0.5 if convolved else 1)
    for index in range(LAYERS):
        part = {name.removeprefix(f"layers.{index}."): each for name, each in own.items()}
        x = x + _around(
            part,
            "attention_conv.",
            _norm(x, part["input_layernorm.weight"]),
            lambda rows, part=part, index=index: _attend(kind, index, part, rows, context),
        )
        x = x + _around(
            part,
            "mlp_conv.",
            _norm(x, part["post_attention_layernorm.weight"]),
            lambda rows, part=part: _mlp(part, rows),
        )
    rows = _norm(x, own["norm.weight"])[kind.first :]
    found, memory = [], torch.zeros(RANK, dtype=torch.float64)
    for row, token in zip(rows, path, strict=False):
        logits = row @ own["lm_head.weight"].T * (0.25 if convolved else 1)
        if convolved:
            best = logits.argsort(descending=True)[:6]
            query = own["candidate_selector.predecessor_codebook.weight"][token] * (
                own["candidate_selector.hidden_projection.weight"] @ row
            )
            scores = logits[best] + own["candidate_selector.successor_codebook.weight"][best] @ query
            logits = torch.full_like(logits, -torch.inf).index_copy(0, best, scores)
        elif kind.transition:
            state, memory = _transition(kind, own, own["markov_head.markov_w1.weight"][token], row, memory)
            logits = logits + state @ own["markov_head.markov_w2.weight"].T
        found.append(logits)
    return found


def _transition(
    kind: Kind, own: dict[str, Tensor], above: Tensor, row: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    if kind.transition == "vanilla":
        return above, memory
    if kind.transition == "gated":
        gate = own["markov_head.gate_proj.weight"] @ torch.cat((row, above)) + own["markov_head.gate_proj.bias"]
        return torch.sigmoid(gate) * above, memory
    joint = own["markov_head.joint_proj.weight"] @ torch.cat((memory, above, row)) + own["markov_head.joint_proj.bias"]
    gate, candidate, output = joint[:RANK], joint[RANK : 2 * RANK], joint[2 * RANK :]
    gate = torch.sigmoid(gate)
    return torch.tanh(output), gate * memory + (1 - gate) * torch.tanh(candidate)


def _mlp(part: dict[str, Tensor], rows: Tensor) -> Tensor:
    gate = torch.nn.functional.silu(rows @ part["mlp.gate_proj.weight"].T)
    return (gate * (rows @ part["mlp.up_proj.weight"].T)) @ part["mlp.down_proj.weight"].T


def _around(part: dict[str, Tensor], name: str, rows: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    """A part of a layer between two convolutions whose kernels its input decides, channel by channel."""
    if name + "base_kernel" not in part:
        return between(rows)
    base, changing = part[name + "base_kernel"], rows @ part[name + "kernel_projection.weight"].T
    changing = changing.view(len(rows), 2, 3, 4)

    def convolve(given: Tensor, side: int) -> Tensor:
        made = torch.zeros_like(given)
        for at in range(len(given)):
            for channel in range(HIDDEN):
                for back in range(min(3, at + 1)):
                    kernel = base[side, back, channel] + changing[at, side, back, channel // 8]
                    made[at, channel] += kernel * given[at - back, channel]
        return made

    return convolve(between(convolve(rows, 0)), 1)


def _attend(kind: Kind, index: int, part: dict[str, Tensor], x: Tensor, context: Tensor) -> Tensor:
    """Queries of the block; keys and values of the context and the block."""
    before, everything = len(context), torch.cat((context, x))
    q, k, v = (part[f"self_attn.{each}_proj.weight"] for each in "qkv")
    places = torch.arange(len(everything), dtype=torch.float64)
    queries = _rotate(_norm((x @ q.T).view(len(x), HEADS, WIDTH), part["self_attn.q_norm.weight"]), places[before:])
    keys = _rotate(_norm((everything @ k.T).view(-1, GROUPS, WIDTH), part["self_attn.k_norm.weight"]), places)
    values = (everything @ v.T).view(-1, GROUPS, WIDTH)
    keys, values = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / WIDTH**0.5
    away = places[before:, None] - places[None]
    if kind.causal[index]:
        scores = scores.masked_fill((away < 0)[None], -torch.inf)
    if window := kind.windows[index]:
        scores = scores.masked_fill((away >= window)[None], -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(len(x), -1)
    return mixed @ part["self_attn.o_proj.weight"].T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def _rotate(x: Tensor, places: Tensor) -> Tensor:
    """Rotary embedding of `[rows, heads, width]`, whose halves are turned against each other."""
    half = WIDTH // 2
    angles = places[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    one, two = x[..., :half], x[..., half:]
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
