"""The `auto` policy against every other policy and plain decoding: drafters x prompt sets x temperatures x costs.

Most is counted: a text's rounds follow from prompt, seed and policy, so their shapes, and by a cost curve their time,
need no clock. Only plain decoding, `auto`, the counted best policy and four usual ones are timed, by turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import InputError
from drafttree.drafters import Drafter
from drafttree.engine.decoder import Decoder
from drafttree.evaluation.prompt_encoding import encode_prompts
from drafttree.evaluation.prompt_form import PromptForm
from drafttree.evaluation.prompts import Example
from drafttree.evaluation.run_store import NothingFinished, RunStore
from drafttree.loading import parse_policies
from drafttree.policies import TreePolicy
from drafttree_lab.experiment.cells import check_given
from drafttree_lab.experiment.race import way
from drafttree_lab.experiment.round_counts import RoundCounts, RoundTerms
from drafttree_lab.experiment.timed_row import AUTO, TimedRow, learning_way, time_row

TALON, DYNATREE = "talon", "dynatree"
"""The two adaptive policies at their defaults."""
GRID = (
    *(f"chain:depth={depth}" for depth in (1, 2, 3)),
    "chain",
    "chain:depth=8",
    *(f"talon:width={width},budget={budget}" for budget in (8, 16) for width in (3, 4)),
    "talon:budget=16",
    "talon:width=4,budget=30",
    "talon:budget=30",
    "talon:width=4",
    TALON,
    DYNATREE,
    "dynatree:base_depth=3,max_depth=4",
    "dynatree:budget=16",
    "eagle",
    "eagle:depth=4,budget=16",
    "opt-tree",
    "opt-tree:budget=16",
    "dyspec",
    "fixed",
    "template",
)
"""The settings `auto` is compared with: every other policy at its defaults, and some sizes of the adaptive ones."""
LEAST_PROMPT = 4
"""Tokens of a prompt at least: a shorter one says nothing about its set."""
DEFAULTS = (TALON, DYNATREE)
SAMPLED = ", sampled"
"""Behind the name of a drafter whose costs are those of rounds above temperature 0."""
READ_ONCE = {"reuse_prefix": True}
"""Where nothing is timed, a prompt is read once for all policies."""
Cell = tuple[str, str, float]
"""Drafter, set of prompts and temperature."""


@dataclass(frozen=True)
class Place:
    """Costs to decode at: of a size of the target on this machine, or of another machine.

    Attributes:
        name: the name of the place.
        drafters: names of those to measure.
        load: makes the decoder with a drafter whose costs are measured here and which is timed; None for another
            machine.
        costs: those of another machine, by drafter.
    """

    name: str
    drafters: Sequence[str]
    load: Callable[[str], Decoder] | None = None
    costs: Mapping[str, CostCurve] = field(default_factory=dict)


@dataclass(frozen=True)
class CountedPolicy:
    """What a policy's rounds amount to by the cost curve of the place.

    Attributes:
        tau: tokens per round.
        delta: draft passes per round.
        nodes: scored per round.
        levels: drafted per round.
        terms: terms of the law.
        speedup: R by them.
    """

    tau: float
    delta: float
    nodes: float
    levels: float
    terms: RoundTerms
    speedup: float

    @classmethod
    def of(cls, counts: RoundCounts, costs: CostCurve) -> "CountedPolicy":
        """The figures of counted rounds."""
        terms = counts.terms(costs)
        return cls(counts.tau, counts.delta, counts.nodes, counts.levels, terms, terms.speedup)


@dataclass(frozen=True)
class AutoRow:
    """One drafter on one set of prompts at one temperature and place.

    Attributes:
        place: the place whose costs are weighed.
        drafter: its name.
        prompts: name of the set.
        temperature: the temperature the target samples at.
        count: prompts of the set.
        counted: what was counted, by specification: every policy of the grid and `auto`.
        timed: what was timed, None where nothing was.
    """

    place: str
    drafter: str
    prompts: str
    temperature: float
    count: int
    counted: dict[str, CountedPolicy]
    timed: TimedRow | None = None

    @property
    def name(self) -> str:
        """The row in words."""
        return f"{self.drafter}, {self.prompts}, T = {self.temperature:g}, {self.place}"

    @cached_property
    def best(self) -> str:
        """The best policy by the counts, `auto` aside."""
        return max((spec for spec in self.counted if spec != AUTO), key=lambda spec: self.counted[spec].speedup)

    @property
    def over_best(self) -> float:
        """R of `auto` in that of the best policy, counted."""
        return self.counted[AUTO].speedup / self.counted[self.best].speedup

    @property
    def shortfall(self) -> str:
        """The term that explains most of why the best policy is better, counted."""
        return self.counted[AUTO].terms.shortfall(self.counted[self.best].terms)


@dataclass(frozen=True)
class AutoBench:
    """All finished rows.

    Attributes:
        rows: rows as they were run.
        costs: the costs, by place and drafter, `SAMPLED` behind its name where they are those above temperature 0.
    """

    rows: list[AutoRow]
    costs: dict[str, dict[str, CostCurve]]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON; the curves are such as `read_cost_curves` reads."""
        rows = [{**asdict(row), "best": row.best, "over_best": row.over_best} for row in self.rows]
        curves = {place: {name: curve.to_json() for name, curve in own.items()} for place, own in self.costs.items()}
        return {"rows": rows, "costs": curves}


def bench_auto(
    decoder: Decoder,
    drafters: Mapping[str, Drafter],
    places: Sequence[Place],
    sets: Mapping[str, Sequence[Sequence[int]]],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    policies: Sequence[str] = GRID,
    timed: bool = True,
    repeats: int = 2,
    seed: int = 0,
    max_new_tokens: int = 64,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> AutoBench:
    """Count and time `auto` and other policies.

    In every row `auto` begins without anything learned, and learns from text to text as it does for a user.

    Args:
        decoder: the decoder, for the target whose rounds are counted; an inflated one writes the same texts.
        drafters: the drafters, by name.
        places: places whose costs are weighed.
        sets: token ids of prompts by the name of their set.
        temperatures: the temperatures the target samples at.
        policies: specifications of those that `auto` is compared with, counted; TALON's and DynaTree's defaults are
            added where they lack.
        timed: whether to time anything.
        repeats: repeats of what is timed.
        seed: the random seed.
        max_new_tokens: per prompt.
        progress: called after everything that was run with what it was.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: there is no drafter, place, set or temperature.
    """
    check_given(drafter=drafters, place=places, prompt=sets, temperature=temperatures)
    store = store or RunStore()
    runner = _Runner(
        decoder=decoder,
        drafters=drafters,
        sets=sets,
        policies=parse_policies([*policies, *DEFAULTS]),
        repeats=repeats if timed else 0,
        options={"seed": seed, "max_new_tokens": max_new_tokens},
        progress=progress,
        store=store,
    )
    rows: list[AutoRow] = []
    costs: dict[str, dict[str, CostCurve]] = {}
    with store.interruptible():
        for place in places:
            for name in place.drafters:
                load = cache(partial(place.load, name)) if place.load else None
                for temperature in temperatures:
                    greedy = temperature == 0
                    curve = runner.costs(place.name, name, load, greedy=greedy) if load else place.costs[name]
                    costs.setdefault(place.name, {})[name if greedy else f"{name}{SAMPLED}"] = curve
                    rows += [runner.row(place.name, name, group, temperature, curve, load) for group in sets]
    if not rows:
        raise NothingFinished(store)
    return AutoBench(rows, costs)


def encode_sets(
    decoder: Decoder, sets: Mapping[str, Sequence[Example]], form: PromptForm, max_new_tokens: int
) -> dict[str, list[list[int]]]:
    """The token ids of the prompts of each set, with room for so many new tokens; those too short are left out.

    Raises:
        InputError: no prompt of a set is long enough.
    """
    encoded = {name: encode_prompts(decoder, examples, form, max_new_tokens) for name, examples in sets.items()}
    found = {name: [ids for ids in each if len(ids) >= LEAST_PROMPT] for name, each in encoded.items()}
    if short := next((name for name, each in found.items() if not each), None):
        longest = max(map(len, encoded[short]), default=0)
        raise InputError(
            f"{short}: no prompt is long enough; {LEAST_PROMPT} tokens are needed, the longest has {longest}"
        )
    return found


@dataclass(frozen=True)
class _Runner:
    """Runs the cells of the rows; attributes as for `bench_auto`, `repeats` is 0 where nothing is timed."""

    decoder: Decoder
    drafters: Mapping[str, Drafter]
    sets: Mapping[str, Sequence[Sequence[int]]]
    policies: Mapping[str, TreePolicy]
    repeats: int
    options: Mapping[str, Any]
    progress: Callable[[str], None]
    store: RunStore
    grids: dict[Cell, dict[str, RoundCounts]] = field(default_factory=dict)

    def costs(self, place: str, drafter: str, load: Callable[[], Decoder], *, greedy: bool) -> CostCurve:
        """The costs of greedy or other texts measured at a place."""
        key = (place, drafter, "costs" if greedy else "sampled costs")
        kept = self.store.run(key, dict[str, Any], lambda: load().costs(greedy=greedy).to_json())
        return parse_cost_curve(kept)

    def row(
        self,
        place: str,
        drafter: str,
        group: str,
        temperature: float,
        costs: CostCurve,
        load: Callable[[], Decoder] | None,
    ) -> AutoRow:
        """One row."""
        cell = drafter, group, temperature
        auto = self._run((place, *cell, AUTO), RoundCounts, partial(self._count_auto, cell, costs))
        counts = {AUTO: auto} | self._grid(cell)
        counted = {spec: CountedPolicy.of(each, costs) for spec, each in counts.items()}
        row = AutoRow(place, *cell, len(self.sets[group]), counted)
        if not (load and self.repeats):
            return row
        work = partial(self._time, load, cell, costs, row.best)
        return replace(row, timed=self._run((place, *cell, "timed"), TimedRow, work))

    def _grid(self, cell: Cell) -> dict[str, RoundCounts]:
        """What the policies do, which is the same at every place."""
        if cell not in self.grids:
            self.grids[cell] = {
                spec: self._run((*cell, spec), RoundCounts, partial(self._count_policy, cell, policy))
                for spec, policy in self.policies.items()
            }
        return self.grids[cell]

    def _run(self, key: tuple[str | float, ...], kind: Any, work: Callable[[], Any]) -> Any:
        result = self.store.run(key, kind, work)
        self.progress(str(key[-1]))
        return result

    def _count_policy(self, cell: Cell, policy: TreePolicy) -> RoundCounts:
        return self._count(way(self._decoder(cell).with_policy(policy), self._options(cell) | READ_ONCE), cell)

    def _count_auto(self, cell: Cell, costs: CostCurve) -> RoundCounts:
        first = self.sets[cell[1]][0]
        return self._count(learning_way(self._decoder(cell), costs, first, self._options(cell) | READ_ONCE), cell)

    def _count(self, generate: Callable, cell: Cell) -> RoundCounts:
        return RoundCounts.of(turn for prompt in self.sets[cell[1]] for turn in generate(prompt).metrics.rounds)

    def _time(self, load: Callable[[], Decoder], cell: Cell, costs: CostCurve, best: str) -> TimedRow:
        options = self._options(cell)
        return time_row(load(), costs, self.sets[cell[1]], best, repeats=self.repeats, options=options)

    def _decoder(self, cell: Cell) -> Decoder:
        return self.decoder.with_drafter(self.drafters[cell[0]])

    def _options(self, cell: Cell) -> dict[str, Any]:
        return {**self.options, "temperature": cell[2]}
