"""Who drafts: the drafters that stand for the roles of a paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drafttree.core.errors import ConfigError, unknown
from drafttree_lab.replay.paper import read_paper

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Roles:
    """The drafters of all roles.

    Attributes:
        drafters: the drafters, by role.
        missing: roles without one, with the reason.
    """

    drafters: Mapping[str, str]
    missing: Mapping[str, str]


def find_roles(papers: Sequence[str], target: str, given: Mapping[str, str]) -> Roles:
    """The drafters of the roles of some papers.

    Args:
        papers: their names.
        target: the target; on the embedded one roles that are not given have stand-ins.
        given: drafters by role.

    Raises:
        ConfigError: no paper has such a role.
    """
    roles = {name: role for paper in papers for name, role in read_paper(paper).roles.items()}
    if wrong := next((name for name in given if name not in roles), None):
        raise unknown("role", wrong, roles)
    found = {name: role.stand_in for name, role in roles.items() if target == EMBEDDED and role.stand_in}
    found |= given
    missing = {
        name: f"no drafter stands for {role.paper}; name one with --as {name}=DRAFTER"
        for name, role in roles.items()
        if name not in found
    }
    return Roles(found, missing)


def parse_roles(entries: Sequence[str]) -> dict[str, str]:
    """Drafters by role from entries of the form ROLE=DRAFTER.

    Raises:
        ConfigError: one is not of that form.
    """
    found = {}
    for entry in entries:
        role, _, drafter = entry.partition("=")
        if not role.strip() or not drafter.strip():
            raise ConfigError(f"--as {entry!r} is not of the form ROLE=DRAFTER, such as SD=double7/vicuna-68m")
        found[role.strip()] = drafter.strip()
    return found
