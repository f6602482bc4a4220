"""What the options of a replay choose: results, models, who drafts, and the prompts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

from drafttree.core.errors import ConfigError, InputError, unknown
from drafttree.measure.prompts import Example, spread_examples
from drafttree_lab.replay.paper import PromptSet, Role
from drafttree_lab.replay.paper_files import outside_file, paper_names, read_paper

ALL, EMBEDDED = "all", "embedded"
OTHERS = 6
"""Prompts of each set on which drafters are fitted."""
ENDINGS = ("", ".jsonl", ".jsonl.gz", ".raw.gz", ".raw", ".txt", ".txt.gz")
Place = tuple[str, str]
"""The name of a paper and of one of its sets."""


@dataclass(frozen=True)
class PromptTexts:
    """The prompts of the papers' sets.

    Attributes:
        texts: the texts.
        missing: why there are none.
        notes: what the texts lack, where not all of the set ships.
        others: more prompts of each set or, if it has no more, of its file; no claim of the paper is judged on them.
    """

    texts: Mapping[Place, Sequence[Example]]
    missing: Mapping[Place, str]
    notes: Mapping[Place, str]
    others: Mapping[Place, Sequence[Example]] = field(default_factory=dict)

    def clusters(self, digests: Mapping[Place, Sequence[str]]) -> dict[str, str]:
        """The document of every prompt that is told to be of one, by the prompt's digest.

        Args:
            digests: by set, the digests of its prompts.
        """
        pairs = (zip(digests[place], own, strict=True) for place, own in self.texts.items())
        return {digest: each.document for own in pairs for digest, each in own if each.document}


def find_results(names: Sequence[str]) -> list[tuple[str, str]]:
    """Papers and results by name: "talon/1", "talon" for all of a paper, "all" for all.

    Raises:
        ConfigError: there is no such paper or result.
    """
    found: dict[tuple[str, str], None] = {}
    for name in names:
        paper, slash, result = name.partition("/")
        papers = paper_names() if name == ALL else [paper]
        for each in papers:
            known = read_paper(each).results
            if slash and result not in known:
                raise unknown(f"table or figure of {paper}", result, known)
            found |= dict.fromkeys((each, one) for one in ([result] if slash else known))
    return list(found)


def check_model(papers: Sequence[str], model: str | None) -> None:
    """Whether one of some papers has a target of this name.

    Raises:
        ConfigError: none has.
    """
    known = [name for paper in papers for name in read_paper(paper).models]
    if model is not None and model not in known:
        raise unknown("model", model, known)


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


def find_roles(papers: Sequence[str], target: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Who drafts: the drafters of the roles of some papers, and roles without one, with the reason.

    Args:
        target: the target; on the embedded one roles that are not given have stand-ins.

    Raises:
        ConfigError: no paper has such a role.
    """
    roles: dict[str, Role] = {}
    for name, role in (each for paper in papers for each in read_paper(paper).roles.items()):
        other = roles.setdefault(name, role)
        if target == EMBEDDED and other.stand_in != role.stand_in and name not in given:
            drafters = f"{other.stand_in!r} in one paper and {role.stand_in!r} in another"
            raise ConfigError(f"the role {name!r} is {drafters}; rename one, run them apart, or name it with --as")
    if wrong := next((name for name in given if name not in roles), None):
        raise unknown("role", wrong, roles)
    found = {name: role.stand_in for name, role in roles.items() if target == EMBEDDED and role.stand_in}
    found |= given
    missing = {
        name: f"no drafter stands for {role.paper}; name one with --as {name}=DRAFTER"
        for name, role in roles.items()
        if name not in found
    }
    return found, missing


def read_prompt_texts(papers: Sequence[str], folder: Path | None, limit: int) -> PromptTexts:
    """The prompts of the sets of some papers, as many of each, evenly spaced.

    Args:
        folder: the folder with the files that the papers' sets name; None for those that ship. Those of a paper from
            outside may lie beside its file, too.
        limit: prompts of each set.

    Raises:
        InputError: there is no such folder, or a file is bad; the message has its name and the number of the line.
    """
    if folder and not folder.is_dir():
        raise InputError(f"--data {str(folder)!r} is no folder; name one that is laid out as docs/replay.md says")
    sets: dict[Place, PromptSet] = {
        (paper, name): each for paper in papers for name, each in read_paper(paper).sets.items()
    }
    texts, missing, notes, sources = {}, {}, {}, {}
    with as_file(files("drafttree_lab.replay") / "data") as shipped:
        for place, each in sets.items():
            outside = outside_file(place[0])
            own = [base for base in (folder, outside and outside.parent) if base]
            bases = own if folder else [*own, shipped]
            paths = (base / f"{each.file}{ending}" for base in bases for ending in ENDINGS)
            path = next((path for path in paths if path.is_file()), None)
            ships = path is not None and path.is_relative_to(shipped)
            if own and not path:
                samples = "" if folder else ", nor among the samples that ship"
                missing[place] = f"{each.file} is not in {' or '.join(map(str, own))}{samples}"
            elif not path or (each.withheld and ships):
                why = f" ({each.withheld})" if each.withheld else ""
                missing[place] = f"these prompts do not ship{why}; give a folder that has them with --data"
            else:
                texts[place] = spread_examples([path], limit, category=each.category, excerpt=None)
                sources[place] = path
                part = f"only prompts of {each.part} ship; give a folder that has all with --data"
                lacks = [part] if each.part else []
                if (found := len(texts[place])) < limit:
                    lacks.append(f"{found} prompts ship, fewer than --limit {limit}")
                if lacks and ships:
                    notes[place] = "; ".join(lacks)
        others = {}
        for place, path in sources.items():
            taken = {each.prompt for (paper, _), own in texts.items() if paper == place[0] for each in own}
            others[place] = _others(path, sets[place].category, taken)
    return PromptTexts(texts, missing, notes, others)


def _others(path: Path, category: str | None, taken: Collection[str]) -> list[Example]:
    """Up to `OTHERS` prompts of a category that are not taken, evenly spaced, or of the whole file if it has none."""
    for kind in dict.fromkeys((category, None)):
        left = [each for each in spread_examples([path], category=kind, excerpt=None) if each.prompt not in taken]
        if left:
            count = min(OTHERS, len(left))
            return [left[index * len(left) // count] for index in range(count)]
    return []
