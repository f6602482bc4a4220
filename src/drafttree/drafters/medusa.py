"""Drafts with Medusa heads: one head per level, all reading the target's last hidden state.

Head k reads the hidden state (after the final norm) of the token before the root and gives logits of the token k + 1
levels below the root, independent of the path to it. Medusa (Cai et al. 2024), section 2.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.base import DraftSession, HiddenStates, PackedDraft, ShownBySize
from drafttree.drafters.heads import ResBlock, last_layer, own_bytes, projection, zero_hidden
from drafttree.drafters.packed import DraftEach, share
from drafttree.drafters.pass_counter import PassCounter, count_pass


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


class MedusaDrafter(ShownBySize):
    """Drafts one level per head, all in one draft pass per round.

    Args:
        heads: on the target's device, in its dtype.
        target: the model the heads were trained on.
    """

    def __init__(self, heads: MedusaHeads, target: PreTrainedModel) -> None:
        self.heads = heads
        self.vocab_size = len(projection(target).weight)
        self.context: int | None = None
        self.levels: int | None = heads.count
        self.hidden_layers: tuple[int, ...] = (last_layer(target),)
        self.nbytes = own_bytes(heads, target)
        self._project = projection(target) if heads.shared else nn.Identity()
        self._zero_hidden = zero_hidden(target)

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a request; its only state is the newest hidden state."""
        return MedusaSession(self, self._zero_hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[batch, heads, vocab]` from the hidden states `[batch, 1, hidden]` of the tokens before the roots."""
        return self._project(self.heads(hidden))[:, 0]


class MedusaSession(PassCounter):
    """The newest hidden state of one request, and this round's logits of all heads."""

    def __init__(self, drafter: MedusaDrafter, hidden: Tensor) -> None:
        super().__init__(hidden.device)
        self._drafter = drafter
        self._hidden = hidden
        self._logits = hidden[:, :0]
        self._level = 0

    @property
    def nbytes(self) -> int:
        return self._hidden.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        for layer in hidden_states:
            self._hidden = torch.cat((self._hidden, layer), 1)[:, -1:]

    def keep(self, tokens: int) -> object:
        return None

    def resume(self, kept: object, tokens: int) -> int:
        return tokens  # the newest hidden state is all that is read

    @staticmethod
    def pack(sessions: "Sequence[MedusaSession]") -> PackedDraft:
        return PackedMedusa(sessions) if share(each._drafter for each in sessions) else DraftEach(sessions)

    def root(self) -> Tensor:
        return PackedMedusa([self]).root()[None]

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return PackedMedusa([self]).expand(tokens, origins, [tokens.shape[1]])[None]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.prefill(hidden_states, len(tokens))


class PackedMedusa:
    """The heads' products for several requests. See `drafttree.drafters.base.PackedDraft`.

    Args:
        sessions: of the same drafter.
    """

    def __init__(self, sessions: Sequence[MedusaSession]) -> None:
        self._sessions, self._drafter = sessions, sessions[0]._drafter

    def root(self) -> Tensor:
        with count_pass(self._sessions):
            logits = self._drafter.logits(torch.cat([session._hidden for session in self._sessions]))
        for session, own in zip(self._sessions, logits.split(1), strict=True):
            session._logits, session._level = own, 0
        return logits[:, 0]

    def expand(self, tokens: Tensor, origins: Tensor, widths: Sequence[int]) -> Tensor:
        for session, width in zip(self._sessions, widths, strict=True):
            session._level += width > 0
        own = zip(self._sessions, widths, strict=True)
        return torch.cat([session._logits[:, session._level].expand(width, -1) for session, width in own])
