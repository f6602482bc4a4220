"""Try the wheels in `dist` as a user gets them: what `make release` ends with.

pip installs them with all that they need in a new environment, in a folder that has nothing of the sources. Then a text
is written, the demo run, and a drafter inspected.
"""

import tempfile
from pathlib import Path

from environment import Environment

COMMANDS = (
    ["demo", "--max-new-tokens", "32"],
    ["generate", "The old man looked at the sea", "--max-new-tokens", "16"],
    ["inspect", "embedded-eagle3"],
)
NATIVE = """
import drafttree
target = drafttree.load("embedded", "none").target
print(target)
assert "Native" in repr(target)
"""


def main() -> None:
    """Install the wheels and use them."""
    wheels = [path.absolute() for path in Path("dist").glob("*.whl")]
    environment = Environment(Path(".venv-release"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment.install(*wheels)
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": name, "XDG_CACHE_HOME": name}
        for arguments in COMMANDS:
            print("drafttree", *arguments, flush=True)
            environment.run("drafttree", *arguments, cwd=folder, **offline)
        environment.run("python", "-c", NATIVE, cwd=folder, **offline)
    print(f"{', '.join(wheel.name for wheel in wheels)}: installed and used in a new environment")


if __name__ == "__main__":
    main()
