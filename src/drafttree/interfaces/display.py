"""Prints results on a terminal or into a pipe."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk, Fidelity, Generation
from drafttree.evaluation.certificate_scope import left_out
from drafttree.evaluation.certify import PLAIN_REFERENCE, Certificate
from drafttree.evaluation.compare import Comparison
from drafttree.evaluation.pair_sweep import PairFinding, PairSweep, ServingChecks
from drafttree.evaluation.toy_decoder import Reach
from drafttree.interfaces.console import make_console, make_table
from drafttree.loading.inspect import Inspection
from drafttree.measure.law import Speedup
from drafttree.measure.reference import TIE_UNITS, Difference

DRAFTED = "green"
WARNING = "bold red"
PART = "INTERRUPTED: these results are not complete."


def show_inspection(inspection: Inspection) -> None:
    """Print an inspection, one fact per line, with the problems that prevent loading."""
    facts: dict[str, object] = {"kind": inspection.kind}
    facts |= {f"target's {name}" if name != "trained on" else name: value for name, value in inspection.fits.items()}
    facts |= inspection.details
    if inspection.dtypes:
        facts["parameters stored"] = f"{inspection.parameters:,} ({inspection.megabytes:.1f} MB, {inspection.dtypes})"
    facts["missing or wrong"] = "; ".join(inspection.problems) or "nothing"
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    make_console().print(table)


def show_chunk(console: Console, chunk: Chunk) -> None:
    """Print the text of a round; on a terminal, characters of accepted drafted tokens are green."""
    if not console.is_terminal:
        print(chunk.text, end="", flush=True)
        return
    characters = zip(chunk.text, chunk.drafted_text, strict=True)
    for is_drafted, run in groupby(characters, key=lambda flagged_character: flagged_character[1]):
        piece = Text("".join(character for character, _ in run), style=DRAFTED if is_drafted else "")
        console.print(piece, end="", soft_wrap=True)


def show_speed(generation: Generation) -> None:
    """Print the speed of a text, in one line on standard error."""
    metrics = generation.metrics
    line = f"{metrics.tokens} tokens, {metrics.tokens_per_second:.1f} tokens/s, "
    line += f"{metrics.mean_accepted_tokens:.2f} tokens per target pass ({generation.finish_reason})"
    make_console(stderr=True).print(Text(line, style="dim"))


def show_lossy(fidelity: Fidelity) -> None:
    """If texts are not lossless, say so on standard error."""
    if not fidelity.lossless:
        make_console(stderr=True).print(_fidelity(fidelity), soft_wrap=True)


def show_comparison(compared: Comparison, policy: str) -> None:
    """Print the speeds, the terms of the law of speedup, and their meaning in plain words."""
    console = make_console()
    is_certain = not compared.speedup.doubt
    table = make_table("", "tokens/s", *(["ratio"] if is_certain else []), right=2)
    names = {
        "speculative": f"drafttree, {policy}",
        "plain": "drafttree, plain",
        "transformers": "transformers generate",
    }
    for way, speed in compared.speeds.items():
        table.add_row(names[way], f"{speed:.1f}", *([f"{speed / compared.speeds['plain']:.2f}"] if is_certain else []))
    console.print("", table, "", sep="\n")
    if is_certain:
        console.print(law_table(compared.speedup), "", sep="\n")
    console.print(_fidelity(compared.speculative.fidelity), soft_wrap=True)
    if compared.runs_on:
        console.print(Text(f"target passes by {compared.runs_on}"), soft_wrap=True)
    for line in _agreement(compared):
        console.print(Text(line))
    console.print(Text(compared.verdict, style="bold"), soft_wrap=True)
    if is_certain:
        console.print(Text(compared.speedup.limit.sentence), soft_wrap=True)


def law_table(speedup: Speedup) -> Table:
    """A table of the law's terms with their meaning, and of the predicted and the measured speedup R."""
    law = speedup.law
    nodes = speedup.drafted.mean_nodes
    table = make_table("R = tau (1 + h0) / (v + c*delta + h)", "", "", right=1)
    terms = [
        ("tau", law.tau, "tokens per target pass"),
        ("v", law.v, f"pass over {nodes:.1f} nodes, in plain passes"),
        ("c", law.c, "a draft pass, in plain passes"),
        ("delta", law.delta, "draft passes per round"),
        ("h", law.h, "rest of a round, in plain passes"),
        ("h0", law.h0, "the same in plain decoding"),
        ("R predicted", law.predicted, "by the law"),
        ("R measured", law.measured, "tokens/s over plain, prompt included"),
    ]
    for symbol, value, meaning in terms:
        table.add_row(symbol, f"{value:.3f}", meaning)
    return table


def show_certificate(certificate: Certificate, decoder: Decoder) -> None:
    """Print the number of identical texts per policy, each difference, and the conclusion."""
    console = make_console()
    header = [f"same as {certificate.reference}", "ties", "widest tie", "result"]
    if certificate.reference != PLAIN_REFERENCE:
        header.append("same as plain decoding")
    table = make_table("policy", *header)
    for policy in certificate.policies:
        verdict = "ties only" if policy.differences and policy.passed else "ok" if policy.passed else "DIFFERENT"
        widest = f"{policy.widest_tie.units:.1f} units" if policy.widest_tie else ""
        counts = f"{policy.identical}/{policy.prompts}", str(policy.ties), widest
        cells = [policy.policy, *counts, verdict, f"{policy.same_text}/{policy.prompts}"]
        table.add_row(*cells[: 1 + len(header)])
    console.print(table)
    if any(policy.differences for policy in certificate.policies):
        console.print(_differences(certificate, decoder))
    console.print(Text(_conclusion(certificate)), soft_wrap=True)


def show_enumeration(result: PairSweep) -> None:
    """Print a verdict per pair, the findings on enumerated pairs, and the reasons for refused ones."""
    console = make_console()
    findings = result.findings
    verifiers = list(dict.fromkeys(finding.verifier for finding in findings))
    if len(verifiers) > 1:
        table = make_table("", *verifiers)
        for policy in dict.fromkeys(finding.policy for finding in findings):
            table.add_row(policy, *(finding.verdict for finding in findings if finding.policy == policy))
        console.print(table, "")
    header = ("trials", "siblings", "levels", "total variation", "in float32", "accepted", "verdict")
    table = make_table("policy", "verifier", *header)
    for finding in findings:
        if finding.expected_accepted is not None:
            distances = (
                "" if distance is None else f"{distance:.1e}" for distance in (finding.total_variation, finding.rounded)
            )
            sizes = map(str, (finding.trials, finding.reach.siblings, finding.reach.levels))
            cells = [*sizes, *distances, f"{finding.expected_accepted:.3f}", _explained(finding)]
            table.add_row(finding.policy, finding.verifier, *cells)
    console.print(table)
    for finding in findings:
        if finding.reason:
            console.print(Text(f"{finding.policy} with {finding.verifier}: refused, {finding.reason}", style="dim"))
    has_bias = any(not finding.passed for finding in findings)
    failure_verdict = "A pair is BIASED." if has_bias else "The checks of random numbers or of edited weights FAILED."
    conclusion = _verdict(result, "Every pair is what it claims to be.", failure_verdict)
    if result.serving:
        _show_serving(console, result.serving)
    if any(finding.trials for finding in findings):
        console.print(f"Checked: {_bounds(result.reach)}. Nothing beyond these limits was checked.")
        console.print(f"Not checked here: {left_out()} (docs/exactness.md says what checks them).")
    console.print(Text(f"Temperature {result.sampling.temperature:g}. {conclusion}"))


def _show_serving(console: Console, serving: ServingChecks) -> None:
    """Print the findings on random numbers and on edited weights."""
    numbers = serving.numbers
    edits = serving.edits
    test_counts = f"{numbers.tests} tests of {numbers.streams} streams of {numbers.seeds:,} seeds"
    p_value_label = "smallest p-value" if numbers.passed else "NOT INDEPENDENT, p-value"
    console.print(f"Random numbers: {test_counts}, {p_value_label} {numbers.least:.1e} ({numbers.worst}).")
    model = f"a small model in {edits.backend}"
    edited_texts = f"{edits.texts} texts of {model}, each after a different edit of its weights"
    edit_verdict = f"STALE after {', '.join(edits.stale)}" if edits.stale else "all identical to transformers"
    console.print(f"Edited weights: {edited_texts}: {edit_verdict}.")


def _bounds(reach: Reach) -> str:
    """The limits up to which texts were enumerated, in words."""
    trees = f"trees of up to {reach.siblings} siblings and {reach.levels} levels"
    texts = f"up to {reach.rounds} rounds of a text, starting positions up to {reach.position}"
    return (
        f"{texts}, {trees}, up to {reach.columns:,} logits a token, up to {reach.texts} texts at once, float64 and "
        "float32"
    )


def _explained(finding: PairFinding) -> str:
    """A verdict in a few words."""
    if finding.texts:
        agreement = f"{finding.equal} of {finding.texts} texts equal plain decoding's"
        return f"exact by coupling: {agreement}" if finding.passed else f"BIASED: {agreement}"
    return {"exact": "exact by enumeration", "lossy": "lossy, as its name says"}.get(finding.verdict, finding.verdict)


def _fidelity(fidelity: Fidelity) -> Text:
    return Text(fidelity.words, style="" if fidelity.lossless else WARNING)


def _agreement(compared: Comparison) -> Iterator[str]:
    if compared.transformers is None:
        return
    comparisons = [("plain decoding", compared.from_plain)] if compared.seeded else []
    comparisons += [("transformers", compared.from_transformers)] if compared.greedy else []
    for name, difference in comparisons:
        yield f"text against {name}: {_describe(difference) if difference else 'identical, token for token'}"
    if not compared.seeded:
        yield "text against plain decoding: not comparable, this verifier's draws depend on the tree"
    if not compared.greedy:
        yield "text against transformers: not comparable above temperature 0, it draws its own random numbers"


def _describe(difference: Difference) -> str:
    tie_note = f"a tie, {difference.units:.1f} units of rounding" if difference.is_tie else "NOT a tie"
    return f"differs from token {difference.position} on; gap {difference.gap:.3g}: {tie_note}"


def _differences(certificate: Certificate, decoder: Decoder) -> Table:
    table = make_table("policy", "prompt", "position", "expected", "got", "gap", "unit of rounding", "units", "a tie")
    for policy in certificate.policies:
        for prompt, difference in policy.differences.items():
            tokens = [_token(decoder, token) for token in (difference.expected, difference.got)]
            units = f"{difference.units:.1f}" if difference.rounding else ""
            numbers = [
                f"{difference.gap:.3g}",
                f"{difference.rounding:.2g}",
                units,
                "yes" if difference.is_tie else "NO",
            ]
            table.add_row(policy.policy, str(prompt), str(difference.position), *tokens, *numbers)
    return table


def _token(decoder: Decoder, token: int | None) -> str:
    if token is None:
        return "(ended)"
    return f"{token} {decoder.tokenizer.decode([token])!r}" if decoder.tokenizer else str(token)


def _conclusion(certificate: Certificate) -> str:
    count = certificate.policies[0].prompts if certificate.policies else 0
    inputs = f"{count} prompts, {certificate.tokens:,} tokens of {certificate.reference}, {certificate.dtype}."
    if certificate.truncated:
        inputs += f" {certificate.truncated} prompts were cut to their last tokens to fit the context."
    lines = [inputs, _agreement_with_reference(certificate)]
    if certificate.reference != PLAIN_REFERENCE or not certificate.keeps_text:
        lines.append(_agreement_with_plain(certificate))
    return "\n".join(lines) + (f" {PART}" if certificate.interrupted else "")


def _agreement_with_reference(certificate: Certificate) -> str:
    texts = sum(policy.prompts for policy in certificate.policies)
    identical_texts = sum(policy.identical for policy in certificate.policies)
    ties = sum(policy.ties for policy in certificate.policies)
    statements = [f"{identical_texts} of {texts} texts are identical to {certificate.reference}"]
    if ties:
        verb = "differs" if ties == 1 else "differ"
        statements.append(f"{ties} {verb} only by a tie, which at most {TIE_UNITS} units of rounding decide")
    if different := texts - identical_texts - ties:
        statements.append(f"{different} {'is' if different == 1 else 'are'} DIFFERENT")
    return f"{'; '.join(statements)}."


def _agreement_with_plain(certificate: Certificate) -> str:
    if certificate.keeps_text:
        return "All texts are identical to plain decoding, token for token."
    if certificate.exact_text:
        return "NOT all texts are identical to plain decoding, which they must be here."
    return (
        f"NOT all texts are identical to plain decoding: in {certificate.dtype}, rounding may decide a tie either way; "
        "--exact-text prevents that."
    )


def _verdict(result: PairSweep, passed: str, failed: str) -> str:
    """The conclusion; for an interrupted sweep, that the result is partial."""
    return PART if result.interrupted else passed if result.passed else failed
