"""Checks that a resumed run has the settings it was begun with."""

import argparse
import json

from disk import atomic_file

MAY_CHANGE = {"out", "tokens", "deadline", "device", "threads", "dtype", "cache", "write"}
"""Options that may change when a run is resumed."""


class Settings:
    """The settings of a run, compared with those of the run begun earlier in the same folder.

    Args:
        recipe: name of the recipe.
        options: parsed options of the command.

    Attributes:
        begun: whether the folder holds a run.

    Raises:
        ValueError: it holds a run with other settings, or its settings cannot be read.
    """

    def __init__(self, recipe: str, options: argparse.Namespace):
        chosen = {name: str(value) for name, value in vars(options).items() if name not in MAY_CHANGE}
        self.path, self.values = options.out / "settings.json", {"recipe": recipe, **chosen}
        self.begun = self.path.exists()
        if self.begun:
            self._compare()

    def save(self) -> None:
        """Write the settings of a new run."""
        if not self.begun:
            with atomic_file(self.path) as file:
                file.write(json.dumps(self.values, indent=2).encode())

    def _compare(self) -> None:
        for name, was in self._saved().items():
            now = self.values.get(name)
            if was != now:
                option = "the recipe" if name == "recipe" else "--" + name.replace("_", "-")
                raise ValueError(f"{self.path.parent} was begun with {option} {was}, not {now}; use another --out")

    def _saved(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.path.read_text()).items())
        except (ValueError, AttributeError):
            raise ValueError(
                f"{self.path} is damaged; delete it if the run was begun with these very options, or use another --out"
            ) from None
