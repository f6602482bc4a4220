"""Randomness that is enumerated: every draw and every decision of a random procedure, with its probability in float64.

A verifier asks for randomness in two ways, and a sampled tree in one. `ScriptedRandom` answers from a script and notes
which other answers were possible. Running a procedure once per script gives its exact law, without a second
implementation. A script chooses an interval for each random number. The serving code turns a number of that interval
into a token, so it is enumerated too.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import Randomness, draw_children
from drafttree.core.tree import Proposal
from drafttree.core.vocab_ops import draw

MOST = 50_000
"""Maximum number of outcomes of a random procedure that are enumerated."""
ROUNDING = 1e-6
"""A sum in float32 may miss intervals narrower than this; tokens drawn from them are not compared."""
Result = TypeVar("Result")


class ScriptedRandom(Randomness):
    """The randomness of texts, answered from a script and, after its end, by the generator.

    As in `SeededRandomness`, every random number has an address: the seed, the position of the root, its purpose, and
    its index among the numbers for that purpose. The numbers are uniform and independent, and an answer reveals only
    the interval that a number lies in. So a number that is used twice gives answers that agree, as with a real seed.

    Args:
        script: indices among the possible answers, in the order of the questions.
        generator: draws the answers after the end of the script; None for the first possible answer each time.
    """

    def __init__(self, script: Sequence[int], generator: random.Random | None = None) -> None:
        self._answers = _Answers(script, generator)
        self._address = (0, 0)
        self._question_counts = Counter[str]()

    @property
    def weight(self) -> float:
        """Probability of the answers given."""
        return self._answers.weight

    @property
    def choices(self) -> list[tuple[int, int]]:
        """Per question, the index of the answer and the number of possible answers."""
        return self._answers.choices

    def of(self, seed: int) -> "ScriptedRandom":
        """The randomness of a text with this seed; all texts share the script."""
        return self._addressed(seed, 0)

    def at(self, position: int) -> "ScriptedRandom":
        """The randomness of the round whose root is at `position`; all rounds share the script."""
        return self._addressed(self._address[0], position)

    def _addressed(self, *address: int) -> "ScriptedRandom":
        randomness = ScriptedRandom([])
        randomness._answers = self._answers
        randomness._address = address
        return randomness

    def gumbel(self, depth: int) -> Tensor:
        """Refuse, since noise is continuous and cannot be enumerated.

        Raises:
            ConfigError: in any case.
        """
        raise ConfigError(
            "Gumbel noise cannot be enumerated; 'coupled' is checked by comparing texts instead, as is a subclass of it"
        )

    def accept(self, probability: Tensor | float) -> bool:
        """Accept or reject; both are enumerated if both are possible."""
        if math.isnan(probability):
            raise ConfigError("the verifier accepts with probability NaN")
        end = min(max(float(probability), 0.0), 1.0)
        return self._answers.choose_interval(self._next("accept"), [0.0, end, 1.0]) == 0

    def draw(self, distribution: Tensor) -> int:
        """Draw a token; every token of positive probability is enumerated."""
        token_choice = self._choose(self._next("bonus"), distribution)
        return token_choice.checked(draw(distribution, torch.tensor(token_choice.uniform, dtype=torch.float64)))

    def children(
        self, probs: Tensor, counts: Tensor, max_children: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        """Draw the children of all nodes, one after the other; every way to do so is enumerated."""
        uniforms = torch.full((len(counts), max_children), 0.5, dtype=torch.float64)
        token_choices: dict[tuple[int, int], _TokenChoice] = {}
        for node, count in enumerate(counts.tolist()):
            row = probs[node].clone()
            is_mixed = proposal is Proposal.TOP_K_PLUS_SAMPLE and count > 0
            if is_mixed:
                row[row.topk(count - 1).indices] = 0
            for child in [count - 1] if is_mixed else range(count):
                address = *self._address, f"draft/{depth}", node, child
                token_choice = token_choices[node, child] = self._choose(address, row)
                uniforms[node, 0 if is_mixed else child] = token_choice.uniform
                if proposal is Proposal.WITHOUT_REPLACEMENT:
                    row[token_choice.token] = 0
        tokens, rows = draw_children(probs, counts, uniforms, proposal)
        for (node, child), token_choice in token_choices.items():
            tokens[node, child] = token_choice.checked(tokens[node, child])
        return tokens, rows

    def _next(self, name: str) -> Hashable:
        """The address of the next number for a purpose in this round."""
        self._question_counts[name] += 1
        return *self._address, name, self._question_counts[name]

    def _choose(self, address: Hashable, distribution: Tensor) -> "_TokenChoice":
        columns = distribution.nonzero().flatten().tolist()
        ends = list(itertools.accumulate(distribution[columns].tolist()))
        if not ends or not ends[-1] > 0:
            raise ConfigError("the verifier draws from a distribution without mass")
        index = self._answers.choose_interval(address, [0.0, *(end / ends[-1] for end in ends)])
        return _TokenChoice(columns[index], *self._answers.interval_of(address))


class _TokenChoice(NamedTuple):
    """A token, with the interval of random numbers that give it."""

    token: int
    low: float
    high: float

    @property
    def uniform(self) -> float:
        """The number in the middle of the interval, as `vocab_ops.draw` takes it, which looks for 1 - uniform."""
        return 1 - (self.low + self.high) / 2

    def checked(self, drawn_token: Tensor) -> int:
        """Return the token, which must be the one that the serving code drew.

        Raises:
            ConfigError: the serving code drew another token.
        """
        if int(drawn_token) != self.token and self.high - self.low > ROUNDING:
            raise ConfigError(f"token {int(drawn_token)} was drawn by a number that should draw token {self.token}")
        return self.token


class _Answers:
    """The answers of all rounds so far, and the interval that each random number is known to lie in."""

    def __init__(self, script: Sequence[int], generator: random.Random | None) -> None:
        self.weight = 1.0
        self.choices: list[tuple[int, int]] = []
        self._script = script
        self._generator = generator
        self._intervals: dict[Hashable, tuple[float, float]] = {}

    def interval_of(self, address: Hashable) -> tuple[float, float]:
        """The interval that the number at an address is known to lie in."""
        return self._intervals.get(address, (0.0, 1.0))

    def choose_interval(self, address: Hashable, ends: list[float]) -> int:
        """Choose the interval between consecutive ends, from 0 to 1, that the number at an address lies in."""
        low, high = self.interval_of(address)
        intervals = list(itertools.pairwise(min(max(end, low), high) for end in ends))
        possible_indices = [index for index, (start, end) in enumerate(intervals) if end > start]
        weights = [intervals[index][1] - intervals[index][0] for index in possible_indices]
        answer = self._choose(weights)
        self.choices.append((answer, len(possible_indices)))
        self.weight *= weights[answer] / (high - low)
        self._intervals[address] = intervals[possible_indices[answer]]
        return possible_indices[answer]

    def _choose(self, weights: list[float]) -> int:
        if len(self.choices) < len(self._script):
            return self._script[len(self.choices)]
        return self._generator.choices(range(len(weights)), weights)[0] if self._generator else 0


def outcomes(
    run: Callable[[ScriptedRandom], Result], given: Sequence[int] = (), what: str = "the procedure"
) -> Iterator[tuple[float, Result]]:
    """Every result of a random procedure with its probability.

    Args:
        run: the procedure; everything random in it comes from its argument.
        given: the first answers, which are fixed; only later ones are enumerated.
        what: the name of the procedure in messages.

    Raises:
        ConfigError: there are more than 50,000 outcomes.
    """
    scripts: list[list[int]] = [[*given]]
    for count in itertools.count():
        if not scripts:
            return
        if count == MOST:
            raise ConfigError(f"{what} has more than {MOST} outcomes to enumerate; give the policy a smaller budget")
        script = scripts.pop()
        randomness = ScriptedRandom(script)
        result = run(randomness)
        yield randomness.weight, result
        answers = [answer for answer, _ in randomness.choices]
        for question in range(len(script), len(answers)):
            scripts += [[*answers[:question], answer] for answer in range(1, randomness.choices[question][1])]
