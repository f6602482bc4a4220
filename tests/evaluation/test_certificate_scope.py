"""What the certificate says that it covers is what runs in it, and nothing that serves is forgotten."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import drafttree
from drafttree.evaluation.certificate_scope import ENUMERATED, SCOPES, left_out

ROOT = Path(drafttree.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "exactness.md"
RUN = """
import sys
import torch
torch.set_num_threads(1)
from drafttree.evaluation.pair_sweep import sweep_pair
from drafttree.verifiers import VERIFIERS
seen = set()
sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename) if event == "call" else None)
for verifier in VERIFIERS:
    sweep_pair("chain", verifier, 1)
sweep_pair("auto", "rrsw", 1)
sys.setprofile(None)
print("\\n".join(seen))
"""


def test_every_part_is_in_one_place():
    named = Counter(module for scope in SCOPES for module in scope.modules)
    assert set(named.values()) == {1}
    for module in named:
        assert (ROOT / f"{module}.py").is_file(), module
    for folder in ("engine", "text", "constraints", "verifiers"):
        files = {path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / folder).rglob("*.py")}
        assert {each for each in files if not each.endswith("__init__")} <= named.keys()


@pytest.mark.slow
def test_what_is_called_enumerated_runs():
    found = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True, timeout=600)
    ran = {line for line in found.stdout.splitlines() if line.startswith(str(ROOT))}
    for scope in SCOPES:
        if scope.way == ENUMERATED:
            assert not {module for module in scope.modules if str(ROOT / f"{module}.py") not in ran}, scope.what


def test_drafters_draw_nothing():
    for path in (ROOT / "drafters").rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not names & {"Randomness", "random"}, path
        assert not attributes & {"multinomial", "bernoulli", "rand", "randint", "uniform", "gumbel"}, path


def test_the_document_has_the_table():
    table = re.search(r"<!-- scope -->\n(.*?)<!-- /scope -->", DOCUMENT.read_text(), re.DOTALL)
    assert table
    rows = [f"| {scope.way} | {scope.what} | {scope.how} |" for scope in SCOPES]
    assert table[1].splitlines()[2:] == rows
    assert "grammars" in left_out()
