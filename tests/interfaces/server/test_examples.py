"""The examples of the page about the server run as they stand, but for the port."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from openai.types import Completion

from testing.live_server import strict

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "server.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


def code(language: str, address: str) -> list[str]:
    return [each.replace(ADDRESS, address) for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)]


def test_the_examples_in_python_print_texts(address, capsys):
    for example in code("python", address):
        if "from anthropic" in example and not find_spec("anthropic"):
            continue
        exec(example, {})
        assert len(capsys.readouterr().out.split()) > 5


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_examples_of_curl_get_texts(address):
    for example in code("bash", address):
        reply = subprocess.run(["bash", "-c", example], capture_output=True, check=True, timeout=60, text=True).stdout
        assert strict(Completion, json.loads(reply)).choices[0].text
