from typing import ClassVar

from drafttree.core.candidates import Candidates
from drafttree.core.lazy import Array, Tensor, np, torch
from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Verdict
from drafttree.core.vocab_ops import best_tokens
from drafttree.verifiers.base import Verifier, refuse_greedy, walk


class Coupled(Verifier):
    """Adds Gumbel noise fixed by seed and position to the target's logits and takes the largest.
    A drafted token is accepted if it is that token.

    The text is a function of prompt and seed alone, whatever the drafter and the tree. So it follows the target's
    distribution with every policy. The drafter's logits get the same noise. So a drafter close to the target proposes
    the very token that will be drawn.
    """

    source: ClassVar[str] = "Gumbel-max coupling (Maddison et al. 2014; Daliri et al. 2025)"

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        return refuse_greedy(sampling)

    def guide(self, logits: Tensor, depth: int, randomness: Randomness) -> Tensor:
        noise = randomness.gumbel(depth)
        if missing_columns := logits.shape[-1] - len(noise):
            noise = torch.nn.functional.pad(noise, (0, missing_columns))  # a negative width cuts columns off
        return self.sampling.process(logits) + noise

    def guide_candidates(self, candidates: Candidates, depth: int, randomness: Randomness) -> Candidates | None:
        if type(self).guide is not Coupled.guide:
            return None
        noise = randomness.gumbel(depth).cpu().numpy()
        logits = self.sampling.process(torch.from_numpy(candidates.logits)).numpy()
        logits[:, :-1] += noise[candidates.tokens]
        return candidates._replace(logits=logits)

    def verify(self, tree: DraftTree, logits: Tensor, randomness: Randomness) -> Verdict:
        if logits.is_cpu and type(self.sampling) is Sampling and not self.sampling.truncates:
            return walk(tree, best_tokens(logits, lambda node, row: self._noisy(row, tree.depths[node], randomness)))
        levels = [randomness.gumbel(depth) for depth in range(1, tree.depths[-1] + 2)]
        noise = levels[0] if tree.size == 1 else torch.stack([levels[depth] for depth in tree.depths])
        return walk(tree, best_tokens(self.sampling.process(logits) + noise))

    def _noisy(self, row: Array, depth: int, randomness: Randomness) -> Array:
        """Add the noise of the next token to a row of logits; the bits are those of torch."""
        noise = randomness.gumbel(depth + 1).numpy()
        with np.errstate(over="ignore"):  # a very low logit may become -inf, which is as impossible
            return row / self.sampling.temperature + noise
