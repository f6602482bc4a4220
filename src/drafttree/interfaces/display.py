"""Printing of results on a terminal or into a pipe."""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drafttree.engine.decoder import Decoder
from drafttree.engine.fidelity import Fidelity
from drafttree.engine.generation import Chunk, Generation
from drafttree.engine.metrics import SpeedupLaw
from drafttree.evaluation.bench import (
    Acceptance,
    Comparison,
    DrafterBench,
    ExactTextRow,
    LawBench,
    LookupBench,
    Overhead,
    PeerRow,
    PolicyBench,
    PolicyRow,
    VerifierBench,
)
from drafttree.evaluation.bench.acceptance import PUBLISHED_GAIN
from drafttree.evaluation.bench.estimate import Estimate
from drafttree.evaluation.bench.law import BEHIND
from drafttree.evaluation.bench.overhead import PARTS
from drafttree.evaluation.certify import Certificate
from drafttree.evaluation.pair_sweep import PairFinding, PairSweep
from drafttree.evaluation.reference import TOLERANCE_ULPS, Difference
from drafttree.evaluation.toy_decoder import Reach
from drafttree.interfaces.console import make_console, make_table
from drafttree.loading.inspect import Inspection

DRAFTED = "green"
WARNING = "bold red"
PART = "INTERRUPTED: this is not all of it."


def show_inspection(found: Inspection) -> None:
    """An inspection, one fact a line, with the problems that keep the folder from being loaded."""
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
    """The text that a round adds; on a terminal, characters of accepted drafted tokens are green."""
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


def show_lossy(fidelity: Fidelity) -> None:
    """One line on standard error where texts are not lossless, and nothing where they are."""
    if not fidelity.lossless:
        make_console(stderr=True).print(_fidelity(fidelity), soft_wrap=True)


def show_comparison(compared: Comparison, policy: str) -> None:
    """Speeds side by side, the terms of the law, and what they mean in plain words."""
    console, law = make_console(), compared.law
    table = make_table("", "tokens/s", "ratio", right=2)
    names = {
        "speculative": f"drafttree, {policy}",
        "plain": "drafttree, plain",
        "transformers": "transformers generate",
    }
    for way, speed in compared.speeds.items():
        table.add_row(names[way], f"{speed:.1f}", f"{speed / compared.speeds['plain']:.2f}")
    console.print("", table, "", sep="\n")
    console.print(law_table(law, compared.speculative.metrics.mean_nodes), "", sep="\n")
    console.print(_fidelity(compared.speculative.fidelity), soft_wrap=True)
    for line in _agreement(compared):
        console.print(Text(line))
    console.print(Text(compared.verdict, style="bold"), Text(compared.limit.sentence), sep="\n", soft_wrap=True)


def law_table(law: SpeedupLaw, nodes: float) -> Table:
    """The law's terms with their meaning, and R predicted and measured; `nodes` are those of the mean tree."""
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
    """Per policy how many texts are identical, every difference, and the two conclusions."""
    console = make_console()
    table = make_table("policy", f"as {certificate.reference}", "law", "as plain decoding token for token")
    for policy in certificate.policies:
        verdict = "ties only" if policy.findings and policy.passed else "ok" if policy.passed else "DIFFERENT"
        same = f"{policy.same_text}/{policy.prompts}"
        table.add_row(policy.policy, f"{policy.identical}/{policy.prompts}", verdict, same)
    console.print(table)
    if any(policy.findings for policy in certificate.policies):
        console.print(_differences(certificate, decoder))
    console.print(Text(_conclusion(certificate)), soft_wrap=True)


def show_exact_text(rows: list[ExactTextRow]) -> None:
    """What `exact_text` costs and changes."""
    table = make_table("", "tokens/s", "with exact_text", "cost", "as plain decoding", "with exact_text", right=5)
    for row in rows:
        speeds, same = [f"{speed:.1f}" for speed in row.speeds], [f"{count}/{row.prompts}" for count in row.same_text]
        table.add_row(row.policy, *speeds, f"{row.cost:+.1%}", *same)
    make_console().print(table)


def show_bench(result: PolicyBench) -> None:
    """Every term of the law per policy, looping texts apart."""
    for group in dict.fromkeys(row.group for row in result.rows):
        rows = {row.policy: row for row in result.rows if row.group == group}
        make_console().print(_law_rows("policy", group, rows))
        if peers := [peer for peer in result.peers if peer.group == group]:
            make_console().print(_peers(peers))
    print(f"{result.looping} of {result.prompts} texts loop (their last 48 tokens repeat with a period of at most 16)")


def show_drafters(result: DrafterBench) -> None:
    """The law's terms of every method by set of prompts, then what the drafters cost."""
    for group in dict.fromkeys(each.row.group for each in result.rows):
        rows = {each.name: each.row for each in result.rows if each.row.group == group}
        make_console().print(_law_rows("method", group, rows))
    table = make_table("drafter", "passes a round", "ms a pass", "weights, MB", "cache, MB", right=4)
    for cost in result.costs:
        sizes = [f"{size / 1e6:.2f}" for size in (cost.weight_bytes, cost.cache_bytes)]
        table.add_row(cost.drafter, f"{cost.passes:.2f}", f"{cost.seconds * 1e3:.2f}", *sizes)
    make_console().print(table)


def _law_rows(kind: str, group: str, rows: Mapping[str, PolicyRow]) -> Table:
    """The terms of the law, and the shares of the drafted nodes and levels that were accepted."""
    columns = ["tau", "delta", "v", "c", "h", "R law", "R", "tokens/s", "of nodes", "of levels", "nodes"]
    table = make_table(kind, *columns, right=len(columns))
    table.title = f"{group}: {next(iter(rows.values())).prompts} prompts"
    for name, row in rows.items():
        law = row.law
        terms = [law.tau, law.delta, law.v, law.c, law.h, row.predicted, law.measured]
        shares = [f"{row.acceptance_rate:.1%}", f"{row.level_acceptance:.1%}"]
        cells = [f"{row.tokens_per_second:.1f}", *shares, f"{row.mean_nodes:.1f}"]
        table.add_row(name, *(f"{term:.2f}" for term in terms), *cells)
    return table


def show_law(law: LawBench) -> None:
    """The machine and its passes, then decoding against both limits: the memory bandwidth and the law without h."""
    console = make_console()
    console.print(
        f"{law.device}, {law.dtype}, {law.parameters / 1e6:.1f} M parameters; a large copy moves "
        f"{law.bandwidth / 1e9:.1f} GB/s; behind {law.context} tokens a target pass reads "
        f"{law.target_bytes / 1e6:.1f} MB, a draft pass {law.draft_bytes / 1e6:.1f} MB",
        soft_wrap=True,
    )
    passes = make_table("nodes", *map(str, law.passes), right=len(law.passes))
    passes.add_row("ms per pass", *(f"{seconds * 1e3:.2f}" for seconds in law.passes.values()))
    passes.add_row("v", *(f"{law.v(nodes):.2f}" for nodes in law.passes))
    console.print(passes)
    if law.contexts:
        table = make_table("tokens before", *(f"ms over {nodes} nodes" for nodes in BEHIND), right=len(BEHIND))
        for context, times in law.contexts.items():
            table.add_row(str(context), *(f"{times[nodes] * 1e3:.2f}" for nodes in BEHIND))
        console.print(table)
    show_bench(law.bench)
    columns = ["", "tokens/s", "GB/s", "of the roofline", "R", "without prompts", "R at h = 0", "share of it"]
    table = make_table(*columns, right=len(columns) - 1)
    for row in (row for row in law.bench.rows if row.group == "all"):
        moved, free = law.moved(row), row.law.without_host
        ratios = [f"{ratio:.2f}" for ratio in (row.law.measured, row.law.decoding, free)]
        cells = [f"{row.tokens_per_second:.1f}", f"{moved / 1e9:.1f}", f"{moved / law.bandwidth:.0%}", *ratios]
        cells.append(f"{row.law.decoding / free:.0%}")
        table.add_row(row.policy, *cells)
    console.print(table)
    for target in law.targets():
        bound, verdict = "at most" if target.is_upper else "at least", "met" if target.met else "missed"
        console.print(f"{target.name}: {target.found:.2f}; the target is {bound} {target.bound:.2f}: {verdict}")


def show_overhead(results: list[Overhead]) -> None:
    """The time of a round outside the two models, by part."""
    columns = ["policy", "round", "target", "draft", "outside", "h", *PARTS, "operations", "calls"]
    table = make_table(*columns, right=len(columns) - 1)
    table.title = "mean µs per round; h is 'outside' in plain passes, then its parts; torch operations and own calls:"
    for result in results:
        passes = [result.round, result.target, result.draft, result.seconds]
        parts = [getattr(result, part) for part in PARTS]
        cells = [f"{seconds * 1e6:.0f}" for seconds in passes + parts]
        work = f"{result.operations:.0f}", f"{result.calls:.0f}"
        table.add_row(result.policy, *cells[: len(passes)], f"{result.h:.3f}", *cells[len(passes) :], *work)
    make_console().print(table)


def show_lookup(result: LookupBench) -> None:
    """tau of every drafter and policy by set, then the cost of drafting by length of context."""
    table = make_table("tokens per round", "tau", "nodes", "delta", right=3)
    for row in result.rows:
        name = f"{row.prompts}, {row.way}: {row.drafter}, {row.policy}"
        table.add_row(name, f"{row.tau:.2f}", f"{row.nodes:.1f}", f"{row.delta:.1f}")
    make_console().print(table, "")
    table = make_table("drafting alone, µs", "context", "per prompt token", "per round", right=3)
    for cost in result.costs:
        table.add_row(cost.drafter, str(cost.context), f"{cost.read * 1e6:.1f}", f"{cost.round * 1e6:.0f}")
    make_console().print(table)


def show_verifier_times(result: VerifierBench) -> None:
    """Milliseconds of every verifier, a table per vocabulary, beside those of the logits."""
    sizes = list(dict.fromkeys(row.nodes for row in result.rows))
    where = f"hidden {result.hidden}, temperature {result.temperature:g}, {result.device}, {result.threads} threads"
    for vocab in dict.fromkeys(row.vocab for row in result.rows):
        rows = [row for row in result.rows if row.vocab == vocab]
        columns = [f"{name} {size}" for size in sizes for name in ("ms", "share", "grow")]
        table = make_table("verifier", *columns, right=len(columns))
        table.title = f"vocabulary {vocab}; {where}"
        logits = {row.nodes: row.logits for row in rows}
        table.add_row("(logits)", *(cell for size in sizes for cell in (_milliseconds(logits[size]), "", "")))
        for name in dict.fromkeys(row.verifier for row in rows):
            times = [row for row in rows if row.verifier == name]
            cells = [(_milliseconds(row.verify), f"{row.share:.1%}", _milliseconds(row.growing)) for row in times]
            table.add_row(name, *(cell for group in cells for cell in group))
        make_console().print(table, "")
    print("ms: judging a tree of so many nodes; share: of that in judging and logits; grow: its noise or its draws")


def show_acceptance(result: Acceptance) -> None:
    """Tokens per round of every shape and verifier, a table per temperature and task."""
    for temperature, task in dict.fromkeys((row.temperature, row.task) for row in result.rows):
        rows = [row for row in result.rows if (row.temperature, row.task) == (temperature, task)]
        names = [*rows[0].tokens, *(["traversal over rrsw"] if rows[0].gain else [])]
        table = make_table("tree", *names, right=len(names))
        table.title = f"T = {temperature:g}, {task}: tokens per round, {rows[0].prompts} prompts"
        for row in rows:
            cells = [_with_margin(each) for each in row.tokens.values()]
            gain = [_with_margin(row.gain, "+.1%", ".1%")] if row.gain else []
            table.add_row(row.shape, *cells, *gain)
        make_console().print(table, "")
    low, high = PUBLISHED_GAIN
    print(f"± is half a 95 % confidence interval over prompts; {result.rounds} rounds, {result.stride} tokens apart")
    if any(row.gain for row in result.rows):
        print(f"published gain of traversal over rrsw at T = 1: {low:.1%} to {high:.1%}")


def _with_margin(each: Estimate, form: str = ".3f", margin: str = ".3f") -> str:
    """An estimate with its interval, which one prompt does not have."""
    own = f"{each.mean:{form}}"
    return f"{own} ±{each.margin:{margin}}" if math.isfinite(each.margin) else own


def show_enumeration(result: PairSweep) -> None:
    """The verdict on every pair, what was found of those that were tried, and why the others are refused."""
    console, findings = make_console(), result.findings
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
            found = ("" if each is None else f"{each:.1e}" for each in (finding.total_variation, finding.rounded))
            sizes = map(str, (finding.trials, finding.reach.siblings, finding.reach.levels))
            cells = [*sizes, *found, f"{finding.expected_accepted:.3f}", _explained(finding)]
            table.add_row(finding.policy, finding.verifier, *cells)
    console.print(table)
    for finding in findings:
        if finding.reason:
            console.print(Text(f"{finding.policy} with {finding.verifier}: refused, {finding.reason}", style="dim"))
    conclusion = _verdict(result, "Every pair is what it claims to be.", "A pair is BIASED.")
    if any(finding.trials for finding in findings):
        console.print(f"Tried: {_bounds(result.reach)}. Nothing is said of what lies beyond.")
    console.print(Text(f"Temperature {result.sampling.temperature:g}. {conclusion}"))


def _peers(rows: list[PeerRow]) -> Table:
    table = make_table("", "tokens/s", "over our plain", "same text", right=3)
    for row in rows:
        same = f"{row.identical}/{row.prompts}"
        table.add_row(row.name, f"{row.tokens_per_second:.1f}", f"{row.over_plain:.2f}", same)
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _bounds(reach: Reach) -> str:
    """How far texts were tried."""
    trees = f"trees of up to {reach.siblings} siblings and {reach.levels} levels"
    texts = f"up to {reach.rounds} rounds of a text, roots up to position {reach.position}"
    return f"{texts}, {trees}, up to {reach.columns:,} columns, up to {reach.texts} texts at once, float64 and float32"


def _explained(finding: PairFinding) -> str:
    """A verdict in a few words."""
    if finding.texts:
        how = f"{finding.equal} of {finding.texts} texts equal plain decoding's"
        return f"exact by coupling: {how}" if finding.passed else f"BIASED: {how}"
    return {"exact": "exact by enumeration", "lossy": "lossy, as its name says"}.get(finding.verdict, finding.verdict)


def _fidelity(fidelity: Fidelity) -> Text:
    return Text(fidelity.words, style="" if fidelity.lossless else WARNING)


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
    table = make_table("policy", "prompt", "position", "expected", "got", "gap", "tolerance", "a tie")
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
    law = "certified" if certificate.keeps_law else "NOT certified"
    law = "not certified yet" if certificate.keeps_law and certificate.interrupted else law
    lines += f"\nThe law is {law}: {'every' if certificate.keeps_law else 'not every'} text is the reference's"
    if certificate.keeps_law and any(policy.findings for policy in certificate.policies):
        lines += f" or differs by a tie, both tokens within {TOLERANCE_ULPS} ulps of the best logit"
    text = "identical" if certificate.keeps_text else "NOT identical"
    lines += f".\nThe text is {text} to plain decoding's token for token"
    return f"{lines}{_text_advice(certificate)}.{' ' + PART if certificate.interrupted else ''}"


def _text_advice(certificate: Certificate) -> str:
    if certificate.keeps_text:
        return ""
    if certificate.exact_text:
        return ", as it must be here"
    return f": in {certificate.dtype} ties fall either way, unless --exact-text is given"


def _verdict(result: PairSweep, passed: str, failed: str) -> str:
    """What a result amounts to, unless it is only a part."""
    return PART if result.interrupted else passed if result.passed else failed
