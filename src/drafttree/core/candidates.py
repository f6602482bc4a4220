"""The few tokens that a drafter proposes behind nodes, on the host."""

from collections.abc import Sequence
from typing import NamedTuple

from drafttree.core.lazy import Array, Tensor, np, torch

LEAST, TINY = -1e300, 1e-300
"""Stand for a logit and a probability of 0 where a row has no token that is possible at all."""


class Candidates(NamedTuple):
    """Logits of the tokens that may follow each node, where a drafter proposes few and the host knows them.

    They stand for logits of the whole vocabulary that are -inf for all other tokens, with one column more: what is
    neither of the proposed tokens.

    Attributes:
        tokens: int64 `[nodes, width]` ids of the proposed tokens, in ascending order: so a truncation that has to
            choose between equal ones takes the same as in logits of the whole vocabulary. What fills a row up has id 0.
        logits: float32 `[nodes, width + 1]` of these tokens, -inf where they fill a row up, and in the last column of
            all others together.
        vocab: columns of the vocabulary.
    """

    tokens: Array
    logits: Array
    vocab: int

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Sequence[int], Sequence[float], float]], vocab: int) -> "Candidates":
        """Candidates of rows that may differ in width.

        Args:
            rows: of each node the proposed tokens, their logits, and the logit of all others together.
            vocab: columns of the vocabulary.
        """
        width = max([1, *(len(tokens) for tokens, _, _ in rows)])
        ids, logits = np.zeros((len(rows), width), dtype=np.int64), np.full((len(rows), width + 1), -np.inf, np.float32)
        for row, (tokens, own, others) in enumerate(rows):
            if tokens:
                ids[row, : len(tokens)], logits[row, : len(own)] = zip(
                    *sorted(zip(tokens, own, strict=True)), strict=True
                )
            logits[row, -1] = others
        return cls(ids, logits, vocab)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.tokens)

    def divided(self, temperature: float) -> "Candidates":
        """The candidates at a temperature."""
        with np.errstate(over="ignore"):  # what is beyond float32 is as impossible
            return self._replace(logits=(self.logits.astype(np.float64) / temperature).astype(np.float32))

    def part(self, begin: int, end: int) -> "Candidates":
        """Those of some consecutive nodes."""
        return self._replace(tokens=self.tokens[begin:end], logits=self.logits[begin:end])

    def joined(self, others: Sequence["Candidates"]) -> "Candidates":
        """These and others, one behind the other."""
        parts = [self, *others]
        width = max(part.tokens.shape[1] for part in parts)
        tokens = np.concatenate([np.pad(part.tokens, ((0, 0), (0, width - part.tokens.shape[1]))) for part in parts])
        logits = np.full((len(tokens), width + 1), -np.inf, np.float32)
        row = 0
        for part in parts:
            rows = slice(row, row := row + part.nodes)
            logits[rows, : part.tokens.shape[1]], logits[rows, -1] = part.logits[:, :-1], part.logits[:, -1]
        return self._replace(tokens=tokens, logits=logits)

    def best(self, width: int, allowed: int) -> tuple[Array, Array]:
        """Log-probabilities, float32, and ids `[nodes, width]` of the best tokens, the best first.

        Of equal ones the lower id is the better. Where fewer are proposed, the rest is at -inf.

        Args:
            width: tokens of a node at most.
            allowed: tokens are below this; the others count among the probabilities.
        """
        shifted = self.logits.astype(np.float64)
        shifted -= np.maximum(shifted.max(1, keepdims=True), LEAST)
        logprobs = (shifted - np.log(np.maximum(np.exp(shifted).sum(1, keepdims=True), TINY)))[:, :-1]
        logprobs[self.tokens >= allowed] = -np.inf
        order = (-logprobs).argsort(axis=1, kind="stable")[:, : min(width, allowed)]
        places = order + np.arange(self.nodes)[:, None] * self.tokens.shape[1]
        best = np.full((self.nodes, min(width, allowed)), -np.inf, np.float32)
        ids = np.zeros(best.shape, np.int64)
        best[:, : order.shape[1]] = logprobs.reshape(-1)[places]
        ids[:, : order.shape[1]] = self.tokens.reshape(-1)[places]
        return best, ids

    def dense(self, device: "torch.device") -> Tensor:
        """The logits float32 `[nodes, vocab + 1]` that they stand for."""
        rows = torch.full((self.nodes, self.vocab + 1), -torch.inf, device=device)
        nodes, columns = np.nonzero(self.logits > -np.inf)
        ids = np.concatenate((self.tokens, np.full((self.nodes, 1), self.vocab)), 1)[nodes, columns]
        places = torch.from_numpy(np.stack((nodes, ids))).to(device)
        rows[places[0], places[1]] = torch.from_numpy(self.logits[nodes, columns]).to(device)
        return rows
