"""Prints the certificate of a pair of policy and verifier that was tested while it wrote texts."""

import math

from rich.text import Text

from drafttree.evaluation.evidence import BETS, BIAS, REFUTED, Evidence
from drafttree.evaluation.live_certificate import RARELY, LiveCertificate
from drafttree.interfaces.console import make_console, make_table

PART = "INTERRUPTED: not all tokens were written."
RARE = ": almost nothing was drafted, so this says little about the verifier."
UNSEEN = (
    "This does not check the target's own passes, whose logits it takes as correct. "
    "Use certify without --live to compare texts with transformers."
)


def show_live_certificate(certificate: LiveCertificate) -> None:
    """Print the e-value of each bet and of all together, the bias that they could have detected, and the conclusion."""
    console = make_console()
    totals = certificate.written
    evidence = certificate.written.evidence
    if not evidence.tokens:
        console.print(PART)
        return
    table = make_table("a bet that", "e-value", right=1)
    for name, e_value in evidence.log_e_values.items():
        table.add_row(BETS[name], e_value_of(e_value))
    table.add_row("all of them", e_value_of(evidence.log_e_value), style="bold")
    console.print(table)
    batch_note = "one at a time" if certificate.max_batch == 1 else f"{certificate.max_batch} at once"
    setting = f"{certificate.verifier} with {certificate.policy}, {certificate.dtype}, temperature"
    lines = [f"{setting} {certificate.temperature:g}, texts written {batch_note}."]
    speed = evidence.tokens / max(totals.seconds, 1e-9)
    lines.append(
        f"{evidence.tokens:,} tokens in {totals.texts:,} texts, {evidence.tokens / max(totals.rounds, 1):.2f} tokens "
        f"per target pass, {totals.seconds / 60:.1f} minutes, {speed:.1f} tokens/s."
    )
    if evidence.impossible:
        lines.append(f"{evidence.impossible:,} tokens have probability 0.")
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
        return "The verifier made no random decisions that a bias could change."
    if (bias := evidence.smallest_bias) is None:
        return f"Too few tokens to detect a bias of acceptance of {BIAS:.0%} or less with 99 % certainty."
    return (
        f"A verifier that accepts {bias:.1%} too often would have been detected with 99 % certainty (estimated from "
        f"{evidence.tried:,} rounds that were verified again with {BIAS:.0%} more acceptance)."
    )


def _conclusion(certificate: LiveCertificate) -> str:
    if certificate.refuted:
        claims = "" if certificate.lossless else ", as expected of a lossy pair"
        return f"REFUTED: texts do not follow the target's distribution (e-value above {REFUTED:.0e}){claims}."
    if certificate.interrupted:
        return PART
    return f"No evidence against the target's distribution (an e-value above {REFUTED:.0e} would refute it)."
