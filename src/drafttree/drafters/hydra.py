"""Drafts with Hydra heads, which read the drafted tokens above them and so depend on the path, unlike Medusa's.

Head k reads a context vector and the embeddings of the root and of the k tokens below it. The context vector is the
target's last hidden state (after the final norm) at the token before the root; Hydra++ first passes the hidden states
of the whole text through one attention layer. Hydra (Ankner et al. 2024), sections 3 and 4.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedConfig, PreTrainedModel

from drafttree.drafters.base import HiddenStates, Session
from drafttree.drafters.heads import HeadsDrafter, ResBlock, embedding
from drafttree.drafters.session import Frontier, count_pass
from drafttree.models import NAME, CacheLayout, TreeCache, TreePlan
from drafttree.models.module.module_inputs import as_cache

PREFILL_CHUNK = 512
PREFIX_FIELDS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias"),
)


class HydraHeads(nn.Module):
    """The heads; `state_dict` has the tensor names of the public checkpoints (`hydra_lm_head.pt`).

    Args:
        heads: number of heads.
        layers: residual blocks per head.
        hidden: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        prefix: config of Hydra++'s prefix attention layer, None for plain Hydra.
        shared: use the target's output projection; the heads have none of their own.
        grounded: whether the heads read token embeddings.
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
        outputs = [] if shared else [nn.Linear(hidden, vocab) for _ in range(heads)]
        self.hydra_mlp = nn.ModuleList(nn.Sequential(*(_with_dropout_slots(row) if prefix else row)) for row in blocks)
        self.hydra_lm_head = nn.ModuleList(
            nn.Sequential(*_with_dropout_slots([output])) if prefix else output for output in outputs
        )
        self.input_embed_fn = nn.Embedding(vocab, hidden) if embeds else None
        self.prefix_embeding_layer = _prefix_layer(prefix) if prefix else None
        self.layout = CacheLayout.of_config(prefix) if prefix else CacheLayout({})

    def context(self, hidden: Tensor) -> Tensor:
        """Compute the context vectors of whole texts from their hidden states, both `[batch, tokens, hidden]`."""
        prefix = self.prefix_embeding_layer
        return hidden if prefix is None else prefix(inputs_embeds=hidden, use_cache=False).last_hidden_state

    def forward(self, level: int, inputs: Tensor) -> Tensor:
        """Run one head.

        Args:
            level: index of the head, 0 for the first.
            inputs: `[..., (level + 2) * hidden]`: the context vector, then the embeddings of the root and of the path
                below it; ungrounded heads read the first `hidden` columns.

        Returns:
            Logits `[..., vocab]`, or `[..., hidden]` if the projection is shared.
        """
        state = self.hydra_mlp[level](inputs if self.grounded else inputs[..., : self.hidden])
        return state if self.shared else self.hydra_lm_head[level](state)


def _with_dropout_slots(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Put an identity before each module: Hydra++ checkpoints number the dropout layers that stood there."""
    return [part for module in modules for part in (nn.Identity(), module)]


def prefix_config(config: PreTrainedConfig) -> LlamaConfig:
    """Return the config of Hydra++'s prefix attention layer: a Llama layer of the target's sizes."""
    config = config.get_text_config()
    fields = {name: getattr(config, name, None) for name in PREFIX_FIELDS}
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    given = {name: value for name, value in fields.items() if value is not None}
    return layer_config({"intermediate_size": 4 * config.hidden_size, **given})


def layer_config(fields: dict[str, Any]) -> LlamaConfig:
    """Return the config of a single Llama layer; its vocabulary of one token has no room for special token ids."""
    return LlamaConfig(**fields, num_hidden_layers=1, vocab_size=1, bos_token_id=None, eos_token_id=None)


def _prefix_layer(config: LlamaConfig) -> LlamaModel:
    """Build the prefix attention layer, without the token embedding it never uses."""
    layer = LlamaModel(config)
    layer.embed_tokens = None  # pyright: ignore[reportAttributeAccessIssue]
    return layer


class HydraDrafter(HeadsDrafter):
    """Drafts one level per head, one draft pass per level; arguments as of `HeadsDrafter`."""

    def __init__(self, heads: HydraHeads, target: PreTrainedModel) -> None:
        super().__init__(heads, target)
        self.heads = heads
        self.embed = heads.input_embed_fn or embedding(target)
        if heads.prefix_embeding_layer is not None:
            heads.prefix_embeding_layer.set_attn_implementation(NAME)

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; only Hydra++ uses its KV cache."""
        return HydraSession(self, prompt, capacity)

    def root(self, sessions: "Sequence[HydraSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.session.SharedDrafter`.

        The prefix layer of Hydra++ runs for each of them.
        """
        with count_pass(sessions):
            contexts = [session.read() for session in sessions]
            return self._draft(0, sessions, contexts, [session.token for session in sessions])

    def expand(self, sessions: "Sequence[HydraSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.session.SharedDrafter`."""
        with count_pass(sessions):
            inherited = [session.inputs[:, own.origins] for session, own in zip(sessions, frontiers, strict=True)]
            tokens = [token for own in frontiers for token in own.tokens]
            return self._draft(sessions[0].level + 1, sessions, inherited, tokens)

    def _draft(
        self, level: int, sessions: "Sequence[HydraSession]", inherited: Sequence[Tensor], tokens: list[int]
    ) -> Tensor:
        """Logits `[nodes, vocab]` of a level, given the parents' inputs `[1, width, inputs]` of each session."""
        ids = torch.tensor([tokens], device=self.zero_hidden.device)
        inputs = torch.cat((torch.cat([*inherited], 1), self.embed(ids)), 2)
        for session, own in zip(sessions, inputs.split([each.shape[1] for each in inherited], 1), strict=True):
            session.inputs, session.level = own, level
        return self.logits(level, inputs)[0]

    @torch.inference_mode()
    def logits(self, level: int, inputs: Tensor) -> Tensor:
        """Logits `[1, frontier, vocab]` of a level from its inputs `[1, frontier, (level + 2) * hidden]`."""
        return self.project(self.heads(level, inputs))

    @torch.inference_mode()
    def extend_context(self, cache: TreeCache, hidden: Tensor) -> Tensor:
        """Compute the context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`.

        The prefix layer's keys and values of these tokens join the cache.
        """
        prefix = self.heads.prefix_embeding_layer
        if prefix is None:
            return hidden
        count = hidden.shape[1]
        positions = torch.arange(cache.length, cache.length + count, device=hidden.device)[None]
        causal = torch.ones(1, count, count, dtype=torch.bool, device=hidden.device).tril()
        plan = TreePlan(cache, positions, causal, hidden.dtype)
        out = prefix(
            inputs_embeds=hidden, position_ids=positions, use_cache=True, tree_plan=plan, **as_cache(prefix, cache)
        )
        cache.grow(positions)
        cache.commit(range(count))
        return out.last_hidden_state


class HydraSession(Session):
    """One request's hidden states.

    Attributes:
        token: the root.
        inputs: the heads' inputs at every node of the frontier, `[1, frontier, width]`.
        level: the level of the frontier.
    """

    def __init__(self, drafter: HydraDrafter, prompt: list[int], capacity: int) -> None:
        super().__init__(drafter, drafter.zero_hidden.device)
        self.token = prompt[-1]
        self._cache = TreeCache(drafter.heads.layout, capacity)
        self._context = drafter.zero_hidden
        self._unread = drafter.zero_hidden[:, :0]
        self.inputs = drafter.zero_hidden[:, :0]
        self.level = 0

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes + self._context.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        read = torch.cat((self._unread, *hidden_states), 1)
        self._extend_context(read[:, :-1])
        self._unread = read[:, -1:]

    def keep(self, tokens: int) -> object:
        return self._cache.copy_rows(tokens)

    def resume(self, kept: object, tokens: int) -> int:
        if self.drafter.heads.prefix_embeding_layer is None:
            return tokens  # the newest hidden state is all that is read
        return self._cache.resume(kept, tokens) if isinstance(kept, TreeCache) else 0

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.token = tokens[-1]
        self._unread = torch.cat((self._unread, *hidden_states), 1)

    def read(self) -> Tensor:
        """The newest context vector `[1, 1, hidden]`."""
        self._extend_context(self._unread)
        self._unread = self._unread[:, :0]
        return self._context

    def _extend_context(self, hidden: Tensor) -> None:
        for part in hidden.split(PREFILL_CHUNK, 1):
            if part.shape[1]:
                self._context = self.drafter.extend_context(self._cache, part)[:, -1:]
