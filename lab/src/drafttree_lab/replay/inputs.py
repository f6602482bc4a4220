"""What the options of a replay select: results, models, drafters and prompts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

from drafttree.core.errors import ConfigError, InputError, unknown
from drafttree.measure.prompts import Example, spread_examples
from drafttree_lab.replay.paper import PromptSet, Role
from drafttree_lab.replay.paper_files import outside_file, paper_names, read_paper

ALL, EMBEDDED = "all", "embedded"
FIT_PROMPTS = 6
"""Number of prompts of each set on which drafters are fitted."""
ENDINGS = ("", ".jsonl", ".jsonl.gz", ".raw.gz", ".raw", ".txt", ".txt.gz")
Place = tuple[str, str]
"""The name of a paper, and of one of its prompt sets."""


@dataclass(frozen=True)
class PromptTexts:
    """The prompts of the papers' sets.

    Attributes:
        texts: the prompts of each set.
        missing: by set without prompts, the reason.
        notes: by set that does not ship as a whole, what is left out.
        others: other prompts of each set or, if it has no others, of its file. No claim of the paper is judged on them.
    """

    texts: Mapping[Place, Sequence[Example]]
    missing: Mapping[Place, str]
    notes: Mapping[Place, str]
    others: Mapping[Place, Sequence[Example]] = field(default_factory=dict)

    def clusters(self, digests: Mapping[Place, Sequence[str]]) -> dict[str, str]:
        """By digest of a prompt, the document that it is cut from; only prompts whose document is known.

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
    """The results of some names: "talon/1" is one, "talon" all of a paper, and "all" those of all papers.

    Raises:
        ConfigError: a paper or result is unknown.
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
    """Check that one of some papers has a target of this name.

    Raises:
        ConfigError: no paper has one.
    """
    models = [name for paper in papers for name in read_paper(paper).models]
    if model is not None and model not in models:
        raise unknown("model", model, models)


def parse_roles(entries: Sequence[str]) -> dict[str, str]:
    """Drafters by role from entries of the form ROLE=DRAFTER.

    Raises:
        ConfigError: an entry is not of that form.
    """
    drafters = {}
    for entry in entries:
        role, _, drafter = entry.partition("=")
        if not role.strip() or not drafter.strip():
            raise ConfigError(f"--as {entry!r} is not of the form ROLE=DRAFTER, such as SD=double7/vicuna-68m")
        drafters[role.strip()] = drafter.strip()
    return drafters


def find_roles(
    papers: Sequence[str], target: str, named_drafters: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The drafters of the roles of some papers, and by role without a drafter, the reason.

    Args:
        papers: names of the papers.
        target: the target; on the embedded one, stand-ins draft for roles that are not named.
        named_drafters: by role, the drafter that the user names.

    Raises:
        ConfigError: a role is in none of the papers, or two papers have different stand-ins for it.
    """
    roles: dict[str, Role] = {}
    for paper in papers:
        for name, role in read_paper(paper).roles.items():
            earlier_role = roles.setdefault(name, role)
            if target == EMBEDDED and earlier_role.stand_in != role.stand_in and name not in named_drafters:
                drafters = f"{earlier_role.stand_in!r} in one paper and {role.stand_in!r} in another"
                raise ConfigError(f"the role {name!r} is {drafters}; rename one, run them apart, or name it with --as")
    if unknown_role := next((name for name in named_drafters if name not in roles), None):
        raise unknown("role", unknown_role, roles)
    drafters_by_role = {name: role.stand_in for name, role in roles.items() if target == EMBEDDED and role.stand_in}
    drafters_by_role |= named_drafters
    missing_roles = {
        name: f"no drafter replaces {role.paper}; name one with --as {name}=DRAFTER"
        for name, role in roles.items()
        if name not in drafters_by_role
    }
    return drafters_by_role, missing_roles


def read_prompt_texts(papers: Sequence[str], folder: Path | None, limit: int) -> PromptTexts:
    """The prompts of the sets of some papers, evenly spaced over each set.

    Args:
        papers: names of the papers.
        folder: folder with the files of the papers' sets; None for those that ship. A paper from outside may have its
            files beside its own.
        limit: number of prompts of each set.

    Raises:
        InputError: the folder is missing, or a file has a mistake; the message has its name and line number.
    """
    if folder and not folder.is_dir():
        raise InputError(f"--data {str(folder)!r} is not a folder; name one that is laid out as docs/replay.md says")
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
    """The folders that may have the files of a paper's sets.

    Attributes:
        given: the folder that the user names; None for the shipped samples.
        paper_file: the file of a paper from outside, beside which its prompts may lie; None for a paper of drafttree's.
        shipped: folder of the shipped samples.
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
        """The file of a set; None if it has none."""
        for folder in self.own if self.given else [*self.own, self.shipped]:
            for ending in ENDINGS:
                path = folder / f"{prompt_set.file}{ending}"
                if path.is_file():
                    return path
        return None

    def ships(self, path: Path) -> bool:
        """Whether a file is one of the shipped samples."""
        return path.is_relative_to(self.shipped)

    def withhold(self, prompt_set: PromptSet, path: Path) -> bool:
        """Whether a shipped file has other prompts than the set, which may not ship."""
        return bool(prompt_set.withheld) and self.ships(path)

    def reason(self, prompt_set: PromptSet, path: Path | None) -> str:
        """Why a set has no prompts, if its file is None or withheld."""
        if self.own and path is None:
            samples = "" if self.given else ", nor among the samples that ship"
            return f"{prompt_set.file} is not in {' or '.join(map(str, self.own))}{samples}"
        licence = f" ({prompt_set.withheld})" if prompt_set.withheld else ""
        return f"these prompts do not ship{licence}; give a folder that has them with --data"

    def remarks(self, prompt_set: PromptSet, path: Path, prompts: int, limit: int) -> list[str]:
        """What a shipped sample lacks of its set."""
        remarks = []
        if self.ships(path):
            if prompt_set.part:
                remarks.append(f"only prompts of {prompt_set.part} ship; give a folder that has all with --data")
            if prompts < limit:
                remarks.append(f"{prompts} prompts ship, fewer than --limit {limit}")
        return remarks


def _others(path: Path, category: str | None, taken_prompts: Collection[str]) -> list[Example]:
    """Up to `FIT_PROMPTS` other prompts of a category, evenly spaced; of the whole file if the category has none."""
    for selected_category in dict.fromkeys((category, None)):
        candidates = spread_examples([path], category=selected_category, excerpt=None)
        examples = [example for example in candidates if example.prompt not in taken_prompts]
        if examples:
            count = min(FIT_PROMPTS, len(examples))
            return [examples[index * len(examples) // count] for index in range(count)]
    return []
