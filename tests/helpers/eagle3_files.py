"""EAGLE-3 checkpoints of every format with random weights, and their logits in plain float64 numpy."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from testing import tiny

DEPTH, TARGET_HIDDEN, VOCAB = 4, 32, 23


def target(vocab: int = VOCAB, seed: int = 0, depth: int = DEPTH) -> PreTrainedModel:
    """A random Llama of the sizes the heads are made for."""
    sizes = {**tiny.GROUPED, "vocab_size": vocab, "num_hidden_layers": depth}
    return tiny.from_config(LlamaConfig(**sizes), seed)


@dataclass
class Kind:
    """What one checkpoint is like.

    `states` are the target's hidden states it reads, as transformers counts them; `windows` are those of its layers;
    `shuffled` draft ids are in no order, and `wrapped` names begin with `model.`.
    """

    prefix: str = "midlayer."
    hidden: int = TARGET_HIDDEN
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    layers: int = 1
    draft_vocab: int = 11
    own_embedding: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    input_norm: bool = False
    normed_residual: bool = False
    normed_output: bool = False
    normed_logits: bool = True
    biased: bool = False
    shuffled: bool = False
    wrapped: bool = False
    windows: tuple[int | None, ...] = (None, None)
    theta: float = 10000.0
    states: tuple[int, ...] = (2, DEPTH // 2, DEPTH - 3)
    write: str = "bin"
    config: dict = field(default_factory=dict)

    @property
    def flat(self) -> dict:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden,
            "intermediate_size": 20,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": 1,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "vocab_size": VOCAB,
        }


KINDS = {
    "SafeAILab": Kind(config={"draft_vocab_size": 11}),
    "SafeAILab, whole vocabulary": Kind(draft_vocab=VOCAB, write="shards", config={"draft_vocab_size": VOCAB}),
    "SpecForge": Kind(
        fc_norm=True,
        normed_output=True,
        theta=5000.0,
        states=(1, 2, 3),
        write="safetensors",
        config={
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": 11,
            "rope_theta": 5000.0,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_output": True},
        },
    ),
    "AngelSlim": Kind(
        head_dim=12,
        own_embedding=True,
        theta=1e6,
        write="safetensors",
        config={"architectures": ["Eagle3LlamaForCausalLM"], "draft_vocab_size": 11, "rope_theta": 1e6},
    ),
    "vLLM speculators": Kind(
        prefix="layers.0.",
        hidden=24,
        head_dim=6,
        layers=2,
        own_embedding=True,
        qk_norm=True,
        input_norm=True,
        normed_residual=True,
        theta=2000.0,
        states=(1, 3, 2),
        write="safetensors",
        config={
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 11,
            "target_hidden_size": TARGET_HIDDEN,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "eagle_aux_hidden_state_layer_ids": [1, 3, 2],
        },
    ),
    "vLLM speculators, one sliding window": Kind(
        prefix="layers.0.",
        layers=2,
        qk_norm=True,
        windows=(3, None),
        states=(3, 1, 2),
        write="safetensors",
        config={
            "draft_vocab_size": 11,
            "eagle_aux_hidden_state_layer_ids": [3, 1, 2],
            "transformer_layer_config": {
                "sliding_window": 3,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
        },
    ),
    "SafeAILab, sliding window and numbers as vLLM's": Kind(
        windows=(4, 4),
        states=(1, 2, 3),
        config={"draft_vocab_size": 11, "sliding_window": 4, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    ),
    "SpecForge, a norm that is not used": Kind(
        normed_logits=False,
        write="safetensors",
        config={"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 11, "norm_output": False},
    ),
    "SpecForge, norm_output false and a trained norm": Kind(
        write="safetensors",
        config={"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 11, "norm_output": False},
    ),
    "SafeAILab, biases and draft ids in no order": Kind(
        biased=True,
        shuffled=True,
        config={"draft_vocab_size": 11, "attention_bias": True},
    ),
    "SpecForge, names as TensorRT-LLM's": Kind(
        wrapped=True,
        normed_output=True,
        states=(1, 2, 3),
        write="safetensors",
        config={
            "draft_vocab_size": 11,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "return_hidden_post_norm": True},
        },
    ),
    "DeepSpec": Kind(
        prefix="layers.0.",
        qk_norm=True,
        own_embedding=True,
        draft_vocab=VOCAB,
        states=(1, 2, 2, 3, 1),
        write="safetensors",
        config={"architectures": ["Qwen3Eagle3Model"], "num_target_layers": DEPTH, "target_layer_ids": [0, 1, 1, 2, 0]},
    ),
}
WINDOWLESS = [name for name, kind in KINDS.items() if not any(kind.windows)]
"""The kinds that run on fused layers."""


def ids_of(kind: Kind) -> list[int]:
    """The target ids a head can propose."""
    if kind.draft_vocab == VOCAB:
        return list(range(VOCAB))
    ids = np.random.default_rng(3).permutation(VOCAB)[: kind.draft_vocab].tolist()
    return ids if kind.shuffled else sorted(ids)


def weights(kind: Kind, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors under the names of the format."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, mean: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3 + mean

    sizes = {"q": kind.heads * kind.head_dim, "o": kind.hidden}
    wide, narrow, mlp = kind.heads * kind.head_dim, kind.kv_heads * kind.head_dim, kind.flat["intermediate_size"]
    tensors = {
        "fc.weight": normal(kind.hidden, len(kind.states) * TARGET_HIDDEN),
        "norm.weight": normal(kind.hidden, mean=1) if kind.normed_logits else torch.ones(kind.hidden),
        "lm_head.weight": normal(kind.draft_vocab, kind.hidden),
    }
    for layer in range(kind.layers):
        prefix, into = (kind.prefix, 2 * kind.hidden) if layer == 0 else (f"layers.{layer}.", kind.hidden)
        tensors |= {
            f"{prefix}input_layernorm.weight": normal(kind.hidden, mean=1),
            f"{prefix}post_attention_layernorm.weight": normal(kind.hidden, mean=1),
            f"{prefix}self_attn.q_proj.weight": normal(wide, into),
            f"{prefix}self_attn.k_proj.weight": normal(narrow, into),
            f"{prefix}self_attn.v_proj.weight": normal(narrow, into),
            f"{prefix}self_attn.o_proj.weight": normal(kind.hidden, wide),
            f"{prefix}mlp.gate_proj.weight": normal(mlp, kind.hidden),
            f"{prefix}mlp.up_proj.weight": normal(mlp, kind.hidden),
            f"{prefix}mlp.down_proj.weight": normal(kind.hidden, mlp),
        }
        if layer == 0:
            tensors[f"{prefix}hidden_norm.weight"] = normal(kind.hidden, mean=1)
        if kind.biased:
            tensors |= {f"{prefix}self_attn.{name}_proj.bias": normal(narrow) for name in "kv"}
            tensors |= {f"{prefix}self_attn.{name}_proj.bias": normal(rows) for name, rows in sizes.items()}
        if kind.qk_norm:
            tensors |= {f"{prefix}self_attn.{name}_norm.weight": normal(kind.head_dim, mean=1) for name in "qk"}
    if kind.own_embedding:
        tensors["embed_tokens.weight"] = normal(VOCAB, kind.hidden)
    if kind.fc_norm:
        tensors |= {f"fc_norm.{state}.weight": normal(TARGET_HIDDEN, mean=1) for state in range(3)}
    if kind.input_norm:
        tensors["input_norm.weight"] = normal(3 * TARGET_HIDDEN, mean=1)
    if kind.draft_vocab < VOCAB:
        ids = torch.tensor(ids_of(kind))
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors


def wrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names that a checkpoint saved from a wrapper gives them."""
    outside = ("lm_head.weight", "norm.weight", "d2t", "t2d")
    return {name if name in outside else f"model.{name}": tensor for name, tensor in tensors.items()}


def tied() -> tuple[dict[str, Tensor], dict]:
    """Tensors and configuration of a head whose output layer is its embedding."""
    kind = replace(KINDS["AngelSlim"], draft_vocab=VOCAB)
    tensors = weights(kind)
    del tensors["lm_head.weight"]
    return tensors, {**configuration(kind), "draft_vocab_size": VOCAB, "tie_word_embeddings": True}


def configuration(kind: Kind) -> dict:
    """The contents of config.json; speculators keep the layer's fields in one of their own."""
    if kind.prefix != "layers.0." or "target_layer_ids" in kind.config:
        return {**kind.flat, **kind.config}
    layer = {**kind.flat, "model_type": "qwen3", "head_dim": kind.head_dim, "rope_theta": kind.theta}
    return {**kind.config, "transformer_layer_config": layer | kind.config.get("transformer_layer_config", {})}


def write(folder: Path, kind: Kind, tensors: dict[str, Tensor], config: dict | None = None) -> Path:
    """A checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = wrapped(tensors) if kind.wrapped else tensors
    (folder / "config.json").write_text(json.dumps(configuration(kind) if config is None else config))
    if kind.write == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif kind.write == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    else:
        names = sorted(tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, members in shards.items():
            save_file({name: tensors[name] for name in members}, folder / file)
        index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


class Formulas:
    """The head in float64, one row after the other, from the formulas alone.

    Args:
        kind: of the checkpoint.
        tensors: as written.
        embedding: `[vocab, hidden]` the target's, for heads without their own.
    """

    def __init__(self, kind: Kind, tensors: dict[str, Tensor], embedding: Tensor) -> None:
        self.kind = kind
        self.w = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        self.w.setdefault("embed_tokens.weight", embedding.detach().double().numpy())

    def logits(self, hidden_states: list[np.ndarray], tokens: list[int], path: list[int]) -> np.ndarray:
        """`[vocab]` after committed rows, (state, token) pairs, and a drafted path below them.

        Args:
            features: `[rows, target_hidden]` for each state read.
            tokens: one for each row.
            path: drafted tokens.
        """
        rows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(self.kind.layers)]
        fused = self.fuse(hidden_states)
        for position, (state, token) in enumerate(zip(fused, tokens, strict=True)):
            out = self.row(state, token, position, rows)
        for position, token in enumerate(path, start=len(tokens)):
            out = self.row(self.norm(out, "norm") if self.kind.normed_output else out, token, position, rows)
        drafted = self.w["lm_head.weight"] @ (self.norm(out, "norm") if self.kind.normed_logits else out)
        logits = np.full(VOCAB, -np.inf)
        logits[ids_of(self.kind)] = drafted
        return logits

    def fuse(self, hidden_states: list[np.ndarray]) -> np.ndarray:
        if self.kind.fc_norm:
            hidden_states = [self.norm(state, f"fc_norm.{index}") for index, state in enumerate(hidden_states)]
        joined = np.concatenate(hidden_states, 1)
        return (self.norm(joined, "input_norm") if self.kind.input_norm else joined) @ self.w["fc.weight"].T

    def row(self, state: np.ndarray, token: int, position: int, rows) -> np.ndarray:
        prefix = self.kind.prefix
        normed = self.norm(state, f"{prefix}hidden_norm")
        embedded = self.norm(self.w["embed_tokens.weight"][token], f"{prefix}input_layernorm")
        residual = normed if self.kind.normed_residual else state
        x = residual + self.attention(np.concatenate((embedded, normed)), 0, position, rows[0])
        x = x + self.mlp(x, prefix)
        for layer in range(1, self.kind.layers):
            prefix = f"layers.{layer}."
            x = x + self.attention(self.norm(x, f"{prefix}input_layernorm"), layer, position, rows[layer])
            x = x + self.mlp(x, prefix)
        return x

    def attention(self, x: np.ndarray, layer: int, position: int, rows) -> np.ndarray:
        kind, name = self.kind, f"layers.{layer}.self_attn." if layer else f"{self.kind.prefix}self_attn."
        q, k, v = (self.linear(x, f"{name}{part}_proj").reshape(-1, kind.head_dim) for part in ("q", "k", "v"))
        if kind.qk_norm:
            q, k = self.norm(q, f"{name}q_norm"), self.norm(k, f"{name}k_norm")
        rows.append((self.rotate(k, position), v))
        seen = rows[-kind.windows[layer] :] if kind.windows[layer] else rows
        keys, values = (np.stack(part) for part in zip(*seen, strict=True))
        out = []
        for head, query in enumerate(self.rotate(q, position)):
            group = head // (kind.heads // kind.kv_heads)
            scores = keys[:, group] @ query / np.sqrt(kind.head_dim)
            share = np.exp(scores - scores.max())
            out.append(share / share.sum() @ values[:, group])
        return self.linear(np.concatenate(out), f"{name}o_proj")

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.w[f"{name}.weight"] @ x + self.w.get(f"{name}.bias", 0)

    def rotate(self, heads: np.ndarray, position: int) -> np.ndarray:
        half = self.kind.head_dim // 2
        angle = position * self.kind.theta ** (-np.arange(half) / half)
        a, b = heads[:, :half], heads[:, half:]
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), 1)

    def mlp(self, x: np.ndarray, prefix: str) -> np.ndarray:
        x = self.norm(x, f"{prefix}post_attention_layernorm")
        gate = self.w[f"{prefix}mlp.gate_proj.weight"] @ x
        up = self.w[f"{prefix}mlp.up_proj.weight"] @ x
        return self.w[f"{prefix}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        eps = self.kind.flat["rms_norm_eps"]
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * self.w[f"{name}.weight"]
