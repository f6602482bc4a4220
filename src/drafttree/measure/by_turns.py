from collections.abc import Iterator, Sequence


def by_turns(names: Sequence[str], turns: int, first: int = 0) -> Iterator[tuple[int, str]]:
    """The number of each turn with every name; every turn begins with another name.

    A machine slows down and recovers, so what always ran first would be measured at another speed.

    Args:
        names: the names of what is measured.
        turns: the number of turns.
        first: index of the name that the first turn begins with.
    """
    for turn in range(turns):
        place = (first + turn) % len(names)
        yield from ((turn, name) for name in (*names[place:], *names[:place]))
