"""Patterns of the numbers between two bounds, as JSON writes them: digits, and a fraction where they may have one.

Zero has a sign only where negative numbers are possible, and powers of ten are written in digits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, inf, nextafter

WHOLE = "-?(?:0|[1-9][0-9]*)"
ANY_NUMBER = rf"{WHOLE}(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
FRACTION = r"(?:\.[0-9]+)?"
LARGEST_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Bound:
    """A bound of numbers.

    Attributes:
        value: where it is.
        open: whether the value itself is beyond it.
    """

    value: Decimal
    open: bool = False

    @staticmethod
    def of(value: float, *, open: bool = False) -> "Bound":
        """The bound at a number of a schema, by the digits that it is written with."""
        return Bound(Decimal(repr(value or 0)), open)  # -0.0 has a sign

    @property
    def decimals(self) -> int:
        """How many digits it has behind the point."""
        return len(_written(self.value).partition(".")[2])

    def mirrored(self) -> "Bound":
        return replace(self, value=abs(self.value))


ZERO = Bound(Decimal(0))


def number_pattern(least: Bound | None, most: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds, "" where there is none.

    Args:
        least: the lower bound.
        most: the upper bound.
        whole: whether they have no fraction.
    """
    if least is None and most is None:
        return WHOLE if whole else ANY_NUMBER
    if whole:
        least, most = _whole(least, up=True), _whole(most, up=False)
    if least and most and (least.value > most.value or (least.value == most.value and (least.open or most.open))):
        return ""
    if least and most and least.value == most.value:
        return _written(least.value).replace(".", r"\.")
    alternatives = []
    if most is None or most.value >= 0:
        alternatives.append(_positive(least if least and least.value >= 0 else ZERO, most, whole=whole))
    if least is None or least.value < 0:
        nearest_bound = most.mirrored() if most and most.value <= 0 else ZERO
        negative_pattern = _positive(nearest_bound, least and least.mirrored(), whole=whole)
        alternatives.append(f"-(?:{negative_pattern})" if negative_pattern else "")
    return "|".join(filter(None, alternatives))


def inward(bound: Fraction, *, up: bool) -> int | float:
    """The nearest number to a bound that a double holds and the bound allows; llguidance reads 64-bit integers only."""
    if bound == LARGEST_WHOLE:
        return LARGEST_WHOLE
    number = float(bound)
    if number < bound if up else number > bound:
        number = nextafter(number, inf if up else -inf)
    if abs(bound) <= 2**53:
        return int(number) if number.is_integer() else number
    return int(max(number, 1024.0 - 2**63)) if up else int(number)


def _whole(bound: Bound | None, *, up: bool) -> Bound | None:
    """The nearest whole number inside a bound, as a bound that it belongs to."""
    if bound is None:
        return None
    if bound.open:
        return Bound(Decimal(floor(bound.value) + 1 if up else ceil(bound.value) - 1))
    return Bound(Decimal(ceil(bound.value) if up else floor(bound.value)))


def _written(value: Decimal) -> str:
    """A number in digits, without a fraction of zeros."""
    digits = f"{value:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _positive(least: Bound, most: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds of which none is below zero."""
    length = len(_written(least.value).partition(".")[0])
    if most is None:
        longer_pattern = f"[1-9][0-9]{{{length},}}{'' if whole else FRACTION}"
        return "|".join(filter(None, [_of_length(length, least, None, whole=whole), longer_pattern]))
    max_length = len(_written(most.value).partition(".")[0])
    alternatives = []
    for digits in range(length, max_length + 1):
        lower = least if digits == length else Bound(Decimal(10) ** (digits - 1))
        alternatives.append(_of_length(digits, lower, most if digits == max_length else None, whole=whole))
    return "|".join(filter(None, alternatives))


def _of_length(length: int, least: Bound, most: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds that have so many digits before the point."""
    lower = _Digits.of(least) if least else None
    upper = _Digits.of(most) if most else None
    return _before_point(length, lower, upper, whole=whole) or ""


@dataclass(frozen=True)
class _Digits:
    """What is left of a bound behind the digits that a number has in common with it.

    Attributes:
        before: its digits before the point.
        after: those after it, the last of which is not zero.
        open: whether the bound itself is beyond it.
    """

    before: str
    after: str
    open: bool

    @classmethod
    def of(cls, bound: Bound) -> "_Digits":
        integer_digits, _, fraction_digits = _written(bound.value).partition(".")
        return cls(integer_digits, fraction_digits, bound.open)

    def without_first(self) -> "_Digits":
        return replace(self, before=self.before[1:]) if self.before else replace(self, after=self.after[1:])

    def first(self) -> int:
        return int((self.before or self.after)[:1] or "0")

    @property
    def is_met(self) -> bool:
        """Whether the bound is met where no digit follows, or zeros alone."""
        return not self.after


def _before_point(left: int, lower: _Digits | None, upper: _Digits | None, *, whole: bool) -> str | None:
    """The pattern of what follows where so many digits are left before the point; None for nothing at all."""
    if lower is None and upper is None:
        return _repeat("[0-9]", left) + ("" if whole else FRACTION)
    if left:
        return _next_digit(lower, upper, lambda low, high: _before_point(left - 1, low, high, whole=whole))
    ends = (lower is None or (lower.is_met and not lower.open)) and (
        upper is None or not upper.is_met or not upper.open
    )
    fraction = None if whole else _after_point(lower, upper, begun=False)
    if fraction is None:
        return "" if ends else None
    return rf"(?:\.{fraction}){'?' * ends}"


def _after_point(lower: _Digits | None, upper: _Digits | None, *, begun: bool = True) -> str | None:
    """The pattern of the digits that follow after the point; None for nothing at all.

    Args:
        lower: what is left of the lower bound.
        upper: what is left of the upper bound.
        begun: whether a digit has been written, so none has to follow.
    """
    quantifier = "*" if begun else "+"
    if upper is None and (lower is None or lower.is_met):
        return "[0-9]*[1-9][0-9]*" if lower and lower.open else f"[0-9]{quantifier}"
    if upper and upper.is_met and (lower is None or lower.is_met):
        return None if upper.open or (lower and lower.open) else f"0{quantifier}"
    pattern = _next_digit(lower, upper, _after_point)
    ends = begun and (lower is None or (lower.is_met and not lower.open)) and not (upper and upper.is_met)
    if pattern is None:
        return "" if ends else None
    return f"{pattern}{'?' * ends}"


def _next_digit(
    lower: _Digits | None, upper: _Digits | None, following: Callable[[_Digits | None, _Digits | None], str | None]
) -> str | None:
    """The pattern, a group, of a digit and what follows it, which depends on what is left of the bounds then."""
    low, high = lower.first() if lower else 0, upper.first() if upper else 9
    remainders = lower and lower.without_first(), upper and upper.without_first()
    if lower and upper and low == high:
        branches = [(low, low, *remainders)]
    else:
        branches = [(low, low, remainders[0], None)] * bool(lower) + [(high, high, None, remainders[1])] * bool(upper)
        branches.append((low + bool(lower), high - bool(upper), None, None))
    alternatives = []
    for low_digit, high_digit, lower_remainder, upper_remainder in branches:
        tail = following(lower_remainder, upper_remainder) if low_digit <= high_digit else None
        if tail is not None:
            alternatives.append(f"{low_digit if low_digit == high_digit else f'[{low_digit}-{high_digit}]'}{tail}")
    return f"(?:{'|'.join(alternatives)})" if alternatives else None


def _repeat(pattern: str, times: int) -> str:
    return f"{pattern}{{{times}}}" if times else ""
