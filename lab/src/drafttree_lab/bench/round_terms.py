from dataclasses import dataclass, fields, replace

from drafttree.engine.metrics import SpeedupLaw


@dataclass(frozen=True)
class RoundTerms:
    """A mean round by the speed-up law, its costs in rounds of plain decoding.

    Attributes:
        acceptance: tau, tokens committed.
        verification: the target pass.
        drafting: all draft passes.
        overhead: the rest.
    """

    acceptance: float
    verification: float
    drafting: float
    overhead: float

    @classmethod
    def of(cls, law: SpeedupLaw) -> "RoundTerms":
        """The terms of a measured law."""
        plain = 1 + law.h0
        return cls(law.tau, law.v / plain, law.c * law.delta / plain, law.h / plain)

    @property
    def speedup(self) -> float:
        """R: tokens per time, in those of plain decoding."""
        return self.acceptance / (self.verification + self.drafting + self.overhead)

    def shortfall(self, better: "RoundTerms") -> str:
        """The term that explains most of why other rounds are faster: with theirs instead, R would rise most."""
        gains = {term.name: replace(self, **{term.name: getattr(better, term.name)}).speedup for term in fields(self)}
        return max(gains, key=gains.__getitem__)
