"""What a run was begun with: it goes on in the same way or not at all."""

import argparse
import json

from disk import written

FREE = {"out", "tokens", "deadline", "device", "threads", "dtype", "cache"}
"""Options that may be others when a run goes on."""


class Settings:
    """What a resumed run must have in common with the one begun in the same folder.

    Args:
        recipe: its name.
        options: of its command.

    Attributes:
        begun: whether there is such a run.

    Raises:
        ValueError: there is one with other settings, or its settings cannot be read.
    """

    def __init__(self, recipe: str, options: argparse.Namespace):
        chosen = {name: str(value) for name, value in vars(options).items() if name not in FREE}
        self.path, self.values = options.out / "settings.json", {"recipe": recipe, **chosen}
        self.begun = self.path.exists()
        if self.begun:
            self._compare()

    def keep(self) -> None:
        """Write them down for a run that can begin."""
        if not self.begun:
            with written(self.path) as file:
                file.write(json.dumps(self.values, indent=2).encode())

    def _compare(self) -> None:
        for name, was in self._kept().items():
            now = self.values.get(name)
            if was != now:
                option = "the recipe" if name == "recipe" else "--" + name.replace("_", "-")
                raise ValueError(f"{self.path.parent} was begun with {option} {was}, not {now}; use another --out")

    def _kept(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.path.read_text()).items())
        except (ValueError, AttributeError):
            raise ValueError(
                f"{self.path} is damaged; delete it if the run was begun with these very options, or use another --out"
            ) from None
