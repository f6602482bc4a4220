"""The law of the speed-up: its measured terms, the one that limits the gain, and whether the times are reliable.

R = tau * (1 + h0) / (v + c * delta + h), in units of one target pass over one token. The time h0 that plain decoding
spends outside its passes is counted too: without it, the law would call plain decoding slower than itself.
"""

from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

from drafttree.engine.metrics import Metrics, ratio
from drafttree.measure.record import columns

LEAST_TOKENS = 1.02
"""The least tokens per pass, tau, of texts with drafts; below it, both texts are in effect plain decoding."""
LEAST_COST, MOST_COST = 0.85, 1.15
"""Bounds of the cost of a pass over one row, in plain passes; outside them, other programs disturbed the times."""
FEWEST = 3
"""The fewest passes over one row for a median."""


@dataclass(frozen=True)
class SpeedupLaw:
    """R = tau * (1 + h0) / (v + c * delta + h), each term measured against plain decoding by the same engine.

    Attributes:
        tau: mean accepted tokens.
        v: verification cost: time of a target pass over the tree, in plain target passes.
        c: cost ratio: time of a draft pass, in plain target passes.
        delta: draft passes per round.
        h: host share: all other time of a round, in plain target passes.
        h0: host share of plain decoding.
        measured: ratio of tokens per second, prompts included.
        decoding: ratio of tokens per second of decoding, without prompts; the law predicts this ratio.
    """

    tau: float
    v: float
    c: float
    delta: float
    h: float
    h0: float
    measured: float
    decoding: float

    @classmethod
    def of(cls, speculative: Metrics, plain: Metrics) -> "SpeedupLaw":
        """The law's terms for a speculative and a plain run over the same prompts."""
        return cls.of_rounds(
            columns(speculative.rounds),
            columns(plain.rounds),
            measured=ratio(speculative.tokens_per_second, plain.tokens_per_second),
            decoding=ratio(speculative.decoding_tokens_per_second, plain.decoding_tokens_per_second),
        )

    @classmethod
    def of_rounds(
        cls, speculative: np.recarray, plain: np.recarray, *, measured: float, decoding: float
    ) -> "SpeedupLaw":
        """The law's terms, from the rounds of one text, of several, or of an engine that writes many at once."""
        unit = ratio(plain.target_seconds.sum(), len(plain))
        plain_rounds = len(plain)
        rounds = len(speculative)
        passes = speculative.draft_passes.sum()
        host_seconds = speculative.seconds.sum() - speculative.target_seconds.sum() - speculative.draft_seconds.sum()
        plain_host = plain.seconds.sum() - plain.target_seconds.sum()  # an engine has draft seconds without any drafts
        terms = {
            "tau": ratio(speculative.committed.sum(), speculative.batch.sum()),
            "v": ratio(ratio(speculative.target_seconds.sum(), rounds), unit),
            "c": ratio(ratio(speculative.draft_seconds.sum(), passes), unit),
            "delta": ratio(passes, rounds),
            "h": ratio(ratio(host_seconds, rounds), unit),
            "h0": ratio(ratio(plain_host, plain_rounds), unit),
        }
        return cls(**{name: float(term) for name, term in terms.items()}, measured=measured, decoding=decoding)

    @property
    def predicted(self) -> float:
        """R as predicted by the law."""
        return ratio(self.tau * (1 + self.h0), self.v + self.c * self.delta + self.h)

    @property
    def without_host(self) -> float:
        """R as predicted for an engine without overhead, h = h0 = 0."""
        return ratio(self.tau, self.v + self.c * self.delta)


@dataclass(frozen=True)
class LimitingFactor:
    """The term that would raise R most if it were perfect.

    Attributes:
        factor: "acceptance", "verification", "drafting", "overhead", or "nothing" if no term could be better with trees
            of this depth.
        possible: R by the law with that term at its ideal value and all others as measured.
        sentence: one line with the factor, its figure and what to try.
    """

    factor: str
    possible: float
    sentence: str

    @classmethod
    def of(cls, law: SpeedupLaw, speculative: Metrics) -> "LimitingFactor":
        """Find the term that limits the gain, from the law and the rounds it was measured in."""
        possible_tokens = 1 + speculative.mean_levels
        if possible_tokens == 1:
            return cls(
                "acceptance", law.predicted, "Acceptance limits the gain: nothing was drafted; try another drafter."
            )
        paused_rounds = sum(not round_.levels for round_ in speculative.rounds)
        if 2 * paused_rounds > len(speculative.rounds):
            sentence = (
                f"in {paused_rounds} of {len(speculative.rounds)} rounds nothing was drafted, because it did not pay"
            )
            return cls("acceptance", law.predicted, f"Acceptance limits the gain: {sentence}; try another drafter.")
        ideals = {
            "acceptance": replace(law, tau=possible_tokens).predicted,
            "verification": replace(law, v=1.0).predicted,
            "drafting": replace(law, c=0.0).predicted,
            "overhead": replace(law, h=law.h0).predicted,
        }
        factor = max(ideals, key=ideals.__getitem__)
        if ideals[factor] <= law.predicted:
            return cls("nothing", law.predicted, "Nothing limits the gain with trees of this depth; try deeper trees.")
        potential = f"(without this limit: {ideals[factor]:.2f} times plain decoding)"
        sentence = f"{factor.capitalize()} limits the gain: {_advice(law, possible_tokens)[factor]} {potential}."
        return cls(factor, ideals[factor], sentence)


def _advice(law: SpeedupLaw, possible_tokens: float) -> dict[str, str]:
    """Per factor, its figure and what to try."""
    return {
        "acceptance": (
            f"a round yields {law.tau:.1f} of {possible_tokens:.1f} possible tokens; "
            "a drafter that was trained on such text would help"
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


@dataclass(frozen=True)
class Speedup:
    """Texts with drafts, compared with plain decoding of the same prompts.

    Attributes:
        drafted: the metrics of the texts with drafts.
        plain: the metrics of plain decoding.
    """

    drafted: Metrics
    plain: Metrics

    @property
    def law(self) -> SpeedupLaw:
        """The terms of the law, and R as measured."""
        return SpeedupLaw.of(self.drafted, self.plain)

    @property
    def limit(self) -> LimitingFactor:
        """What limits the gain."""
        return LimitingFactor.of(self.law, self.drafted)

    @property
    def drafts_nothing(self) -> bool:
        """Whether passes yielded hardly more than plain decoding's one token."""
        return self.drafted.mean_accepted_tokens < LEAST_TOKENS

    @property
    def doubt(self) -> str | None:
        """Why the ratio of the two speeds is not reported, in one line; None if there is no doubt.

        A pass over one row should cost the same in both texts. Medians are compared, since one pass may take as long as
        many: the first pass of a shape is recorded, even within a timed text.
        """
        drafted = self.drafted
        if self.drafts_nothing:
            reason = "nothing was drafted" if drafted.mean_nodes < LEAST_TOKENS else "hardly a draft was accepted"
            return f"No speed-up shown: {reason} ({drafted.mean_accepted_tokens:.2f} tokens per target pass)."
        single_row_seconds = [round_.target_seconds for round_ in drafted.rounds if round_.nodes == 1]
        plain_seconds = [round_.target_seconds for round_ in self.plain.rounds]
        row_ratio = pass_ratio = 1.0
        if any(plain_seconds):
            pass_ratio = drafted.target_pass / self.plain.target_pass
            if len(single_row_seconds) >= FEWEST:
                row_ratio = median(single_row_seconds) / median(plain_seconds)
        if not LEAST_COST <= row_ratio <= MOST_COST:
            cost = f"one row cost {row_ratio:.2f}"
        elif pass_ratio < LEAST_COST:
            cost = f"{drafted.mean_nodes:.1f} rows cost {pass_ratio:.2f}"
        else:
            return None
        return (
            f"No speed-up shown: other programs disturbed the times (a pass over {cost} plain passes); "
            "run it again when the machine is idle."
        )

    def summary(self) -> dict[str, object]:
        """The law and what limits the gain, for JSON; ratios of times are None if there is a doubt."""
        law = self.law
        is_reliable = not self.doubt
        terms = asdict(law) | {"predicted": law.predicted}
        return {
            "law": terms if is_reliable else dict.fromkeys(terms) | {"tau": law.tau, "delta": law.delta},
            "limit": asdict(self.limit) if is_reliable else None,
        }
