"""README and docs: what they show runs, what their commands are called, and where their links lead.

Commands with hub names, and those that take minutes, are parsed and not run: the first need a network. The tutorial is
run whole, with the embedded pair in place of the one on the hub, at speeds that are given.
"""

import ast
import importlib.util
import re
import shlex
from functools import reduce
from pathlib import Path

import pytest
import typer

import drafttree
from drafttree.evaluation.tune import tuning
from drafttree.interfaces import cli
from drafttree.interfaces.cli.command_line import USAGE_ERROR
from helpers.timed_metrics import CHAIN, CURVE, timed
from testing.command_line import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.name != "log.md")]
HERE = r"https://(?:github.com/drafttree/drafttree/blob|raw.githubusercontent.com/drafttree/drafttree)/main/"
PAIR = {"Qwen/Qwen2.5-1.5B-Instruct": "embedded", "Qwen/Qwen2.5-0.5B-Instruct": "embedded-draft"}


def commands(text: str) -> list[str]:
    """The command lines of drafttree in a page, without what the shell and torchrun take of them."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    return re.findall(r"^(?:    |\$ )(?:torchrun .* -m )?drafttree (.*)$", joined, re.MULTILINE)


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


DOCUMENTED = sorted({line for page in PAGES for line in commands(page.read_text())})


def parse(line: str) -> None:
    """Parse a command line down to its last subcommand, without running it."""
    command, context = typer.main.get_command(cli.app), None
    arguments = shlex.split(line, comments=True)
    while hasattr(command, "resolve_command"):
        context = typer.Context(command, parent=context)
        _, command, arguments = command.resolve_command(context, arguments)
    command.make_context(command.name, list(arguments), parent=context)


@pytest.mark.few(13)
@pytest.mark.parametrize("line", [line for line in DOCUMENTED if not line.startswith("--version")])
def test_a_command_has_the_options_that_are_shown(line):
    parse(line)


@pytest.mark.parametrize("line", ["bench methods --nope", "bench nope", "generate x --temp 3", "tune --minutes x"])
def test_a_command_that_is_misspelt_is_found(line):
    with pytest.raises(USAGE_ERROR):
        parse(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_names_what_there_is(page):
    for block in code(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drafttree"):
                module = __import__(node.module, fromlist=["_"])
                assert all(hasattr(module, each.name) for each in node.names)
        for names in re.findall(r"\bdrafttree((?:\.\w+)+)", block):
            if not re.search(rf"import drafttree{names}|from drafttree{names}", block):
                reduce(getattr, names.split(".")[1:], drafttree)


def test_the_first_example_prints_what_is_below_it(capsys):
    example, printed = re.search(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", README, re.DOTALL).groups()
    exact = example.replace('"dynatree")', '"dynatree", dtype="float32")')
    assert exact != example
    exec(exact, {})
    assert capsys.readouterr().out == re.sub("^    ", "", printed, flags=re.MULTILINE)


def test_links_of_the_readme_are_absolute_as_it_is_shown_elsewhere_too():
    links = re.findall(r"\]\(([^)\s]+)", README)
    assert len(links) > 15
    assert all(re.match(f"{HERE}|https://", link) for link in links)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_lead_to_files(page):
    text = page.read_text() if page.parent == DOCS else re.sub(HERE, "", README)
    links = re.findall(r"\]\((?!http|#)([^)#\s]+)", text)
    assert all((page.parent / link).exists() for link in links)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_into_pages_lead_to_headings(page):
    for target, anchor in re.findall(r"\]\(((?!http)[^)#\s]*)#([^)\s]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", ((page.parent / target) if target else page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "page", ["index", "chat-and-batch", "exactness", "trace", "inside-transformers", "environment"]
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, capsys):
    exec("\n".join(code((DOCS / f"{page}.md").read_text())), {})
    printed = capsys.readouterr().out
    assert printed.strip()
    if page == "exactness":
        assert float(printed) < 1e-12


@pytest.mark.parametrize("name", ["commands", "troubleshooting"])
def test_a_page_is_what_its_program_writes(name):
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.DOCUMENT.read_text() == page.document(), f"run python docs/{name}.py"


def environment_variables(source: str) -> set[str]:
    """The environment variables of a file; if it reads or sets any, all strings that look like one."""
    if not re.search(r"environ\b|getenv|envvar|constants\.HF_", source):
        return set()
    strings = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    asked = re.findall(r"environ(?:\.\w+)?[(\[]\"(\w+)\"", source)
    of_the_hub = re.findall(r"constants\.(HF_\w+)", source)
    return {*asked, *of_the_hub, *(string for string in strings if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", string))}


def test_the_page_of_the_environment_has_every_variable_and_cache_folder():
    paths = [path for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")]
    sources = [path.read_text() for path in paths]
    documented = set(re.findall(r"`(\w+)`", (DOCS / "environment.md").read_text()))
    variables = set().union(*map(environment_variables, sources))
    folders = set(re.findall(r"user_cache_path\(.*?\) / \"(\w+)\"", "\n".join(sources)))
    assert {"DRAFTTREE_API_KEY", "RANK", "DYN_LOG", "HF_HUB_OFFLINE"} < variables
    assert folders
    assert variables | folders <= documented
    assert {name for name in documented if name.startswith(("DRAFTTREE_", "DYN_"))} <= variables


def test_the_tutorial_runs_without_a_network_as_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "measure_costs", lambda decoder, greedy: tuning.MeasuredCosts(CURVE, 0.5))
    monkeypatch.setattr(tuning, "time_text", lambda decoder, *_: timed(0.5, **CHAIN) if decoder.drafter else timed(1.0))
    text = (DOCS / "tutorial.md").read_text()
    (offline,) = re.findall(r"Add `(--policy \w+)` in steps 1, 2, 6 and 7", text)
    for name, embedded in PAIR.items():
        text = text.replace(name, embedded)
    monkeypatch.chdir(tmp_path)
    (written,) = re.findall(r"printf '%s\\n' (.*?) > prompts.txt", text, re.DOTALL)
    (tmp_path / "prompts.txt").write_text("\n".join(shlex.split(written.replace("\\\n", ""))))
    for line in commands(text):
        if line.startswith("serve"):
            continue  # tests/interfaces/server has clients and servers
        drafts = line.startswith(("generate", "trace")) and "tuned.json" not in line
        line = re.sub(r"-tokens \d+", "-tokens 8", f"{line} {offline if drafts else ''}")
        line += " --max-new-tokens 8" if line.startswith("trace") else ""
        result = run(*shlex.split(line))
        assert result.exit_code == 0, (line, result.output)
        if drafts and "--compare" not in line:  # whose times may be disturbed, and then it prints no terms
            (found,) = re.findall(r"([\d.]+) (?:tokens )?per target pass", result.output)
            assert float(found) > 1, line
    assert (tmp_path / "trace.html").exists()
    exec("\n".join(block for block in code(text.replace("=60", "=8")) if "openai" not in block), {})
    assert "tokens per pass" in capsys.readouterr().out
