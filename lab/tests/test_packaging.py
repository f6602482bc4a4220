"""The prompts that ship with the lab: small, listed with their licences, and none that may not be passed on."""

import json
import tomllib
from pathlib import Path

from drafttree.measure.prompts import read_examples
from drafttree_lab.replay.paper_files import paper_names, read_paper

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/drafttree_lab/replay/data"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = {
    *(f"prompts/{name}.jsonl" for name in ("mt_bench", "gsm8k", "humaneval", "spec_bench")),
    "wikitext2/wiki.test.raw",
    "books/test.jsonl",
}
CATEGORIES = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
FIRST_YEAR_OF_COPYRIGHT = 1929


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def test_the_prompts_are_small_and_each_file_is_in_their_list():
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000
    shipped = {path.relative_to(DATA).as_posix() for path in files}
    licences = {name for name in shipped if name.startswith("LICENSE-")}
    assert shipped - licences - {"README.md"} == FILES
    assert all(f"`{name}`" in (DATA / "README.md").read_text() for name in FILES | licences)


def test_no_row_of_a_set_that_may_not_be_passed_on_ships():
    assert {row["category"] for row in rows("prompts/spec_bench.jsonl")} == {
        *(f"mt_bench/{name}" for name in CATEGORIES),
        "math_reasoning",
    }
    assert {row["category"] for row in rows("prompts/mt_bench.jsonl")} == CATEGORIES
    assert {row["id"].partition("/")[0] for row in rows("prompts/gsm8k.jsonl")} == {"gsm8k"}
    assert {row["id"].partition("/")[0] for row in rows("prompts/humaneval.jsonl")} == {"HumanEval"}
    assert all(int(row["year"]) < FIRST_YEAR_OF_COPYRIGHT for row in rows("books/test.jsonl"))
    sets = [each for name in paper_names() for each in read_paper(name).sets.values()]
    of_spec_bench = [each for each in sets if each.file == "prompts/spec_bench" and each.withheld]
    assert {each.category for each in of_spec_bench} == {"translation", "summarization", "qa", "rag"}


def test_texts_are_longer_than_the_papers_longest_prompts():
    for name in ("wikitext2/wiki.test.raw", "books/test.jsonl"):
        assert all(len(each.prompt) > 5000 for each in read_examples(DATA / name, excerpt=None))


def test_all_licences_are_named_and_go_with_the_package():
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-SA-3.0 AND MIT"
    (pattern,) = PROJECT["license-files"]
    found = {path.name.removeprefix("LICENSE-"): path.read_text() for path in ROOT.glob(pattern)}
    begins = {
        "gsm8k": "MIT License",
        "humaneval": "The MIT License",
        "mt_bench": "Copyright 2025 SafeAI Lab",
        "spec_bench": "Apache License",
        "wikitext2": "wikitext2/wiki.test.raw holds the beginnings of 16 articles",
    }
    assert found.keys() == begins.keys()
    assert all(found[name].startswith(begin) for name, begin in begins.items())
    assert "https://creativecommons.org/licenses/by-sa/3.0/" in found["wikitext2"]
