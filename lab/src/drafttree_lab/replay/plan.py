"""What a replay runs: the ways that write the same prompts alternately, and the tasks in their order."""

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.engine.compatibility import incompatibility
from drafttree.loading import find_verifier, make_policy
from drafttree.measure.method import Method
from drafttree_lab.replay.costs import PassCosts, draw_published_costs, published_costs
from drafttree_lab.replay.inputs import Place, PromptTexts
from drafttree_lab.replay.paper import (
    AUTOREGRESSIVE,
    CONTEXTS,
    OF_TEXTS,
    Average,
    AxisValue,
    Metric,
    Model,
    Paper,
    PaperMethod,
    Result,
)
from drafttree_lab.replay.paper_files import mistake, read_paper

NO_PROMPTS = ""
"""Name of the prompt set of results that need no prompts."""
Digests = Mapping[Place, Sequence[str]]
"""Digests of prompts, by paper and set."""
Key = tuple[str | int | float, ...]


@dataclass(frozen=True)
class Sizes:
    """How much of a result is run.

    Attributes:
        limit: prompts of each set.
        max_new_tokens: new tokens of a text, at most.
        prompt_tokens: tokens of a prompt, at most; None for the paper's.
        chat: whether prompts are chats, which are not cut.
        points: maximum number of values of an axis, the first and the last among them; None for all.
        model: the target of the papers whose published numbers and costs are compared. None for the target of each
            result, or the paper's first if the result has several.
        contexts: contexts after each prompt on which verifiers are compared.
    """

    limit: int = 10
    max_new_tokens: int = 128
    prompt_tokens: int | None = None
    chat: bool = False
    points: int | None = None
    model: str | None = None
    contexts: int = CONTEXTS


@dataclass(frozen=True)
class ReplayMethod(Method):
    """A method of a paper as it is run: drafter, tree policy and verifier, or a baseline of the paper.

    Attributes:
        assisted: whether it is transformers' assisted generation at its defaults; the policy is then unused.
        lossy_window: number of latest tokens that the target attends to besides the first four (StreamingLLM); None for
            full attention.
    """

    assisted: bool = False
    lossy_window: int | None = None

    @property
    def learns(self) -> bool:
        """Whether a text depends on earlier texts."""
        return self.drafter is not None and self.policy.remembers and not self.assisted

    @property
    def spec(self) -> str:
        if self.assisted:
            return f"{self.drafter}|transformers assisted"
        window = f", lossy_window={self.lossy_window}" if self.lossy_window else ""
        return super().spec + window

    @cached_property
    def key(self) -> str:
        """The specification, with a digest of the code of every class from outside drafttree, since that may change."""
        from drafttree.loading import parse_drafter

        classes = [type(self.policy), self.verifier, parse_drafter(self.drafter).drafter_class]
        digests: list[str] = []
        for cls in classes:
            if cls and cls.__module__.partition(".")[0] != "drafttree":
                sources = _sources(Path(inspect.getfile(cls)))
                digests.append(short_digest(b"".join(map(Path.read_bytes, sources))))
        return "|".join([self.spec, *digests])


def _sources(module: Path) -> list[Path]:
    """The file of a module, and the files of its folder that it imports, directly or not."""
    sources = [module]
    for source in sources:  # grows in the loop
        for name in _imported_names(source):
            path = module.with_name(f"{name}.py")
            if path not in sources and path.is_file():
                sources.append(path)
    return sources


def _imported_names(source: Path) -> Iterator[str]:
    """Every name between the dots of what a file imports."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (getattr(node, "module", None) or "").split(".")
            for alias in node.names:
                yield from alias.name.split(".")


@dataclass(frozen=True)
class Setting:
    """What a text depends on besides prompt and way.

    Attributes:
        set: name of the prompt set in the paper.
        temperature: sampling temperature.
        max_new_tokens: new tokens of the text.
        prompt_tokens: maximum length of the prompt; None for the target's context.
        ignore_eos: whether the text continues past EOS tokens.
    """

    set: str
    temperature: float
    max_new_tokens: int
    prompt_tokens: int | None
    ignore_eos: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Options of `Decoder.generate`."""
        return {name: getattr(self, name) for name in ("temperature", "max_new_tokens", "ignore_eos")}

    @property
    def key(self) -> Key:
        """Part of the keys of cells; they have the prompt's digest in place of the set."""
        return (self.temperature, self.max_new_tokens, self.prompt_tokens or 0, int(self.ignore_eos))


@dataclass(frozen=True)
class Block:
    """Ways that write the same prompts alternately, at one setting.

    Attributes:
        setting: the setting of all ways.
        value: the value of the first axis that varies a setting; None without such an axis.
        ways: ways by method name, or by `method@value` if the axis varies policies. Plain decoding comes first.
    """

    setting: Setting
    value: AxisValue | None
    ways: Mapping[str, ReplayMethod]

    @property
    def digest(self) -> str:
        """A digest of all ways."""
        return short_digest(sorted((name, way.key) for name, way in self.ways.items()))


@dataclass(frozen=True)
class Experiment:
    """A result of a paper with its runs.

    Attributes:
        paper: name of the paper.
        name: name of the result, such as "1" or "fig3".
        missing: by method that cannot be run, the reason.
        model: the target of the paper whose published numbers are compared.
        costs: by method, the pass costs that the paper gives.
        draws: by method, many other pass costs within the printed errors; empty if the paper prints no errors.
        averages: by metric, the paper's way of averaging, if unusual.
        notes: what its prompt sets lack, a clause each.
        is_timed: whether this result is timed in a run that measures times.
        contexts: number of contexts after each prompt on which verifiers are compared.
    """

    paper: str
    name: str
    result: Result
    blocks: Sequence[Block]
    missing: Mapping[str, str]
    model: str = ""
    costs: Mapping[str, PassCosts] = field(default_factory=dict)
    averages: Mapping[Metric, Average] = field(default_factory=dict)
    notes: Sequence[str] = ()
    draws: Mapping[str, PassCosts] = field(default_factory=dict, compare=False)
    is_timed: bool = True
    contexts: int = CONTEXTS

    @property
    def id(self) -> str:
        """The names of paper and result, such as "talon/fig3"."""
        return f"{self.paper}/{self.name}"

    def average(self, metric: Metric) -> Average:
        """How the paper averages a metric."""
        return self.averages.get(metric, "texts" if metric in OF_TEXTS else "total")

    def is_of_its_setting(self, block: Block) -> bool:
        """Whether claims and published numbers are about a block; False for other values of a second axis."""
        return not self.result.second_axis or block.setting.max_new_tokens == self.result.max_new_tokens

    @property
    def runs(self) -> int:
        """Number of texts for one prompt of every set."""
        return sum(len(block.ways) for block in self.blocks)

    @property
    def most_prompts(self) -> int | None:
        """Number of prompts of a set that suffice; None if more prompts make the result more exact."""
        return 1 if self.result.kind == "memory" else None

    @property
    def main(self) -> bool:
        """Whether it has a main claim."""
        return any(map(attrgetter("main"), self.result.claims))


@dataclass(frozen=True)
class Task:
    """One prompt of a block of an experiment, in one repeat.

    Attributes:
        prompt: index of the prompt in its set.
        digest: digest of its token ids.
        earlier: digests of the prompts before it in its set, from which policies that remember have learned.
    """

    experiment: Experiment
    block: Block
    prompt: int
    digest: str
    repeat: int
    earlier: Sequence[str] = ()

    @property
    def turn_key(self) -> Key:
        """The key of its times. It names all ways, since they ran alternately; results share it."""
        return ("turn", self.block.digest, *self.block.setting.key, self.digest, self.repeat)

    @property
    def other_key(self) -> Key:
        """The key of its cell, in a result that is not about decoding."""
        result_kind = self.experiment.result.kind
        block = self.block
        contexts = self.experiment.contexts
        contexts_key = [contexts] if result_kind == "acceptance" and contexts != CONTEXTS else []
        return (result_kind, block.digest, str(block.value), *block.setting.key, self.digest, *contexts_key)

    def counts_key(self, way: ReplayMethod) -> Key:
        """The key of the counts of one of its ways; results with the same setting share it."""
        learned = [short_digest(list(self.earlier))] if way.learns else []
        return ("counts", way.key, *self.block.setting.key, self.digest, *learned)

    def tie_key(self, way: ReplayMethod) -> Key:
        """The key of the tie by which the text of one of its ways differs from plain decoding's."""
        return ("tie", *self.counts_key(way)[1:])


def short_digest(value: object) -> str:
    """A digest of plain data."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def check_paper(paper: str, drafters: Mapping[str, str]) -> None:
    """Check that the costs, drafters, policies and verifiers that a paper names can be used, and go together.

    Args:
        paper: name of the paper.
        drafters: drafters by role; a stand-in is checked only if it is among them.

    Raises:
        ConfigError: one of them cannot be used; the message has the line of the paper's file.
    """
    from drafttree.loading import parse_drafter

    publication = read_paper(paper)
    for name, model in publication.models.items():
        try:
            draw_published_costs(model, None)
        except ConfigError as error:
            raise mistake(paper, ("models", name, "rounds"), str(error)) from None
    for name, role in publication.roles.items():
        try:
            parse_drafter(role.stand_in if drafters.get(name) == role.stand_in else None).check()
        except DraftTreeError as error:
            raise mistake(paper, ("roles", name, "stand_in"), str(error)) from None
    for result in publication.results.values():
        values = result.values or [None]
        for name, prompt_set, value in product(result.methods, result.sets or [NO_PROMPTS], values):
            method = publication.methods[name]
            if not method.role or method.assisted:
                continue
            try:
                policy = make_policy(method.policy_at(prompt_set, value))
                verifier = find_verifier(method.verifier)
            except ConfigError as error:
                raise mistake(paper, ("methods", name), str(error)) from None
            if verifier and any(result.temperatures) and (reason := incompatibility(policy, verifier)):
                raise mistake(paper, ("methods", name), reason)


def plan_all(
    results: Sequence[tuple[str, str]],
    drafters: Mapping[str, str],
    missing_roles: Mapping[str, str],
    prompts: PromptTexts,
    sizes: Sizes,
) -> list[Experiment]:
    """The experiments of results. Sets without prompts are left out and named as missing. Arguments as for `plan`."""
    experiments = []
    for paper, name in results:
        experiment = plan(paper, name, drafters, missing_roles, sizes)
        blocks = [block for block in experiment.blocks if (paper, block.setting.set) not in prompts.missing]
        missing_reasons = dict(experiment.missing)
        notes = {}
        for prompt_set in experiment.result.sets:
            if (paper, prompt_set) in prompts.missing:
                missing_reasons[prompt_set] = prompts.missing[paper, prompt_set]
            if (paper, prompt_set) in prompts.notes:
                notes[prompt_set] = prompts.notes[paper, prompt_set]
        experiments.append(replace(experiment, blocks=blocks, missing=missing_reasons, notes=clauses(notes)))
    return experiments


def cannot_assist(drafter: str | None, *, find_files: bool) -> bool:
    """Whether transformers' assisted generation cannot take a drafter, since it is no language model.

    Args:
        drafter: the drafter's name.
        find_files: whether files are looked at, which may be downloaded for that. If not, a drafter in files that are
            not on this machine passes.

    Raises:
        ModelError: there are no such files.
    """
    from drafttree.loading import parse_drafter
    from drafttree.loading.folders import local_folder

    spec = parse_drafter(drafter)
    if spec.drafter_class or not drafter or drafter.startswith("mixed:"):
        return True
    return (find_files or local_folder(drafter) is not None) and not spec.is_language_model


def leave_out(experiment: Experiment, refusal: Callable[[ReplayMethod], str | None]) -> Experiment:
    """An experiment without the ways that are refused, which are named as missing; blocks that draft nothing go too.

    Args:
        experiment: the experiment.
        refusal: why a way cannot be run; None if it can.
    """
    missing_reasons = dict(experiment.missing)
    blocks = []
    for block in experiment.blocks:
        ways = {}
        for name, way in block.ways.items():
            if reason := refusal(way):
                missing_reasons[name.partition("@")[0]] = reason
            else:
                ways[name] = way
        if len(ways) > 1 or ways.keys() == block.ways.keys():
            blocks.append(replace(block, ways=ways))
    return replace(experiment, blocks=blocks, missing=missing_reasons)


def clauses(reasons: Mapping[str, str]) -> list[str]:
    """A clause for each reason, such as "a, b: no drafter", with all names that have it."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names_by_reason.setdefault(reason, []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()]


def plan(
    paper: str, name: str, drafters: Mapping[str, str], missing_roles: Mapping[str, str], sizes: Sizes
) -> Experiment:
    """The experiment of a result.

    Args:
        paper: name of the paper.
        name: name of the result.
        drafters: drafters by role.
        missing_roles: by role without a drafter, the reason.
        sizes: how much is run.
    """
    publication = read_paper(paper)
    result = publication.results[name]
    methods: dict[str, PaperMethod] = {}
    missing_methods: dict[str, str] = {}
    for method in dict.fromkeys([AUTOREGRESSIVE, *result.methods]):
        role = publication.methods[method].role
        if role and role in missing_roles:
            missing_methods[method] = missing_roles[role]
        else:
            methods[method] = publication.methods[method]
    blocks = []
    if not result.unavailable and len(methods) > 1:
        blocks = list(_blocks(publication, result, methods, drafters, sizes))
    model = sizes.model if sizes.model in publication.models else _default_model(publication, result)
    costs, draws = _pass_costs(publication.models[model], methods)
    return Experiment(
        paper,
        name,
        result,
        blocks,
        missing_methods | _too_long(result, sizes),
        model,
        costs,
        publication.averages,
        draws=draws,
        contexts=sizes.contexts,
    )


def _default_model(paper: Paper, result: Result) -> str:
    """The target of a result; the paper's first if the result has several or none."""
    printed_models = set(map(attrgetter("model"), result.published)) & paper.models.keys()
    return printed_models.pop() if len(printed_models) == 1 else next(iter(paper.models))


def _too_long(result: Result, sizes: Sizes) -> dict[str, str]:
    """The values of a length axis above `max_new_tokens`, with the reason; empty if there are none."""
    excess_lengths = []
    for axis in result.axes:
        if axis.varies == "max_new_tokens":
            points = _thinned(axis.values, sizes.points)
            excess_lengths += [str(value) for value in points if int(value) > sizes.max_new_tokens]
    if not excess_lengths:
        return {}
    return {f"{', '.join(excess_lengths)} tokens": f"longer than --max-new-tokens {sizes.max_new_tokens}"}


def _pass_costs(model: Model, methods: Mapping[str, PaperMethod]) -> tuple[dict[str, PassCosts], dict[str, PassCosts]]:
    """The paper's pass costs by method; and by method, the many other costs that the paper's rows allow."""
    costs: dict[str, PassCosts] = {}
    draws: dict[str, PassCosts] = {}
    for name, method in methods.items():
        if pass_costs := published_costs(model, method.role):
            costs[name] = pass_costs
            if drawn_costs := draw_published_costs(model, method.role):
                draws[name] = drawn_costs
    return costs, draws


def _blocks(
    paper: Paper, result: Result, methods: Mapping[str, PaperMethod], drafters: Mapping[str, str], sizes: Sizes
) -> Iterator[Block]:
    """A block for every combination of prompt set, temperature and values of the axes that vary a setting."""
    axes = [axis for axis in result.axes if axis.varies != "policy"]
    points = product(*(_thinned(axis.values, sizes.points) for axis in axes))
    for values, temperature, name in product(points, result.temperatures, result.sets or [NO_PROMPTS]):
        options: dict[str, Any] = {
            "temperature": temperature,
            "max_new_tokens": min(result.max_new_tokens, sizes.max_new_tokens),
            "prompt_tokens": None if sizes.chat else sizes.prompt_tokens or result.longest_prompt(name),
            "ignore_eos": paper.ignore_eos,
        }
        for axis, value in zip(axes, values, strict=True):
            if axis.varies != "rows":
                options[axis.varies] = value
        setting = Setting(name, **options)
        if setting.max_new_tokens <= sizes.max_new_tokens:
            first_value = values[0] if values else None
            yield Block(setting, first_value, _ways(result, methods, drafters, setting, first_value, sizes))


def _ways(
    result: Result,
    methods: Mapping[str, PaperMethod],
    drafters: Mapping[str, str],
    setting: Setting,
    value: AxisValue | None,
    sizes: Sizes,
) -> dict[str, ReplayMethod]:
    """The ways of a block by name; a method whose policy the axis varies has a way for each value."""
    axes = [axis for axis in result.axes if axis.varies == "policy"]
    points = _thinned(axes[0].values, sizes.points) if axes else []
    ways = {}
    for name, method in methods.items():
        varies = bool(axes) and ("{axis}" in method.policy or any(str(point) in method.policies for point in points))
        for point in points if varies else [value]:
            way = ReplayMethod(
                drafter=drafters[method.role] if method.role else None,
                policy=make_policy(method.policy_at(setting.set, point)),
                verifier=find_verifier(method.verifier if method.verifier and setting.temperature else "auto"),
                assisted=method.assisted,
                lossy_window=method.lossy_window,
            )
            ways[f"{name}@{point}" if varies else name] = way
    return ways


def _thinned(values: Sequence[AxisValue], points: int | None) -> Sequence[AxisValue]:
    """Values at `points` evenly spaced indices, from the first to the last; the last alone for one point."""
    if points is None or points >= len(values):
        return values
    if points == 1:
        return values[-1:]
    return [values[round(index * (len(values) - 1) / (points - 1))] for index in range(points)]


def groups(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    """Experiments in the order of running: all with a main claim as one group, then each of the others by itself.

    Of the others, those with the fewest runs come first: they have enough prompts soonest.
    """
    main_experiments: list[Experiment] = []
    side_experiments: list[Experiment] = []
    for experiment in experiments:
        (main_experiments if experiment.main else side_experiments).append(experiment)
    side_experiments.sort(key=attrgetter("runs"))
    return [main_experiments, *([experiment] for experiment in side_experiments)]


def tasks(experiments: Sequence[Experiment], digests: Digests, repeats: int) -> Iterator[Task]:
    """The tasks of a group of experiments: the first prompt of every set, then the second, and so on."""
    set_keys = {(experiment.paper, block.setting.set) for experiment in experiments for block in experiment.blocks}
    prompt_count = max((len(digests[set_key]) for set_key in set_keys), default=0)
    for repeat, number, experiment in product(range(repeats), range(prompt_count), experiments):
        for block in experiment.blocks:
            set_digests = digests[experiment.paper, block.setting.set][: experiment.most_prompts]
            if number < len(set_digests):
                yield Task(experiment, block, number, set_digests[number], repeat, set_digests[:number])
