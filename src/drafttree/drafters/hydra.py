"""Hydra heads as drafter: like Medusa's, but each head also reads the tokens drafted before its own.

Head k reads a context vector and the embeddings of the root and of the k tokens below it, so the levels depend on the
path. The context is the target's last hidden state (after the final norm) at the token before the root; Hydra++
passes all hidden states through one attention layer first. Hydra (Ankner et al. 2024), sections 3 and 4.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Draft, Features
from drafttree.drafters.formats.checkpoints import FLAG, entry
from drafttree.drafters.heads import (
    SHARED_LM_HEAD,
    Checkpoint,
    ResBlock,
    counts,
    embedding,
    fill,
    flaws,
    last_layer,
    nearest,
    own_bytes,
    projection,
    target_sizes,
    unknown_state,
    usual_rows,
)
from drafttree.drafters.pass_counter import CountedPasses
from drafttree.models.kv_cache import TreeCache
from drafttree.models.tree_attention import NAME, TreePlan

KIND = "Hydra"
MLP, PREFIX_MLP = "mlp", "prefix-mlp"
PREFIX = "prefix_embeding_layer."
LAYER = f"{PREFIX}layers.0."
EMBEDDING = "input_embed_fn.weight"
BLOCK, END = r"hydra_mlp\.\d+\.(\d+)\.linear\..*", r"hydra_lm_head\..*"
CHUNK = 512
PREFIX_FIELDS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias"),
)


class HydraHeads(nn.Module):
    """The heads; `state_dict` has the names of the public checkpoints (`hydra_lm_head.pt`).

    Args:
        heads: how many.
        layers: residual blocks of each.
        hidden: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        prefix: config of the attention layer of Hydra++, None for plain Hydra.
        shared: whether heads end before a projection that is the target's.
        grounded: whether heads read tokens at all.
        embeds: whether the heads have an embedding of their own.
    """

    def __init__(
        self,
        heads: int,
        layers: int,
        hidden: int,
        vocab: int,
        prefix: LlamaConfig | None = None,
        *,
        shared: bool = False,
        grounded: bool = True,
        embeds: bool = False,
    ) -> None:
        super().__init__()
        self.count, self.hidden, self.shared, self.grounded = heads, hidden, shared, grounded
        parts = [level + 2 if grounded else 1 for level in range(heads)]
        blocks = [[ResBlock(hidden, width), *(ResBlock(hidden) for _ in range(layers - 1))] for width in parts]
        ends = [] if shared else [nn.Linear(hidden, vocab) for _ in range(heads)]
        self.hydra_mlp = nn.ModuleList(nn.Sequential(*(_spaced(row) if prefix else row)) for row in blocks)
        self.hydra_lm_head = nn.ModuleList(nn.Sequential(*_spaced([end])) if prefix else end for end in ends)
        self.input_embed_fn = nn.Embedding(vocab, hidden) if embeds else None
        self.prefix_embeding_layer = _prefix_layer(prefix) if prefix else None

    def context(self, hidden: Tensor) -> Tensor:
        """Context vectors of whole texts from their hidden states, both `[batch, tokens, hidden]`."""
        prefix = self.prefix_embeding_layer
        return hidden if prefix is None else prefix(inputs_embeds=hidden, use_cache=False).last_hidden_state

    def forward(self, level: int, inputs: Tensor) -> Tensor:
        """What one head says.

        Args:
            level: of the head, 0 for the first.
            inputs: `[..., (level + 2) * hidden]`, the context and the embeddings of the root and the path below it;
                ungrounded heads read its first `hidden` columns.

        Returns:
            `[..., vocab]`, or `[..., hidden]` before a shared projection.
        """
        state = self.hydra_mlp[level](inputs if self.grounded else inputs[..., : self.hidden])
        return state if self.shared else self.hydra_lm_head[level](state)


def _spaced(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules, each behind the place where the checkpoints of Hydra++ count a dropout."""
    return [part for module in modules for part in (nn.Identity(), module)]


def prefix_config(config: PreTrainedConfig) -> LlamaConfig:
    """The one layer of Hydra++ for a target: a Llama layer of the target's own sizes."""
    config = config.get_text_config()
    fields = {name: getattr(config, name, None) for name in PREFIX_FIELDS}
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    given = {name: value for name, value in fields.items() if value is not None}
    return _layer_config({"intermediate_size": 4 * config.hidden_size, **given})


def _told_config(tensors: Mapping[str, Tensor], hidden: int) -> LlamaConfig:
    """The one layer of Hydra++ where there is no target: of the sizes that its tensors have."""
    patterns = (r"self_attn\.q_proj\.weight", r"self_attn\.[kv]_proj\.weight", r"mlp\.(gate|up)_proj\.weight")
    queries, keys, mlp = (usual_rows(re.escape(LAYER) + pattern, tensors) or hidden for pattern in patterns)
    width = math.gcd(queries, keys)
    fields = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": queries // width,
        "num_key_value_heads": keys // width,
        "head_dim": width,
        "attention_bias": f"{LAYER}self_attn.q_proj.bias" in tensors,
        "mlp_bias": f"{LAYER}mlp.up_proj.bias" in tensors,
    }
    try:
        return _layer_config(fields)
    except Exception as error:
        raise ModelError(
            f"{LAYER}self_attn has {queries} rows of queries and {keys} of keys and values; no attention layer "
            f"{hidden} wide has those"
        ) from error


def _layer_config(fields: dict[str, Any]) -> LlamaConfig:
    """A single layer without a vocabulary, in which the ids of Llama's special tokens would not be found."""
    return LlamaConfig(**fields, num_hidden_layers=1, vocab_size=1, bos_token_id=None, eos_token_id=None)


def _prefix_layer(config: LlamaConfig) -> LlamaModel:
    """The layer without its embedding, which is never used."""
    layer = LlamaModel(config)
    layer.embed_tokens = None  # pyright: ignore[reportAttributeAccessIssue]
    return layer


class HydraDrafter:
    """Drafts as many levels as there are heads, a whole level per pass.

    Args:
        heads: on the target's device, in its dtype.
        target: the model they were trained on.
    """

    def __init__(self, heads: HydraHeads, target: PreTrainedModel) -> None:
        self.heads = heads
        self.vocab_size = len(projection(target).weight)
        self.context: int | None = None
        self.levels: int | None = heads.count
        self.hidden_layers: tuple[int, ...] = (last_layer(target),)
        self.nbytes = own_bytes(heads, target)
        self.embed = heads.input_embed_fn or embedding(target)
        self.unknown = unknown_state(target)
        self._project = projection(target) if heads.shared else nn.Identity()
        if heads.prefix_embeding_layer is not None:
            heads.prefix_embeding_layer.set_attn_implementation(NAME)

    def start(self, prompt: list[int], capacity: int) -> Draft:
        """Begin a sequence; only Hydra++ keeps a cache."""
        return HydraDraft(self, prompt, capacity)

    @torch.inference_mode()
    def logits(self, level: int, inputs: Tensor) -> Tensor:
        """`[1, frontier, vocab]` of a level from `[1, frontier, (level + 2) * hidden]`."""
        return self._project(self.heads(level, inputs))

    @torch.inference_mode()
    def read(self, cache: TreeCache, hidden: Tensor) -> Tensor:
        """Context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`."""
        prefix = self.heads.prefix_embeding_layer
        if prefix is None:
            return hidden
        count = hidden.shape[1]
        positions = torch.arange(cache.length, cache.length + count, device=hidden.device)[None]
        causal = torch.ones(1, count, count, dtype=torch.bool, device=hidden.device).tril()
        plan = TreePlan(cache, positions, causal, hidden.dtype)
        out = prefix(
            inputs_embeds=hidden, position_ids=positions, past_key_values=cache, use_cache=True, tree_plan=plan
        )
        cache.grow(positions)
        cache.keep(range(count))
        return out.last_hidden_state


class HydraDraft(CountedPasses):
    """The root, the newest context vector, and the paths of the frontier as the heads read them."""

    def __init__(self, drafter: HydraDrafter, prompt: list[int], capacity: int) -> None:
        super().__init__(drafter.unknown.device)
        self._drafter = drafter
        self._root = prompt[-1]
        self._cache = TreeCache(1, 1, capacity)
        self._context = drafter.unknown
        self._unread = drafter.unknown[:, :0]
        self._level = 0

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes + self._context.nbytes

    def prefill(self, features: Features) -> None:
        for layer in features:
            self._read(layer[:, :-1])
            self._unread = layer[:, -1:]

    def root(self) -> Tensor:
        with self.counted():
            self._read(self._unread)
            self._unread = self._unread[:, :0]
            root = torch.tensor([[self._root]], device=self._context.device)
            return self._draft(0, self._context, root)

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        with self.counted():
            above = self._inputs.gather(1, origins[..., None].expand(-1, -1, self._inputs.shape[2]))
            return self._draft(self._level + 1, above, tokens)

    def commit(self, tokens: list[int], features: Features) -> None:
        self._root = tokens[-1]
        self._unread = torch.cat((self._unread, *features), 1)

    def _draft(self, level: int, above: Tensor, tokens: Tensor) -> Tensor:
        """Logits of a level from what was read above it `[1, frontier, ...]` and its tokens `[1, frontier]`."""
        self._level = level
        self._inputs = torch.cat((above, self._drafter.embed(tokens)), 2)
        return self._drafter.logits(level, self._inputs)

    def _read(self, hidden: Tensor) -> None:
        for part in hidden.split(CHUNK, 1):
            if part.shape[1]:
                self._context = self._drafter.read(self._cache, part)[:, -1:]


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> HydraDrafter:
    """The drafter of a checkpoint's tensors.

    An embedding that is absent, or equal to the target's, is the target's.

    Args:
        tensors: as for `parse`.
        config: as for `parse`.
        target: the model the heads were trained on.

    Raises:
        ModelError: as `parse`; or tensors are missing, unexpected, of wrong shape or no finite numbers, or the heads
            were made for another target.
    """
    found = parse(tensors, config, prefix_config(target.config))
    found.check(target)
    heads = found.heads
    fill(heads, found.tensors, target)
    if prefix := heads.prefix_embeding_layer:
        prefix.rotary_emb = LlamaRotaryEmbedding(prefix.config).to(target.device)
    if heads.input_embed_fn and torch.equal(heads.input_embed_fn.weight, embedding(target).weight):
        heads.input_embed_fn = None
    return HydraDrafter(heads, target)


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], layer: LlamaConfig | None = None
) -> Checkpoint[HydraHeads]:
    """Understand a checkpoint and list what is wrong with it, with or without a target.

    Heads and their blocks are counted from the names. Projections are the target's where the config says
    `shared_lm_head`.

    Args:
        tensors: of `hydra_lm_head.pt`.
        config: of the checkpoint: `hydra_head_arch` ("mlp", or "prefix-mlp" for Hydra++), `hidden_state_offset`,
            `shared_lm_head`, the target's sizes.
        layer: what `prefix_config` says of the target, None where there is none.

    Raises:
        ModelError: there is no head, it is of an architecture other than these two, or the config gives a field as
            what it cannot be.
    """
    tensors = {name: tensor for name, tensor in tensors.items() if not _unused(name)}
    if not any(re.match(BLOCK, name) for name in tensors):
        raise ModelError("there is no Hydra head among the tensors: none has a name like hydra_mlp.0.0.linear.weight")
    shared = bool(entry(config, SHARED_LM_HEAD, FLAG))
    vocab = (not shared and usual_rows(END, tensors)) or usual_rows(EMBEDDING, tensors)
    made_for = target_sizes(config, {"hidden size": usual_rows(BLOCK, tensors), "vocabulary": vocab})
    hidden, vocab = (made_for.get(name, 1) for name in ("hidden size", "vocabulary"))
    prefixed = _architecture(tensors, config) == PREFIX_MLP
    blocks = {max(1, slots // 2) if prefixed else slots for slots in counts(BLOCK, tensors)}
    make = partial(
        HydraHeads,
        hidden=hidden,
        vocab=vocab,
        prefix=(layer or _told_config(tensors, hidden)) if prefixed else None,
        shared=shared,
        grounded=any(".res_connection." in name for name in tensors),
        embeds=EMBEDDING in tensors,
    )
    variants = product(counts(r"hydra_mlp\.(\d+)\.", tensors), sorted(blocks, reverse=True))
    with torch.device("meta"):
        heads = nearest(tensors, (make(*sizes) for sizes in variants))
    return Checkpoint(KIND, heads, tensors, made_for, tuple(flaws(heads, tensors)))


def _unused(name: str) -> bool:
    """Tensors of published checkpoints that follow from others or are never read."""
    return name.startswith(PREFIX) and name.endswith(("embed_tokens.weight", "rotary_emb.inv_freq"))


def _architecture(tensors: Mapping[str, Tensor], config: Mapping[str, object]) -> str:
    """The architecture a config names, else the one the tensors' names tell."""
    found = PREFIX_MLP if any(name.startswith(PREFIX) for name in tensors) else MLP
    architecture, offset = config.get("hydra_head_arch", found), config.get("hidden_state_offset", 0)
    if architecture not in (MLP, PREFIX_MLP):
        raise ModelError(f"hydra_head_arch is {architecture!r}; drafttree reads Hydra heads of type mlp and prefix-mlp")
    if offset:
        raise ModelError(f"hidden_state_offset is {offset!r}; drafttree reads Hydra heads made for 0")
    return str(architecture)
