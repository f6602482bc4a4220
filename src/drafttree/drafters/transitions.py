"""Transitions of block drafters: the path to a node changes the logits after it.

DSpark's Markov heads (DeepSpec) add to the logits. They look up the token's row in a table `[vocab, rank]` and mix it
as the kind of transition says. A second table projects it to the vocabulary. DFlash2's candidate selector (z-lab)
scores pairs of the token and one of the level's best candidates.
"""

import torch
from torch import Tensor, nn


class Transition(nn.Module):
    """The plain kind ("vanilla"): the token's row of the table is not mixed.

    Args:
        vocab: size of the target's vocabulary.
        draft_vocab: number of tokens that can be drafted.
        rank: width of the tables.
        width: width of the drafter's rows.
    """

    def __init__(self, vocab: int, draft_vocab: int, rank: int, width: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab, bias=False)

    def forward(self, logits: Tensor, tokens: Tensor, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits after nodes, and the memory of the paths to them.

        Args:
            logits: `[nodes, draft_vocab]` the logits of the next level.
            tokens: `[nodes]` the nodes' token ids in the target's vocabulary.
            rows: `[nodes, width]` the drafter's states that predict the next level.
            memory: `[nodes, rank]` the memory of the path to each node's parent; zeros for the root.

        Returns:
            The logits `[nodes, draft_vocab]` and the memory `[nodes, rank]`.
        """
        state, memory = self.mix(self.markov_w1(tokens), rows, memory)
        return logits + self.markov_w2(state), memory

    def mix(self, token_rows: Tensor, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the tokens' table rows `[nodes, rank]`; return vectors to project to the vocabulary, and the memory."""
        return token_rows, memory


class GatedTransition(Transition):
    """The token's row times a gate, which reads that row and the drafter's row ("gated")."""

    def __init__(self, vocab: int, draft_vocab: int, rank: int, width: int) -> None:
        super().__init__(vocab, draft_vocab, rank, width)
        self.gate_proj = nn.Linear(width + rank, rank)

    def mix(self, token_rows: Tensor, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate_proj(torch.cat((rows, token_rows), -1)).sigmoid() * token_rows, memory


class RecurrentTransition(Transition):
    """A recurrent state along the path ("rnn")."""

    def __init__(self, vocab: int, draft_vocab: int, rank: int, width: int) -> None:
        super().__init__(vocab, draft_vocab, rank, width)
        self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def mix(self, token_rows: Tensor, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate, output = self.joint_proj(torch.cat((memory, token_rows, rows), -1)).chunk(3, -1)
        gate = gate.sigmoid()
        return output.tanh(), gate * memory + (1 - gate) * candidate.tanh()


class CandidateSelector(nn.Module):
    """Scores the pairs of a node's token and the next level's best candidates; only these are drafted (DFlash2).

    Args:
        vocab: size of the vocabulary.
        rank: width of the tables.
        width: width of the drafter's rows.
        candidates: number of a level's best tokens that can be drafted.
    """

    def __init__(self, vocab: int, rank: int, width: int, candidates: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Embedding(vocab, rank)
        self.successor_codebook = nn.Embedding(vocab, rank)
        self.hidden_projection = nn.Linear(width, rank, bias=False)
        self.candidates = candidates

    def forward(self, logits: Tensor, tokens: Tensor, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Transition`; the memory stays as it is."""
        top = logits.topk(self.candidates, -1)
        query = self.predecessor_codebook(tokens) * self.hidden_projection(rows)
        pair_scores = (self.successor_codebook(top.indices) @ query[..., None]).squeeze(-1)
        return torch.full_like(logits, -torch.inf).scatter_(-1, top.indices, top.values + pair_scores), memory


TRANSITIONS: dict[str, type[Transition]] = {
    "vanilla": Transition,
    "gated": GatedTransition,
    "rnn": RecurrentTransition,
}
"""Transitions by their name in `markov_head_type` of checkpoints."""
