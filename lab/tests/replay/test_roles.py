"""Who drafts for the roles of a paper."""

import pytest

from drafttree.errors import ConfigError
from drafttree_lab.replay import inputs
from drafttree_lab.replay.inputs import find_roles, parse_roles
from drafttree_lab.replay.paper import Role
from drafttree_lab.replay.paper_files import read_paper


def test_on_the_embedded_target_roles_have_stand_ins():
    drafters, missing = find_roles(["talon"], "embedded", {})
    assert drafters["EAGLE-3"] == "embedded-eagle3"
    assert not set(missing) & set(drafters)


def test_on_another_target_only_given_roles_are_filled():
    drafters, missing = find_roles(["talon"], "their/model", {"SD": "their/draft"})
    assert drafters == {"SD": "their/draft"}
    assert "name one with --as EAGLE-3=DRAFTER" in missing["EAGLE-3"]


def test_an_unknown_role_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown role 'EAGLE3'; did you mean 'EAGLE-3'\?"):
        find_roles(["talon"], "embedded", {"EAGLE3": "x"})


def test_roles_are_given_as_role_and_drafter():
    assert parse_roles(["SD=a/b", "EAGLE-3 = ./head"]) == {"SD": "a/b", "EAGLE-3": "./head"}
    with pytest.raises(ConfigError, match="--as 'SD' is not of the form ROLE=DRAFTER"):
        parse_roles(["SD"])


def test_a_role_that_two_papers_fill_differently_must_be_named(monkeypatch):
    mine = read_paper("talon").model_copy(update={"roles": {"EAGLE-3": Role(paper="mine", stand_in="embedded-draft")}})
    monkeypatch.setattr(inputs, "read_paper", lambda name: mine if name == "mine" else read_paper(name))
    with pytest.raises(ConfigError, match="'EAGLE-3' is 'embedded-eagle3' in one paper and 'embedded-draft' in anoth"):
        find_roles(["talon", "mine"], "embedded", {})
    assert find_roles(["talon", "mine"], "embedded", {"EAGLE-3": "lookup"})[0]["EAGLE-3"] == "lookup"
    assert find_roles(["talon", "mine"], "their/model", {})[0] == {}
