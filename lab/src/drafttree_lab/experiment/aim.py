from dataclasses import dataclass


@dataclass(frozen=True)
class Aim:
    """One figure over all rows and the least it should be.

    Attributes:
        sentence: what it says, with the figure.
        value: the figure, None where it was not measured.
        least: the aim.
    """

    sentence: str
    value: float | None
    least: float

    @property
    def reached(self) -> bool:
        """Whether the figure is as aimed at."""
        return self.value is not None and self.value >= self.least

    @property
    def verdict(self) -> str:
        """Whether it is, in words."""
        if self.value is None:
            return "not measured"
        return "reached" if self.reached else "MISSED"
