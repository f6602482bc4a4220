"""Checks that texts follow a model's current weights, also after edits of weights that a backend has packed.

The laws of toy models do not show that, since their tables are read anew for every row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from drafttree.drafters import SuffixDrafter
from drafttree.engine.decoder import Decoder
from drafttree.measure.reference import transformers_generate
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.policies import Talon

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
LENGTH = 24
VOCABULARY = 96


@dataclass(frozen=True)
class EditsFinding:
    """The result of texts after edits.

    Attributes:
        backend: the backend that ran the passes.
        texts: the number of texts, each after another edit.
        stale: the edits after which a text differed from that of transformers' `generate` on the same module.
    """

    backend: str
    texts: int
    stale: list[str]

    @property
    def passed(self) -> bool:
        """Whether every text followed the weights."""
        return not self.stale


def check_edits() -> EditsFinding:
    """Check texts of a small model after edits of its weights, as training, merging and loading make them."""
    module = _random_model()
    decoder = Decoder(TargetModel(module, choose_backend), SuffixDrafter(VOCABULARY), Talon(width=2, budget=8))
    stale: list[str] = []
    for name, edit in EDITS.items():
        with torch.no_grad():
            edit(module.model.layers[0])
        text = decoder.generate(PROMPT, max_new_tokens=LENGTH, temperature=0).tokens
        if text != transformers_generate(decoder, PROMPT, max_new_tokens=LENGTH, temperature=0).tokens:
            stale.append(name)
    target: Any = decoder.target
    return EditsFinding(target.backend.name, len(EDITS), stale)


def _random_model() -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def _load(layer: Any) -> None:
    layer.self_attn.load_state_dict({name: -value for name, value in layer.self_attn.state_dict().items()})


def _add(weight: Tensor) -> None:
    generator = torch.Generator("cpu").manual_seed(1)
    weight += torch.randn(weight.shape, generator=generator, dtype=weight.dtype, device="cpu")


def _write_data(layer: Any) -> None:
    layer.mlp.up_proj.weight.data[:] = layer.mlp.up_proj.weight.data.flip(0)


def _replace(layer: Any) -> None:
    layer.mlp.gate_proj.weight = torch.nn.Parameter(layer.mlp.gate_proj.weight.flip(1).clone())


EDITS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda layer: None,
    "a weight in place": lambda layer: _add(layer.mlp.down_proj.weight),
    "a norm in place": lambda layer: _add(layer.input_layernorm.weight),
    "through .data": _write_data,
    "another parameter": _replace,
    "load_state_dict": _load,
}
"""The edits by name, one before each text."""
