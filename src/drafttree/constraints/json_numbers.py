"""Patterns of the JSON numbers between two bounds, with a fraction if they need not be whole.

Zero has a sign only if negative numbers are possible. Numbers with bounds have no exponents.
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
        value: the number at the bound.
        open: whether the bound is exclusive.
    """

    value: Decimal
    open: bool = False

    @staticmethod
    def of(value: float, *, open: bool = False) -> "Bound":
        """The bound at a number of a schema, with exactly its decimal digits."""
        return Bound(Decimal(repr(value or 0)), open)  # -0.0 has a sign

    @property
    def decimals(self) -> int:
        """The number of digits after the point."""
        return len(_written(self.value).partition(".")[2])

    def mirrored(self) -> "Bound":
        return replace(self, value=abs(self.value))


ZERO = Bound(Decimal(0))


def number_pattern(lower_bound: Bound | None, upper_bound: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds; "" if there are none.

    Args:
        lower_bound: the lower bound; None for none.
        upper_bound: the upper bound; None for none.
        whole: whether only whole numbers are wanted.
    """
    if lower_bound is None and upper_bound is None:
        return WHOLE if whole else ANY_NUMBER
    if whole:
        lower_bound = _whole(lower_bound, up=True)
        upper_bound = _whole(upper_bound, up=False)
    if lower_bound and upper_bound and lower_bound.value > upper_bound.value:
        return ""
    if lower_bound and upper_bound and lower_bound.value == upper_bound.value:
        return "" if lower_bound.open or upper_bound.open else _written(lower_bound.value).replace(".", r"\.")
    alternatives = []
    if upper_bound is None or upper_bound.value >= 0:
        nearest_bound = lower_bound if lower_bound and lower_bound.value >= 0 else ZERO
        alternatives.append(_positive(nearest_bound, upper_bound, whole=whole))
    if lower_bound is None or lower_bound.value < 0:
        nearest_bound = upper_bound.mirrored() if upper_bound and upper_bound.value <= 0 else ZERO
        negative_pattern = _positive(nearest_bound, lower_bound and lower_bound.mirrored(), whole=whole)
        alternatives.append(f"-(?:{negative_pattern})" if negative_pattern else "")
    return "|".join(filter(None, alternatives))


def inward(bound: Fraction, *, up: bool) -> int | float:
    """The number inside a bound that is nearest to it among doubles and 64-bit integers, which llguidance reads.

    Args:
        bound: the bound.
        up: whether it is a lower bound, so that numbers inside it are greater.
    """
    if bound == LARGEST_WHOLE:
        return LARGEST_WHOLE
    number = float(bound)
    if number < bound if up else number > bound:
        number = nextafter(number, inf if up else -inf)
    if abs(bound) <= 2**53:
        return int(number) if number.is_integer() else number
    return int(max(number, 1024.0 - 2**63)) if up else int(number)


def _whole(bound: Bound | None, *, up: bool) -> Bound | None:
    """The whole number nearest to a bound on its inner side, as an inclusive bound."""
    if bound is None:
        return None
    if bound.open:
        return Bound(Decimal(floor(bound.value) + 1 if up else ceil(bound.value) - 1))
    return Bound(Decimal(ceil(bound.value) if up else floor(bound.value)))


def _written(value: Decimal) -> str:
    """A number in digits, without zeros at the end of its fraction."""
    digits = f"{value:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _positive(lower_bound: Bound, upper_bound: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds that are not negative."""
    length = len(_written(lower_bound.value).partition(".")[0])
    if upper_bound is None:
        longer_pattern = f"[1-9][0-9]{{{length},}}{'' if whole else FRACTION}"
        return "|".join(filter(None, [_of_length(length, lower_bound, None, whole=whole), longer_pattern]))
    max_length = len(_written(upper_bound.value).partition(".")[0])
    alternatives = []
    for digits in range(length, max_length + 1):
        shortest_bound = lower_bound if digits == length else Bound(Decimal(10) ** (digits - 1))
        longest_bound = upper_bound if digits == max_length else None
        alternatives.append(_of_length(digits, shortest_bound, longest_bound, whole=whole))
    return "|".join(filter(None, alternatives))


def _of_length(length: int, lower_bound: Bound, upper_bound: Bound | None, *, whole: bool) -> str:
    """The pattern of the numbers between two bounds with `length` digits before the point."""
    lower = _Digits.of(lower_bound) if lower_bound else None
    upper = _Digits.of(upper_bound) if upper_bound else None
    return _before_point(length, lower, upper, whole=whole) or ""


@dataclass(frozen=True)
class _Digits:
    """The rest of a bound, after the digits that a number has in common with it.

    Attributes:
        before: its remaining digits before the point.
        after: its remaining digits after the point, without zeros at the end.
        open: whether the bound is exclusive.
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
        """Whether the number equals the bound if nothing or only zeros follow."""
        return not self.after


def _before_point(digit_count: int, lower: _Digits | None, upper: _Digits | None, *, whole: bool) -> str | None:
    """The pattern of the rest of a number, with `digit_count` digits before the point; None if nothing can follow."""
    if lower is None and upper is None:
        return _repeat("[0-9]", digit_count) + ("" if whole else FRACTION)
    if digit_count:
        return _next_digit(lower, upper, lambda low, high: _before_point(digit_count - 1, low, high, whole=whole))
    meets_lower = lower is None or (lower.is_met and not lower.open)
    meets_upper = upper is None or not upper.is_met or not upper.open
    ends = meets_lower and meets_upper
    fraction = None if whole else _after_point(lower, upper, begun=False)
    if fraction is None:
        return "" if ends else None
    return rf"(?:\.{fraction}){'?' * ends}"


def _after_point(lower: _Digits | None, upper: _Digits | None, *, begun: bool = True) -> str | None:
    """The pattern of the digits that follow after the point; None if nothing can follow.

    Args:
        lower: the rest of the lower bound.
        upper: the rest of the upper bound.
        begun: whether the fraction has a digit already, so that it may end here.
    """
    quantifier = "*" if begun else "+"
    if upper is None and (lower is None or lower.is_met):
        return "[0-9]*[1-9][0-9]*" if lower and lower.open else f"[0-9]{quantifier}"
    if upper and upper.is_met and (lower is None or lower.is_met):
        return None if upper.open or (lower and lower.open) else f"0{quantifier}"
    pattern = _next_digit(lower, upper, _after_point)
    meets_lower = lower is None or (lower.is_met and not lower.open)
    ends = begun and meets_lower and not (upper and upper.is_met)
    if pattern is None:
        return "" if ends else None
    return f"{pattern}{'?' * ends}"


def _next_digit(
    lower: _Digits | None, upper: _Digits | None, following: Callable[[_Digits | None, _Digits | None], str | None]
) -> str | None:
    """The pattern, a group, of one digit and the rest of a number.

    Args:
        lower: the rest of the lower bound; None if the number is already above it.
        upper: the rest of the upper bound; None if the number is already below it.
        following: makes the pattern after the digit from the remaining bounds; None if nothing can follow.
    """
    min_digit = lower.first() if lower else 0
    max_digit = upper.first() if upper else 9
    alternatives = []

    def add(digits: str, lower_remainder: _Digits | None, upper_remainder: _Digits | None) -> None:
        tail = following(lower_remainder, upper_remainder)
        if tail is not None:
            alternatives.append(f"{digits}{tail}")

    if lower and upper and min_digit == max_digit:
        add(str(min_digit), lower.without_first(), upper.without_first())
    else:
        if lower:
            add(str(min_digit), lower.without_first(), None)
            min_digit += 1
        if upper:
            add(str(max_digit), None, upper.without_first())
            max_digit -= 1
        if min_digit == max_digit:
            add(str(min_digit), None, None)
        elif min_digit < max_digit:
            add(f"[{min_digit}-{max_digit}]", None, None)
    return f"(?:{'|'.join(alternatives)})" if alternatives else None


def _repeat(pattern: str, times: int) -> str:
    return f"{pattern}{{{times}}}" if times else ""
