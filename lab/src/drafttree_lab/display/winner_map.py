"""Printing of the map of who wins where."""

from collections.abc import Sequence

from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.winner_map.published import PLAIN
from drafttree_lab.winner_map.winner_map import SLOPES, MapPoint, WinnerMap


def show_map(found: WinnerMap) -> None:
    """The drafters, a table of winners for every curve, the papers' pairs, and what the papers leave open."""
    console = make_console()
    _show_grades(found)
    for slope, like in SLOPES.items():
        if points := found.of_slope(slope):
            _show_curve(f"v(n) = 1 + {slope:g} (n - 1), {like}", points)
    if not found.points:
        console.print("no drafter is counted with every policy yet", "")
    _show_pairs(found)
    _show_answers(found)
    loops = f"{found.looping} of {found.prompts} texts of {found.length} tokens end in a loop"
    console.print(Text(f"{loops}; {found.differing} drafted texts differ from the target's own", style="dim"))


def _show_grades(found: WinnerMap) -> None:
    table = make_table("agreement", "reached", "confidence", "weight of the target", "noise", "temperature", right=5)
    table.title = "drafters"
    for each in found.grades:
        grade = each.grade
        shown = (each.reached, each.confidence, grade.weight, grade.noise, grade.temperature)
        table.add_row(f"{each.wanted:g}", *(f"{number:.3f}" for number in shown))
    make_console().print(table, "")


def _show_curve(title: str, points: Sequence[MapPoint]) -> None:
    drafts = sorted({point.costs.draft for point in points})
    table = make_table("agreement", *(f"c = {draft:g}" for draft in drafts))
    table.title = f"{title}: the fastest family, its R, and what auto reaches of it"
    for agreement in sorted({point.agreement for point in points}, reverse=True):
        row = {point.costs.draft: point for point in points if point.agreement == agreement}
        table.add_row(f"{agreement:g}", *(_cell(row[draft]) for draft in drafts))
    make_console().print(table, "")


def _cell(point: MapPoint) -> Text:
    share = "" if point.share is None else f" {point.share:.0%}"
    cell = Text(f"{point.winner} {point.best:.2f}", style="dim" if point.winner == PLAIN else "")
    return cell.append(share, style="dim")


def _show_pairs(found: WinnerMap) -> None:
    if not found.pairs:
        return
    table = make_table("pair", "c", "tau", "agreement", "paper", "by", right=3)
    table.title = "the papers' pairs: c from their numbers, agreement where a graded drafter has their tokens per round"
    for each in found.pairs:
        pair = each.pair
        where = f"{each.agreement:.2f}{f', or {each.beyond}' if each.beyond else ''}"
        by = f"{pair.policy}{', sampled' if pair.sampled else ''}"
        table.add_row(pair.name, f"{pair.draft_cost:.3f}", f"{pair.tau:.2f}", where, pair.paper, by)
    make_console().print(table, "")


def _show_answers(found: WinnerMap) -> None:
    agreements = [ratio.agreement for ratio in found.answers[0].ratios]
    table = make_table(
        "R over R at the paper's costs",
        "c",
        *(f"{each:g}" for each in agreements),
        "verdict",
        right=1 + len(agreements),
    )
    table.title = "what the papers leave open, by agreement; brackets: the 95 % interval over prompts has 1 in it"
    for each in found.answers:
        shown = (f"{own.estimate:.2f}" if own.is_decided else f"({own.estimate:.2f})" for own in each.ratios)
        table.add_row(each.text, f"{each.draft_cost:.3f}", *shown, each.verdict)
    make_console().print(table, "")
