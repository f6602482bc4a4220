"""Ctrl-C in the first second of a command, most of which its imports take."""

import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child")
PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
MODULE, FUNCTION = PROJECT["scripts"]["drafttree"].split(":")
WATCH = """
import sys
class Watch:
    def find_spec(self, name, *_):
        if name == "drafttree.interfaces":
            sys.meta_path.remove(self)
            print("started", flush=True)
sys.meta_path.insert(0, Watch())
sys.argv[0] = "drafttree"
"""
"""Tells when the command's first import begins: before, Python itself starts, and no code of a package runs."""
STARTS = {
    "the installed command": f"from {MODULE} import {FUNCTION}; {FUNCTION}()",
    "python -m drafttree": "import runpy; runpy.run_module('drafttree', run_name='__main__', alter_sys=True)",
}


@pytest.mark.few(3)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15, 0.3, 0.6])
def test_it_ends_a_command_in_one_line(start, seconds):
    command = [sys.executable, "-c", WATCH + start, "generate", "Once", "--max-new-tokens", "1900", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in told) == (130, False), told
