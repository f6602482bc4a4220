"""SplitMix64 on Python integers: the generator our counter-based numbers must repeat."""

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def splitmix(state: int, count: int) -> list[int]:
    """The first numbers of the generator of Steele, Lea and Flood from a state."""
    return [mix((state + step * GOLDEN) & MASK) for step in range(1, count + 1)]


def plain_uniform(seed: int, position: int, count: int) -> list[float]:
    """A generator per seed gives a state per position, whose generator gives a number per token."""
    state = splitmix(seed, 1)[0]
    stream = splitmix(state + position * GOLDEN, 1)[0]
    return [((number >> 12) + 0.5) / 2**52 for number in splitmix(stream, count)]
