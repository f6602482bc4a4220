"""Virtual environments of their own, for trying what is built here as somebody has it who never saw this checkout."""

import os
import re
import subprocess
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TextIO

DEVICE = r"(triton|nvidia|cuda)[\w.-]*"
"""Names of packages that come with torch's builds for a device, and are as large."""
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}


class Environment:
    """A new virtual environment with this interpreter's torch and nothing else of it.

    On Linux the default index has only a CUDA build of torch, of several gigabytes, so torch is lent.

    Args:
        folder: where it is made; what is there goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        venv.create(self.folder, clear=True, with_pip=True)
        self._lend("torch")

    def install(self, *arguments: str | Path) -> None:
        """Install packages, with pip's arguments, and check that they agree with each other."""
        self.run("python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *arguments)
        self.run("python", "-m", "pip", "check")

    def run(self, program: str, *arguments: str | Path, cwd: Path | None = None, **variables: str) -> None:
        """Run a program of the environment.

        Args:
            program: its name.
            arguments: its arguments.
            cwd: the folder in which it runs.
            variables: added to those of this process.

        Raises:
            subprocess.CalledProcessError: it ended with another code than 0.
        """
        process = self.start(program, *arguments, cwd=cwd, **variables)
        try:
            exit_code = process.wait()
        finally:
            process.kill()
        if exit_code:
            raise subprocess.CalledProcessError(exit_code, [program, *arguments])

    def start(
        self,
        program: str,
        *arguments: str | Path,
        cwd: Path | None = None,
        stderr: TextIO | None = None,
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Start a program of the environment, with arguments as of `run`; `stderr` is where its errors go."""
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN} | variables
        return subprocess.Popen([self.bin / program, *arguments], cwd=cwd, env=environment, stderr=stderr, text=True)

    def _lend(self, name: str) -> None:
        """Link a package and the libraries of its device that it needs."""
        site_packages = next(self.folder.glob("[Ll]ib/**/site-packages"))
        for package in _with_device_libraries(name, set()):
            files = distribution(package).files or []
            for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
                link = site_packages / top
                if not link.exists():
                    link.symlink_to(distribution(package).locate_file(top))


def _with_device_libraries(name: str, packages: set[str]) -> set[str]:
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:
        return packages
    packages.add(name)
    for requirement in requirements:
        library = re.match(DEVICE, requirement)
        if library and library[0] not in packages:
            _with_device_libraries(library[0], packages)
    return packages
