"""The package says what may be done with it and where it is from."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


DATA = ROOT / "src/drafttree/evaluation/data"


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


def test_every_address_is_in_one_place():
    assert {"Homepage", "Repository", "Documentation", "Issues"} <= PROJECT["urls"].keys()
    assert all(address.startswith(PROJECT["urls"]["Repository"]) for address in PROJECT["urls"].values())
