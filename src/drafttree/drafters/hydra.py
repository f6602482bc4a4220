"""Hydra heads as drafter: like Medusa's, but each head also reads the tokens drafted before its own.

Head k reads a context vector and the embeddings of the root and of the k tokens below it, so the levels depend on the
path. The context is the target's last hidden state (after the final norm) at the token before the root; Hydra++
passes all hidden states through one attention layer first. Hydra (Ankner et al. 2024), sections 3 and 4.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedConfig, PreTrainedModel

from drafttree.drafters.base import DraftSession, HiddenStates
from drafttree.drafters.heads import ResBlock, embedding, last_layer, own_bytes, projection, unknown_state
from drafttree.drafters.pass_counter import PassCounter
from drafttree.models import NAME, TreeCache, TreePlan

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
    return layer_config({"intermediate_size": 4 * config.hidden_size, **given})


def layer_config(fields: dict[str, Any]) -> LlamaConfig:
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

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a sequence; only Hydra++ keeps a cache."""
        return HydraSession(self, prompt, capacity)

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
        cache.commit(range(count))
        return out.last_hidden_state


class HydraSession(PassCounter):
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

    def prefill(self, hidden_states: HiddenStates) -> None:
        for layer in hidden_states:
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

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._root = tokens[-1]
        self._unread = torch.cat((self._unread, *hidden_states), 1)

    def _draft(self, level: int, above: Tensor, tokens: Tensor) -> Tensor:
        """Logits of a level from what was read above it `[1, frontier, ...]` and its tokens `[1, frontier]`."""
        self._level = level
        self._inputs = torch.cat((above, self._drafter.embed(tokens)), 2)
        return self._drafter.logits(level, self._inputs)

    def _read(self, hidden: Tensor) -> None:
        for part in hidden.split(CHUNK, 1):
            if part.shape[1]:
                self._context = self._drafter.read(self._cache, part)[:, -1:]
