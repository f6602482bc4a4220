"""Makes `.venv-lowest` for `make test-lowest`: every direct dependency in the lowest version of pyproject.toml.

What these depend on is as new as they allow. torch is its lowest version where PyTorch's index of CPU builds is within
reach; else the torch of the interpreter that runs this is lent, as no other index has a CPU build.
"""

import subprocess
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from environment import Environment
from packaging.requirements import Requirement

NOT_TESTED = {"ruff", "pyright", "import-linter", "drafttree", "drafttree-native", "torch"}
"""Tools that no test imports, what is built here, and torch, which is installed first."""
APART = {"clients", "dynamo", "ray"}
"""Extras that fix versions of what they depend on, and are not installed with the others."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def lowest_versions() -> dict[str, str]:
    """The lowest versions of the direct dependencies and of those of the extras that are installed."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra not in APART]
    requirements = map(Requirement, chain(project["dependencies"], *extras))
    return {
        requirement.name: next(bound.version for bound in requirement.specifier if bound.operator == ">=")
        for requirement in requirements
        if requirement.specifier
    }


def main() -> None:
    """Make the environment."""
    versions = lowest_versions()
    environment = Environment(Path(".venv-lowest"))
    wheel = ["--no-deps", "--retries", "0", "--timeout", "15", "--index-url", CPU_INDEX, f"torch=={versions['torch']}"]
    try:
        environment.run("python", "-m", "pip", "install", "--quiet", *wheel)
    except subprocess.CalledProcessError:
        print(f"{CPU_INDEX} has no torch {versions['torch']} within reach: torch {version('torch')} stands in")
    pins = [f"{name}=={lowest}" for name, lowest in versions.items() if name not in NOT_TESTED]
    environment.install("--editable", ".", "--editable", "./lab", *pins)


if __name__ == "__main__":
    main()
