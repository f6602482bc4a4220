"""How results look on a terminal, and in a pipe."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from drafttree.bench import Comparison, Overhead, PolicyBench
from drafttree.bench.overhead import PARTS
from drafttree.certify import Certificate
from drafttree.decoder import Decoder
from drafttree.inspection import Inspection
from drafttree.policies import TreePolicy
from drafttree.reference import TOLERANCE_ULPS, Difference
from drafttree.sequence import Chunk, Generation
from drafttree.verifiers import Verifier

DRAFTED = "green"


def show_policies(policies: Mapping[str, type[TreePolicy]]) -> None:
    """Every policy with its source and a table of its parameters."""
    for name, policy in policies.items():
        make_console().print(
            Text.assemble((name, "bold"), "  ", policy.source), Text(_first_paragraph(policy)), sep="\n"
        )
        table = _table("parameter", "default", "range", "meaning")
        for key, field in policy.model_fields.items():
            table.add_row(key, str(field.default).lower(), _range(field), field.description or "")
        make_console().print(table, "")


def show_verifiers(verifiers: Mapping[str, type[Verifier]]) -> None:
    """Every verifier with its source."""
    for name, verifier in verifiers.items():
        title = Text.assemble((name, "bold"), "  ", verifier.source)
        make_console().print(title, Text(_first_paragraph(verifier)), "", sep="\n")


def show_inspection(found: Inspection) -> None:
    """What a folder is, one fact a line, and what keeps it from being loaded."""
    facts: dict[str, object] = {"kind": found.kind}
    facts |= {f"target's {name}" if name != "trained on" else name: value for name, value in found.fits.items()}
    facts |= found.details
    facts["parameters stored"] = f"{found.parameters:,} ({found.megabytes:.1f} MB, {found.dtypes})"
    facts["missing or wrong"] = "; ".join(found.problems) or "nothing"
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    make_console().print(table)


def show_chunk(console: Console, chunk: Chunk) -> None:
    """What a round adds to the text; on a terminal, what the drafter proposed is green."""
    if not console.is_terminal:
        print(chunk.text, end="", flush=True)
        return
    characters = zip(chunk.text, chunk.drafted_text, strict=True)
    for drafted, run in groupby(characters, key=lambda pair: pair[1]):
        piece = Text("".join(character for character, _ in run), style=DRAFTED if drafted else "")
        console.print(piece, end="", soft_wrap=True)


def show_speed(generation: Generation) -> None:
    """One line on standard error after a text."""
    metrics = generation.metrics
    line = f"{metrics.tokens} tokens, {metrics.tokens_per_second:.1f} tokens/s, "
    line += f"{metrics.mean_accepted_tokens:.2f} tokens per target pass ({generation.finish_reason})"
    make_console(stderr=True).print(Text(line, style="dim"))


def show_comparison(compared: Comparison, policy: str) -> None:
    """Speeds side by side, the terms of the law, and what they mean in plain words."""
    console, law = make_console(), compared.law
    table = _table("", "tokens/s", "ratio", right=2)
    names = {
        "speculative": f"drafttree, {policy}",
        "plain": "drafttree, plain",
        "transformers": "transformers generate",
    }
    for way, speed in compared.speeds.items():
        table.add_row(names[way], f"{speed:.1f}", f"{speed / compared.speeds['plain']:.2f}")
    console.print("", table, "", sep="\n")
    terms = _table("R = tau / (v + c*delta + h)", "", "", right=1)
    for symbol, value, meaning in _law_terms(compared):
        terms.add_row(symbol, f"{value:.3f}", meaning)
    terms.add_row("R predicted", f"{law.predicted:.3f}", "by the law")
    terms.add_row("R measured", f"{law.measured:.3f}", "tokens/s over plain, prompt included")
    console.print(terms, "", sep="\n")
    for line in _agreement(compared):
        console.print(Text(line))
    console.print(Text(compared.verdict, style="bold"), soft_wrap=True)


def show_certificate(certificate: Certificate, decoder: Decoder) -> None:
    """Per policy how many texts are identical, every difference, and the conclusion."""
    console = make_console()
    table = _table("policy", "identical", "verdict")
    for policy in certificate.policies:
        verdict = "ties only" if policy.findings and policy.passed else "ok" if policy.passed else "DIFFERENT"
        table.add_row(policy.policy, f"{policy.identical}/{policy.prompts}", verdict)
    console.print(table)
    if any(policy.findings for policy in certificate.policies):
        console.print(_differences(certificate, decoder))
    console.print(Text(_conclusion(certificate)), soft_wrap=True)


def show_bench(result: PolicyBench) -> None:
    """Every term of the law per policy, looping texts apart."""
    columns = ["policy", "tau", "delta", "v", "c", "h", "R law", "R", "tokens/s", "accepted", "nodes"]
    for group in dict.fromkeys(row.group for row in result.rows):
        rows = [row for row in result.rows if row.group == group]
        table = _table(*columns, right=len(columns) - 1)
        table.title = f"{group}: {rows[0].prompts} prompts"
        for row in rows:
            law = row.law
            terms = [law.tau, law.delta, law.v, law.c, law.h, row.predicted, law.measured]
            rest = [f"{row.tokens_per_second:.1f}", f"{row.acceptance_rate:.1%}", f"{row.mean_nodes:.1f}"]
            table.add_row(row.policy, *(f"{term:.2f}" for term in terms), *rest)
        make_console().print(table)
    print(f"{result.looping} of {result.prompts} texts loop (their last 48 tokens repeat with a period of at most 16)")


def show_overhead(results: list[Overhead]) -> None:
    """Where the time of a round goes outside the two models."""
    columns = ["policy", "round", "target", "draft", "outside", "share", *PARTS]
    table = _table(*columns, right=len(columns) - 1)
    table.title = "mean µs per round; outside the two models' passes:"
    for result in results:
        passes = [result.round, result.target, result.draft, result.seconds]
        parts = [getattr(result, part) for part in PARTS]
        cells = [f"{seconds * 1e6:.0f}" for seconds in passes + parts]
        table.add_row(result.policy, *cells[: len(passes)], f"{result.share:.1%}", *cells[len(passes) :])
    make_console().print(table)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error; what it gives advances it by one and says what was done."""
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def make_console(stderr: bool = False) -> Console:
    """As wide as the terminal, and without a limit where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 1000)


def _law_terms(compared: Comparison) -> list[tuple[str, float, str]]:
    law, nodes = compared.law, compared.speculative.metrics.mean_nodes
    return [
        ("tau", law.tau, "tokens per target pass"),
        ("v", law.v, f"pass over {nodes:.1f} nodes, in plain passes"),
        ("c", law.c, "a draft pass, in plain passes"),
        ("delta", law.delta, "draft passes per round"),
        ("h", law.h, "rest of a round, in plain passes"),
    ]


def _agreement(compared: Comparison) -> Iterator[str]:
    if compared.transformers is None:
        return
    pairs = [("plain decoding", compared.from_plain)] if compared.seeded else []
    pairs += [("transformers", compared.from_transformers)] if compared.greedy else []
    for name, difference in pairs:
        yield f"text against {name}: {_describe(difference) if difference else 'identical, token for token'}"
    if not compared.seeded:
        yield "text against plain decoding: not comparable, this verifier's draws depend on the tree"
    if not compared.greedy:
        yield "text against transformers: not comparable above temperature 0, it draws its own random numbers"


def _describe(difference: Difference) -> str:
    excuse = f"a tie in this dtype (tolerance {difference.tolerance:.3g})" if difference.explained else "NOT a tie"
    return f"differs from token {difference.position} on; gap of the two best logits {difference.gap:.3g}: {excuse}"


def _differences(certificate: Certificate, decoder: Decoder) -> Table:
    table = _table("policy", "prompt", "position", "expected", "got", "gap", "tolerance", "a tie")
    for policy in certificate.policies:
        for finding in policy.findings:
            found = finding.difference
            tokens = [_token(decoder, token) for token in (found.expected, found.got)]
            numbers = [f"{found.gap:.3g}", f"{found.tolerance:.3g}", "yes" if found.explained else "NO"]
            table.add_row(policy.policy, str(finding.prompt), str(found.position), *tokens, *numbers)
    return table


def _token(decoder: Decoder, token: int | None) -> str:
    if token is None:
        return "(ended)"
    return f"{token} {decoder.tokenizer.decode([token])!r}" if decoder.tokenizer else str(token)


def _conclusion(certificate: Certificate) -> str:
    count = certificate.policies[0].prompts if certificate.policies else 0
    lines = f"{count} prompts, {certificate.tokens} reference tokens, {certificate.dtype}, reference: "
    lines += f"{certificate.reference}."
    if certificate.truncated:
        lines += f" {certificate.truncated} prompts were cut to their last tokens to fit the context."
    if any(policy.findings for policy in certificate.policies) and certificate.dtype != "float32":
        lines += f" A tie: both tokens within {TOLERANCE_ULPS} ulps of the best logit."
    return f"{lines} {'Certified.' if certificate.passed else 'NOT certified.'}"


def _table(*columns: str, right: int = 0) -> Table:
    """An empty table whose last `right` columns, or those after the first, are numbers."""
    table = Table(box=None, header_style="bold", title_justify="left", pad_edge=False, padding=(0, 2, 0, 0))
    numbers = range(1, 1 + right)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    return table


def _first_paragraph(thing: type) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())


def _range(field) -> str:
    """The range of a pydantic field, as "1 to 64"."""
    bounds = [getattr(limit, side) for limit in field.metadata for side in ("ge", "le") if hasattr(limit, side)]
    if field.annotation is bool:
        return "true, false"
    return " to ".join(map(str, bounds)) if bounds else "text"
