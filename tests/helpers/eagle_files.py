"""EAGLE-1 and EAGLE-2 checkpoints with random weights, and their logits in plain float64 numpy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from helpers import eagle3_files
from helpers.eagle3_files import VOCAB, Kind

SAFEAI = Kind(prefix="layers.0.", draft_vocab=VOCAB, states=(eagle3_files.DEPTH,), own_embedding=True, theta=5000.0)
BIAS = "fc.bias"
KINDS = {
    "EAGLE-1": replace(SAFEAI, config={"bias": True, "rope_theta": 5000.0}),
    "EAGLE-2, biased attention and the target's embedding": replace(
        SAFEAI, own_embedding=False, biased=True, config={"bias": False, "rope_theta": 5000.0}
    ),
    "two layers": replace(SAFEAI, layers=2, write="safetensors", config={"rope_theta": 5000.0}),
    "names as vLLM's": replace(SAFEAI, wrapped=True, config={"rope_theta": 5000.0}),
    "vLLM speculators": replace(
        SAFEAI,
        own_embedding=False,
        write="safetensors",
        config={"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"], "fusion_bias": True},
    ),
}
"""SafeAILab's files with and without a bias, and other names for the same."""


def weights(kind: Kind) -> dict[str, Tensor]:
    """Random tensors under SafeAILab's names."""
    made = eagle3_files.weights(replace(kind, states=(0, 0)))
    absent = {"norm.weight", "lm_head.weight", "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"}
    tensors = {name: tensor for name, tensor in made.items() if name not in absent}
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        tensors[name] = tensors[name][:, : kind.hidden].clone()
    tensors.pop("layers.0.self_attn.o_proj.bias", None)
    if kind.config.get("bias") or kind.config.get("fusion_bias"):
        tensors[BIAS] = torch.randn(kind.hidden, generator=torch.Generator().manual_seed(4))
    return tensors


def configuration(kind: Kind) -> dict:
    """The contents of config.json."""
    if "fusion_bias" not in kind.config:
        return {**kind.flat, **kind.config}
    return {**kind.config, "layernorms": False, "transformer_layer_config": {**kind.flat, "rope_theta": kind.theta}}


def write(folder: Path, kind: Kind, tensors: dict[str, Tensor]) -> Path:
    """A checkpoint folder."""
    if "fusion_bias" in kind.config:
        renamed = (("fc.", "fusion_fc."), ("layers.0.", "transformer."))
        for ours, theirs in renamed:
            tensors = {name.replace(ours, theirs): tensor for name, tensor in tensors.items()}
    return eagle3_files.write(folder, kind, tensors, configuration(kind))


class Formulas(eagle3_files.Formulas):
    """The head in float64, one row after the other: section 3.1 of EAGLE, with the layer of SafeAILab's code.

    Args:
        kind: of the checkpoint.
        tensors: as `weights` made them.
        embedding: `[vocab, hidden]` the target's, for heads without their own.
        output: `[vocab, hidden]` the target's output layer.
    """

    def __init__(self, kind: Kind, tensors: dict[str, Tensor], embedding: Tensor, output: Tensor) -> None:
        super().__init__(kind, tensors, embedding)
        self.output = output.detach().double().numpy()

    def logits(self, hidden_states: list[np.ndarray], tokens: list[int], path: list[int]) -> np.ndarray:
        rows: list[list] = [[] for _ in range(self.kind.layers)]
        for position, (state, token) in enumerate(zip(hidden_states[0], tokens, strict=True)):
            out = self.row(state, token, position, rows)
        for position, token in enumerate(path, start=len(tokens)):
            out = self.row(out, token, position, rows)
        return self.output @ out

    def row(self, state: np.ndarray, token: int, position: int, rows) -> np.ndarray:
        x = self.linear(np.concatenate((self.w["embed_tokens.weight"][token], state)), "fc")
        for layer in range(self.kind.layers):
            prefix = f"layers.{layer}."
            normed = self.norm(x, f"{prefix}input_layernorm") if layer else x
            x = x + self.attention(normed, layer, position, rows[layer])
            x = x + self.mlp(x, prefix)
        return x
