"""Drafts with heads that each draft one level, from the target's last hidden state: Medusa, Hydra and Hydra++.

Head k gives logits of the token k + 1 levels below the root. It reads a context vector: the target's hidden state after
the final norm, at the token before the root. Medusa heads read nothing else. So all levels are drafted at once and do
not depend on the path (Cai et al. 2024, section 2.1). Hydra heads also read the embeddings of the root and of the k
tokens below it. In Hydra++, an attention layer over the hidden states of the whole text computes the context vectors
(Ankner et al. 2024, sections 3 and 4).
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaModel, PreTrainedConfig, PreTrainedModel

from drafttree.core.vocab_ops import ranked
from drafttree.drafters.base import Frontier, HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.head_logits import choose_head_logits
from drafttree.drafters.ranked_logits import RANKED, DraftLogits, logits_of
from drafttree.drafters.session import count_pass
from drafttree.drafters.target_parts import embedding, final_logits, last_layer, own_bytes, zero_hidden
from drafttree.models import CacheLayout, Segment, TreeCache
from drafttree.models.attention.tree_attention import NAME
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.module_checks import logits_width
from drafttree.models.module.module_inputs import ModuleInputs, as_cache
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.recorded_function import RecordedFunction
from drafttree.models.segment import Output

PREFILL_CHUNK = 512
PREFIX_FIELDS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias"),
)


class ResBlock(nn.Module):
    """Residual block x + SiLU(W x + b). If it reads several vectors, a linear map replaces x in the skip connection.

    Args:
        hidden_size: width of the output.
        input_vectors: vectors of this width that are concatenated in the input.
    """

    def __init__(self, hidden_size: int, input_vectors: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(input_vectors * hidden_size, hidden_size)
        self.res_connection = (
            nn.Linear(input_vectors * hidden_size, hidden_size) if input_vectors > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., input_vectors * hidden]` to `[..., hidden]`."""
        return self.res_connection(x) + silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """Medusa's heads; `state_dict` has the tensor names of the public checkpoints (`medusa_lm_head.pt`).

    Args:
        heads: number of heads.
        layers: residual blocks per head.
        hidden_size: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        shares_output: whether the heads use the target's output projection and have none of their own.
    """

    def __init__(self, heads: int, layers: int, hidden_size: int, vocab: int, *, shares_output: bool = False) -> None:
        modules = list[nn.Module]()
        for _ in range(heads):
            blocks = [ResBlock(hidden_size) for _ in range(layers)]
            outputs = [] if shares_output else [nn.Linear(hidden_size, vocab, bias=False)]
            modules.append(nn.Sequential(*blocks, *outputs))
        super().__init__(modules)
        self.count = heads
        self.layers = layers
        self.shares_output = shares_output

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map `[..., hidden]` to logits `[..., heads, vocab]`; with a shared projection to `[..., heads, hidden]`."""
        return torch.stack([head(hidden_states) for head in self], -2)


class HydraHeads(nn.Module):
    """Hydra's heads; `state_dict` has the tensor names of the public checkpoints (`hydra_lm_head.pt`).

    Args:
        heads: number of heads.
        layers: residual blocks per head.
        hidden_size: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        prefix: config of Hydra++'s prefix attention layer, None for plain Hydra.
        shares_output: whether the heads use the target's output projection and have none of their own.
        grounded: whether the heads read token embeddings.
        embeds: whether the heads have an embedding of their own.
    """

    def __init__(
        self,
        heads: int,
        layers: int,
        hidden_size: int,
        vocab: int,
        prefix: LlamaConfig | None = None,
        *,
        shares_output: bool = False,
        grounded: bool = True,
        embeds: bool = False,
    ) -> None:
        super().__init__()
        self.count = heads
        self.hidden_size = hidden_size
        self.shares_output = shares_output
        self.grounded = grounded
        self.hydra_mlp = nn.ModuleList()
        for level in range(heads):
            blocks = [ResBlock(hidden_size, input_vectors=level + 2 if grounded else 1)]
            blocks += [ResBlock(hidden_size) for _ in range(layers - 1)]
            self.hydra_mlp.append(nn.Sequential(*(_with_dropout_slots(blocks) if prefix else blocks)))
        self.hydra_lm_head = nn.ModuleList()
        for _ in range(0 if shares_output else heads):
            output = nn.Linear(hidden_size, vocab)
            self.hydra_lm_head.append(nn.Sequential(*_with_dropout_slots([output])) if prefix else output)
        self.input_embed_fn = nn.Embedding(vocab, hidden_size) if embeds else None
        self.prefix_embeding_layer = LlamaModel(prefix) if prefix else None
        if self.prefix_embeding_layer is not None:
            self.prefix_embeding_layer.embed_tokens = None  # pyright: ignore[reportAttributeAccessIssue]

    def context(self, hidden_states: Tensor) -> Tensor:
        """Compute the context vectors of whole texts from their hidden states, both `[batch, tokens, hidden]`."""
        prefix = self.prefix_embeding_layer
        return (
            hidden_states if prefix is None else prefix(inputs_embeds=hidden_states, use_cache=False).last_hidden_state
        )

    def forward(self, level: int, inputs: Tensor) -> Tensor:
        """Run one head.

        Args:
            level: index of the head, 0 for the first.
            inputs: `[..., (level + 2) * hidden]`: the context vector, then the embeddings of the root and of the path
                below it. Heads that are not grounded read only the first `hidden` columns.

        Returns:
            Logits `[..., vocab]`, or `[..., hidden]` if the projection is shared.
        """
        state = self.hydra_mlp[level](inputs if self.grounded else inputs[..., : self.hidden_size])
        return state if self.shares_output else self.hydra_lm_head[level](state)


def _with_dropout_slots(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Put an identity before each module, since Hydra++ checkpoints also number dropout layers."""
    layers = list[nn.Module]()
    for module in modules:
        layers += [nn.Identity(), module]
    return layers


def prefix_config(config: PreTrainedConfig) -> LlamaConfig:
    """Return the config of Hydra++'s prefix attention layer: a Llama layer of the target's sizes."""
    config = config.get_text_config()
    fields: dict[str, Any] = {"intermediate_size": 4 * config.hidden_size}
    for name in PREFIX_FIELDS:
        value = getattr(config, name, None)
        if value is not None:
            fields[name] = value
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    return layer_config(fields)


def layer_config(fields: dict[str, Any]) -> LlamaConfig:
    """Return the config of a single Llama layer. Its vocabulary of one token has no special tokens."""
    return LlamaConfig(**fields, num_hidden_layers=1, vocab_size=1, bos_token_id=None, eos_token_id=None)


class HeadsSession(Session):
    """One request's context vector, and with Hydra++ the KV cache of the layer that computes it.

    Attributes:
        token: the root's token.
        level: the level of the frontier.
        drafted: from which the next level is drafted: for Medusa the logits of all levels `[heads, vocab]`, for Hydra
            the heads' inputs at each node of the frontier `[1, frontier, width]`.
        ranked_levels: for Medusa, `[2, heads, count]` the best tokens of all levels, as of `Output`; None if they are
            not ranked.
    """

    ranked_levels: Tensor | None = None

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
            return tokens  # only the newest hidden state is read
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

    def _extend_context(self, hidden_states: Tensor) -> None:
        for chunk in hidden_states.split(PREFILL_CHUNK, 1):
            if chunk.shape[1]:
                self._context = self.drafter.extend_context(self._cache, chunk)[:, -1:]


class HeadsDrafter(ShownBySize):
    """Base of drafters with a head per level.

    Args:
        heads: the heads, on the target's device and in its dtype.
        target: the model the heads were trained on.

    Attributes:
        reads_text: whether a layer before the heads reads the hidden states of the whole text.
        layout: layout of that layer's KV cache.
        zero_hidden: zeros `[1, 1, hidden]`, for a root without a hidden state before it.
        project: computes logits from a head's output. The target's output layer scales them as in the target.
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
        self.project = partial(final_logits, target) if heads.shares_output else nn.Identity()

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; only Hydra++ uses its KV cache."""
        return HeadsSession(self, prompt, capacity)

    def extend_context(self, cache: TreeCache, hidden_states: Tensor) -> Tensor:
        """Compute the context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`."""
        return hidden_states


class MedusaDrafter(HeadsDrafter):
    """Drafts one level per head, all in one draft pass per round; arguments as of `HeadsDrafter`."""

    def __init__(self, heads: MedusaHeads, target: PreTrainedModel) -> None:
        super().__init__(heads, target)
        self.heads = heads
        self._head_logits = choose_head_logits(heads, target)
        self.run = self._all_levels
        device = self.zero_hidden.device
        if device.type == "cuda":
            self.run = RecordedFunction(self._all_levels, CudaGraphs(device))

    def _all_levels(self, contexts: Tensor) -> tuple[Tensor, ...]:
        """Logits `[texts, heads, vocab]` for contexts `[texts, hidden]`, and beside a CPU their ranks `[texts, ...]`.

        On a CPU, a level's tokens are ranked when it is drafted.
        """
        logits = self._head_logits(contexts)
        if logits.is_cpu:
            return (logits,)
        ranks = ranked(logits.flatten(0, 1), RANKED)
        return logits, ranks.unflatten(1, logits.shape[:2]).transpose(0, 1)

    @in_inference_mode
    def draft_root(self, sessions: Sequence[HeadsSession]) -> DraftLogits:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            contexts = torch.cat([session.context() for session in sessions])
            logits, *ranks = self.run(contexts[:, 0])
        for index, session in enumerate(sessions):
            session.drafted = logits[index]
            session.ranked_levels = ranks[0][index] if ranks else None
            session.level = 0
        return _level_logits(sessions, [1] * len(sessions))

    @in_inference_mode
    def draft_level(self, sessions: Sequence[HeadsSession], frontiers: Sequence[Frontier]) -> DraftLogits:
        """Logits `[nodes, vocab]` after each node, the same for all nodes of a level; see `SharedDrafter`."""
        for session in sessions:
            session.level += 1
        return _level_logits(sessions, [len(frontier.tokens) for frontier in frontiers])


def _level_logits(sessions: Sequence[HeadsSession], widths: Sequence[int]) -> DraftLogits:
    """Logits `[nodes, vocab]` of the sessions' present level, for so many nodes of each session."""
    outputs = list[Output]()
    for session, width in zip(sessions, widths, strict=True):
        logits = session.drafted[session.level].expand(1, width, -1)
        level_ranks = session.ranked_levels
        if level_ranks is not None:
            level_ranks = level_ranks[:, session.level, None].expand(-1, width, -1)
        outputs.append(Output(logits, ranks=level_ranks))
    return logits_of(outputs)


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

        With Hydra++, the prefix layer runs for each session.
        """
        with count_pass(sessions):
            contexts = [session.context() for session in sessions]
            return self._draft(0, sessions, contexts, [session.token for session in sessions])

    @in_inference_mode
    def draft_level(self, sessions: Sequence[HeadsSession], frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            tokens = list[int]()
            inherited = list[Tensor]()
            for session, frontier in zip(sessions, frontiers, strict=True):
                tokens += frontier.tokens
                inherited.append(rows_of(session.drafted, frontier.origins))
            return self._draft(sessions[0].level + 1, sessions, inherited, tokens)

    def _draft(
        self, level: int, sessions: Sequence[HeadsSession], inherited: Sequence[Tensor], tokens: list[int]
    ) -> Tensor:
        """Logits `[nodes, vocab]` of a level, given each session's inputs `[1, width, inputs]` of the parents."""
        ids = torch.tensor([tokens], device=self.zero_hidden.device)
        inputs = torch.cat((torch.cat([*inherited], 1), self.embed(ids)), 2)
        widths = [parent_inputs.shape[1] for parent_inputs in inherited]
        for session, session_inputs in zip(sessions, inputs.split(widths, 1), strict=True):
            session.drafted = session_inputs
            session.level = level
        return self.project(self.heads(level, inputs))[0]

    @in_inference_mode
    def extend_context(self, cache: TreeCache, hidden_states: Tensor) -> Tensor:
        """Compute the context vectors of the next tokens from their hidden states, both `[1, tokens, hidden]`.

        The prefix layer's keys and values join the cache.
        """
        prefix = self.heads.prefix_embeding_layer
        if prefix is None:
            return hidden_states
        count = hidden_states.shape[1]
        segment = Segment.of_text(cache, [0] * count)  # the layer reads states, not token ids
        inputs = ModuleInputs.of([segment], hidden_states.dtype, hidden_states.device)
        layer_kwargs = {"use_cache": True, "tree_plan": inputs.plan, **as_cache(prefix, cache)}
        out = prefix(inputs_embeds=hidden_states, position_ids=inputs.positions, **layer_kwargs)
        cache.grow(segment.positions)
        cache.commit(range(count))
        return out.last_hidden_state
