"""Makes `.venv-newest` for `make test-newest`: what somebody gets today who installs drafttree without the lock."""

from pathlib import Path

from environment import Environment


def main() -> None:
    """Make the environment, with what the tests need and the native wheel that is built for `make test`."""
    environment = Environment(Path(".venv-newest"))
    environment.install("--upgrade", "--editable", ".[dev]", "--editable", "./lab", *Path("build/native").glob("*.whl"))


if __name__ == "__main__":
    main()
