"""Drafts from the text so far: lookup of the last n tokens, and of suffixes of any length.

A lookup drafter uses nothing but the text so far. It finds the longest suffix of the text that occurred before and
proposes the tokens that followed it there. Their counts alone say little about how likely they are: a single
continuation of a one-word match is usually wrong, one of a 30-token match almost never. So the session learns from the
text itself, prompt included, how often matches of each length predict the next token. This is adaptive escape
estimation, as in PPM text compression (Bloom's PPMZ, secondary escape estimation). The probability of all other tokens
goes to one extra last column of the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import log

import torch

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError
from drafttree.drafters.base import Frontier, HiddenStates, Session, ShownBySize
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.drafters.session import count_pass
from drafttree.drafters.suffix_automaton import Cursor, Match, SuffixAutomaton

MAX_FOLLOWERS = 32
"""The most followers of a match that are proposed; the most recently seen are preferred."""
PRIOR_HIT_RATES = (0.25, 0.25, 0.45, 0.6, 0.75, 0.9, 0.95)
"""Prior probability that a match predicts the next token, by the bit length of the match's length."""
PRIOR_WEIGHT = 2.0
"""Weight of the prior, in observations."""
USUAL_LEVELS = 8
"""Levels over which accepted tokens are estimated if it is not known how deep the policy drafts."""
UNLIKELY = 0.02
"""An estimate of accepted tokens ends at this path probability, since every round makes one."""
FADE_AFTER = 32
"""Observations of a bucket after which older ones are halved whenever a new one comes."""


@dataclass
class Confidence:
    """Learns, for each bucket of similar matches, how often the next token is among a match's followers."""

    _tallies: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def hit_probability(self, match: Match) -> float:
        """Probability that the next token is among the followers of a match."""
        bucket = _bucket(match)
        hits, observations = self._tallies.get(bucket, (0.0, 0.0))
        return (hits + PRIOR_WEIGHT * PRIOR_HIT_RATES[bucket[0]]) / (observations + PRIOR_WEIGHT)

    def learn(self, match: Match, token: int) -> None:
        """Record the token that came after a match."""
        bucket = _bucket(match)
        hits, observations = self._tallies.get(bucket, (0.0, 0.0))
        # A text may change from prose to code, so recent observations must be able to outweigh older ones.
        fade = 0.5 if observations >= FADE_AFTER else 1.0
        self._tallies[bucket] = fade * hits + (token in match.followers), fade * observations + 1

    def next_token_probs(self, match: Match | None) -> tuple[dict[int, float], float]:
        """Probability of each proposed follower, in proportion to its count, and of all other tokens together."""
        if match is None:
            return {}, 1.0
        recent_followers = dict(islice(reversed(match.followers.items()), MAX_FOLLOWERS))
        hit = self.hit_probability(match)
        total = sum(recent_followers.values())
        return {token: hit * count / total for token, count in recent_followers.items()}, 1 - hit


def _bucket(match: Match) -> tuple[int, int]:
    """The bucket of a match for statistics: log2 of its length, and whether it has one, two or more continuations."""
    return min(match.length.bit_length(), len(PRIOR_HIT_RATES) - 1), min(len(match.followers), 3)


class LookupDrafter(ShownBySize):
    """Proposes the tokens that followed earlier occurrences of the end of the text; nothing is trained, no model runs.

    Every earlier occurrence is counted, so several different continuations make a tree.

    Args:
        vocab_size: the vocab size of the target.
        device: the device of the target's tensors.

    Attributes:
        max_ngram: length of the longest suffix that is matched, None for no bound.
    """

    max_ngram: int | None = None

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.context: int | None = None
        self.hidden_layers = ()
        self.levels: int | None = None
        self.nbytes = 0

    def start(self, prompt: list[int], capacity: int) -> "LookupSession":
        """Begin a request; the prompt is indexed when the first tree is drafted."""
        return LookupSession(self, SuffixAutomaton(self.max_ngram), prompt)

    def draft_root(self, sessions: Sequence["LookupSession"]) -> Candidates:
        """What may follow each root; see `SharedDrafter`."""
        return self._propose(sessions, [[session.end] for session in sessions])

    def draft_level(self, sessions: Sequence["LookupSession"], frontiers: Sequence[Frontier]) -> Candidates:
        """What may follow each node of the frontiers; see `SharedDrafter`."""
        session_frontiers = zip(sessions, frontiers, strict=True)
        return self._propose(sessions, [session.step(frontier) for session, frontier in session_frontiers])

    def _propose(self, sessions: Sequence["LookupSession"], cursors: Sequence[list[Cursor]]) -> Candidates:
        rows = list[tuple[list[int], list[float], float]]()
        for session, session_cursors in zip(sessions, cursors, strict=True):
            with count_pass([session]):
                rows += session.look_up(session_cursors)
        return Candidates.of_rows(rows, self.vocab_size)


class PromptLookupDrafter(LookupDrafter):
    """Looks up at most the last `max_ngram` tokens, with exact counts.

    Source: prompt lookup decoding (Saxena 2023) and LLMA (Yang et al. 2023), which copy one occurrence as a chain.

    Args:
        vocab_size: as for `LookupDrafter`.
        device: as for `LookupDrafter`.
        max_ngram: length of the longest n-gram that is matched.

    Raises:
        ConfigError: If `max_ngram` is not a whole number of at least 1.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", max_ngram: int = 8) -> None:
        super().__init__(vocab_size, device)
        if not isinstance(max_ngram, int) or isinstance(max_ngram, bool):
            raise ConfigError(f"max_ngram is {max_ngram!r}; it must be a whole number")
        if max_ngram < 1:
            raise ConfigError(f"max_ngram is {max_ngram}; it must be at least 1")
        self.max_ngram = max_ngram


class SuffixDrafter(LookupDrafter):
    """Looks up the longest suffix of the text that occurred before.

    Source: SAM decoding (Hu et al. 2024) for the automaton, with counts and trees in place of one copied occurrence.
    """


class LookupSession(Session):
    """The index of one request's text, and the cursors of the frontier.

    A cursor without a match proposes nothing. Committed tokens are indexed when the next tree is drafted. Placeholders
    of images are matched, but never proposed.
    """

    def __init__(self, drafter: LookupDrafter, index: SuffixAutomaton, prompt: list[int]) -> None:
        super().__init__(drafter, torch.device("cpu"))  # lookups run on the host, so the host's clock times them
        self.device = drafter.device
        self._index = index
        self._confidence = Confidence()
        self._unread = list(prompt)
        self._cursors: list[Cursor] = []

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def see_images(self, images: ImagePlaceholders) -> None:
        self.images = images
        self._unread = images.shown(self._unread)

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._index_unread(tokens)

    @property
    def end(self) -> Cursor:
        """The cursor at the end of the text."""
        self._index_unread()
        return self._index.end

    def step(self, frontier: Frontier) -> list[Cursor]:
        """The cursors of a new frontier."""
        nodes = zip(frontier.tokens, frontier.origins, strict=True)
        return [self._index.step(self._cursors[origin], token) for token, origin in nodes]

    def look_up(self, cursors: list[Cursor]) -> list[tuple[list[int], list[float], float]]:
        """Per cursor of a new frontier, the proposed tokens, their log-probabilities, and that of all other tokens."""
        self._cursors = cursors
        rows = []
        for cursor in cursors:
            probs, other_prob = self._confidence.next_token_probs(self._index.match(cursor))
            rows.append(([*probs], [*map(log, probs.values())], log(other_prob)))
        return rows

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._unread += tokens

    @property
    def expected_accepted(self) -> float:
        """Expected number of accepted tokens of the likeliest path of `USUAL_LEVELS`."""
        return self.expect(USUAL_LEVELS)

    def expect(self, levels: int) -> float:
        """Expected number of accepted tokens of the likeliest path of at most `levels` tokens."""
        with self.timer:
            self._index_unread()
            cursor = self._index.end
            path_prob = 1.0
            total = 0.0
            for _ in range(levels):
                probs, _ = self._confidence.next_token_probs(self._index.match(cursor))
                if not probs:
                    break
                token = max(probs, key=probs.__getitem__)
                path_prob *= probs[token]
                total += path_prob
                if path_prob < UNLIKELY:
                    break
                cursor = self._index.step(cursor, token)
        return total

    def _index_unread(self, count: int | None = None) -> None:
        """Index the next `count` tokens, by default all that are left."""
        for token in self._unread[:count]:
            if token == self.images.token:
                self._index.append(token, follows=False)
                continue
            if match := self._index.match(self._index.end):
                self._confidence.learn(match, token)
            self._index.append(token)
        self._unread = [] if count is None else self._unread[count:]
