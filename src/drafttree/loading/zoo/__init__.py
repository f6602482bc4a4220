"""The embedded models: a small target, its draft and its heads, trained by `recipes/` and shipped with the package."""

from pathlib import Path

from drafttree.core.errors import ModelError

MODELS = {"embedded": "target", "embedded-draft": "draft"}
HEADS = {
    "embedded-block": "block",
    "embedded-eagle3": "eagle3",
    "embedded-hydra": "hydra",
    "embedded-medusa": "medusa",
    "embedded-mtp": "mtp",
}
NAMES = MODELS | HEADS


def folder(name: str) -> Path:
    """The folder of an embedded model or head, in its public format.

    Raises:
        ModelError: its files are missing from this installation.
    """
    path = Path(__file__).parent / NAMES[name]
    if not (path / "config.json").is_file():
        raise ModelError(f"the files of {name!r} are missing from this installation; reinstall drafttree")
    return path


def tokenizer_folder(path: str) -> str:
    """The folder with a model's tokenizer: its own, or the embedded target's for the embedded draft model."""
    zoo_folder = Path(__file__).parent
    return str(zoo_folder / NAMES["embedded"]) if Path(path) == zoo_folder / NAMES["embedded-draft"] else path


def name_of(path: Path) -> str | None:
    """The embedded name of a folder; None if it holds no embedded model."""
    zoo_folder = Path(__file__).parent
    return next((name for name, folder in NAMES.items() if path == zoo_folder / folder), None)
