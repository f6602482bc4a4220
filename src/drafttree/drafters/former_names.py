"""Method names of version 0.1 and before, by which drafters of other packages still work."""

import warnings
from typing import Any

FORMER_NAMES = {
    "draft_root": "root",
    "draft_level": "expand",
    "draft_chain": "chain",
    "snapshot": "keep",
    "restore": "resume",
}
"""Methods of drafters and their sessions, with their former names."""


class WithFormerNames:
    """Base of classes whose methods can be defined and called by their former names too.

    Each class gets both names of what it defines, so that `super()` reaches the same method by either.
    """

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        for name, former_name in FORMER_NAMES.items():
            if name in vars(cls):
                setattr(cls, former_name, vars(cls)[name])
        add_new_names(cls)


def add_new_names(owner: Any) -> None:
    """Give methods that are defined only by a former name the new name too, with one warning per class.

    Args:
        owner: a class, of which classes above it count too, or an object with methods of its own.
    """
    classes = owner.__mro__ if isinstance(owner, type) else (owner, *type(owner).__mro__)
    for definer in classes:
        renamed = []
        for name, former_name in FORMER_NAMES.items():
            members = getattr(definer, "__dict__", {})
            if name not in members and callable(members.get(former_name)):
                setattr(definer, name, members[former_name])
                renamed.append(f"{former_name} is called {name} now")
        if renamed:
            class_name = definer.__name__ if isinstance(definer, type) else type(definer).__name__
            # Shown by default, other than a DeprecationWarning: whoever runs a drafter may not be who wrote it.
            warnings.warn(f"{class_name}: {', '.join(renamed)}; rename it", FutureWarning, stacklevel=3)
