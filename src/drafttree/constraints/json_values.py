"""The values that a JSON schema allows: each class is of one type, or a choice among several."""

from dataclasses import dataclass, field
from decimal import Decimal

from drafttree.constraints.json_numbers import Bound


@dataclass(frozen=True)
class Count:
    """A range of numbers of elements: at least `least`, and at most `most`; None for no limit."""

    least: int = 0
    most: int | None = None

    def __contains__(self, number: int) -> bool:
        return self.least <= number and (self.most is None or number <= self.most)

    @property
    def is_free(self) -> bool:
        return not self.least and self.most is None

    @property
    def is_possible(self) -> bool:
        return self.most is None or self.least <= self.most

    def both(self, other: "Count") -> "Count":
        """The numbers that two counts allow."""
        limits = [limit for limit in (self.most, other.most) if limit is not None]
        return Count(max(self.least, other.least), min(limits, default=None))

    def beyond(self, number: int) -> "Count":
        """The range of further elements after `number` of them."""
        return Count(max(self.least - number, 0), None if self.most is None else max(self.most - number, 0))


@dataclass(frozen=True)
class Anything:
    """Any value."""


@dataclass(frozen=True)
class Reference:
    """Values of the schema that a reference leads to."""

    location: str


@dataclass(frozen=True)
class Several:
    """Values of any of the members; without members, no values."""

    members: "tuple[Value, ...]" = ()


@dataclass(frozen=True)
class Words:
    """Some of `null`, `true` and `false`."""

    words: frozenset[str]


@dataclass(frozen=True)
class Number:
    """Numbers between two bounds; only whole ones, or multiples of a number, if so wanted."""

    least: Bound | None = None
    most: Bound | None = None
    whole: bool = False
    multiple: Decimal | None = None


@dataclass(frozen=True)
class Text:
    """Strings.

    Attributes:
        patterns: each must match some part of the string.
        length: the number of characters.
        listed: the strings, if only some constants are allowed; they match the patterns and the length.
    """

    patterns: tuple[str, ...] = ()
    length: Count = Count()
    listed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Array:
    """Arrays.

    Attributes:
        first: what their first items are.
        further: what the items behind them are.
        length: how many items they have.
    """

    first: "tuple[Value, ...]" = ()
    further: "Value" = Anything()
    length: Count = Count()

    def item(self, index: int) -> "Value":
        """What the item at an index is."""
        return self.first[index] if index < len(self.first) else self.further


@dataclass(frozen=True)
class Object:
    """Objects.

    Attributes:
        named: what their properties of some names are, in the order in which they are written.
        matched: what a property is whose name matches a pattern, and is not named.
        further: what all others are.
        needed: the names that they must have.
        size: how many properties they have.
    """

    named: "dict[str, Value]" = field(default_factory=dict)
    matched: "dict[str, Value]" = field(default_factory=dict)
    further: "Value" = Anything()
    needed: tuple[str, ...] = ()
    size: Count = Count()


Value = Anything | Reference | Several | Words | Number | Text | Array | Object
ANYTHING = Anything()
NOTHING = Several()


def several(*values: Value) -> Value:
    """Values of any of some."""
    members = list[Value]()
    for value in values:
        if isinstance(value, Anything):
            return ANYTHING
        if isinstance(value, Several):
            members += value.members
        else:
            members.append(value)
    return members[0] if len(members) == 1 else Several(tuple(members))
