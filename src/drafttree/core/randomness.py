"""Everything random about a text: a pure function of its seed, of a position in it and of what is decided there.

The generator is counter-based, so a draw depends neither on how many tokens were speculated, nor on the batch, nor on
the device.
"""

import hashlib
from abc import ABC, abstractmethod
from functools import lru_cache

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Proposal
from drafttree.core.vocab_ops import draw

BLOCK, DEVICE_BLOCK = 2**17, 2**22
"""Numbers made at a time, on a CPU and on other devices. With twice as many on a CPU (Zen 5), memory is mapped anew,
and a number takes 8.9 ns instead of 3.7. On a GPU, the launches cost more than the numbers of 27 positions of 152,000
tokens."""
SPAN = 64
"""Most positions whose numbers are made at a time."""
RUN = 16
"""Numbers of a stream that are copied to the host at a time."""
# SplitMix64's constants as signed numbers, since int64 wraps as uint64 does and torch has no uint64 arithmetic.
_GOLDEN = -0x61C8864680B583EB
_MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_ONE = 0x3FF0000000000000


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shift bits to the right by `count` places, and fill with zeros."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def _splitmix(bits: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) in place, on int64 tensors, which wrap like uint64."""
    bits.bitwise_xor_(_shift(bits, 30)).mul_(_MIX[0])
    bits.bitwise_xor_(_shift(bits, 27)).mul_(_MIX[1])
    return bits.bitwise_xor_(_shift(bits, 31))


@lru_cache(maxsize=64)
def _mixed_seed(seed: int) -> int:
    """Apply the finaliser to one seed on the host, as a signed number, so that no tensor is copied to a device."""
    bits = (seed + _GOLDEN) % 2**64
    for shift, factor in zip((30, 27), _MIX, strict=True):
        bits = (bits ^ (bits >> shift)) * factor % 2**64
    bits ^= bits >> 31
    return bits - 2**64 if bits >= 2**63 else bits


@lru_cache(maxsize=4)
def _counter(size: int, device: "torch.device") -> Tensor:
    return torch.arange(1, size + 1, device=device) * _GOLDEN


def uniform(seed: int, positions: Tensor, size: int) -> Tensor:
    """Uniform numbers in (0, 1), float64 `[..., size]`: the first `size` of the stream of (seed, position).

    The upper 52 bits of a number fill the fraction of a double in [1, 2), which then moves to the middle of its cell.

    Args:
        seed: a 64-bit integer.
        positions: int64 `[...]` absolute positions in the sequence.
        size: how many numbers per position; a longer stream begins with the shorter one.
    """
    stream = _splitmix((positions + 1) * _GOLDEN + _mixed_seed(seed))
    bits = _shift(_splitmix(stream[..., None] + _counter(size, positions.device)), 12)
    return bits.bitwise_or_(_ONE).view(torch.float64).sub_(1 - 2.0**-53)


def gumbel(seed: int, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise, float32 `[..., vocab]`, a pure function of seed, position and token id."""
    return uniform(seed, positions, vocab).log_().neg_().log_().neg_().float()


@lru_cache(maxsize=64)
def derived_seed(seed: int, name: str) -> int:
    """Another 64-bit seed, whose numbers are independent of those of `seed` and of other names."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), signed=True)


def random_seed() -> int:
    """A seed from torch's global generator, which `torch.manual_seed` sets."""
    return int(torch.randint(2**63 - 1, ()))


class Randomness(ABC):
    """Everything random about a round of a text: what verifiers and drawn trees may ask for."""

    @abstractmethod
    def at(self, position: int) -> "Randomness":
        """The randomness of the round whose root is at `position`; each call starts from the round's first numbers."""

    @abstractmethod
    def gumbel(self, depth: int) -> Tensor:
        """A new float32 `[vocab]`: the Gumbel noise of the token `depth` positions after the root."""

    @abstractmethod
    def accept(self, probability: Tensor | float) -> bool:
        """True with this probability; a value of 1 or more is certain."""

    @abstractmethod
    def draw(self, distribution: Tensor) -> int:
        """A token of this distribution `[vocab]`, which need not be normalised."""

    @abstractmethod
    def children(
        self, probs: Tensor, counts: Tensor, max_children: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        """Draw children of every frontier node.

        Args:
            probs: `[frontier, vocab]` distributions of the draft; changed meanwhile and restored at the end.
            counts: `[frontier]` number of children that each node gets.
            max_children: number of children drawn for each node, at least the largest count. Those beyond a node's
                count are not used.
            proposal: how they are drawn.
            depth: level of the children; draws of different levels are independent.

        Returns:
            Token ids `[frontier, max_children]` in draw order, and the distributions `[frontier, vocab]` from which the
            first drawn children come. These are `probs` itself, unless the best tokens are taken without a draw.
        """


class SeededRandomness(Randomness):
    """Random numbers that are a pure function of a seed and of places in the text, on any device.

    A round reads the streams `accept`, `bonus` and `draft` at its root's position, from their beginning. Numbers are
    made for many positions at a time, within limits, and deleted when the text has passed them.

    Args:
        seed: the text's seed.
        vocab: numbers per position.
        device: the device where the numbers are used.
    """

    def __init__(self, seed: int, vocab: int, device: "torch.device") -> None:
        self._seed = seed
        self._vocab = vocab
        self._device = device
        self._position = 0
        self._span = max(1, min(SPAN, (BLOCK if device.type == "cpu" else DEVICE_BLOCK) // vocab))
        # Shared by all rounds of the text.
        self._gumbel: dict[int, Tensor] = {}
        self._streams: dict[tuple[str, int], tuple[int, Tensor]] = {}
        # By stream, the number of runs read in this round, and the numbers not yet used.
        self._asked: dict[str, tuple[int, list[float]]] = {}

    def at(self, position: int) -> "SeededRandomness":
        if self._gumbel and min(self._gumbel) <= position - self._span:
            for passed_position in [key for key in self._gumbel if key <= position]:
                del self._gumbel[passed_position]
        randomness = object.__new__(type(self))  # what `copy` does, which takes four times as long
        vars(randomness).update(vars(self))
        randomness._position = position
        randomness._asked = {}
        return randomness

    def gumbel(self, depth: int) -> Tensor:
        position = self._position + depth
        if position not in self._gumbel:
            first_position = position - position % self._span
            noise = gumbel(
                self._seed, torch.arange(first_position, first_position + self._span, device=self._device), self._vocab
            )
            self._gumbel |= dict(enumerate(noise, first_position))
        return self._gumbel[position].clone()  # a copy, since later rounds read the row too

    def accept(self, probability: Tensor | float) -> bool:
        return self._next("accept") < float(probability)

    def draw(self, distribution: Tensor) -> int:
        return int(draw(distribution, distribution.new_full((), self._next("bonus"), dtype=torch.float64)))

    def children(
        self, probs: Tensor, counts: Tensor, max_children: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        row = self._stream(f"draft/{depth}", self._position, len(counts) * max_children, self._device)
        # A child's number depends on the counts alone, not on `max_children`: padding does not change trees.
        offsets = torch.arange(len(counts), device=row.device)[:, None] * counts.amax().clamp_min(1)
        uniforms = row[offsets + torch.arange(max_children, device=row.device)]
        return draw_children(probs, counts, uniforms, proposal)

    def _next(self, name: str) -> float:
        """The next number of a stream at the round's position, on the host."""
        runs, numbers = self._asked.get(name, (0, []))
        if not numbers:
            numbers = self._stream(f"{name}/{runs}", self._position, RUN, "cpu").tolist()[::-1]
            self._asked[name] = runs + 1, numbers
        return numbers.pop()

    def _stream(self, name: str, position: int, size: int, device: "torch.device | str") -> Tensor:
        """Float64 `[size]`: the first numbers of a stream at a position."""
        width = max(RUN, 1 << (size - 1).bit_length())
        span = max(1, min(SPAN, BLOCK // width))
        offset = position % span
        first_position, rows = self._streams.get((name, width), (-1, None))
        if rows is None or first_position != position - offset:
            first_position = position - offset
            positions = torch.arange(first_position, first_position + span, device=device)
            rows = uniform(derived_seed(self._seed, name), positions, width)
            self._streams[name, width] = first_position, rows
        return rows[offset, :size]


def draw_children(probs: Tensor, counts: Tensor, uniforms: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
    """Draw children with these uniform numbers `[frontier, max_children]`; otherwise as `Randomness.children`."""
    if proposal is Proposal.WITH_REPLACEMENT:
        return torch.stack([draw(probs, column_uniforms) for column_uniforms in uniforms.unbind(-1)], -1), probs
    if proposal is Proposal.WITHOUT_REPLACEMENT:
        tokens = torch.zeros_like(uniforms, dtype=torch.long)
        drawn_probs = torch.zeros_like(uniforms, dtype=probs.dtype)
        for column, column_uniforms in enumerate(uniforms.unbind(-1)):
            token = draw(probs, column_uniforms)[..., None]
            tokens[..., column : column + 1] = token
            drawn_probs[..., column : column + 1] = probs.gather(-1, token)
            probs.scatter_(-1, token, 0.0)
        return tokens, probs.scatter_add_(-1, tokens, drawn_probs)
    best_tokens = probs.topk(uniforms.shape[-1]).indices
    certain = torch.arange(uniforms.shape[-1], device=best_tokens.device) < counts[..., None] - 1
    other_probs = probs.masked_fill(torch.zeros_like(probs, dtype=torch.bool).scatter(-1, best_tokens, certain), 0.0)
    last_token = draw(other_probs, uniforms[..., 0])[..., None]
    other_probs /= other_probs.sum(-1, keepdim=True)
    return best_tokens.scatter(-1, (counts[..., None] - 1).clamp_min(0), last_token), other_probs
