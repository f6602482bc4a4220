"""The package says what may be done with it, where it is from, how it is cited and how it is released."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import drafttree
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.loading.drafter_methods import DRAFTER_CLASSES
from drafttree.policies import Talon
from drafttree.verifiers import Traversal

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


DATA = ROOT / "src/drafttree/measure/data"


def test_all_licences_are_named_and_go_with_the_package():
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-SA-4.0 AND MIT"
    code, weights, prompts = PROJECT["license-files"]
    assert "Apache License" in (ROOT / code).read_text()
    assert (ROOT / weights).read_text().startswith("Attribution-ShareAlike 4.0 International")
    assert "license: cc-by-sa-4.0" in (ROOT / "src/drafttree/loading/zoo/MODEL_CARD.md").read_text()
    chat, code = (next(ROOT.glob(prompts.replace("*", name))).read_text() for name in ("mt_bench", "humaneval"))
    assert "Apache License" in chat
    assert code.startswith("The MIT License")


def test_the_shipped_prompts_are_small_and_each_file_is_in_their_list():
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    shipped = {path.relative_to(DATA).as_posix() for path in files if path.suffix == ".jsonl"}
    assert shipped == {"books/test.jsonl", "prompts/mt_bench.jsonl", "prompts/humaneval.jsonl"}
    assert all(f"`{name}`" in (DATA / "README.md").read_text() for name in shipped)


ADDRESS = re.compile(r"https?://(?:www\.|raw\.)?github(?:usercontent)?\.com/([\w.-]+/drafttree)\b")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "make.yml").read_text())


def texts() -> dict[Path, str]:
    """What people read and run, by file."""
    folders = [
        path for name in ("docs", ".github", "src", "lab/src", "examples") for path in (ROOT / name).rglob("*.*")
    ]
    kinds = {".md", ".py", ".yml", ".yaml", ".cff", ".toml"}
    files = [path for path in (*ROOT.iterdir(), *folders) if path.is_file() and path.suffix in kinds]
    return {path: path.read_text() for path in files}


def test_every_address_is_in_one_place():
    addresses = PROJECT["urls"]
    assert {"Homepage", "Repository", "Documentation", "Issues"} <= addresses.keys()
    assert all(address.startswith(addresses["Repository"]) for address in addresses.values())
    repository = addresses["Repository"].removeprefix("https://github.com/")
    assert {other for text in texts().values() for other in ADDRESS.findall(text)} == {repository}


def test_every_file_names_the_same_version():
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert {PROJECT["version"], lab["version"], drafttree.__version__, CITATION["version"]} == {PROJECT["version"]}
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0][0] == PROJECT["version"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d|not released yet", date) for _, date in versions)


def test_the_four_papers_are_cited_by_the_numbers_of_their_methods():
    papers = CITATION["references"]
    assert len(papers) == 4
    assert all(person.keys() == {"given-names", "family-names"} for paper in papers for person in paper["authors"])
    numbers = {each["value"].removeprefix("arXiv:") for paper in papers for each in paper.get("identifiers", ())}
    assert numbers == {re.search(r"arXiv (\S+)\)", method.source)[1] for method in (Talon, Traversal)}


def test_the_workflow_only_calls_the_makefile_on_the_oldest_and_the_newest_python():
    (job,) = WORKFLOW["jobs"].values()
    uses, runs = ([step[kind] for step in job["steps"] if kind in step] for kind in ("uses", "run"))
    assert runs == ["make ${{ matrix.target }}"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in uses)
    made = job["strategy"]["matrix"]["include"]
    assert {each["job"] for each in made} == {"check", "test", "newest", "lowest", "wheel", "docs"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{each['target']}:", makefile, re.MULTILINE) for each in made)
    known = [each.split()[-1] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert [each["python"] for each in made if each["job"] == "test"] == known


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_to_files_and_commands_to_targets(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert links
    assert all((ROOT / link).exists() for link in links)
    commands = re.findall(r"(?:`|^    )make ([a-z -]+?)(?:`|  |$)", text, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert bool(commands) == (page == "CONTRIBUTING.md")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for each in commands for target in each.split())


def test_the_page_of_what_is_stable_names_what_there_is():
    page = (ROOT / "docs" / "stability.md").read_text()
    row = next(line for line in page.splitlines() if "`__all__`" in line)
    named = re.findall(r"`(?:drafttree)?\.(\w+)`", row)
    doors = {name for name in drafttree.__all__ if hasattr(getattr(drafttree, name), "__all__")}
    assert set(named) == doors
    groups = {methods.group for methods in (POLICY_CLASSES, VERIFIER_CLASSES, DRAFTER_CLASSES)}
    assert groups <= set(re.findall(r"`(drafttree\.\w+)`", page))
