"""Claude Code, Codex and opencode, as they are: whole sessions against a scripted target, by `drafttree connect`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from helpers.image_bytes import encoded
from helpers.scripted_target import closed_proxy, scripted_server

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[4] / "build" / "agents" / "node_modules" / ".bin"
MINUTES = 10
GREETING = 'def greet(name):\n    return f"Goodbye, {name}!"\n'
QUESTION = "Read greeting.py and make it say Hello instead of Goodbye."


def called(tool: str, **arguments: object) -> str:
    """A call as the model writes it, behind what it thinks."""
    call = json.dumps({"name": tool, "arguments": arguments})
    return f"<think>\nThis takes a call.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True)
class Agent:
    """How an agent is run, and what it is made to do.

    Attributes:
        name: as `drafttree connect` has it.
        command: what asks it a question and ends with its answer; the question comes last.
        variables: those of its environment that keep it from asking other machines.
        calls: the calls that read and edit a file, by its path.
        looks: the call that looks at a picture, by its path.
        asks: what it asks other machines for whatever the variables say, and does without.
    """

    name: str
    command: Sequence[str]
    variables: dict[str, str]
    calls: Callable[[Path], Sequence[tuple[str, dict[str, object]]]]
    looks: Callable[[Path], tuple[str, dict[str, object]]]
    asks: frozenset[str] = frozenset()


CLAUDE_CODE = Agent(
    "claude-code",
    ["claude", "--allowedTools=Read,Edit", "--output-format", "text", "-p"],
    {"DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1"},
    lambda path: [
        ("Read", {"file_path": str(path)}),
        ("Edit", {"file_path": str(path), "old_string": "Goodbye", "new_string": "Hello"}),
    ],
    lambda path: ("Read", {"file_path": str(path)}),
)
CODEX = Agent(
    "codex",
    [
        *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false", "-c", "features.plugins=false"),
    ],
    {},
    lambda path: [
        ("exec_command", {"cmd": f"cat {path.name}"}),
        ("exec_command", {"cmd": f"sed -i s/Goodbye/Hello/ {path.name}"}),
    ],
    lambda path: ("view_image", {"path": str(path)}),
)
OPENCODE = Agent(
    "opencode",
    ["opencode", "run"],
    dict.fromkeys(
        ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1"
    ),
    lambda path: [
        ("read", {"filePath": str(path)}),
        ("edit", {"filePath": str(path), "oldString": "Goodbye", "newString": "Hello"}),
    ],
    lambda path: ("read", {"filePath": str(path)}),
    asks=frozenset({"registry.npmjs.org:443"}),  # for the package that its plugins are written with
)
AGENTS = {agent.name: agent for agent in (CLAUDE_CODE, CODEX, OPENCODE)}


def skip_without(agent: Agent) -> None:
    """Skip the test where an agent is not installed, or there is no node to run it."""
    if not shutil.which("node"):
        pytest.skip("there is no node, which coding agents need")
    if not shutil.which(agent.command[0], path=str(PROGRAMS)):
        pytest.skip(f"{agent.command[0]} is not installed; make test-clients installs it where there is npm")


def ask(agent: Agent, address: str, question: str, folder: Path) -> str:
    """What an agent says in the end; it works in a folder and knows no account, and reaches this machine alone."""
    home = folder.with_name("home")
    home.mkdir()
    connect = [sys.executable, "-m", "drafttree", "connect", agent.name, "--url", address, "--"]
    path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    with closed_proxy() as (proxy, asked):
        ended = subprocess.run(
            [*connect, *agent.command, question],
            cwd=folder,
            env={**kept, **proxy, **agent.variables, "HOME": str(home), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {*asked} <= agent.asks
    return ended.stdout


@pytest.fixture
def folder(tmp_path):
    """The folder that an agent works in."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_an_agent_reads_a_file_edits_it_and_says_so(agent, folder):
    skip_without(agent)
    path = folder / "greeting.py"
    path.write_text(GREETING)
    calls = agent.calls(path)
    turns = [*(called(tool, **arguments) for tool, arguments in calls), "Done: it says Hello."]
    with scripted_server(turns, calls[0][0]) as (address, bodies):
        said = ask(agent, address, QUESTION, folder)
    assert path.read_text() == GREETING.replace("Goodbye", "Hello")
    assert "Done: it says Hello." in said
    assert len(bodies) == len(turns)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_an_agent_looks_at_a_picture(agent, folder):
    skip_without(agent)
    path = folder / "picture.png"
    path.write_bytes(encoded(Image.radial_gradient("L")))
    tool, arguments = agent.looks(path)
    turns = [called(tool, **arguments), "I see a circle."]
    with scripted_server(turns, tool, reads_images=True) as (address, bodies):
        said = ask(agent, address, "What is in picture.png?", folder)
    assert "I see a circle." in said
    assert len(bodies) == len(turns)
    assert "data:image" in (body := json.dumps(bodies[-1])) or '"media_type": "image' in body
