"""Checks that the packages of pyproject.toml are installed in versions that drafttree works with."""

from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from drafttree.core.errors import ConfigError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@cache
def check_requirements(purpose: str, extra: str = "", packages: Collection[str] = ()) -> None:
    """Raise an error if a package is missing, too old or too new.

    If drafttree itself is not installed, nothing is checked, since only its metadata names what it needs.

    Args:
        purpose: what needs the packages; the message begins with it.
        extra: the extra that brings them; empty for the dependencies of drafttree itself.
        packages: the extra's packages to check; empty for all.

    Raises:
        ConfigError: a package does not suit; the message names it, the versions that work and a command to install it.
    """
    if not find_spec("packaging"):  # what reads versions
        raise ConfigError(f'{purpose} needs packaging, which is not installed: pip install "packaging"')
    for requirement in _requirements(extra):
        if packages and requirement.name not in packages:
            continue
        command = f'"drafttree[{extra}]"' if extra else f'"{requirement.name}{requirement.specifier}"'
        try:
            installed_version = version(requirement.name)
        except PackageNotFoundError:
            raise ConfigError(
                f"{purpose} needs {requirement.name}, which is not installed: pip install {command}"
            ) from None
        if not requirement.specifier.contains(installed_version, prereleases=True):
            raise ConfigError(
                f"{purpose} needs {requirement.name}{requirement.specifier}, but {installed_version} is installed: "
                f'pip install "{requirement.name}{requirement.specifier}"'
            )


def _requirements(extra: str) -> Iterator["Requirement"]:
    """The requirements that pyproject.toml declares for an extra, with those of the extras it contains."""
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(line) for line in requires("drafttree") or ()]
    except PackageNotFoundError:
        return
    for requirement in declared:
        if requirement.marker is None:
            belongs = not extra
        else:
            belongs = requirement.marker.evaluate({"extra": extra}) and not requirement.marker.evaluate({"extra": ""})
        if not belongs:
            continue
        if requirement.name == "drafttree":
            for inner_extra in sorted(requirement.extras):
                yield from _requirements(inner_extra)
        else:
            yield requirement
