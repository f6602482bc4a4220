"""`drafttree replay map`: the fastest policy by the drafter's agreement and confidence, and the costs of passes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Device, Seed, Target
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, make_table, progress

if TYPE_CHECKING:
    from drafttree_lab.winner_map.winner_map import MapPoint, WinnerMap

FOLDER = Path("build/replay-map")
RESULTS = ResultOptions(out=FOLDER)
ROLE = "Draft model"
"""The role of the graded drafter in the papers."""
Roles = Annotated[
    list[str] | None,
    typer.Option("--as", help="ROLE=DRAFTER: the drafter for a role in the papers. May be repeated."),
]


@dataclass(frozen=True)
class MapOptions:
    """How much is counted, and where."""

    limit: Annotated[int, typer.Option(min=1, help="Number of prompts, taken from all sets alternately.")] = 16
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens per text.")] = 96
    seed: Seed = 0
    device: Device = "auto"


SIZES = MapOptions()


@grouped
def map_(
    target: Target = "embedded",
    roles: Roles = None,
    results: ResultOptions = RESULTS,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="SVG file to draw the figure to.")] = None,
    sizes: MapOptions = SIZES,
) -> None:
    """Count which policy is fastest where.

    The map goes by agreement of drafter and target, confidence of the drafter, cost of a draft pass and cost of a tree.
    Nothing is timed, so any machine gives the same map. The exit code is 0 if all is done, 3 if the time ran
    out first.
    """
    from drafttree.measure.run_store import NothingFinished
    from drafttree_lab.graded import CONFIDENCES
    from drafttree_lab.replay.inputs import find_roles, parse_roles
    from drafttree_lab.replay.run import ReplayTarget
    from drafttree_lab.report.map_figure import draw
    from drafttree_lab.report.notation import write_text
    from drafttree_lab.winner_map.winner_map import TextRuns, choose_prompts, count_steps, read_map_prompts, run_map

    if output and output.suffix != ".svg":
        raise ConfigError(f"-o {str(output)!r} does not end in .svg; name such a file")
    drafters, missing_roles = find_roles(["traversal"], target, parse_roles(roles or []))
    if ROLE not in drafters:
        raise ConfigError(missing_roles[ROLE])
    texts = read_map_prompts(sizes.limit)
    load = ReplayTarget(target, "float32", sizes.device, None)
    decoder = load.load_drafter(drafters[ROLE])
    sets = load.encode(texts.texts, sizes.max_new_tokens, chat=False)
    map_options = {
        "limit": sizes.limit,
        "max_new_tokens": sizes.max_new_tokens,
        "seed": sizes.seed,
        "confidences": CONFIDENCES,
    }
    store = load.open_store(results.out or FOLDER, results.minutes, map=True, drafter=drafters[ROLE], **map_options)
    runs = TextRuns(decoder, store, sizes.max_new_tokens, sizes.seed)
    with store.interruptible():
        runs.prompts = choose_prompts(sets, sizes.limit, sizes.seed, lambda ids: runs.plain(ids).looping)
    if store.interrupted:
        raise NothingFinished(store)
    with progress(count_steps(len(runs.prompts))) as advance:
        winner_map = run_map(runs, advance)
    if output:
        write_text(draw(winner_map), output)
    results.finish(store, asdict(winner_map), lambda: show_map(winner_map))


def show_map(winner_map: "WinnerMap") -> None:
    """Print the drafters, a table of winners for every curve, the papers' pairs, and the open questions."""
    from drafttree_lab.graded import CONFIDENCES
    from drafttree_lab.winner_map.winner_map import SLOPES

    console = make_console()
    table = make_table("agreement", "reached", *CONFIDENCES, "weight of the target", "noise", "temperature", right=7)
    table.title = "drafters; by confidence: the mean probability of the best token (temperature x 0.4, 1 and 2)"
    for graded_agreement in winner_map.grades:
        grade = graded_agreement.grade
        confidences = winner_map.confidences.get(graded_agreement.wanted, [])
        numbers = (graded_agreement.reached, *confidences, grade.weight, grade.noise, grade.temperature)
        table.add_row(f"{graded_agreement.wanted:g}", *(f"{number:.3f}" for number in numbers))
    console.print(table, "")
    for slope, description in SLOPES.items():
        if points := winner_map.of_slope(slope):
            _show_curve(f"v(n) = 1 + {slope:g} (n - 1), {description}", points)
    if not winner_map.points:
        console.print("the map is empty so far: no drafter has been run with every policy", "")
    _show_pairs(winner_map)
    _show_questions(winner_map)
    loop_note = f"{winner_map.looping} of {winner_map.prompts} texts of {winner_map.length} tokens end in a loop"
    console.print(Text(f"{loop_note}; {winner_map.differing} drafted texts differ from the target's own", style="dim"))


def _show_curve(title: str, points: Sequence["MapPoint"]) -> None:
    from drafttree_lab.winner_map.published import PLAIN

    draft_costs = sorted({point.draft_cost for point in points})
    table = make_table("agreement", "confidence", *(f"c = {draft_cost:g}" for draft_cost in draft_costs))
    table.title = f"{title}: the fastest family (= the second, where they tie), its R, and what auto reaches of it"
    rows: dict[tuple[float, str], list[Text]] = {}
    for point in sorted(points, key=lambda point: (-point.agreement, point.draft_cost)):
        names = f"{point.winner} = {point.tied_with}" if point.tied_with else point.winner
        cell = Text(f"{names} {point.best:.2f}", style="dim" if point.winner == PLAIN else "")
        cell.append("" if point.share is None else f" {point.share:.0%}", style="dim")
        rows.setdefault((point.agreement, point.confidence), []).append(cell)
    for (agreement, confidence), cells in rows.items():
        table.add_row(f"{agreement:g}", confidence, *cells)
    make_console().print(table, "")


def _show_pairs(winner_map: "WinnerMap") -> None:
    if not winner_map.pairs:
        return
    table = make_table("pair", "c", "tau", "agreement", "paper", "by", right=3)
    table.title = "the papers' pairs: c from their numbers, agreement where a graded drafter has their tokens per round"
    for model_pair in winner_map.pairs:
        agreement = f"{model_pair.agreement:.2f}{f', or {model_pair.beyond}' if model_pair.beyond else ''}"
        policy_text = f"{model_pair.policy}{', sampled' if model_pair.sampled else ''}"
        table.add_row(
            model_pair.name,
            f"{model_pair.draft_cost:.3f}",
            f"{model_pair.tau:.2f}",
            agreement,
            model_pair.paper,
            policy_text,
        )
    make_console().print(table, "")


def _show_questions(winner_map: "WinnerMap") -> None:
    from drafttree_lab.winner_map.published import side

    agreements = sorted({point.agreement for point in winner_map.points})
    table = make_table("R over R", "c", "confidence", *(f"{agreement:g}" for agreement in agreements))
    table.title = "what the papers leave open, by agreement; brackets: the 95 % interval over prompts has 1 in it"
    verdicts = make_table("question", "verdict")
    verdicts.title = "verdicts: decided where every confidence decides alike"
    for question in winner_map.questions:
        verdicts.add_row(question.text, question.verdict)
        for confidence, ratios in question.ratios.items():
            best_settings = question.best.get(confidence, {})
            ratio_texts = (f"{ratio.value:.2f}" if side(ratio) else f"({ratio.value:.2f})" for ratio in ratios.values())
            cells = (
                f"{text} {best_settings[agreement]}" if best_settings else text
                for agreement, text in zip(ratios, ratio_texts, strict=True)
            )
            table.add_row(question.text, f"{question.costs.draft:.3f}", confidence, *cells)
    make_console().print(table, "", verdicts, "")
