"""Try the package as a user gets it: what `make release` does once the wheel and the sdist lie in `dist`.

A new environment is given this interpreter's torch and nothing else of it, since on Linux the default index has only a
CUDA build of several gigabytes. pip installs the wheel and all it needs; then a text is written, and the demo run.
"""

import os
import re
import subprocess
import tempfile
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FOLDER = Path(".venv-release").absolute()
BIN = FOLDER / ("Scripts" if os.name == "nt" else "bin")
DEVICE = r"(triton|nvidia|cuda)[\w.-]*"
"""Names of packages that come with torch's builds for a device, and are as large."""
SMOKE = (
    ["generate", "The old man looked at the sea", "--max-new-tokens", "16"],
    ["demo", "--max-new-tokens", "32"],
)


def lent(name: str, found: set[str]) -> set[str]:
    """The names of a package and of the libraries of its device that it needs, as far as they are installed here."""
    try:
        needs = distribution(name).requires or []
    except PackageNotFoundError:
        return found
    found.add(name)
    for need in needs:
        if (other := re.match(DEVICE, need)) and other[0] not in found:
            lent(other[0], found)
    return found


def lend(name: str) -> None:
    """Link a package and the libraries of its device into the environment."""
    site = next(FOLDER.glob("[Ll]ib/**/site-packages"))
    for each in lent(name, set()):
        package = distribution(each)
        tops = {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (link := site / top).exists():
                link.symlink_to(package.locate_file(top))


def main() -> None:
    """Install the wheel and use it, in a folder that has nothing of the sources."""
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    wheel = Path(f"dist/drafttree-{version}-py3-none-any.whl").absolute()
    venv.create(FOLDER, clear=True, with_pip=True)
    lend("torch")
    python, hidden = BIN / "python", {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    with tempfile.TemporaryDirectory() as folder:
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": folder, "XDG_CACHE_HOME": folder}
        clean = {name: value for name, value in os.environ.items() if name not in hidden}
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], cwd=folder, env=clean, check=True)
        subprocess.run([python, "-m", "pip", "check"], cwd=folder, env=clean, check=True)
        for arguments in SMOKE:
            print("drafttree", *arguments, flush=True)
            subprocess.run([BIN / "drafttree", *arguments], cwd=folder, env=clean | offline, check=True)
    print(f"{wheel.name} works in a new environment")


if __name__ == "__main__":
    main()
