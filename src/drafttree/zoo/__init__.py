"""The embedded models: a small target and its draft, trained by `recipes/` and shipped with the package."""

from pathlib import Path

from drafttree.errors import ModelError

NAMES = {"embedded": "target", "embedded-draft": "draft"}


def folder(name: str) -> Path:
    """The folder of an embedded model, in ordinary Hugging Face format.

    Raises:
        ModelError: its files are missing from this installation.
    """
    path = Path(__file__).parent / NAMES[name]
    if not (path / "model.safetensors").is_file():
        raise ModelError(f"the files of {name!r} are missing from this installation; reinstall drafttree")
    return path
