"""Prints a tuning: the recommendation, the reasons, and the measurements."""

from pathlib import Path

from rich.text import Text

from drafttree.evaluation.tune import Tuning
from drafttree.evaluation.tune.tuning import LEAST_PROMPTS
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
    console.print(Text(_recommendation(tuning, out), style="bold"), "", soft_wrap=True, sep="\n")
    for line in lines:
        console.print(Text(f"    {line}"), soft_wrap=True)
    if command:
        console.print("", Text(f"On the command line: {command}"), sep="\n", soft_wrap=True)


def _race(tuning: Tuning):
    table = make_table("drafter", "policy", "draft temperature", "texts", "speed over plain", right=0)
    for column in table.columns[2:]:
        column.justify = "right"
    for way in tuning.ways[:SHOWN]:
        draft_temperature = f"{way.draft_temperature:g}"
        table.add_row(
            way.drafter, way.policy, draft_temperature, str(way.texts), f"{way.ratio:.2f}" if way.ratio else NONE
        )
    hidden_count = len(tuning.ways) - SHOWN
    table.title = f"The best {SHOWN} of {len(tuning.ways)} ways" if hidden_count > 0 else "All ways"
    return table


def _notes(tuning: Tuning, minutes: float, out: Path | None) -> list[str]:
    notes = [f"Left out: {name}: {reason}" for name, reason in tuning.left_out.items()]
    if any(way.ratio is None for way in tuning.ways[:SHOWN]):
        notes.append(f"{NONE} means that nothing was drafted, or that other programs disturbed the times.")
    if tuning.too_short:
        notes.append(f"Prompts left out because they are too short: {tuning.too_short}.")
    if tuning.confirmed and not tuning.apart:
        notes.append(f"Too few prompts (under {LEAST_PROMPTS}) for a separate confirmation set.")
    if tuning.missing:
        notes.append(
            f"{_ended(tuning, minutes)}; not everything was measured: {'; '.join(tuning.missing)} ({_onward(out)})"
        )
    return notes


def _ended(tuning: Tuning, minutes: float) -> str:
    if tuning.interrupted:
        return "Interrupted"
    return f"Stopped after {minutes:g} minute{'' if minutes == 1 else 's'}"


def _onward(out: Path | None) -> str:
    return f"the same command continues from {out}" if out else "with --out FOLDER the same command could continue"


def _recommendation(tuning: Tuning, out: Path | None) -> str:
    if tuning.best is None or tuning.gain is None:
        return "No recommendation, and nothing saved: no drafter was measured yet."
    best_way = str(tuning.best)
    if tuning.doubt:
        advice = "Do not speculate." if tuning.recommends else "No recommendation, and nothing saved."
        keeps_disturbed_times = out and tuning.speedup and not tuning.speedup.drafts_nothing
        hint = f" The times are kept in {out}; give another --out then." if keeps_disturbed_times else ""
        return f"{advice} The best way is {best_way}. {tuning.doubt}{hint}"
    confirmation = "confirmed on other prompts" if tuning.apart else "confirmed on the prompts it was chosen on"
    confirmation = confirmation if tuning.confirmed else "not confirmed: measured on the texts it was chosen on"
    confirmation = "not confirmed: measured on one prompt" if tuning.one_prompt else confirmation
    ends = [1 + end for end in (tuning.gain.low, tuning.gain.high) if end is not None]
    interval = f"95 % interval {ends[0]:.2f} to {ends[1]:.2f}" if ends else "one text, so no interval"
    figures = (
        f"It is {1 + tuning.gain.mean:.2f} times as fast as plain decoding ({interval}; {confirmation}). "
        f"By the costs measured at first, it would be {tuning.expected:.2f} times."
    )
    if tuning.one_prompt and not tuning.interrupted:
        return (
            "No recommendation, and nothing saved: one usable prompt says nothing about others; give at least two, "
            f"better {LEAST_PROMPTS} or more. For this prompt the best way is {best_way}. {figures}"
        )
    if not tuning.recommends:
        return f"No recommendation, and nothing saved. So far the best way is {best_way}. {figures}"
    if tuning.speculates:
        return f"Speculate: {best_way}. {figures}"
    return f"Do not speculate: even the best way, {best_way}, is not reliably faster than plain decoding. {figures}"
