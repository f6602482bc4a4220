"""Checkpoints of trained drafters, small and random: a row for each format, and one writer.

A shape is written as the papers do: T is the target's width, H the drafter's, V the vocabulary, D the drafted part of
it, A the attention heads, G those of keys, W their width, Q and K all of them (A W and G W), I the width within an MLP,
R a rank, B a block. The same letters stand for sizes in a row's config.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from helpers.checkpoints import formulas
from testing import tiny

DEPTH, HIDDEN, VOCAB = 4, tiny.SIZES["hidden_size"], 23
BLOCK, MASK = 5, 21
Tensors = dict[str, Tensor]


def target(vocab: int = VOCAB, seed: int = 0, depth: int = DEPTH) -> PreTrainedModel:
    """A random Llama of the sizes the drafters are made for."""
    return tiny.from_config(LlamaConfig(**{**tiny.GROUPED, "vocab_size": vocab, "num_hidden_layers": depth}), seed)


@dataclass(frozen=True)
class Format:
    """How one kind of checkpoint is written, and what it computes.

    Attributes:
        kind: what `recognise` calls it.
        formula: of `formulas`.
        config: the contents of config.json.
        shapes: of the tensors, by the names of the authors' modules; "ones" before a shape is a norm nobody trained.
        states: the target's hidden states it reads, as transformers counts them.
        facts: arguments of the formula.
        sizes: letters that differ from the usual.
        renamed: other beginnings of names in the file.
        file: its name; "shards" are two files and an index.
        levels: how deep it drafts; None is as deep as one likes.
        shuffled: draft ids are in no order.
    """

    kind: str
    formula: Callable[..., Tensor]
    config: Mapping[str, Any]
    shapes: Mapping[str, str]
    states: tuple[int, ...] = (DEPTH,)
    facts: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    file: str = "model.safetensors"
    levels: int | None = None
    shuffled: bool = False
    theta: float = 10000.0
    eps: float = 1e-5

    def but(self, **changes: Any) -> Self:
        """The same but for some fields; mappings are added to, and None in them takes away."""
        for name, change in changes.items():
            if isinstance(change, Mapping):
                merged = {**getattr(self, name), **change}
                changes[name] = {key: value for key, value in merged.items() if value is not None}
        return replace(self, **changes)

    @property
    def letters(self) -> dict[str, int]:
        usual = {"T": HIDDEN, "H": HIDDEN, "V": VOCAB, "A": 4, "G": 2, "W": 8, "I": 20, "R": 4, "B": BLOCK} | {
            **self.sizes
        }
        return {"D": usual["V"], "Q": usual["A"] * usual["W"], "K": usual["G"] * usual["W"]} | usual

    @property
    def draft_ids(self) -> list[int]:
        """The target's ids of the tokens it drafts."""
        vocab, drafted = self.letters["V"], self.letters["D"]
        ids = torch.randperm(vocab, generator=torch.Generator().manual_seed(3))[:drafted].tolist()
        return ids if self.shuffled else sorted(ids)

    def tensors(self, seed: int = 0) -> Tensors:
        """Random ones, by their names in the file; those of norms lie around one."""
        generator, made = torch.Generator().manual_seed(seed), {}
        for name, letters in self.shapes.items():
            trained, shape = not letters.startswith("ones "), self._shape(letters.removeprefix("ones "))
            is_norm = len(shape) == 1 and "norm" in name
            noise = torch.randn(shape, generator=generator) * (0.3 if is_norm else shape[-1] ** -0.5)
            made[self._written(name)] = is_norm + noise * trained
        if self.letters["D"] < self.letters["V"]:
            ids = torch.tensor(self.draft_ids)
            made["d2t"] = ids - torch.arange(len(ids))
            made["t2d"] = torch.zeros(self.letters["V"], dtype=torch.bool).index_fill_(0, ids, True)
        return made

    def fields(self, **changes: Any) -> dict[str, Any]:
        """The contents of config.json, with other fields."""

        def resolved(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: resolved(each) for key, each in value.items()}
            return self.letters.get(value, value) if isinstance(value, str) else value

        return resolved(self.config) | changes

    def write(
        self,
        folder: Path,
        tensors: Tensors | None = None,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        **changes: Any,
    ) -> Path:
        """Write a checkpoint.

        Args:
            folder: made if it does not exist.
            tensors: in place of random ones.
            seed: of the random ones.
            dtype: of the weights, float32 if not given.
            changes: other fields of config.json.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors(seed) if tensors is None else tensors
        if dtype:
            tensors = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
        (folder / "config.json").write_text(json.dumps(self.fields(**changes)))
        if self.file == "shards":
            names = sorted(tensors)
            shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
            for file, members in shards.items():
                save_file({name: tensors[name] for name in members}, folder / file)
            index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        elif self.file.endswith(".safetensors"):
            save_file(tensors, folder / self.file, {"format": "pt"})
        else:
            torch.save(tensors, folder / self.file)
        return folder

    def target(self) -> PreTrainedModel:
        """A random target that it is made for."""
        return target(self.letters["V"])

    def logits(
        self, tensors: Tensors, target: Any, states: Sequence[Tensor], tokens: Sequence[int], path: Sequence[int]
    ) -> Tensor:
        """The logits `[vocab]` of the token after a path, by the authors' formula in float64.

        Args:
            tensors: those in the file.
            target: whose embedding and output layer are used by drafters that have none.
            states: the hidden states read, `[tokens - 1, hidden]` each.
            tokens: committed ones; the last is the root.
            path: drafted ones below the root.
        """
        names = {self._written(name): name for name in self.shapes}
        own = {"embed_tokens.weight": target.get_input_embeddings().weight}
        own |= {"lm_head.weight": target.get_output_embeddings().weight}
        own |= {names[name]: each for name, each in tensors.items() if name in names}
        if self.config.get("tie_word_embeddings"):
            own["lm_head.weight"] = own["embed_tokens.weight"]
        parts = formulas.Parts(own, self.letters["W"], self.theta, self.eps)
        drafted = self.formula(parts, states, tokens, path, **self.facts)
        if len(drafted) == self.letters["V"]:
            return drafted
        return drafted.new_full((self.letters["V"],), -torch.inf).index_copy(0, torch.tensor(self.draft_ids), drafted)

    def _written(self, name: str) -> str:
        return next((new + name.removeprefix(old) for old, new in self.renamed.items() if name.startswith(old)), name)

    def _shape(self, letters: str) -> list[int]:
        """Numbers of a shape such as "3R 2R+H"."""
        terms = [[re.fullmatch(r"(\d*)([A-Z]?)", term) for term in side.split("+")] for side in letters.split()]
        return [sum(int(term[1] or 1) * self.letters.get(term[2], 1) for term in side) for side in terms]


def _within(prefix: str, shapes: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


NORMS = {"input_layernorm": "H", "post_attention_layernorm": "H"}
ATTENTION = {
    f"self_attn.{part}_proj": shape for part, shape in {"q": "Q H", "k": "K H", "v": "K H", "o": "H Q"}.items()
}
MLP = {"mlp.gate_proj": "I H", "mlp.up_proj": "I H", "mlp.down_proj": "H I"}
QK_NORMS = {"self_attn.q_norm": "W", "self_attn.k_norm": "W"}
LLAMA = NORMS | ATTENTION | MLP
QWEN3 = LLAMA | QK_NORMS
QKV = {"self_attn.q_proj": "Q 2H", "self_attn.k_proj": "K 2H", "self_attn.v_proj": "K 2H"}
BIASES = {
    f"layers.0.self_attn.{part}_proj.bias": shape for part, shape in {"q": "Q", "k": "K", "v": "K", "o": "H"}.items()
}
EMBEDDING, HEAD = {"embed_tokens.weight": "V H"}, {"lm_head.weight": "D H"}
LAYER = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": "H",
    "intermediate_size": "I",
    "num_attention_heads": "A",
    "num_key_value_heads": "G",
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "vocab_size": "V",
}
QWEN3_LAYER = {**LAYER, "model_type": "qwen3", "head_dim": "W"}

EAGLE3 = Format(
    "eagle3",
    formulas.eagle3,
    {**LAYER, "draft_vocab_size": "D"},
    {"fc.weight": "H 3T", "norm.weight": "H", **HEAD} | _within("layers.0.", {**LLAMA, **QKV, "hidden_norm": "H"}),
    (2, DEPTH // 2, DEPTH - 3),
    sizes={"D": 11},
    renamed={"layers.0.": "midlayer."},
    file="pytorch_model.bin",
)
SPECFORGE = EAGLE3.but(file="model.safetensors", config={"architectures": ["LlamaForCausalLMEagle3"]})
ANGELSLIM = EAGLE3.but(
    config={"architectures": ["Eagle3LlamaForCausalLM"], "rope_theta": 1e6},
    shapes=EMBEDDING,
    sizes={"W": 12},
    file="model.safetensors",
    theta=1e6,
)
READ = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
SPECULATORS = EAGLE3.but(
    config={**dict.fromkeys(LAYER), "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"},
    shapes=_within("layers.0.", QK_NORMS) | _within("layers.1.", QWEN3),
    facts={"windows": (None, None)},
    renamed={"layers.0.": None},
    file="model.safetensors",
)
EAGLE = Format(
    "eagle",
    formulas.eagle,
    {**LAYER, "bias": True, "rope_theta": 5000.0},
    {"fc.weight": "H 2H", "fc.bias": "H", **EMBEDDING}
    | _within("layers.0.", {name: shape for name, shape in LLAMA.items() if name != "input_layernorm"}),
    file="pytorch_model.bin",
    theta=5000.0,
)


def medusa_shapes(heads: int = 3, blocks: int = 1) -> dict[str, str]:
    found = {}
    for head in range(heads):
        for block in range(blocks):
            found |= {f"{head}.{block}.linear.weight": "H H", f"{head}.{block}.linear.bias": "H"}
        found[f"{head}.{blocks}.weight"] = "V H"
    return found


MEDUSA = Format(
    "medusa",
    formulas.medusa,
    {"medusa_num_heads": 3, "medusa_num_layers": 1},
    medusa_shapes(),
    file="medusa_lm_head.pt",
    levels=3,
)


def _without_projections(shapes: Mapping[str, str]) -> dict[str, None]:
    return {name: None for name in shapes if re.match(r"\d\.1\.weight|hydra_lm_head", name)}


def hydra_shapes(heads: int = 3, blocks: Sequence[int] = (0,), end: str = "", grounded: bool = True) -> dict[str, str]:
    """Heads whose blocks are at some places of a sequence, which also holds dropouts."""
    found = {}
    for head in range(heads):
        name, last = f"hydra_mlp.{head}.", f"hydra_lm_head.{head}{end}."
        parts = {"linear": f"H {head + 2}H", "res_connection": f"H {head + 2}H"} if grounded else {"linear": "H H"}
        for block in blocks:
            found |= {f"{name}{block}.{part}.weight": shape for part, shape in parts.items()}
            found |= {f"{name}{block}.{part}.bias": "H" for part in parts}
            parts = {"linear": "H H"}
        found |= {f"{last}weight": "V H", f"{last}bias": "V"}
    return found


HYDRA = Format(
    "hydra",
    formulas.hydra,
    {"hydra_head_arch": "mlp", "grounded_heads": True, "hydra_num_heads": 4, "hydra_num_layers": 1},
    {"input_embed_fn.weight": "V H"} | hydra_shapes(),
    file="hydra_lm_head.pt",
    sizes={"I": tiny.SIZES["intermediate_size"]},
    levels=3,
    eps=1e-6,
)
PREFIX = "prefix_embeding_layer."
HYDRA_PLUS = replace(
    HYDRA,
    config={"hydra_head_arch": "prefix-mlp", "hidden_state_offset": 0},
    shapes={"input_embed_fn.weight": "V H", f"{PREFIX}norm.weight": "H"}
    | _within(f"{PREFIX}layers.0.", LLAMA)
    | hydra_shapes(3, [1], ".1"),
)
BLOCK_LAYER = {**QWEN3_LAYER, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
BLOCK_LAYER |= {"rope_theta": 10000.0, "max_position_embeddings": 64}
TWO_READ = {"target_layer_ids": [0, 2], "mask_token_id": MASK}
DFLASH = Format(
    "block",
    formulas.block,
    {**BLOCK_LAYER, "architectures": ["DFlashDraftModel"], "num_target_layers": DEPTH, "block_size": "B"}
    | {"dflash_config": TWO_READ},
    {"fc.weight": "H 2T", "hidden_norm.weight": "H", "norm.weight": "H"}
    | _within("layers.0.", QWEN3)
    | _within("layers.1.", QWEN3),
    (1, 3),
    {"size": BLOCK, "mask": MASK},
    levels=BLOCK - 1,
    eps=1e-6,
)
BIGRAM = {"markov_head.markov_w1.weight": "V R", "markov_head.markov_w2.weight": "D R"}
DSPARK = DFLASH.but(
    config={"architectures": ["Qwen3DSparkModel"], "dflash_config": None, **TWO_READ}
    | {"markov_rank": "R", "markov_head_type": "vanilla"},
    shapes={**EMBEDDING, **HEAD, **BIGRAM},
    facts={"first": 0, "transition": formulas.vanilla},
    levels=BLOCK,
)
SPECULATORS_DFLASH = replace(
    DFLASH,
    config={"speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"], "block_size": "B"}
    | {"transformer_layer_config": BLOCK_LAYER, "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": MASK}
    | {"draft_vocab_size": "D"},
    shapes={**DFLASH.shapes, **EMBEDDING, **HEAD},
    sizes={"D": 11},
)
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
ONE_WINDOW = {"causal": (True, False), "windows": (4, None)}
CONVOLUTIONS = {
    f"layers.{layer}.{part}_conv.{name}": shape
    for layer in range(2)
    for part in ("attention", "mlp")
    for name, shape in {"base_kernel": "2 3 H", "kernel_projection.weight": "24 H"}.items()
}

FORMATS: dict[str, Format] = {
    "SafeAILab": EAGLE3,
    "SafeAILab, whole vocabulary": EAGLE3.but(file="shards", sizes={"D": None}),
    "SafeAILab, sliding window and numbers as vLLM's": EAGLE3.but(
        config={"sliding_window": 4, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        states=(1, 2, 3),
        facts={"windows": (4,)},
    ),
    "SafeAILab, biases and draft ids in no order": EAGLE3.but(
        config={"attention_bias": True}, shapes=BIASES, shuffled=True
    ),
    "SpecForge": SPECFORGE.but(
        config={"rope_theta": 5000.0, "eagle_config": {**READ, "norm_output": True}},
        shapes={f"fc_norm.{index}.weight": "T" for index in range(3)},
        states=(1, 2, 3),
        facts={"output_normed": True},
        theta=5000.0,
    ),
    "SpecForge, a norm that is not used": SPECFORGE.but(
        config={"norm_output": False}, shapes={"norm.weight": "ones H"}, facts={"logits_normed": False}
    ),
    "SpecForge, norm_output false and a trained norm": SPECFORGE.but(config={"norm_output": False}),
    "SpecForge, names as TensorRT-LLM's": EAGLE3.but(
        config={"eagle_config": {**READ, "return_hidden_post_norm": True}},
        states=(1, 2, 3),
        facts={"output_normed": True},
        renamed={"fc.": "model.fc.", "layers.0.": "model.midlayer."},
        file="model.safetensors",
    ),
    "AngelSlim": ANGELSLIM,
    "AngelSlim, tied": ANGELSLIM.but(
        config={"tie_word_embeddings": True}, shapes={"lm_head.weight": None}, sizes={"D": None}
    ),
    "vLLM speculators": SPECULATORS.but(
        config={"transformer_layer_config": {**QWEN3_LAYER, "rope_theta": 2000.0}, "target_hidden_size": "T"}
        | {"norm_before_residual": True, "norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 2]},
        shapes={**EMBEDDING, "input_norm.weight": "3T"},
        states=(1, 3, 2),
        facts={"residual_normed": True},
        sizes={"H": 24, "W": 6},
        theta=2000.0,
    ),
    "vLLM speculators, one sliding window": SPECULATORS.but(
        config={
            "architectures": None,
            "speculators_model_type": None,
            "eagle_aux_hidden_state_layer_ids": [3, 1, 2],
            "transformer_layer_config": {**QWEN3_LAYER, **WINDOWED, "sliding_window": 3, "use_sliding_window": True},
        },
        states=(3, 1, 2),
        facts={"windows": (3, None)},
    ),
    "DeepSpec": EAGLE3.but(
        config={"architectures": ["Qwen3Eagle3Model"], "num_target_layers": DEPTH, "draft_vocab_size": None}
        | {"target_layer_ids": [0, 1, 1, 2, 0]},
        shapes={**EMBEDDING, "fc.weight": "H 5T"} | _within("layers.0.", QK_NORMS),
        states=(1, 2, 2, 3, 1),
        sizes={"D": None},
        renamed={"layers.0.": None},
        file="model.safetensors",
    ),
    "EAGLE-1": EAGLE,
    "EAGLE-2, biased attention and the target's embedding": EAGLE.but(
        config={"bias": False},
        shapes={**BIASES, "layers.0.self_attn.o_proj.bias": None, "fc.bias": None, "embed_tokens.weight": None},
    ),
    "EAGLE, two layers": EAGLE.but(
        config={"bias": None},
        shapes={"fc.bias": None} | _within("layers.1.", LLAMA),
        facts={"layers": 2},
        file="model.safetensors",
    ),
    "EAGLE, names as vLLM's": EAGLE.but(
        config={"bias": None},
        shapes={"fc.bias": None},
        renamed={name: f"model.{name}" for name in ("fc.", "layers.0.", "embed_tokens.")},
    ),
    "EAGLE, vLLM speculators": EAGLE.but(
        config={**dict.fromkeys(EAGLE.config), "speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
        | {"fusion_bias": True, "layernorms": False, "transformer_layer_config": {**LAYER, "rope_theta": 5000.0}},
        shapes={"embed_tokens.weight": None},
        renamed={"fc.": "fusion_fc.", "layers.0.": "transformer."},
        file="model.safetensors",
    ),
    "Medusa-1": MEDUSA,
    "Medusa-1, a config that miscounts": MEDUSA.but(config={"medusa_num_heads": 2}),
    "Medusa-1, two blocks": MEDUSA.but(
        config={"medusa_num_layers": 2},
        shapes={**dict.fromkeys(MEDUSA.shapes), **medusa_shapes(blocks=2)},
    ),
    "Medusa-1, no projection": MEDUSA.but(config={}, shapes=_without_projections(MEDUSA.shapes)),
    "Medusa-1, shared by its config": MEDUSA.but(
        config={"shared_lm_head": True}, shapes=_without_projections(MEDUSA.shapes)
    ),
    "Medusa-2": MEDUSA.but(
        config={"model_type": "llama"},
        shapes={"model.embed_tokens.weight": "V H", "model.norm.weight": "H", "lm_head.weight": "V H"},
        renamed={"model.": "model.", "lm_head.": "lm_head.", "": "medusa_head."},
        file="model.safetensors",
    ),
    "Hydra": HYDRA,
    "Hydra, two blocks": HYDRA.but(config={"hydra_num_layers": 2}, shapes=hydra_shapes(3, [0, 1])),
    "Hydra, ungrounded": HYDRA.but(
        config={"grounded_heads": False}, shapes={**dict.fromkeys(HYDRA.shapes), **hydra_shapes(grounded=False)}
    ),
    "Hydra, the target's embedding": HYDRA.but(shapes={"input_embed_fn.weight": None}),
    "Hydra++": HYDRA_PLUS,
    "Hydra++, four blocks": HYDRA_PLUS.but(config={"hydra_num_layers": 4}, shapes=hydra_shapes(3, [1, 3, 5, 7], ".1")),
    "Hydra++, as published": HYDRA_PLUS.but(
        shapes={f"{PREFIX}embed_tokens.weight": "V H", f"{PREFIX}layers.0.self_attn.rotary_emb.inv_freq": "4"}
    ),
    "Hydra++, shared projection": HYDRA_PLUS.but(
        config={"shared_lm_head": True}, shapes=_without_projections(HYDRA_PLUS.shapes)
    ),
    "DFlash": DFLASH,
    "DFlash, block size within": DFLASH.but(
        config={"block_size": None, "dflash_config": {**TWO_READ, "block_size": "B"}}
    ),
    "DFlash, windows": DFLASH.but(config=WINDOWED, facts=ONE_WINDOW),
    "DFlash, windows, told whole": DFLASH.but(
        config={**WINDOWED, "dflash_config": {**TWO_READ, "causal": False}},
        facts={**ONE_WINDOW, "causal": (False, False)},
    ),
    "DFlash, windows, told twice": DFLASH.but(
        config={**WINDOWED, "is_causal": True, "dflash_config": {**TWO_READ, "causal": False}},
        facts={**ONE_WINDOW, "causal": (True, True)},
    ),
    "DFlash, a window everywhere": DFLASH.but(
        config={"dflash_config": {**TWO_READ, "use_swa": True, "swa_window_size": 4}}, facts={"windows": (4, 4)}
    ),
    "DFlash, a window of another size": DFLASH.but(
        config={**WINDOWED, "dflash_config": {**TWO_READ, "swa_window_size": 3}},
        facts={**ONE_WINDOW, "windows": (3, None)},
    ),
    "DFlash, MiMo's": DFLASH.but(
        config={"sliding_window": 4}
        | {"dflash_config": {**TWO_READ, "use_swa": True, "attention_sink_bias": True, "attention_value_scale": 0.6}},
        shapes={f"layers.{layer}.self_attn.attention_sink_bias": "A" for layer in range(2)} | {"mask_embedding": "H"},
        facts={"windows": (4, 4), "values": 0.6},
    ),
    "JetFlow": DFLASH.but(config={"dflash_config": {**TWO_READ, "causal": True}}, facts={"causal": (True, True)}),
    "DSpark": DSPARK,
    "DSpark, gated": DSPARK.but(
        config={"markov_head_type": "gated"},
        shapes={"markov_head.gate_proj.weight": "R H+R", "markov_head.gate_proj.bias": "R"},
        facts={"transition": formulas.gated},
    ),
    "DSpark, recurrent": DSPARK.but(
        config={"markov_head_type": "rnn"},
        shapes={"markov_head.joint_proj.weight": "3R 2R+H", "markov_head.joint_proj.bias": "3R"},
        facts={"transition": formulas.rnn},
    ),
    "DFlash, speculators": SPECULATORS_DFLASH,
    "DSpark, speculators": SPECULATORS_DFLASH.but(
        config={"speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"], "sample_from_anchor": True}
        | {"markov_rank": "R", "markov_head_type": "vanilla"},
        shapes=BIGRAM,
        facts={"first": 0, "transition": formulas.vanilla},
        levels=BLOCK,
    ),
    "DFlash, speculators with windows": SPECULATORS_DFLASH.but(
        config={"transformer_layer_config": {**BLOCK_LAYER, **WINDOWED}},
        facts=ONE_WINDOW,
        sizes={"D": None},
    ),
    "DFlash, speculators with whole windows": SPECULATORS_DFLASH.but(
        config={"transformer_layer_config": {**BLOCK_LAYER, **WINDOWED}, "sliding_window_non_causal": True},
        facts={**ONE_WINDOW, "causal": (False, False)},
        sizes={"D": None},
    ),
    "DSpark, windows": DSPARK.but(config=WINDOWED, facts=ONE_WINDOW),
    "DFlash2": DFLASH.but(
        config={"architectures": ["DFlash2DraftModel"], **WINDOWED}
        | {
            "dflash_config": {**TWO_READ, "conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": "R"}
            | {"selector_top_k": 6, "input_embedding_scale": 0.5, "output_multiplier": 0.25}
        },
        shapes={f"candidate_selector.{name}_codebook": "V R" for name in ("predecessor", "successor")}
        | {"candidate_selector.hidden_projection.weight": "R H", **CONVOLUTIONS},
        facts={**ONE_WINDOW, "scales": (0.5, 0.25), "transition": formulas.selector},
    ),
    "DFlash, transformers": DFLASH.but(
        config={**dict.fromkeys(("architectures", "num_target_layers", "dflash_config")), **TWO_READ}
        | {"model_type": "muse_glimmer_assistant", "layer_types": ["full_attention"] * 2},
        renamed={"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."},
    ),
}


def names(kind: str) -> list[str]:
    """The formats of a kind of drafters."""
    return [name for name, each in FORMATS.items() if each.kind == kind]
