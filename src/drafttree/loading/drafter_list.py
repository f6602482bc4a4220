"""The list of drafters: how users name each one, and what it does. Nothing here imports torch."""

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

FOLDER = "FOLDER or ORG/NAME"
"""How the list names a drafter that is loaded from files, in a folder or on the hub."""


@dataclass(frozen=True)
class ListedDrafter:
    """An entry of the list: a drafter, or a kind of drafter.

    Attributes:
        kind: "built in", "embedded", "from files" or "installed".
        write: what users write to choose it.
        description: what it does, in a sentence.
    """

    kind: str
    write: str
    description: str


BUILT_IN = {
    "auto": "Takes the MTP layers of the target's own files, a head that is known for the target, or else lookup.",
    "none": "Drafts nothing: plain decoding.",
    "lookup": "Proposes what followed the last tokens earlier in the text. Needs no model. Parameter: max_ngram=8.",
    "suffix": "Proposes what followed the longest repeated end of the text, of any length. Needs no model.",
    "mixed:MODEL": "Proposes as suffix does where the text repeats, and lets any drafter of this list draft elsewhere.",
    "mtp": "Drafts with the MTP layers in the target's own files.",
}
EMBEDDED = {
    "embedded-draft": "A language model a tenth of the embedded target's size.",
    "embedded-eagle3": "An EAGLE-3 head for the embedded target.",
    "embedded-medusa": "Medusa heads for the embedded target.",
    "embedded-hydra": "Hydra heads for the embedded target.",
    "embedded-mtp": "An MTP layer for the embedded target.",
    "embedded-block": "A block drafter (DSpark's kind) for the embedded target.",
}
FROM_FILES = {
    "language-model": "A smaller language model, ideally of the target's family; a GGUF file too.",
    "assistant": "A Gemma 4 assistant, for the target it was made for.",
    "eagle": "An EAGLE head, for the target it was trained for.",
    "eagle3": "An EAGLE-3 head, for the target it was trained for.",
    "medusa": "Medusa heads, for the target they were trained for.",
    "hydra": "Hydra heads, for the target they were trained for.",
    "mtp": "MTP layers, for the target they were trained for.",
    "block": "A DFlash or DSpark block drafter, for the target it was trained for.",
}
"""Descriptions by the kind that `drafttree inspect` reports for a folder."""


def list_drafters() -> dict[str, ListedDrafter]:
    """All drafters by name: built in, embedded, from files (by format), and from entry points."""
    built_in_drafters = {name: ListedDrafter("built in", name, description) for name, description in BUILT_IN.items()}
    embedded_drafters = {name: ListedDrafter("embedded", name, description) for name, description in EMBEDDED.items()}
    file_drafters = {
        f"{format_name} files": ListedDrafter("from files", FOLDER, description)
        for format_name, description in FROM_FILES.items()
    }
    return {**built_in_drafters, **embedded_drafters, **file_drafters, **_installed()}


def _installed() -> dict[str, ListedDrafter]:
    if not entry_points(group="drafttree.drafters"):
        return {}
    from drafttree.drafters.formats import HeadFormat
    from drafttree.loading.drafter_methods import installed_drafters

    def describe(name: str, entry: Any) -> ListedDrafter:
        if isinstance(entry, HeadFormat):
            return ListedDrafter("installed", FOLDER, f"{entry.title} heads, in the format {entry.kind!r}.")
        description = " ".join((entry.__doc__ or "").split("\n\n")[0].split())
        return ListedDrafter("installed", name, f"{description or 'A drafter.'} From {entry.__module__}.")

    return {name: describe(name, entry) for name, entry in installed_drafters().items()}
