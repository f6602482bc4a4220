"""Drafts with assistants such as Gemma 4's, which attend to the target's keys and values and have none of their own.

An assistant reads the embedding of a token and a hidden state: for the root the target's state at the token before, for
a drafted token its own output at the parent. All nodes of a tree have the root's position and attend to committed rows
only. So a level is one pass without a tree mask, and a session keeps one hidden state. The models are transformers'
own, which uses them for chains (`SinglePositionMultiTokenCandidateGenerator`). In transformers 5.24, they also attend
to rows that the previous round has rejected. Here they attend to committed rows only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.core.errors import ConfigError, ModelError
from drafttree.drafters.base import HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.session import Frontier, count_pass
from drafttree.drafters.target_parts import embedding, last_layer, own_bytes, zero_hidden
from drafttree.models import TreeCache
from drafttree.models.attention.tree_attention import AttentionPart
from drafttree.models.attention.tree_config import attending_to_trees, configured_parts
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.module_checks import logits_width
from drafttree.models.segment import join, split
from drafttree.models.tensor_parallel import tensor_parallel_size
from drafttree.models.windows import EVERYTHING, Span

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""The supported model types of assistants."""
SLIDING = "sliding_attention"
Rows = tuple[Tensor, Tensor]
"""Keys and values `[1, heads, rows, width]`."""


class CommittedRows:
    """An attention plan in which the nodes of each request attend to all rows of their own request.

    Our attention function gets it as `tree_plan`; see `drafttree.models.attention.tree_attention.Plan`.

    Args:
        rows: by type of layer, the rows of each request. The layers themselves get the first request's rows.
        widths: number of nodes of each request.
    """

    blocks = None

    def __init__(self, rows: Mapping[str, Sequence[Rows]], widths: Sequence[int]) -> None:
        self._rows = rows
        self._widths = widths

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> list[AttentionPart]:
        """A layer's queries and rows, by request. The key that the layer was given identifies its type."""
        rows = next(layer_rows for layer_rows in self._rows.values() if layer_rows[0][0] is key)
        attention_parts = list[AttentionPart]()
        for request_queries, request_rows in zip(split(query, self._widths, 2), rows, strict=True):
            attention_parts.append(AttentionPart(request_queries, *request_rows, self))
        return attention_parts

    def mask(self, groups: int, span: Span = EVERYTHING) -> None:
        """No mask, since `rows` has only the rows within the window."""


class AssistantDrafter(ShownBySize):
    """Drafts with an assistant, one pass per level of the tree.

    The assistant's attention is replaced by ours, as in a target.

    Args:
        assistant: transformers' model of one of the types `ASSISTANTS`, in evaluation mode, with the target's dtype and
            on its device.
        target: the model it was trained for.

    Raises:
        ModelError: If the target is sharded or of another family, or its sizes, dtype or device do not suit the
            assistant.
    """

    context: int | None = None
    levels: int | None = None

    def __init__(self, assistant: PreTrainedModel, target: PreTrainedModel) -> None:
        _check(assistant, target)
        config = assistant.config.get_text_config()
        self.module = assistant
        self._attending = configured_parts(assistant)
        self.vocab_size: int = config.vocab_size
        self.hidden_layers = (last_layer(target),)
        self.nbytes = own_bytes(assistant, target)
        self.zero_hidden = zero_hidden(target)
        self._embed = embedding(target)
        self._layers = _stored_layers(target.config.get_text_config())
        # in transformers, an assistant sees this many committed rows, two more than with a causal window
        self._window: int = config.sliding_window + 1

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request. Its session gets the target's KV cache before it drafts."""
        return AssistantSession(self, prompt[-1])

    def draft_root(self, sessions: "Sequence[AssistantSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        tokens = [session.root_token for session in sessions]
        return self._draft(sessions, tokens, [session.hidden for session in sessions])

    def draft_level(self, sessions: "Sequence[AssistantSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        tokens = list[int]()
        states = list[Tensor]()
        for session, frontier in zip(sessions, frontiers, strict=True):
            tokens += frontier.tokens
            states.append(rows_of(session.drafted, frontier.origins))
        return self._draft(sessions, tokens, states)

    @in_inference_mode
    def _draft(self, sessions: "Sequence[AssistantSession]", tokens: list[int], states: Sequence[Tensor]) -> Tensor:
        """Logits `[nodes, vocab]` after new nodes. The sessions keep the output states for the next level.

        Args:
            sessions: sessions that have nodes.
            tokens: token ids of all nodes.
            states: for each session, the states `[1, nodes, hidden]` that its nodes read.
        """
        widths = [state.shape[1] for state in states]
        with count_pass(sessions), attending_to_trees(self._attending):
            node_positions = list[int]()
            for session, width in zip(sessions, widths, strict=True):
                node_positions += [session.position] * width
            ids, positions = torch.tensor([[tokens], [node_positions]], device=self.zero_hidden.device)
            rows = {
                layer_type: [self._rows(session, layer_type) for session in sessions] for layer_type in self._layers
            }
            output = self.module(
                inputs_embeds=torch.cat((self._embed(ids), join(states)), -1),
                position_ids=positions,
                shared_kv_states={layer_type: layer_rows[0] for layer_type, layer_rows in rows.items()},
                tree_plan=CommittedRows(rows, widths),
                logits_to_keep=slice(None),  # a number makes shared layers drop inputs that assistants lack
            )
        for session, session_states in zip(sessions, split(output.last_hidden_state, widths), strict=True):
            session.drafted = session_states
        return output.logits[0]

    def _rows(self, session: "AssistantSession", layer_type: str) -> Rows:
        """The committed rows that layers of a type attend to; one row of zeros if the text has no rows yet."""
        keys, values = session.cache.committed_of(self._layers[layer_type], self.zero_hidden)
        if layer_type == SLIDING:
            keys, values = keys[:, :, -self._window :], values[:, :, -self._window :]
        if keys.shape[2]:
            return keys, values
        return pad(keys, (0, 0, 0, 1)), pad(values, (0, 0, 0, 1))


class AssistantSession(Session):
    """The newest hidden state of the target in one request, and the target's KV cache.

    Attributes:
        root_token: the last committed token.
        hidden: `[1, 1, hidden]` the target's state at the token before the root.
        drafted: `[1, frontier, hidden]` the assistant's outputs at the newest frontier, which its children read.
    """

    def __init__(self, drafter: AssistantDrafter, root_token: int) -> None:
        super().__init__(drafter, drafter.zero_hidden.device)
        self.root_token = root_token
        self.hidden = self.drafted = drafter.zero_hidden
        self._cache: TreeCache | None = None

    @property
    def cache(self) -> TreeCache:
        """The target's KV cache of the request.

        Raises:
            ConfigError: If none was given.
        """
        if self._cache is None:
            raise ConfigError(
                "an assistant drafts from the target's KV cache, which its session was not given; a session around it "
                "must hand on read_cache"
            )
        return self._cache

    @property
    def position(self) -> int:
        """The position of the root, which all nodes have."""
        return self.cache.next_position

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes

    def read_cache(self, cache: TreeCache) -> None:
        """See `Session`."""
        self._cache = cache

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        for layer in hidden_states:
            self.hidden = torch.cat((self.hidden, layer), 1)[:, -1:]

    def snapshot(self, tokens: int) -> object:
        return None

    def restore(self, snapshot: object, tokens: int) -> int:
        return tokens  # the target keeps the rows and computes the newest hidden state again

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.prefill(hidden_states, len(tokens))
        self.root_token = tokens[-1]


def _stored_layers(config: PreTrainedConfig) -> dict[str, int]:
    """By type, the layer whose keys and values assistants read: the last one that has its own.

    Empty for families without assistants.
    """
    modes: list[str | None] = getattr(config, "kv_sharing_modes", [])
    return {config.layer_types[layer]: layer for layer, mode in enumerate(modes) if mode == "store"}


def _row_shapes(config: Any, layers: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """By type of layer, the number of heads of the keys and their width."""
    shapes: dict[str, tuple[int, int]] = {}
    for layer_type, layer in layers.items():
        layer_config = config.per_layer_config[layer]
        shapes[layer_type] = (layer_config.num_key_value_heads, layer_config.head_dim)
    return shapes


def _check(assistant: PreTrainedModel, target: PreTrainedModel) -> None:
    """Raise a `ModelError` if an assistant cannot draft for a target."""
    advice = "use it with the Gemma 4 model it was trained for"
    assistant_config = assistant.config.get_text_config()
    target_config = target.config.get_text_config()
    stored_layers = _stored_layers(target_config)
    if not stored_layers:
        raise ModelError(
            f"this assistant ({assistant.config.model_type}) reads keys and values that {type(target).__name__} "
            f"({target_config.model_type}) does not share; {advice}"
        )
    if tensor_parallel_size(target) > 1:
        raise ModelError(
            "an assistant reads whole keys and values, but its target's are sharded; load the target in one process"
        )
    sizes: dict[str, tuple[Any, Any]] = {
        "hidden size": (assistant.config.backbone_hidden_size, target_config.hidden_size),
        "vocabulary": (assistant_config.vocab_size, logits_width(target)),
    }
    first_layers: dict[str, int] = {}
    for layer, layer_type in enumerate(assistant_config.layer_types):
        first_layers.setdefault(layer_type, layer)
    assistant_shapes = _row_shapes(assistant_config, first_layers)
    target_shapes = _row_shapes(target_config, stored_layers)
    for layer_type, shape in assistant_shapes.items():
        sizes[f"layer of {layer_type} with keys of (heads, width)"] = (shape, target_shapes.get(layer_type))
    for name, (assistant_size, target_size) in sizes.items():
        if assistant_size != target_size:
            raise ModelError(
                f"this assistant was made for a target with a {name} of {assistant_size}, this target's is "
                f"{target_size}; {advice}"
            )
    placements = [f"{str(model.dtype).removeprefix('torch.')} on {model.device}" for model in (assistant, target)]
    if placements[0] != placements[1]:
        raise ModelError(f"the assistant is {placements[0]} and its target {placements[1]}; load both alike")
