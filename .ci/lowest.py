"""Makes `.venv-lowest` for `make test-lowest`: every direct dependency in the lowest version of pyproject.toml.

What these depend on is as new as they allow. torch is its lowest version where PyTorch's index of CPU builds is within
reach; else the torch of the interpreter that runs this is lent, as no other index has a CPU build.
"""

import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

FOLDER = Path(".venv-lowest")
PIP = (FOLDER / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
TOOLS = {"ruff", "pyright", "import-linter"}
"""Dependencies that no test imports."""
APART = {"clients", "dynamo", "ray"}
"""Extras that fix versions of what they depend on, and are not installed with the others."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def lowest() -> dict[str, str]:
    """The lowest versions of the direct dependencies, those of the extras but `APART` included, `TOOLS` excepted."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [needed for name, needed in project["optional-dependencies"].items() if name not in APART]
    declared = chain(project["dependencies"], *extras)
    found = (re.match(r"([\w-]+)>=([\w.]+)", each) for each in declared)
    return {match[1]: match[2] for match in found if match and match[1] not in TOOLS}


def install_torch(version: str) -> None:
    """Install a CPU build of torch, or lend the environment the packages of this interpreter."""
    wheel = ["--no-deps", "--retries", "0", "--timeout", "15", "--index-url", CPU_INDEX, f"torch=={version}"]
    if subprocess.run([*PIP, *wheel], stderr=subprocess.DEVNULL).returncode == 0:
        return
    here = distribution("torch")
    site = next(FOLDER.glob("lib/python*/site-packages"))
    (site / "lent.pth").write_text(f"{here.locate_file('')}\n")
    print(f"torch {version} was left out: {CPU_INDEX} has no build of it within reach; torch {here.version} stands in")


def main() -> None:
    """Make the environment."""
    versions = lowest()
    venv.create(FOLDER, clear=True, with_pip=True)
    install_torch(versions.pop("torch"))
    pins = [f"{name}=={version}" for name, version in versions.items()]
    sys.exit(subprocess.run([*PIP, "--editable", ".", *pins]).returncode)


if __name__ == "__main__":
    main()
