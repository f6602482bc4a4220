"""The package says what may be done with it and where it is from."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_both_licences_are_named_and_go_with_the_package():
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-SA-4.0"
    code, weights = ((ROOT / name).read_text() for name in PROJECT["license-files"])
    assert "Apache License" in code
    assert weights.startswith("Attribution-ShareAlike 4.0 International")
    assert "license: cc-by-sa-4.0" in (ROOT / "src/drafttree/loading/zoo/MODEL_CARD.md").read_text()


def test_every_address_is_in_one_place():
    assert {"Homepage", "Repository", "Documentation", "Issues"} <= PROJECT["urls"].keys()
    assert all(address.startswith(PROJECT["urls"]["Repository"]) for address in PROJECT["urls"].values())
