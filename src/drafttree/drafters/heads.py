"""Drafts with heads that each draft one level, from the target's last hidden state: Medusa, Hydra and Hydra++.

Head k gives logits of the token k + 1 levels below the root. It reads a context vector: the target's hidden state,
after its final norm, of the token before the root. Medusa's heads read nothing else, so all levels are drafted at once
and do not depend on the path (Cai et al. 2024, section 2.1). Hydra's also read the embeddings of the root and of the k
tokens below it. The context vectors of Hydra++ come from an attention layer over the hidden states of the whole text
(Ankner et al. 2024, sections 3 and 4).
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaModel, PreTrainedConfig, PreTrainedModel

from drafttree.drafters.base import Frontier, HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.session import count_pass
from drafttree.drafters.target_parts import embedding, final_logits, last_layer, own_bytes, zero_hidden
from drafttree.models import NAME, CacheLayout, Segment, TreeCache
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.module_checks import logits_width
from drafttree.models.module.module_inputs import ModuleInputs, as_cache

PREFILL_CHUNK = 512
PREFIX_FIELDS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias"),
)


class ResBlock(nn.Module):
    """Residual block x + SiLU(W x + b); if `parts` > 1, a linear map to `hidden` replaces x in the skip connection.

    Args:
        hidden: width of the output.
        parts: vectors of width `hidden` concatenated in the input.
    """

    def __init__(self, hidden: int, parts: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(parts * hidden, hidden)
        self.res_connection = nn.Linear(parts * hidden, hidden) if parts > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., parts * hidden]` to `[..., hidden]`."""
        return self.res_connection(x) + silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """Medusa's heads; `state_dict` has the tensor names of the public checkpoints (`medusa_lm_head.pt`).

    Args:
        heads: number of heads.
        layers: residual blocks per head.
        hidden: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        shared: use the target's output projection; the heads have none of their own.
    """

    def __init__(self, heads: int, layers: int, hidden: int, vocab: int, *, shared: bool = False) -> None:
        modules = list[nn.Module]()
        for _ in range(heads):
            blocks = [ResBlock(hidden) for _ in range(layers)]
            outputs = [] if shared else [nn.Linear(hidden, vocab, bias=False)]
            modules.append(nn.Sequential(*blocks, *outputs))
        super().__init__(modules)
        self.count = heads
        self.layers = layers
        self.shared = shared

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[..., hidden]` to logits `[..., heads, vocab]`; with a shared projection to `[..., heads, hidden]`."""
        return torch.stack([head(hidden) for head in self], -2)


class HydraHeads(nn.Module):
    """Hydra's heads; `state_dict` has the tensor names of the public checkpoints (`hydra_lm_head.pt`).

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
        self.count = heads
        self.hidden = hidden
        self.shared = shared
        self.grounded = grounded
        widths = [level + 2 if grounded else 1 for level in range(heads)]
        blocks = [[ResBlock(hidden, width), *(ResBlock(hidden) for _ in range(layers - 1))] for width in widths]
        outputs = [] if shared else [nn.Linear(hidden, vocab) for _ in range(heads)]
        self.hydra_mlp = nn.ModuleList(nn.Sequential(*(_with_dropout_slots(row) if prefix else row)) for row in blocks)
        self.hydra_lm_head = nn.ModuleList(
            nn.Sequential(*_with_dropout_slots([output])) if prefix else output for output in outputs
        )
        self.input_embed_fn = nn.Embedding(vocab, hidden) if embeds else None
        self.prefix_embeding_layer = LlamaModel(prefix) if prefix else None
        if self.prefix_embeding_layer is not None:
            self.prefix_embeding_layer.embed_tokens = None  # pyright: ignore[reportAttributeAccessIssue]

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
    return [layer for module in modules for layer in (nn.Identity(), module)]


def prefix_config(config: PreTrainedConfig) -> LlamaConfig:
    """Return the config of Hydra++'s prefix attention layer: a Llama layer of the target's sizes."""
    config = config.get_text_config()
    fields = {name: getattr(config, name, None) for name in PREFIX_FIELDS}
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    known_fields = {name: value for name, value in fields.items() if value is not None}
    return layer_config({"intermediate_size": 4 * config.hidden_size, **known_fields})


def layer_config(fields: dict[str, Any]) -> LlamaConfig:
    """Return the config of a single Llama layer; its vocabulary of one token has no room for special token ids."""
    return LlamaConfig(**fields, num_hidden_layers=1, vocab_size=1, bos_token_id=None, eos_token_id=None)


class HeadsSession(Session):
    """One request's context vector, and the KV cache of the layer that computes it, which only Hydra++ has.

    Attributes:
        token: the root.
        level: the level of the frontier.
        drafted: what the next level is drafted from: Medusa's logits of all levels `[heads, vocab]`, the inputs of
            Hydra's heads at every node of the frontier `[1, frontier, width]`.
    """

    def __init__(self, drafter: "HeadsDrafter", prompt: list[int], capacity: int) -> None:
        super().__init__(drafter, drafter.zero_hidden.device)
        self.token = prompt[-1]
        self.level = 0
        self._context = drafter.zero_hidden
        self.drafted = self._unread = drafter.zero_hidden[:, :0]
        self._cache = TreeCache(drafter.layout, capacity)

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes + self._context.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._note(hidden_states)
        self._extend_context(self._unread[:, :-1])
        self._unread = self._unread[:, -1:]

    def snapshot(self, tokens: int) -> object:
        return self._cache.copy_rows(tokens) if self.drafter.reads_text else None

    def restore(self, snapshot: object, tokens: int) -> int:
        if not self.drafter.reads_text:
            return tokens  # the newest hidden state is all that is read
        return self._cache.copy_from(snapshot, tokens) if isinstance(snapshot, TreeCache) else 0

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.token = tokens[-1]
        self._note(hidden_states)

    def context(self) -> Tensor:
        """The context vector `[1, 1, hidden]` of the root."""
        self._extend_context(self._unread)
        self._unread = self._unread[:, :0]
        return self._context

    def _note(self, hidden_states: HiddenStates) -> None:
        unread = torch.cat((self._unread, *hidden_states), 1)
        self._unread = unread if self.drafter.reads_text else unread[:, -1:]

    def _extend_context(self, hidden: Tensor) -> None:
        for chunk in hidden.split(PREFILL_CHUNK, 1):
            if chunk.shape[1]:
                self._context = self.drafter.extend_context(self._cache, chunk)[:, -1:]


class HeadsDrafter(ShownBySize):
    """Base of drafters with a head per level.

    Args:
        heads: the heads, on the target's device and in its dtype.
        target: the model the heads were trained on.

    Attributes:
        reads_text: whether a layer before the heads reads the hidden states of the whole text.
        layout: of that layer's KV cache.
        zero_hidden: zeros `[1, 1, hidden]`, read for a root without a hidden state before it.
        project: computes logits from a head's output; the target's projection scales them as for the target.
    """

    context: int | None = None
    levels: int | None
    reads_text = False
    layout = CacheLayout({})

    def __init__(self, heads: MedusaHeads | HydraHeads, target: PreTrainedModel) -> None:
        self.vocab_size = logits_width(target)
        self.levels = heads.count
        self.hidden_layers: tuple[int, ...] = (last_layer(target),)
        self.nbytes = own_bytes(heads, target)
        self.zero_hidden = zero_hidden(target)
        self.project = partial(final_logits, target) if heads.shared else nn.Identity()

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; only Hydra++ uses its KV cache."""
        return HeadsSession(self, prompt, capacity)

    def extend_context(self, cache: TreeCache, hidden: Tensor) -> Tensor:
        """Compute the context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`."""
        return hidden


class MedusaDrafter(HeadsDrafter):
    """Drafts one level per head, all in one draft pass per round; arguments as of `HeadsDrafter`."""

    def __init__(self, heads: MedusaHeads, target: PreTrainedModel) -> None:
        super().__init__(heads, target)
        self.heads = heads

    @in_inference_mode
    def draft_root(self, sessions: Sequence[HeadsSession]) -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            contexts = torch.cat([session.context() for session in sessions])
            logits = self.project(self.heads(contexts))[:, 0]
        for session, session_logits in zip(sessions, logits, strict=True):
            session.drafted = session_logits
            session.level = 0
        return logits[:, 0]

    @in_inference_mode
    def draft_level(self, sessions: Sequence[HeadsSession], frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node, the same on all of a level; see `SharedDrafter`."""
        for session in sessions:
            session.level += 1
        session_frontiers = zip(sessions, frontiers, strict=True)
        return torch.cat(
            [session.drafted[session.level].expand(len(frontier.tokens), -1) for session, frontier in session_frontiers]
        )


class HydraDrafter(HeadsDrafter):
    """Drafts one level per head, one draft pass per level; arguments as of `HeadsDrafter`."""

    def __init__(self, heads: HydraHeads, target: PreTrainedModel) -> None:
        super().__init__(heads, target)
        self.heads = heads
        self.embed = heads.input_embed_fn or embedding(target)
        if heads.prefix_embeding_layer is not None:
            heads.prefix_embeding_layer.set_attn_implementation(NAME)
            self.reads_text = True
            self.layout = CacheLayout.of_config(heads.prefix_embeding_layer.config)

    @in_inference_mode
    def draft_root(self, sessions: Sequence[HeadsSession]) -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`.

        The prefix layer of Hydra++ runs for each of them.
        """
        with count_pass(sessions):
            contexts = [session.context() for session in sessions]
            return self._draft(0, sessions, contexts, [session.token for session in sessions])

    @in_inference_mode
    def draft_level(self, sessions: Sequence[HeadsSession], frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            inherited = [
                rows_of(session.drafted, frontier.origins)
                for session, frontier in zip(sessions, frontiers, strict=True)
            ]
            tokens = [token for frontier in frontiers for token in frontier.tokens]
            return self._draft(sessions[0].level + 1, sessions, inherited, tokens)

    def _draft(
        self, level: int, sessions: Sequence[HeadsSession], inherited: Sequence[Tensor], tokens: list[int]
    ) -> Tensor:
        """Logits `[nodes, vocab]` of a level, given the parents' inputs `[1, width, inputs]` of each session."""
        ids = torch.tensor([tokens], device=self.zero_hidden.device)
        inputs = torch.cat((torch.cat([*inherited], 1), self.embed(ids)), 2)
        widths = [parent_inputs.shape[1] for parent_inputs in inherited]
        for session, session_inputs in zip(sessions, inputs.split(widths, 1), strict=True):
            session.drafted = session_inputs
            session.level = level
        return self.project(self.heads(level, inputs))[0]

    @in_inference_mode
    def extend_context(self, cache: TreeCache, hidden: Tensor) -> Tensor:
        """Compute the context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`.

        The prefix layer's keys and values of these tokens join the cache.
        """
        prefix = self.heads.prefix_embeding_layer
        if prefix is None:
            return hidden
        count = hidden.shape[1]
        segment = Segment.of_text(cache, [0] * count)  # the layer reads states, not token ids
        inputs = ModuleInputs.of([segment], hidden.dtype, hidden.device)
        layer_kwargs = {"use_cache": True, "tree_plan": inputs.plan, **as_cache(prefix, cache)}
        out = prefix(inputs_embeds=hidden, position_ids=inputs.positions, **layer_kwargs)
        cache.grow(segment.positions)
        cache.commit(range(count))
        return out.last_hidden_state
