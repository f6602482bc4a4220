"""Shows texts side by side in the terminal while they are written."""

from collections.abc import Mapping
from itertools import groupby

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drafttree.engine.generation import Chunk
from drafttree.evaluation.side_by_side import SideBySide
from drafttree.interfaces.display import DRAFTED

REFRESH = 12
"""Updates of the screen per second."""
LINES = 14
"""The number of last lines that are shown of each text."""


def show_side_by_side(console: Console, prompt: str, race: SideBySide) -> None:
    """Run a race; on a terminal, show its texts in columns, with characters of accepted drafts in green."""
    texts = {name: Text(prompt, style="dim") for name in race.seconds}
    tokens = dict.fromkeys(race.seconds, 0)
    with Live(console=console, refresh_per_second=REFRESH, auto_refresh=False) as live:
        for name, chunk in race:
            _append(texts[name], chunk)
            tokens[name] += len(chunk.tokens)
            if console.is_terminal:
                live.update(_columns(console, texts, tokens, race.seconds), refresh=True)
        if not console.is_terminal:
            live.update(Text())


def _append(text: Text, chunk: Chunk) -> None:
    characters = zip(chunk.text, chunk.drafted_text, strict=True)
    for is_drafted, run in groupby(characters, key=lambda flagged_character: flagged_character[1]):
        text.append("".join(character for character, _ in run), style=DRAFTED if is_drafted else "none")


def _columns(
    console: Console, texts: Mapping[str, Text], tokens: Mapping[str, int], seconds: Mapping[str, float]
) -> Table:
    table = Table(expand=True, show_edge=False, pad_edge=False, header_style="bold")
    width = max(console.width // len(texts) - 4, 16)
    for name in texts:
        table.add_column(name, ratio=1)
    lines = {name: list(text.wrap(console, width))[-LINES:] for name, text in texts.items()}
    table.add_row(*(Text("\n").join(rows + [Text()] * (LINES - len(rows))) for rows in lines.values()))
    speeds = (
        f"{tokens[name]} tokens in {text_seconds:.1f} s" if text_seconds else ""
        for name, text_seconds in seconds.items()
    )
    table.add_row(*(Text(speed, style="bold") for speed in speeds))
    return table
