"""The runs that a table or figure is made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from drafttree.core.cost_curve import Costs
from drafttree.core.errors import unknown
from drafttree.loading import find_verifier, make_policy
from drafttree_lab.replay.paper import (
    AUTOREGRESSIVE,
    OF_TEXTS,
    Average,
    Axis,
    AxisValue,
    Metric,
    Paper,
    PaperMethod,
    Result,
    paper_names,
    read_paper,
)
from drafttree_lab.replay.pass_costs import PassCosts
from drafttree_lab.replay.replay_method import ReplayMethod

DEFAULT_LENGTH = 128
"""Tokens of a text where the option is not given: the papers' 500 to 1500 take hours on a processor."""
ALL = "all"
NO_PROMPTS = ""
"""The set of results that need no prompts."""


@dataclass(frozen=True)
class Sizes:
    """How much of a result is run.

    Attributes:
        limit: prompts of each set.
        max_new_tokens: new tokens of a text, at most.
        prompt_tokens: tokens of a prompt, at most; None for the paper's.
        repeats: turns of every prompt.
        chat: whether prompts are chats, which are not cut.
        points: values of an axis at most, the first and the last among them; None for all.
        model: a target of the papers, whose published numbers and costs are compared; None for that
            of each result, or the paper's first where a result has several.
    """

    limit: int = 10
    max_new_tokens: int = DEFAULT_LENGTH
    prompt_tokens: int | None = None
    repeats: int = 1
    chat: bool = False
    points: int | None = None
    model: str | None = None


@dataclass(frozen=True)
class Setting:
    """What a text depends on besides prompt and way.

    Attributes:
        set: the set of prompts, by its name in the paper.
        temperature: the temperature the target samples at.
        max_new_tokens: new tokens of the text.
        prompt_tokens: tokens of the prompt, at most; None for no limit but the context.
        ignore_eos: whether it goes on past EOS tokens.
    """

    set: str
    temperature: float
    max_new_tokens: int
    prompt_tokens: int | None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Block:
    """Ways that run by turns, on the same prompts and at the same setting.

    Attributes:
        setting: the setting of all.
        value: the value of the first axis that varies a setting; None where there is none.
        ways: the ways, by the name of the method, or `method@value` where the axis varies policies; plain decoding
            first.
    """

    setting: Setting
    value: AxisValue | None
    ways: Mapping[str, ReplayMethod]


@dataclass(frozen=True)
class Experiment:
    """A result of a paper with its runs.

    Attributes:
        paper: its name.
        name: the name of the result, "1" or "fig3".
        result: the result as the paper's file has it.
        blocks: blocks that are run.
        missing: methods that cannot be run, with the reason.
        model: the target of the paper whose published numbers are compared.
        costs: what passes cost by the paper, by method; those of which it tells nothing are left out.
        averages: by metric how the paper averages, where it does otherwise than most.
        notes: what the prompts of its sets lack, a clause each.
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

    @property
    def id(self) -> str:
        """Paper and result."""
        return f"{self.paper}/{self.name}"

    def average(self, metric: Metric) -> Average:
        """How the paper averages a metric."""
        return self.averages.get(metric, "texts" if metric in OF_TEXTS else "total")

    def is_of_its_setting(self, block: Block) -> bool:
        """Whether claims and published numbers are about a block, and not about values of a second axis."""
        return not self.result.second_axis or block.setting.max_new_tokens == self.result.max_new_tokens

    @property
    def runs(self) -> int:
        """Texts of a prompt of every set."""
        return sum(len(block.ways) for block in self.blocks)

    @property
    def most_prompts(self) -> int | None:
        """Prompts of a set that say all there is to say; None where more of them say more."""
        return 1 if self.result.kind == "memory" else None

    @property
    def main(self) -> bool:
        """Whether a main claim rests on it."""
        return any(claim.main for claim in self.result.claims)


def clauses(reasons: Mapping[str, str]) -> list[str]:
    """Each reason once, behind the names of all it holds for."""
    return [
        f"{', '.join(name for name, own in reasons.items() if own == why)}: {why}"
        for why in dict.fromkeys(reasons.values())
    ]


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


def plan(
    paper: str, name: str, drafters: Mapping[str, str], missing_roles: Mapping[str, str], sizes: Sizes
) -> Experiment:
    """The runs of a result.

    Args:
        paper: its name.
        name: the name of the result.
        drafters: the drafters, by role.
        missing_roles: roles without a drafter, with the reason.
        sizes: how much is run.
    """
    found = read_paper(paper)
    result = found.results[name]
    chosen = {method: found.methods[method] for method in dict.fromkeys([AUTOREGRESSIVE, *result.methods])}
    missing = {
        method: missing_roles[own] for method, each in chosen.items() if (own := each.role or "") in missing_roles
    }
    methods = {method: each for method, each in chosen.items() if method not in missing}
    blocks = [] if result.unavailable or len(methods) == 1 else list(_blocks(found, result, methods, drafters, sizes))
    if long := [str(value) for value in _lengths(result, sizes) if value > sizes.max_new_tokens]:
        missing[f"{', '.join(long)} tokens"] = f"longer than --max-new-tokens {sizes.max_new_tokens}"
    printed = {each.model for each in result.published} & found.models.keys()
    only = printed.pop() if len(printed) == 1 else next(iter(found.models))
    model = sizes.model if sizes.model in found.models else only
    return Experiment(paper, name, result, blocks, missing, model, dict(_costs(found, model, methods)), found.averages)


def check_model(papers: Sequence[str], model: str | None) -> None:
    """Whether one of some papers has a target of this name.

    Raises:
        ConfigError: none has.
    """
    known = [name for paper in papers for name in read_paper(paper).models]
    if model is not None and model not in known:
        raise unknown("model", model, known)


def _costs(paper: Paper, model: str, methods: Mapping[str, PaperMethod]) -> Iterator[tuple[str, PassCosts]]:
    own = paper.models[model]
    for name, method in methods.items():
        if not method.role:
            yield name, PassCosts(0.0, Costs.of(own.target_pass))
        elif method.role in own.draft_pass:
            yield name, PassCosts(own.draft_pass[method.role], Costs.of(own.target_pass), own.round)


def _blocks(
    paper: Paper, result: Result, methods: Mapping[str, PaperMethod], drafters: Mapping[str, str], sizes: Sizes
) -> Iterator[Block]:
    """A block for every set of prompts, temperature and value of the axes that vary a setting."""
    axes = [axis for axis in _axes(result) if axis.varies != "policy"]
    points = product(*(_thinned(axis.values, sizes.points) for axis in axes))
    for values, temperature, name in product(points, result.temperatures, result.sets or [NO_PROMPTS]):
        options: dict[str, Any] = {
            "temperature": temperature,
            "max_new_tokens": min(result.max_new_tokens, sizes.max_new_tokens),
            "prompt_tokens": None if sizes.chat else sizes.prompt_tokens or result.longest_prompt(name),
            "ignore_eos": paper.ignore_eos,
        }
        varied: dict[str, Any] = {axis.varies: value for axis, value in zip(axes, values, strict=True)}
        setting = Setting(name, **(options | {what: value for what, value in varied.items() if what != "rows"}))
        if setting.max_new_tokens <= sizes.max_new_tokens:
            value = values[0] if values else None
            yield Block(setting, value, _ways(result, methods, drafters, setting, value, sizes))


def _ways(
    result: Result,
    methods: Mapping[str, PaperMethod],
    drafters: Mapping[str, str],
    setting: Setting,
    value: AxisValue | None,
    sizes: Sizes,
) -> dict[str, ReplayMethod]:
    """The ways of a block by name; a method whose policy the axis varies has one for each of its values."""
    axes = [axis for axis in _axes(result) if axis.varies == "policy"]
    points = _thinned(axes[0].values, sizes.points) if axes else []
    found = {}
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
            found[f"{name}@{point}" if varies else name] = way
    return found


def _axes(result: Result) -> list[Axis]:
    return [axis for axis in (result.axis, result.second_axis) if axis]


def _lengths(result: Result, sizes: Sizes) -> list[int]:
    """The lengths of texts that an axis varies."""
    axes = [axis for axis in _axes(result) if axis.varies == "max_new_tokens"]
    return [int(value) for axis in axes for value in _thinned(axis.values, sizes.points)]


def _thinned(values: Sequence[AxisValue], points: int | None) -> Sequence[AxisValue]:
    """So many of the values, evenly spaced from the first to the last."""
    if points is None or points >= len(values):
        return values
    if points == 1:
        return values[-1:]
    return [values[round(index * (len(values) - 1) / (points - 1))] for index in range(points)]
