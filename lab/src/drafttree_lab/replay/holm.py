"""Holm's correction of p-values for the number of claims that are judged together."""

from collections.abc import Sequence


def holm(values: Sequence[float], claims: int | None = None) -> list[float]:
    """Corrected p-values, in the order of the given ones (Holm 1979).

    Args:
        values: the p-values.
        claims: how many claims there are, where some have no value yet; these count as if they had the largest, which
            makes the others larger than they will be, never smaller.
    """
    most, found = 0.0, [0.0] * len(values)
    claims = len(values) if claims is None else claims
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        most = max(most, min(1.0, (claims - rank) * values[place]))
        found[place] = most
    return found
