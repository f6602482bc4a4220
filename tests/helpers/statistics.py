"""Whether samples follow the distribution they should: chi-square tests against enumerated distributions."""

from collections import Counter

from scipy import stats

from drafttree.policies import Template
from testing.toy import Table, softmax

SMALL_P = 1e-4
VOCAB, LENGTH, PROMPT = 8, 3, [2, 1]
TARGET = Table(VOCAB, seed=5, scale=1.5)
DRAFT = TARGET.blurred(0.8)
RAGGED = Template(paths=((0,), (1,), (0, 0)))


def p_value(found: list, law: dict) -> float:
    """Of a chi-square test, rare outcomes in one cell; 0 where something impossible was found."""
    counted = Counter(found)
    if not counted.keys() <= {outcome for outcome, weight in law.items() if weight > 0}:
        return 0.0
    common = [outcome for outcome, weight in law.items() if weight * len(found) >= 5]
    rare = len(found) - sum(counted[outcome] for outcome in common)
    left = max(len(found) * (1 - sum(law[outcome] for outcome in common)), 0.0)
    observed = [counted[outcome] for outcome in common]
    expected = [law[outcome] * len(found) for outcome in common]
    if left > 1e-6 * len(found):
        observed, expected = [*observed, rare], [*expected, left]
    return stats.chisquare(observed, expected, sum_check=False).pvalue if len(observed) > 1 else 1.0


def texts_law(length: int = LENGTH) -> dict[tuple[int, ...], float]:
    """The probability of every continuation, from the target's table."""
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): weight * chance
            for text, weight in law.items()
            for token, chance in enumerate(softmax(TARGET([*PROMPT, *text])))
        }
    return law
