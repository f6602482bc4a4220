"""Drafters and their sessions: given a text, logits of the next token after every node of a draft tree."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.candidates import Candidates
from drafttree.drafters.former_names import WithFormerNames, add_new_names
from drafttree.drafters.image_placeholders import NO_IMAGES, ImagePlaceholders
from drafttree.drafters.ranked_logits import DraftLogits, RankedLogits
from drafttree.drafters.timing import PassTimer
from drafttree.models import TreeCache
from drafttree.models.host_copies import send

HiddenStates = tuple[Tensor, ...]
"""The target's hidden states at consecutive tokens, `[1, tokens, hidden]` for each layer a drafter reads."""


class Frontier(NamedTuple):
    """The nodes of one request that the next draft pass expands.

    Attributes:
        tokens: their ids.
        origins: the index of each node's parent in the previous frontier; the root's is 0.
    """

    tokens: list[int]
    origins: list[int]

    @property
    def keeps_all(self) -> bool:
        """Whether every node has the same index as its parent."""
        return self.origins == list(range(len(self.origins)))


class SharedDrafter(Protocol):
    """A drafter that drafts for several of its sessions in one pass."""

    def draft_root(self, sessions: Sequence[Any]) -> DraftLogits | Candidates:
        """Return logits `[sessions, vocab]` of the token after each root; the first draft pass of a round.

        A drafter that proposes few tokens, and has them on the host, may return them as `Candidates`. One whose pass
        ranks tokens on the device returns `RankedLogits`.
        """
        ...

    def draft_level(self, sessions: Sequence[Any], frontiers: Sequence[Frontier]) -> DraftLogits | Candidates:
        """Return logits `[nodes, vocab]` of the token after each node of the frontiers, in order.

        `Candidates` or `RankedLogits` may be returned instead, as by `draft_root`.

        Args:
            sessions: sessions that have nodes.
            frontiers: the frontier of each session.
        """
        ...

    def draft_chain(
        self, sessions: Sequence[Any], tokens: Sequence[int], count: int, allowed: int
    ) -> tuple[Array, Array] | None:
        """Draft chains in one call: the best token after each tree's only node, the best token after that, and so on.

        A drafter need not have this method.

        Args:
            sessions: sessions of the texts.
            tokens: per tree, the token of its only node below the root.
            count: number of tokens of each chain.
            allowed: only ids below this may be drafted.

        Returns:
            Tokens and their log-probabilities `[count, sessions]`; None if it has to be asked level by level.
        """
        ...


class Session(WithFormerNames):
    """A drafter's state for one request, including its KV cache if it needs one.

    By default the drafter drafts, for several of its sessions at once (`SharedDrafter`). A session that drafts on its
    own overrides `draft_root` and `draft_level`. All other methods have defaults, which ignore their arguments and keep
    nothing.

    Logits may have more columns than the target's vocabulary. The extra columns take part in the softmax and are never
    drafted. A drafter that proposes only some tokens gives -inf to the others, and puts the probability of "none of
    these" into an extra column.

    Args:
        drafter: the drafter that made the session.
        device: the device of its draft passes.
        shared: sessions share a pass only if this is the same object for all of them; by default the drafter.

    Attributes:
        drafter: as given.
        device: as given.
        shared: as given.
        passes: draft passes so far, prefill not included; a pass that several requests share counts for each of them.
        timer: the timer of the passes.
        follows_text: whether it must get new tokens at once, even while nothing is drafted.
        mixes: whether it has several sessions, one of which drafts each round (`choose`).
        resting: for a session that mixes others, whether drafting is paused, so that they may get tokens later.
        images: the images of which it sees one placeholder each; `NO_IMAGES` if it sees every token.
    """

    follows_text: bool = False
    mixes: bool = False
    resting: bool = False
    images: ImagePlaceholders = NO_IMAGES

    def __init__(self, drafter: Any, device: torch.device, shared: object = None) -> None:
        add_new_names(drafter)
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

    def draft_root(self) -> Tensor:
        """Return logits `[1, 1, vocab]` of the token after the root; the first draft pass of a round."""
        return as_tensor(self.drafter.draft_root([self]), self.device)[None]

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        """Return logits `[1, frontier, vocab]` of the token after each node of a new frontier, in one draft pass.

        Args:
            tokens: `[1, frontier]` token ids of the nodes.
            origins: `[1, frontier]` index of each node's parent in the previous frontier; the root is 0.
        """
        frontier = Frontier(tokens[0].tolist(), origins[0].tolist())
        return as_tensor(self.drafter.draft_level([self], [frontier]), self.device)[None]

    def read_cache(self, cache: TreeCache) -> None:
        """Take the target's KV cache of the request, once, before any other method is called.

        This is the target's own cache, which must not be written to. When `draft_root` is called, it holds the rows of
        all committed tokens but the root, and no drafted ones.
        """

    def see_images(self, images: ImagePlaceholders) -> None:
        """See one placeholder for each image of the prompt, if the session reads tokens only.

        It is called once, before all other methods but `read_cache`, and only for prompts with images. A session that
        overrides it sets `images`. All numbers of tokens that the other methods get or return still count every token.
        """

    def restore(self, snapshot: object, tokens: int) -> int:
        """Take over a snapshot of another session, perhaps one of another drafter; called before `prefill`.

        If a drafter's sessions take over nothing, every prompt is read again: by the drafter and, if it reads hidden
        states, by the target too.

        Args:
            snapshot: as returned by `snapshot`; None if there is none.
            tokens: number of first tokens that the two texts share; a drafter that reads hidden states may also use the
                token after them.

        Returns:
            The number of first tokens that it has taken over. `prefill` begins with the token after them.
        """
        return 0

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        """Process the next tokens of the prompt before the first round; not counted in `passes` or `seconds`.

        A prompt may be read in several parts. The first round reads its last token and what no part has covered.

        Args:
            hidden_states: hidden states of these tokens.
            tokens: number of tokens of this part, which begins after those of `restore` and of earlier parts; if fewer
                are left, the part is all of them but the last.
        """

    @property
    def expected_accepted(self) -> float | None:
        """Expected number of accepted tokens if its first source drafts the next round; None if not known."""
        return None

    def choose(self, source: int) -> "Session":
        """Return the session of the source that drafts this round (see `sources_of`). It knows the whole text then."""
        return self

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        """Record the tokens a round has committed. This session may have drafted nothing in that round.

        Args:
            tokens: the accepted path without the root, then the bonus token.
            hidden_states: hidden states of the root and the accepted path; row i belongs to the token before
                `tokens[i]`.
        """

    def read_rest(self) -> None:
        """Read the newest tokens of a text that has ended; called before `snapshot`."""

    def snapshot(self, tokens: int) -> object:
        """Return a copy of its state of the first `tokens` tokens at most, for `restore`; None for nothing.

        The text may go on: requests that are written at the same time take copies, too.
        """
        return None


def as_tensor(rows: DraftLogits | Candidates, device: torch.device) -> Tensor:
    """The logits of all tokens, whatever form a drafter gives them."""
    if isinstance(rows, Candidates):
        return rows.dense(device)
    return rows.logits() if isinstance(rows, RankedLogits) else rows


class ShownBySize(WithFormerNames):
    """Gives drafters a `repr` with their class, levels and size.

    Attributes:
        name: the name it was loaded by, empty if it was made in another way.
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
    """The drafters that a drafter mixes, in the order of a tree's `source`; itself alone if it mixes none."""
    return getattr(drafter, "sources", (drafter,))


def accepted_rows(hidden_states: HiddenStates, path: list[int]) -> HiddenStates:
    """The hidden states of the nodes on an accepted path. If these are the tree's first nodes, nothing is copied."""
    if not hidden_states or hidden_states[0].shape[1] == 1:
        return hidden_states
    if path[-1] == len(path) - 1:
        return tuple(layer[:, : len(path)] for layer in hidden_states)
    (rows,) = send([np.array(path)], hidden_states[0].device)
    return tuple(layer.index_select(1, rows) for layer in hidden_states)


def rows_of(states: Tensor, rows: list[int]) -> Tensor:
    """Select rows of states `[1, rows, ...]`, without waiting for the device."""
    (index,) = send([np.array(rows)], states.device)
    return states.index_select(1, index)
