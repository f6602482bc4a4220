"""README and docs: what they show runs, what their commands are called, and where their links lead.

Here commands are parsed and not run. tests/test_code_blocks.py runs README and the guides from top to bottom.
"""

import ast
import re
import shlex
from functools import reduce
from pathlib import Path

import pytest
import typer

import drafttree
from drafttree.interfaces import cli
from drafttree.interfaces.cli.command_line import USAGE_ERROR
from helpers.programs import program

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.name != "log.md")]
LINKING = [*PAGES, DOCS / "log.md", *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG"))]
HERE = r"https://(?:github.com/drafttree/drafttree/blob|raw.githubusercontent.com/drafttree/drafttree)/main/"


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


def with_local_links(page: Path) -> str:
    """A page without its code, whose absolute links to files of the repository are relative to the page's folder."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.sub(HERE, "../" * (len(page.parent.parts) - len(ROOT.parts)), text)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site write them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_and_pictures_lead_to_files(page):
    links = re.findall(r"\]\((?!http|mailto|#)([^)#\s]+)", with_local_links(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_into_pages_lead_to_headings(page):
    links = re.findall(r"\]\(((?!http)[^)#\s]*)#([^)\s]+)\)", with_local_links(page))
    targets = [((page.parent / target) if target else page, anchor) for target, anchor in links]
    assert [link for link in targets if link[1] not in headings(link[0])] == []


@pytest.mark.parametrize("page", [*PAGES, DOCS / "log.md"], ids=lambda page: page.stem)
def test_no_sentence_written_by_hand_is_too_long(page):
    assert program(ROOT / ".ci" / "words.py").long_sentences(page) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{'word ' * 25}.", 0),
        (f"{'word ' * 26}.", 1),
        (f"Short. {'word ' * 26}.", 1),
        (f"- {'word ' * 20}\n- {'word ' * 20}", 0),
        (f"<!-- real: x -->\n{'word ' * 26}.\n<!-- /real -->\n", 0),
        (f"    {'word ' * 26}", 0),
    ],
)
def test_a_sentence_that_is_too_long_is_found(text, count, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    assert len(program(ROOT / ".ci" / "words.py").long_sentences(page)) == count


@pytest.mark.few(1)
@pytest.mark.parametrize("page", ["index", "exactness", "trace", "inside-transformers", "environment"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, capsys):
    exec("\n".join(code((DOCS / f"{page}.md").read_text())), {})
    printed = capsys.readouterr().out
    assert printed.strip()
    if page == "exactness":
        assert float(printed) < 1e-12


@pytest.mark.parametrize("name", ["commands", "troubleshooting"])
def test_a_page_is_what_its_program_writes(name):
    page = program(DOCS / f"{name}.py")
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
