"""README and guides: their code blocks run from top to bottom, and print what stands below them.

The embedded pair stands in for models on the hub. Speeds are given, and the shape of a larger target is the embedded
one's, so that nothing takes minutes. What is not run is in `NOT_RUN`, each with its reason.
"""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from drafttree.evaluation.tune import tuning
from drafttree.loading import placement
from drafttree.measure.shapes import SHAPES, Shape
from helpers.timed_metrics import CHAIN, CURVE, timed
from testing.command_line import run

ROOT = Path(__file__).parents[1]
PAGES = ["README", "docs/tutorial", "docs/chat-and-batch", "docs/server", "docs/structured-output"]
EMBEDDED = Shape(hidden=256, layers=12, intermediate=608, heads=4, key_value_heads=2)
TARGETS = r"Qwen/Qwen2.5-(?:Coder-)?(?:1.5B|7B)-Instruct"
DRAFTERS = r"Qwen/Qwen2.5-(?:Coder-)?0.5B-Instruct"
NOT_RUN = {
    "git clone": "it needs a network; tests/test_site.py and .ci try clones",
    "make": "it makes an environment, or runs the tests themselves",
    "pip install": "it needs a network; .ci/extras.py installs each extra",
    "drafttree connect": "it starts an agent that is not installed; tests/interfaces/cli has it",
}
"""Beginnings of commands that are not run, and why."""
TOOLS = ("drafttree", "printf", "echo", "curl", *NOT_RUN)
"""Beginnings of the commands that pages show; other indented lines are what is printed."""
FRAGMENTS = {
    "model=OpenAIResponsesModel(": "an argument for pydantic-ai; make test-clients runs it",
    "invalid JSON schema: ": "the answer to a schema that the page does not show; tests/constraints has it",
}
"""Beginnings of blocks that are neither code nor printed by it, and why."""
FILES = {"prompts.jsonl": '{"prompt": "Once upon a time", "max_new_tokens": 4}\n'}
"""Files that a page takes for granted."""
ADDRESS = "http://127.0.0.1:8000"
DRAFTING = re.compile(r"drafttree (generate|trace) (?!.*tuned\.json|.*--compare|.*--(?:json-schema|regex|ebnf))")
"""Commands that show drafts. With --compare a busy machine prints that times are disturbed."""
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$|(?<=\n\n)((?: {4}[^\n]*\n(?:\n(?= {4}))?)+)", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A code block; its kind is "python", "shell" or "printed"."""

    kind: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The code blocks of a page; one of a console is divided into commands and what they print."""
    for language, fenced, indented in BLOCK.findall(text):
        if indented:
            unindented = re.sub(r"^ {4}", "", indented, flags=re.MULTILINE)
            yield Block("shell" if unindented.startswith(TOOLS) else "printed", unindented)
        elif language == "console":
            for is_command, part in re.findall(r"(\$ )?((?:.*\n(?!\$ ))*.*\n)", fenced):
                command, _, printed = part.partition("\n") if is_command else ("", "", part)
                yield Block("shell", command)
                yield Block("printed", printed)
        else:
            kind = {"python": "python", "bash": "shell", "sh": "shell", "text": "printed"}[language]
            yield Block(kind, fenced)


def command_lines(text: str) -> list[str]:
    """The commands of a shell block, each in one line."""
    lines = re.sub(r" *\\\n\s*", " ", text).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def without_numbers(text: str) -> str:
    """A text without what differs by machine: numbers, precisions, and how its lines are broken."""
    return " ".join(re.sub(r"\d+(?:[.,]\d+)*", "N", re.sub("bfloat16|float32", "DTYPE", text)).split())


TIMED = "times as fast|limits the gain"
"""What lines say that follow from times."""


class Reader:
    """Somebody who runs a page's blocks from top to bottom.

    Args:
        folder: where commands run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, object] = {}
        self._server: subprocess.Popen[str] | None = None
        self._server_lines: list[str] = []
        self._printed = ""
        self.ran: list[str] = []

    def read_all(self, page: str) -> None:
        """Run the blocks of a page in their order."""
        for block in blocks(page):
            if not block.text.startswith(tuple(FRAGMENTS)):
                self.read(block)

    def read(self, block: Block) -> None:
        """Run a block, or look for it in what the last one printed."""
        text = re.sub(DRAFTERS, "embedded-draft", re.sub(TARGETS, "embedded", block.text))
        if block.kind == "printed":
            self._check_printed(text)
            return
        self._printed = ""
        if block.kind == "python":
            self._run_python(self._at_the_server(text))
        else:
            for line in command_lines(text):
                self._run_command(line)

    def close(self) -> None:
        """End the server, if there is one."""
        if self._server:
            self._server.terminate()
            self._server.communicate(timeout=30)
            self._server = None

    def _run_python(self, text: str) -> None:
        modules = {
            name.name.partition(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
        }
        if not all(map(find_spec, modules)):
            return  # the client of another company, which make test-clients installs
        self.ran.append("python")
        with redirect_stdout(StringIO()) as printed:
            exec(text, self._names)
        self._printed = printed.getvalue()

    def _run_command(self, line: str) -> None:
        if line.startswith(tuple(NOT_RUN)) or (line.startswith("curl") and not shutil.which("curl")):
            return
        self.ran.append(line)
        if line.startswith("drafttree serve"):
            self.close()
            self._serve(shlex.split(line, comments=True)[2:])
        elif line.startswith("drafttree"):
            result = run(*shlex.split(line, comments=True)[1:], input="Where is the ship?\n")
            assert result.exit_code == 0, (line, result.output)
            self._printed += result.output
            if DRAFTING.match(line):
                (tokens_per_pass,) = re.findall(r"([\d.]+) (?:tokens )?per target pass", result.output)
                assert float(tokens_per_pass) > 1, line
        else:
            shell_line = self._at_the_server(line)
            finished = subprocess.run(shell_line, shell=True, cwd=self._folder, capture_output=True, text=True)
            assert finished.returncode == 0, (line, finished.stderr)
            self._printed += finished.stdout

    def _serve(self, options: list[str]) -> None:
        free_port = [*options, "--port", "0"]  # the last of two counts
        command = [sys.executable, "-m", "drafttree", "serve", *free_port]
        self._server = subprocess.Popen(command, cwd=self._folder, stderr=subprocess.PIPE, text=True)
        self._server_lines = []
        threading.Thread(target=self._read_server, args=[self._server], daemon=True).start()
        deadline = time.monotonic() + 120
        while not self._server_address():
            assert self._server.poll() is None, (options, self._server_lines)
            assert time.monotonic() < deadline, (options, self._server_lines)
            time.sleep(0.05)

    def _read_server(self, server: subprocess.Popen[str]) -> None:
        assert server.stderr
        for line in server.stderr:
            self._server_lines.append(line)

    def _server_address(self) -> str:
        found = re.search(r"http://[\d.]+:\d+", "".join(self._server_lines))
        return found[0] if found else ""

    def _at_the_server(self, text: str) -> str:
        """A text with the address of the server that runs; if none does, one is started."""
        if ADDRESS not in text:
            return text
        if not self._server:
            self._serve(["embedded"])
        return text.replace(ADDRESS, self._server_address())

    def _check_printed(self, expected: str) -> None:
        deadline = time.monotonic() + 10
        while missing := self._missing(expected):
            assert self._server, (missing, self._printed)
            assert time.monotonic() < deadline, (missing, self._server_lines)
            time.sleep(0.05)

    def _missing(self, expected: str) -> list[str]:
        """The lines that were not printed, without ratios and what limits them: a busy machine prints others."""
        printed = without_numbers(self._printed + "".join(self._server_lines))
        lines = [line for line in expected.splitlines() if line.strip() and not re.search(TIMED, line)]
        return [line for line in lines if without_numbers(line) not in printed]


@pytest.fixture
def reader(tmp_path, monkeypatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SHAPES, "100m", EMBEDDED)
    monkeypatch.setattr(placement, "multiplies_bfloat16_fast", lambda device: False)
    monkeypatch.setattr(tuning, "measure_costs", lambda decoder, greedy: tuning.MeasuredCosts(CURVE, 0.5))
    monkeypatch.setattr(tuning, "time_text", lambda decoder, *_: timed(2.0, **CHAIN) if decoder.drafter else timed(1.0))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    found = Reader(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(page, reader):
    reader.read_all((ROOT / f"{page}.md").read_text())
    assert len(reader.ran) >= 2


def test_the_tutorial_needs_no_network_but_for_its_last_step():
    steps, own_models, _ = (ROOT / "docs/tutorial.md").read_text().partition("## With your own models")
    assert own_models
    assert not re.search(f"{TARGETS}|{DRAFTERS}", steps)
    kinds = [block.kind for block in blocks(steps)]
    assert kinds.count("shell") >= 6
    assert kinds.count("printed") >= 6


@pytest.mark.parametrize(
    "text",
    [
        "    drafttree generate Hi --nope\n",
        "    drafttree generate Hi --max-new-tokens 2\n\n```text\nno such line\n```\n",
        "```python\nimport drafttree\n\ndrafttree.nothing()\n```\n",
        "```python\nprint('yes')\n```\n\n    no\n",
        "    drafttree generate Hi --policy none --max-new-tokens 2\n",
    ],
)
def test_a_wrong_block_is_found(text, reader):
    with pytest.raises((AssertionError, AttributeError)):
        reader.read_all(f"# Page\n\n{text}")


def test_blocks_are_divided_into_commands_and_what_they_print():
    indented = "    drafttree demo \\\n        --seed 1\n\n```text\n40 tokens\n```\n"
    console = "```console\n$ drafttree x\nprinted\n$ drafttree y\n```\n"
    found = list(blocks(f"# Page\n\n{indented}\n{console}"))
    assert [block.kind for block in found] == ["shell", "printed", "shell", "printed", "shell", "printed"]
    assert command_lines(found[0].text) == ["drafttree demo --seed 1"]
    assert [found[2].text, found[3].text, found[4].text] == ["drafttree x", "printed\n", "drafttree y"]
