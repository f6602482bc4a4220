"""Prints the certificate of a pair of policy and verifier that was tested while it wrote texts."""

import math

from rich.text import Text

from drafttree.evaluation.evidence import BETS, BIAS, REFUTED, Evidence
from drafttree.evaluation.live_certificate import RARELY, LiveCertificate
from drafttree.interfaces.console import make_console, make_table

PART = "INTERRUPTED: not all tokens are written."
RARE = ": almost nothing was speculated, so this says little of the verifier."
UNSEEN = (
    "Not seen by it: whether the target's passes are right, since its own rows are taken for the law. "
    "certify without --live compares texts with transformers' own."
)


def show_live_certificate(certificate: LiveCertificate) -> None:
    """Print the e-value of each bet and of all together, the bias that they could have detected, and the conclusion."""
    console = make_console()
    totals = certificate.written
    evidence = certificate.written.evidence
    if not evidence.tokens:
        console.print(PART)
        return
    table = make_table("bet that", "e-value", right=1)
    for name, e_value in evidence.log_e_values.items():
        table.add_row(BETS[name], e_value_of(e_value))
    table.add_row("all of them", e_value_of(evidence.log_e_value), style="bold")
    console.print(table)
    batch_note = "alone" if certificate.max_batch == 1 else f"{certificate.max_batch} at once"
    setting = f"{certificate.verifier} with {certificate.policy}, {certificate.dtype}, temperature"
    lines = [f"{setting} {certificate.temperature:g}, texts {batch_note}."]
    speed = evidence.tokens / max(totals.seconds, 1e-9)
    lines.append(
        f"{evidence.tokens:,} tokens in {totals.texts:,} texts, {evidence.tokens / max(totals.rounds, 1):.2f} tokens "
        f"per target pass, {totals.seconds / 60:.1f} minutes, {speed:.1f} tokens/s."
    )
    if evidence.impossible:
        lines.append(f"{evidence.impossible:,} tokens have no probability.")
    drafted_share = totals.drafted_rounds / max(totals.rounds, 1)
    lines.append(f"{drafted_share:.0%} of the rounds verified drafts{'.' if drafted_share > RARELY else RARE}")
    lines += [*([] if certificate.refuted else [_power(evidence)]), UNSEEN, _conclusion(certificate)]
    console.print(Text("\n".join(lines)), soft_wrap=True)


def e_value_of(logarithm: float) -> str:
    """Format an e-value. It is given as its natural logarithm, because it may overflow a float."""
    exponent = logarithm / math.log(10)
    return f"{math.exp(logarithm):.3g}" if abs(exponent) < 6 else f"10^{exponent:.1f}"


def _power(evidence: Evidence) -> str:
    if not evidence.shift:
        return "The verifier accepted nothing by a probability of its own that a bias could change."
    if (bias := evidence.smallest_bias) is None:
        return f"No bias of acceptance of up to {BIAS:.0%} would have been seen with 99 %: these are too few tokens."
    return (
        f"Acceptance that is {bias:.1%} too frequent would have been seen with 99 %, by what {BIAS:.0%} more of it did "
        f"in {evidence.tried:,} rounds that were verified again."
    )


def _conclusion(certificate: LiveCertificate) -> str:
    if certificate.refuted:
        claims = "" if certificate.lossless else ", as the pair is lossy by its name"
        return f"NOT the target's law: the e-value is above {REFUTED:.0e}{claims}."
    if certificate.interrupted:
        return PART
    return f"No evidence against the target's law: an e-value of {REFUTED:.0e} would refute it."
