"""Parts of pages that programs write, between comments such as `<!-- figures: batch -->` and `<!-- /figures -->`."""

from collections.abc import Mapping, Sequence


def with_parts(document: str, kind: str, parts: Mapping[str, str]) -> str:
    """A document with parts in the places that are marked for them; those without a place are left out.

    Args:
        document: the page.
        kind: the word that begins the comments.
        parts: by name, the text of a part.
    """
    end = f"<!-- /{kind} -->\n"
    for name, part in parts.items():
        begin = f"<!-- {kind}: {name} -->\n"
        if begin in document:
            before, _, rest = document.partition(begin)
            document = f"{before}{begin}{part}{end}{rest.partition(end)[2]}"
    return document


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join([*lines, ""])
