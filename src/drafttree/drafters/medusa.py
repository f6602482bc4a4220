"""Drafts with Medusa heads: one head per level, all reading the target's last hidden state.

Head k reads the hidden state (after the final norm) of the token before the root and gives logits of the token k + 1
levels below the root, independent of the path to it. Medusa (Cai et al. 2024), section 2.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.base import HiddenStates, Session
from drafttree.drafters.heads import HeadsDrafter, ResBlock
from drafttree.drafters.session import Frontier, count_pass


class MedusaHeads(nn.ModuleList):
    """The heads; `state_dict` has the tensor names of the public checkpoints (`medusa_lm_head.pt`).

    Args:
        heads: number of heads.
        layers: residual blocks per head.
        hidden: width of the target's hidden state.
        vocab: size of the target's vocabulary.
        shared: use the target's output projection; the heads have none of their own.
    """

    def __init__(self, heads: int, layers: int, hidden: int, vocab: int, *, shared: bool = False) -> None:
        super().__init__(_head(layers, hidden, None if shared else vocab) for _ in range(heads))
        self.count, self.layers, self.shared = heads, layers, shared

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[..., hidden]` to logits `[..., heads, vocab]`; with a shared projection to `[..., heads, hidden]`."""
        return torch.stack([head(hidden) for head in self], -2)


def _head(layers: int, hidden: int, vocab: int | None) -> nn.Sequential:
    """Build one head, with an output projection unless `vocab` is None."""
    output = [] if vocab is None else [nn.Linear(hidden, vocab, bias=False)]
    return nn.Sequential(*(ResBlock(hidden) for _ in range(layers)), *output)


class MedusaDrafter(HeadsDrafter):
    """Drafts one level per head, all in one draft pass per round; arguments as of `HeadsDrafter`."""

    def __init__(self, heads: MedusaHeads, target: PreTrainedModel) -> None:
        super().__init__(heads, target)
        self.heads = heads

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; its only state is the newest hidden state."""
        return MedusaSession(self, self.zero_hidden)

    def root(self, sessions: "Sequence[MedusaSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.session.SharedDrafter`."""
        with count_pass(sessions):
            logits = self.logits(torch.cat([session.hidden for session in sessions]))
        for session, own in zip(sessions, logits, strict=True):
            session.logits, session.level = own, 0
        return logits[:, 0]

    def expand(self, sessions: "Sequence[MedusaSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node, which are its head's; see `SharedDrafter`."""
        for session in sessions:
            session.level += 1
        own = zip(sessions, frontiers, strict=True)
        return torch.cat([session.logits[session.level].expand(len(frontier.tokens), -1) for session, frontier in own])

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[batch, heads, vocab]` from the hidden states `[batch, 1, hidden]` of the tokens before the roots."""
        return self.project(self.heads(hidden))[:, 0]


class MedusaSession(Session):
    """The newest hidden state of one request.

    Attributes:
        hidden: `[1, 1, hidden]` before the root.
        logits: `[heads, vocab]` of this round.
        level: drafted last.
    """

    def __init__(self, drafter: MedusaDrafter, hidden: Tensor) -> None:
        super().__init__(drafter, hidden.device)
        self.hidden = hidden
        self.logits = hidden[:, :0]
        self.level = 0

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        for layer in hidden_states:
            self.hidden = torch.cat((self.hidden, layer), 1)[:, -1:]

    def keep(self, tokens: int) -> object:
        return None

    def resume(self, kept: object, tokens: int) -> int:
        return tokens  # the newest hidden state is all that is read

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.prefill(hidden_states, len(tokens))
