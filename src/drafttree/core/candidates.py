"""The few tokens that a drafter proposes after nodes, on the host."""

from collections.abc import Sequence
from typing import NamedTuple

from drafttree.core.lazy import Array, Tensor, np, torch

LEAST, TINY = -1e300, 1e-300
"""Bounds from below of a row's highest logit and of its sum, for rows in which no token is possible."""


class Candidates(NamedTuple):
    """Logits of the tokens that may follow each node, for a drafter that proposes few and has them on the host.

    They are equivalent to logits of the whole vocabulary, -inf for all other tokens, and one more column for "none of
    these".

    Attributes:
        tokens: int64 `[nodes, width]` ids of the proposed tokens. They ascend, so that a truncation chooses between
            equal logits as it does over the whole vocabulary. Rows are padded with id 0.
        logits: float32 `[nodes, width + 1]` their logits, -inf for padding. The last column is the logit of all other
            tokens together.
        vocab: columns of the vocabulary.
    """

    tokens: Array
    logits: Array
    vocab: int

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Sequence[int], Sequence[float], float]], vocab: int) -> "Candidates":
        """Candidates of rows that may differ in width.

        Args:
            rows: per node, the proposed tokens, their logits, and one logit for all other tokens together.
            vocab: columns of the vocabulary.
        """
        width = max([1, *(len(tokens) for tokens, _, _ in rows)])
        ids = np.zeros((len(rows), width), dtype=np.int64)
        logits = np.full((len(rows), width + 1), -np.inf, np.float32)
        for row, (tokens, token_logits, other_logit) in enumerate(rows):
            if tokens:
                ids[row, : len(tokens)], logits[row, : len(token_logits)] = zip(
                    *sorted(zip(tokens, token_logits, strict=True)), strict=True
                )
            logits[row, -1] = other_logit
        return cls(ids, logits, vocab)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.tokens)

    def divided(self, temperature: float) -> "Candidates":
        """The candidates at a temperature."""
        with np.errstate(over="ignore"):  # a logit beyond float32 becomes infinite, which is as impossible
            return self._replace(logits=(self.logits.astype(np.float64) / temperature).astype(np.float32))

    def part(self, begin: int, end: int) -> "Candidates":
        """The candidates of the nodes from `begin` to before `end`."""
        return self._replace(tokens=self.tokens[begin:end], logits=self.logits[begin:end])

    def joined(self, more_candidates: Sequence["Candidates"]) -> "Candidates":
        """Concatenate these candidates and more."""
        groups = [self, *more_candidates]
        width = max(group.tokens.shape[1] for group in groups)
        tokens = np.concatenate(
            [np.pad(group.tokens, ((0, 0), (0, width - group.tokens.shape[1]))) for group in groups]
        )
        logits = np.full((len(tokens), width + 1), -np.inf, np.float32)
        row = 0
        for group in groups:
            rows = slice(row, row := row + group.nodes)
            logits[rows, : group.tokens.shape[1]] = group.logits[:, :-1]
            logits[rows, -1] = group.logits[:, -1]
        return self._replace(tokens=tokens, logits=logits)

    def best(self, width: int, allowed: int) -> tuple[Array, Array]:
        """Log-probabilities, float32, and ids `[nodes, width]` of the best tokens, the best first.

        Of equal logits the lower id comes first. If fewer tokens are proposed, the rest have -inf.

        Args:
            width: most tokens of a node.
            allowed: only ids below this are returned; the others take part in the softmax.
        """
        shifted_logits = self.logits.astype(np.float64)
        shifted_logits -= np.maximum(shifted_logits.max(1, keepdims=True), LEAST)
        logprobs = (shifted_logits - np.log(np.maximum(np.exp(shifted_logits).sum(1, keepdims=True), TINY)))[:, :-1]
        logprobs[self.tokens >= allowed] = -np.inf
        order = (-logprobs).argsort(axis=1, kind="stable")[:, : min(width, allowed)]
        indices = order + np.arange(self.nodes)[:, None] * self.tokens.shape[1]
        best_logprobs = np.full((self.nodes, min(width, allowed)), -np.inf, np.float32)
        ids = np.zeros(best_logprobs.shape, np.int64)
        best_logprobs[:, : order.shape[1]] = logprobs.reshape(-1)[indices]
        ids[:, : order.shape[1]] = self.tokens.reshape(-1)[indices]
        return best_logprobs, ids

    def dense(self, device: "torch.device") -> Tensor:
        """The logits of the whole vocabulary, float32 `[nodes, vocab + 1]`."""
        rows = torch.full((self.nodes, self.vocab + 1), -torch.inf, device=device)
        nodes, columns = np.nonzero(self.logits > -np.inf)
        ids = np.concatenate((self.tokens, np.full((self.nodes, 1), self.vocab)), 1)[nodes, columns]
        coordinates = torch.from_numpy(np.stack((nodes, ids))).to(device)
        rows[coordinates[0], coordinates[1]] = torch.from_numpy(self.logits[nodes, columns]).to(device)
        return rows
