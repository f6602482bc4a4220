from dataclasses import dataclass


@dataclass(frozen=True)
class DynaTreeState:
    """The parameters that DynaTree's history rule has adapted.

    Attributes:
        base_depth: the adapted D0.
        high: the adapted tau_h.
        deep_above: rho_deep, adapted only between texts.
        shares: of levels that were accepted: of the last `window` rounds, or of the last `window` texts.
        tokens: committed by the rounds of this text, counted only to adapt between texts.
        rounds: of this text that drafted, likewise.
    """

    base_depth: float
    high: float
    deep_above: float
    shares: tuple[float, ...] = ()
    tokens: int = 0
    rounds: int = 0

    @property
    def mean_share(self) -> float:
        """The mean of `shares`, of which there must be some."""
        return sum(self.shares) / len(self.shares)
