"""Method names of version 0.1 and before, by which drafters of other packages still work."""

import warnings

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


def add_new_names(subclass: type) -> None:
    """Give methods that a class defines only by a former name the new name too, with a `DeprecationWarning`."""
    for name, former_name in FORMER_NAMES.items():
        if former_name in vars(subclass) and name not in vars(subclass):
            setattr(subclass, name, vars(subclass)[former_name])
            warnings.warn(
                f"{subclass.__name__}.{former_name} is called {name} now; rename it", DeprecationWarning, stacklevel=4
            )
