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
        documents: dict[str, str] = {}
        for set_key, examples in self.texts.items():
            for digest, example in zip(digests[set_key], examples, strict=True):
                if example.document:
                    documents[digest] = example.document
        return documents


def find_results(names: Sequence[str]) -> list[tuple[str, str]]:
    """Papers and results by name: "talon/1", "talon" for all of a paper, "all" for all.

    Raises:
        ConfigError: there is no such paper or result.
    """
    selection: dict[tuple[str, str], None] = {}
    for name in names:
        paper, slash, result = name.partition("/")
        papers = paper_names() if name == ALL else [paper]
        for paper_name in papers:
            results = read_paper(paper_name).results
            if slash and result not in results:
                raise unknown(f"table or figure of {paper}", result, results)
            for result_name in [result] if slash else results:
                selection[paper_name, result_name] = None
    return list(selection)


def check_model(papers: Sequence[str], model: str | None) -> None:
    """Whether one of some papers has a target of this name.

    Raises:
        ConfigError: none has.
    """
    models = [name for paper in papers for name in read_paper(paper).models]
    if model is not None and model not in models:
        raise unknown("model", model, models)


def parse_roles(entries: Sequence[str]) -> dict[str, str]:
    """Drafters by role from entries of the form ROLE=DRAFTER.

    Raises:
        ConfigError: one is not of that form.
    """
    drafters = {}
    for entry in entries:
        role, _, drafter = entry.partition("=")
        if not role.strip() or not drafter.strip():
            raise ConfigError(f"--as {entry!r} is not of the form ROLE=DRAFTER, such as SD=double7/vicuna-68m")
        drafters[role.strip()] = drafter.strip()
    return drafters


def find_roles(papers: Sequence[str], target: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Who drafts: the drafters of the roles of some papers, and roles without one, with the reason.

    Args:
        target: the target; on the embedded one roles that are not given have stand-ins.

    Raises:
        ConfigError: no paper has such a role.
    """
    roles: dict[str, Role] = {}
    for paper in papers:
        for name, role in read_paper(paper).roles.items():
            earlier_role = roles.setdefault(name, role)
            if target == EMBEDDED and earlier_role.stand_in != role.stand_in and name not in given:
                drafters = f"{earlier_role.stand_in!r} in one paper and {role.stand_in!r} in another"
                raise ConfigError(f"the role {name!r} is {drafters}; rename one, run them apart, or name it with --as")
    if unknown_role := next((name for name in given if name not in roles), None):
        raise unknown("role", unknown_role, roles)
    drafters_by_role = {name: role.stand_in for name, role in roles.items() if target == EMBEDDED and role.stand_in}
    drafters_by_role |= given
    missing_roles = {
        name: f"no drafter stands for {role.paper}; name one with --as {name}=DRAFTER"
        for name, role in roles.items()
        if name not in drafters_by_role
    }
    return drafters_by_role, missing_roles


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
    texts: dict[Place, Sequence[Example]] = {}
    missing_reasons: dict[Place, str] = {}
    notes: dict[Place, str] = {}
    fitting_texts: dict[Place, Sequence[Example]] = {}
    with as_file(files("drafttree_lab.replay") / "data") as shipped:
        for paper in papers:
            folders = PromptFolders(folder, outside_file(paper), shipped)
            paper_texts = folders.read(paper, limit)
            texts |= paper_texts.texts
            missing_reasons |= paper_texts.missing
            notes |= paper_texts.notes
            fitting_texts |= paper_texts.others
    return PromptTexts(texts, missing_reasons, notes, fitting_texts)


@dataclass(frozen=True)
class PromptFolders:
    """Where the files of a paper's sets are looked for.

    Attributes:
        given: the folder that the user names; None for the samples that ship.
        paper_file: the paper's own file, beside which its prompts may lie; None for one of drafttree's papers.
        shipped: the folder of the samples that ship.
    """

    given: Path | None
    paper_file: Path | None
    shipped: Path

    def read(self, paper: str, limit: int) -> PromptTexts:
        """The prompts of a paper's sets; arguments as for `read_prompt_texts`."""
        texts: dict[Place, Sequence[Example]] = {}
        missing_reasons: dict[Place, str] = {}
        notes: dict[Place, str] = {}
        paths: dict[str, Path] = {}
        sets = read_paper(paper).sets
        for name, prompt_set in sets.items():
            path = self.find(prompt_set)
            if path is None or self.withhold(prompt_set, path):
                missing_reasons[paper, name] = self.reason(prompt_set, path)
                continue
            paths[name] = path
            texts[paper, name] = spread_examples([path], limit, category=prompt_set.category, excerpt=None)
            if remarks := self.remarks(prompt_set, path, len(texts[paper, name]), limit):
                notes[paper, name] = "; ".join(remarks)
        judged_prompts = {example.prompt for examples in texts.values() for example in examples}
        fitting_texts: dict[Place, Sequence[Example]] = {}
        for name, path in paths.items():
            fitting_texts[paper, name] = _others(path, sets[name].category, judged_prompts)
        return PromptTexts(texts, missing_reasons, notes, fitting_texts)

    @property
    def own(self) -> list[Path]:
        """The user's folders."""
        folders = [self.given] if self.given else []
        return [*folders, self.paper_file.parent] if self.paper_file else folders

    def find(self, prompt_set: PromptSet) -> Path | None:
        """The file of a set; None where there is none."""
        for folder in self.own if self.given else [*self.own, self.shipped]:
            for ending in ENDINGS:
                path = folder / f"{prompt_set.file}{ending}"
                if path.is_file():
                    return path
        return None

    def ships(self, path: Path) -> bool:
        """Whether a file is one of the samples."""
        return path.is_relative_to(self.shipped)

    def withhold(self, prompt_set: PromptSet, path: Path) -> bool:
        """Whether what ships in a file is not of the set, which may not ship."""
        return bool(prompt_set.withheld) and self.ships(path)

    def reason(self, prompt_set: PromptSet, path: Path | None) -> str:
        """Why a set has no prompts, where its file is None or withheld."""
        if self.own and path is None:
            samples = "" if self.given else ", nor among the samples that ship"
            return f"{prompt_set.file} is not in {' or '.join(map(str, self.own))}{samples}"
        licence = f" ({prompt_set.withheld})" if prompt_set.withheld else ""
        return f"these prompts do not ship{licence}; give a folder that has them with --data"

    def remarks(self, prompt_set: PromptSet, path: Path, prompts: int, limit: int) -> list[str]:
        """What a sample lacks of its set."""
        remarks = []
        if self.ships(path):
            if prompt_set.part:
                remarks.append(f"only prompts of {prompt_set.part} ship; give a folder that has all with --data")
            if prompts < limit:
                remarks.append(f"{prompts} prompts ship, fewer than --limit {limit}")
        return remarks


def _others(path: Path, category: str | None, taken: Collection[str]) -> list[Example]:
    """Up to `OTHERS` prompts of a category that are not taken, evenly spaced, or of the whole file if it has none."""
    for selected_category in dict.fromkeys((category, None)):
        candidates = spread_examples([path], category=selected_category, excerpt=None)
        examples = [example for example in candidates if example.prompt not in taken]
        if examples:
            count = min(OTHERS, len(examples))
            return [examples[index * len(examples) // count] for index in range(count)]
    return []
