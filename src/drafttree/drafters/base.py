"""Drafters and their sessions: given a text, logits of the next token after every node of a draft tree."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.candidates import Candidates
from drafttree.drafters.timing import PassTimer
from drafttree.models import TreeCache
from drafttree.models.host_copies import send

HiddenStates = tuple[Tensor, ...]
"""The target's hidden states at consecutive tokens, `[1, tokens, hidden]` for each layer a drafter reads."""


class Frontier(NamedTuple):
    """The nodes of one request that the next draft pass is about.

    Attributes:
        tokens: their ids.
        origins: the place of each one's parent in the frontier before; the root's is 0.
    """

    tokens: list[int]
    origins: list[int]

    @property
    def keeps_all(self) -> bool:
        """Whether every node of the frontier before is the parent of one here, in order."""
        return self.origins == list(range(len(self.origins)))


class SharedDrafter(Protocol):
    """A drafter that drafts for lists of its sessions."""

    def root(self, sessions: Sequence[Any]) -> Tensor | Candidates:
        """Return logits `[sessions, vocab]` of the token after each root; the first draft pass of a round.

        A drafter that proposes few tokens, which the host knows, may return them as `Candidates`.
        """
        ...

    def expand(self, sessions: Sequence[Any], frontiers: Sequence[Frontier]) -> Tensor | Candidates:
        """Return logits `[nodes, vocab]` of the token after each node of the frontiers, one after the other.

        They may be `Candidates`, too.

        Args:
            sessions: sessions that have nodes.
            frontiers: frontiers of each of them.
        """
        ...

    def chain(
        self, sessions: Sequence[Any], tokens: Sequence[int], count: int, allowed: int
    ) -> tuple[Array, Array] | None:
        """Draft chains in one call: the best token behind each tree's only node, the best behind that, and so on.

        A drafter may be without this method.

        Args:
            sessions: sessions of the texts.
            tokens: the only node of each tree below its root.
            count: tokens of a chain.
            allowed: tokens that may be drafted are below this.

        Returns:
            Tokens and their log-probabilities `[count, sessions]`; None where it has to be asked level by level.
        """
        ...


class Session:
    """A drafter's state for one request, including its KV cache if it needs one.

    A session that drafts by itself overrides `root` and `expand`; by default its drafter does both, for lists of its
    sessions (`SharedDrafter`). All else has a default: a session that is told nothing and keeps nothing.

    Logits may have more columns than the target's vocabulary. The extra columns take part in the softmax and are never
    drafted: a drafter that proposes only some tokens gives those their logits, -inf to the others, and puts the
    probability of "none of these" into an extra column.

    Args:
        drafter: the drafter whose session it is.
        device: the device of its draft passes.
        shared: what sessions that share a pass have in common; by default the drafter.

    Attributes:
        drafter: as given.
        device: as given.
        shared: as given.
        passes: draft passes so far, prefill not included; one that several requests share is one for each.
        timer: the timer of the passes.
        follows_text: whether it has to be told of the text at once, also where nothing is drafted.
        mixes: whether sessions of its own draft by turns (`choose`).
        resting: of a session that mixes others: whether nothing is drafted at present, so that what it is told can
            wait.
    """

    follows_text: bool = False
    mixes: bool = False
    resting: bool = False

    def __init__(self, drafter: Any, device: torch.device, shared: object = None) -> None:
        self.drafter = drafter
        self.device = device
        self.shared: Any = drafter if shared is None else shared
        self.passes = 0
        self.timer = PassTimer(device)

    @property
    def nbytes(self) -> int:
        """Bytes of the request's state, such as the KV cache."""
        return 0

    @property
    def seconds(self) -> float:
        """Seconds spent in draft passes; on CUDA, reading it waits for the last of them.

        A pass that several requests share counts in full for each, since each waits for the whole of it.
        """
        return self.timer.seconds

    def root(self) -> Tensor:
        """Return logits `[1, 1, vocab]` of the token after the root; the first draft pass of a round."""
        return _as_logits(self.drafter.root([self]), self.device)[None]

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        """Return logits `[1, frontier, vocab]` of the token after each node of a new frontier, in one draft pass.

        Args:
            tokens: `[1, frontier]` token ids of the nodes.
            origins: `[1, frontier]` index of each node's parent in the previous frontier; the root is 0.
        """
        frontier = Frontier(tokens[0].tolist(), origins[0].tolist())
        return _as_logits(self.drafter.expand([self], [frontier]), self.device)[None]

    def read_cache(self, cache: TreeCache) -> None:
        """Take the target's KV cache of the request, which stays the same, before anything else is called.

        When `root` is called it holds the rows of all committed tokens but the root, and no drafted ones. It is not
        copied, and the text depends on it: nothing may be written to it.
        """

    def resume(self, kept: object, tokens: int) -> int:
        """Go on, before `prefill`, from what another session has kept, another drafter's perhaps.

        A drafter whose sessions take over nothing reads every prompt anew; if it reads hidden states, so does the
        target.

        Args:
            kept: as returned by `keep`, None if nothing was kept.
            tokens: first tokens that the two texts share; a drafter that reads hidden states may also use the token
                after them.

        Returns:
            How many first tokens it has taken over. `prefill` begins with the token after them.
        """
        return 0

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        """Process the next tokens of the prompt before the first round; not counted in `passes` or `seconds`.

        A prompt may be read in several parts. The first round reads its last token and what no part has covered.

        Args:
            hidden_states: hidden states of these tokens.
            tokens: how many of the prompt's tokens behind those taken over by `resume` and by earlier parts; all but
                the last where there are fewer.
        """

    @property
    def expected_accepted(self) -> float | None:
        """Drafted tokens of its first source that it expects to have accepted in the next round; None if it cannot."""
        return None

    def choose(self, source: int) -> "Session":
        """The session of the source that drafts this round (see `sources_of`), told all of the text."""
        return self

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        """Record the tokens a round has committed. This session may have drafted nothing in that round.

        Args:
            tokens: the accepted path without the root, then the bonus token.
            hidden_states: hidden states of the root and the accepted path; row i belongs to the token before
                `tokens[i]`.
        """

    def read_rest(self) -> None:
        """Compute, before `keep`, what it knows of the newest tokens of a text that has ended."""

    def keep(self, tokens: int) -> object:
        """Return a copy of what it knows of at most so many first tokens, for `resume`; None for nothing.

        The text may go on: requests that are written at the same time take copies, too.
        """
        return None


def _as_logits(rows: Tensor | Candidates, device: torch.device) -> Tensor:
    return rows.dense(device) if isinstance(rows, Candidates) else rows


class ShownBySize:
    """Gives drafters a `repr`: their class, and how deep and large they are.

    Attributes:
        name: what it was loaded by, empty where it was not.
    """

    levels: int | None
    nbytes: int
    name: str = ""

    def __repr__(self) -> str:
        levels = "any depth" if self.levels is None else f"{self.levels} levels"
        return f"{type(self).__name__}({levels}, {self.nbytes / 1e6:.1f} MB)"


class Drafter(Protocol):
    """Makes a `Session` for every request.

    Attributes:
        vocab_size: size of its vocabulary.
        context: positions it can attend to, None for no limit.
        levels: levels below the root it can draft, None for no limit.
        hidden_layers: layers of the target whose hidden states it reads, counted as in `Model.forward`.
        nbytes: bytes of its weights, without those shared with the target.
    """

    vocab_size: int
    context: int | None
    levels: int | None
    hidden_layers: tuple[int, ...]
    nbytes: int

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request with these prompt token ids; its caches should have room for `capacity` tokens."""
        ...


def sources_of(drafter: Drafter) -> tuple[Drafter, ...]:
    """The drafters that a drafter mixes, by the number a tree's `source` gives; itself where it mixes none."""
    return getattr(drafter, "sources", (drafter,))


def accepted_rows(hidden: HiddenStates, path: list[int]) -> HiddenStates:
    """The hidden states of an accepted path, which is the tree's first nodes wherever the tree is a chain."""
    if not hidden or hidden[0].shape[1] == 1:
        return hidden
    if path[-1] == len(path) - 1:
        return tuple(layer[:, : len(path)] for layer in hidden)
    (rows,) = send([np.array(path)], hidden[0].device)
    return tuple(layer.index_select(1, rows) for layer in hidden)


def rows_of(states: Tensor, rows: list[int]) -> Tensor:
    """These rows of states `[1, rows, ...]`, without waiting for the device."""
    (index,) = send([np.array(rows)], states.device)
    return states.index_select(1, index)
