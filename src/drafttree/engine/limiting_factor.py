"""The term of the speed-up law that limits the gain, and what to try about it."""

from dataclasses import dataclass, replace

from drafttree.engine.metrics import Metrics, SpeedupLaw


@dataclass(frozen=True)
class LimitingFactor:
    """The term whose ideal value would raise R most.

    Attributes:
        factor: "acceptance", "verification", "drafting", "overhead", or "nothing" where no term could be better with
            trees of this depth.
        possible: R by the law with that term at its ideal value and all others as measured.
        sentence: the factor, its figure and what to try, in one line.
    """

    factor: str
    possible: float
    sentence: str

    @classmethod
    def of(cls, law: SpeedupLaw, speculative: Metrics) -> "LimitingFactor":
        """Find the term that limits the gain, from the law and the rounds it was measured in."""
        most = 1 + speculative.mean_levels
        if most == 1:
            return cls(
                "acceptance", law.predicted, "acceptance limits the gain: nothing was drafted; try another drafter"
            )
        paused = sum(not each.levels for each in speculative.rounds)
        if 2 * paused > len(speculative.rounds):
            said = f"nothing was drafted in {paused} of {len(speculative.rounds)} rounds, where it did not pay"
            return cls("acceptance", law.predicted, f"acceptance limits the gain: {said}; try another drafter")
        ideals = {
            "acceptance": replace(law, tau=most).predicted,
            "verification": replace(law, v=1.0).predicted,
            "drafting": replace(law, c=0.0).predicted,
            "overhead": replace(law, h=law.h0).predicted,
        }
        factor = max(ideals, key=ideals.__getitem__)
        if ideals[factor] <= law.predicted:
            return cls("nothing", law.predicted, "nothing limits the gain with trees of this depth; try a deeper one")
        possible = f"(without that, {ideals[factor]:.2f} times plain decoding)"
        said = f"{factor} limits the gain: {_advice(law, most)[factor]} {possible}"
        return cls(factor, ideals[factor], said)


def _advice(law: SpeedupLaw, most: float) -> dict[str, str]:
    """Per factor, its figure and what to try."""
    return {
        "acceptance": (
            f"a round yields {law.tau:.1f} of {most:.1f} possible tokens; a drafter trained on such text would help"
        ),
        "verification": f"scoring a tree costs {law.v:.2f} plain passes; a smaller budget would help",
        "drafting": (
            f"drafting costs {law.c * law.delta:.2f} plain passes a round; a smaller drafter or fewer levels would help"
        ),
        "overhead": (
            f"a round spends {law.h:.2f} plain passes outside the models, plain decoding {law.h0:.2f}; "
            "a simpler policy or a larger target would help"
        ),
    }
