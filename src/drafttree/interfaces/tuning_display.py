"""Prints a tuning: the recommendation, the reasons, and the measurements."""

from pathlib import Path

from rich.text import Text

from drafttree.evaluation.tune import Tuning
from drafttree.interfaces.console import make_console, make_table
from drafttree.interfaces.display import law_table

SHOWN = 8
"""The most rows in the table of the race."""
NONE = "-"
"""Shown instead of a ratio if the measured times give none."""


def show_tuning(tuning: Tuning, lines: list[str], command: str, minutes: float, out: Path | None) -> None:
    """Print the race, the law's terms of its winner, notes, the recommendation and how to use it.

    Args:
        tuning: the finished tuning.
        lines: lines of Python that use the recommendation.
        command: options of a command that use it; "" for none.
        minutes: the time limit of the tuning.
        out: the folder of finished runs; None for none.
    """
    console = make_console()
    if tuning.best:
        console.print(_race(tuning), "", sep="\n")
    if tuning.speedup and not tuning.doubt:
        console.print(law_table(tuning.speedup), "", sep="\n")
        console.print(Text(tuning.speedup.limit.sentence), soft_wrap=True)
    if tuning.temperature_gain and not tuning.doubt:
        console.print(Text(tuning.temperature_gain.sentence), soft_wrap=True)
    for sentence in _notes(tuning, minutes, out):
        console.print(Text(sentence), soft_wrap=True)
    console.print(Text(_recommendation(tuning), style="bold"), "", soft_wrap=True, sep="\n")
    for line in lines:
        console.print(Text(f"    {line}"), soft_wrap=True)
    if command:
        console.print("", Text(f"on the command line: {command}"), sep="\n", soft_wrap=True)


def _race(tuning: Tuning):
    table = make_table("drafter", "policy", "draft temperature", "texts", "over plain", right=0)
    for column in table.columns[2:]:
        column.justify = "right"
    for way in tuning.ways[:SHOWN]:
        draft_temperature = f"{way.draft_temperature:g}"
        table.add_row(
            way.drafter, way.policy, draft_temperature, str(way.texts), f"{way.ratio:.2f}" if way.ratio else NONE
        )
    hidden_count = len(tuning.ways) - SHOWN
    table.title = "the race" + (f", the best {SHOWN} of {len(tuning.ways)} ways" if hidden_count > 0 else "")
    return table


def _notes(tuning: Tuning, minutes: float, out: Path | None) -> list[str]:
    notes = [f"left out: {name}: {reason}" for name, reason in tuning.left_out.items()]
    if any(way.ratio is None for way in tuning.ways[:SHOWN]):
        notes.append(f"{NONE}: nothing was drafted, or other programs disturbed the times")
    if tuning.too_short:
        notes.append(f"{tuning.too_short} prompts are too short to tune on and were left out")
    if tuning.confirmed and not tuning.apart:
        notes.append("there are too few prompts for a separate set to confirm the choice")
    if tuning.missing:
        notes.append(f"{_ended(tuning, minutes)} all of it was measured: {'; '.join(tuning.missing)} ({_onward(out)})")
    return notes


def _ended(tuning: Tuning, minutes: float) -> str:
    return "it was interrupted before" if tuning.interrupted else f"{minutes:g} minutes were over before"


def _onward(out: Path | None) -> str:
    return f"the same command goes on from {out}" if out else "with --out FOLDER the same command would go on"


def _recommendation(tuning: Tuning) -> str:
    if tuning.best is None or tuning.gain is None:
        return "Nothing is recommended, and nothing saved: no drafter was measured yet."
    best_way = str(tuning.best)
    if tuning.doubt:
        advice = "Do not speculate" if tuning.recommends else "Nothing is recommended, and nothing saved"
        return f"{advice}; the best way is {best_way}. {tuning.doubt}"
    speed = f"{1 + tuning.gain.mean:.2f} times plain decoding's speed"
    confirmation = "confirmed" if tuning.apart else "confirmed on the prompts it was chosen on"
    confirmation = confirmation if tuning.confirmed else "not confirmed, measured on the texts it was chosen on"
    confirmation = "not confirmed, measured on one prompt" if tuning.one_prompt else confirmation
    ends = [1 + end for end in (tuning.gain.low, tuning.gain.high) if end is not None]
    margin = f"[{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "on one text, without an interval"
    figures = f"{speed} {margin} ({confirmation}), {tuning.expected:.2f} expected by the law"
    if tuning.one_prompt and not tuning.interrupted:
        return (
            "Nothing is recommended, and nothing saved: a single usable prompt says nothing of others; give two or "
            f"more, best nine. For this one the best is {best_way}: {figures}."
        )
    if not tuning.recommends:
        return f"Nothing is recommended, and nothing saved; so far the best is {best_way}: {figures}."
    if tuning.speculates:
        return f"Speculate: {best_way}: {figures}."
    return f"Do not speculate: the best way, {best_way}, is not faster by more than its interval: {figures}."
