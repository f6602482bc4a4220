"""What a paper publishes, as data: its methods, sets of prompts, tables and figures, values and claims.

A paper is a TOML file, of the folder `papers` or the user's own; `docs/replay.md` says how to add one.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import isnan
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

AUTOREGRESSIVE = "AR"
"""The method that every paper compares with: plain decoding."""
CONTEXTS = 16
"""Contexts after each prompt on which verifiers are compared, where no other number is asked for."""
AVERAGE, UNTOLD = "average", "untold"
"""Columns of published values that are no set: the mean over sets, and where a paper does not say of which set."""
AxisValue = float | int | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Place = tuple[str | int, ...]
"""The way to a value of a file: names of keys, and numbers of elements of lists."""
Metric = Literal[
    "speedup",
    "tokens_per_second",
    "tau",
    "delta",
    "accept",
    "node_acceptance",
    "path",
    "rounds",
    "ttft",
    "tpot",
    "peak_memory",
    "drafted_share",
    "gain",
    "speed_gain",
    "memory_gain",
    "expansion",
    "oracle_gap",
    "first_ranks_at_level_1",
    "first_ranks_below",
    "rounds_per_second",
    "overhead_share",
]
UNITS: Mapping[str, str] = {
    "speedup": "speed-up over plain decoding",
    "tokens_per_second": "tokens per second",
    "tau": "tau, tokens per target pass",  # the bonus token included
    "delta": "delta, draft passes per round",
    "accept": "accepted per drafted level",
    "node_acceptance": "accepted per drafted node",
    "path": "accepted tokens per round",
    "rounds": "target passes per text",
    "ttft": "time to first token, ms",
    "tpot": "time per output token, ms",  # after the first
    "peak_memory": "peak memory, MiB",
    "drafted_share": "drafted share of the text",
    "gain": "gain in tau, %",  # over another method's
    "speed_gain": "gain in speed, %",
    "memory_gain": "gain in peak memory, %",
    "expansion": "growth of a tree, ms",  # without draft passes
    "oracle_gap": "gap between tokens and draft passes of a round",
    "first_ranks_at_level_1": "first two ranks of those accepted on level 1",  # their parent's likeliest tokens
    "first_ranks_below": "first two ranks of those accepted below",
    "rounds_per_second": "rounds per second",
    "overhead_share": "share of time outside both models",
}
"""Every metric in words."""
GAINS: Mapping[Metric, Metric] = {"gain": "tau", "speed_gain": "tokens_per_second", "memory_gain": "peak_memory"}
"""The metric of which each gain is."""
BASES: Mapping[Metric, Metric] = {**GAINS, "speedup": "tokens_per_second"}
"""The metric of texts of which a ratio of two methods is made."""
TIMED: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot", "rounds_per_second", "overhead_share"})
"""Metrics that need a clock."""
COUNTED: frozenset[Metric] = frozenset({"tokens_per_second", "tpot"})
"""Timed metrics that follow from counts where the costs of passes are known."""
Average = Literal["texts", "total"]
"""The mean of a figure of every text, or one figure of all texts together: the sum above over the sum below."""
OF_TEXTS: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot"})
"""Metrics that papers average over texts unless they say otherwise; of the others they tell the total."""


class Mistake(ValueError):
    """What is wrong in a file, and the way to it from the table that is checked."""

    def __init__(self, told: str, *place: str | int) -> None:
        super().__init__(told)
        self.place = place


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperMethod(Strict):
    """A way of decoding, as one row or line of a table.

    Attributes:
        role: who drafts, a name of the paper's `roles`; None for plain decoding.
        policy: its specification; `{axis}` in it stands for the value of the result's axis.
        policies: other specifications, by the set of prompts or the value of the axis that they are for.
        verifier: name, above temperature 0; None for the one that keeps a seed's text.
        assisted: whether it is assisted generation by transformers at its defaults, instead of a policy.
        lossy_window: latest tokens that the target attends to, beside the first four; None for all.
    """

    role: str | None = None
    policy: str = "chain"
    policies: dict[str, str] = {}
    verifier: str | None = None
    assisted: bool = False
    lossy_window: int | None = None

    def policy_at(self, prompt_set: str, value: AxisValue | None = None) -> str:
        """The specification on a set of prompts and at a value of the axis, which is filled in."""
        policies = (self.policies[key] for key in (prompt_set, str(value)) if key in self.policies)
        return next(policies, self.policy).replace("{axis}", str(value))


class Role(Strict):
    """Who drafts in a paper's experiments.

    Attributes:
        paper: checkpoints in the paper.
        stand_in: the drafter on the embedded target; None where there is none.
    """

    paper: str
    stand_in: str | None = None


class Reference(Strict):
    """A row whose published tokens per round a drafter is fitted to: it is then as near to the target as the paper's.

    Attributes:
        method: the row.
        result: the table that has it.
        tau: its tokens per round where that table does not print them; else those of the table.
    """

    method: str
    result: str
    tau: float | None = Field(None, gt=1, allow_inf_nan=False)


class RoundCost(Strict):
    """What a round of chains costs by a row of a paper, tau / R in passes of the target over one token.

    Attributes:
        nodes: nodes of the target pass, one more than the draft passes.
        cost: the cost.
        error: its standard error, from what the paper prints behind the ± of the row.
    """

    nodes: int = Field(ge=2)
    cost: Positive
    error: NotNegative


class Model(Strict):
    """A target of a paper, with what passes cost in its experiments, in passes of the target over one token.

    Attributes:
        draft_pass: c, the cost of a draft pass, by role.
        target_pass: v(n), the cost of a target pass over so many nodes, linear between them; the first is of 1.
        round: h, the cost of a round beside its passes.
        source: how the paper's numbers tell it.
        line: the line of the paper's text that has the numbers.
        rounds: the rows of chains that c and h follow from, if their errors are printed: two rows give both, one row
            gives c where h is another paper's.
        round_error: the standard error of h, where it is another paper's.
        samples: texts of a row, on which its errors rest.
        references: rows to fit a drafter to, of greedy and of sampled texts.
    """

    draft_pass: dict[str, NotNegative]
    target_pass: dict[Count, Positive] = {1: 1.0}
    round: NotNegative = 0.0
    source: str
    line: int
    rounds: list[RoundCost] = Field([], max_length=2)
    round_error: NotNegative = 0.0
    samples: int = Field(2, ge=2)
    references: list[Reference] = []

    @model_validator(mode="after")
    def _tells_costs(self) -> "Model":
        if 1 not in self.target_pass:
            raise Mistake("the cost of a pass over one token is missing; add 1 = 1.0", "target_pass")
        if len({row.nodes for row in self.rounds}) < len(self.rounds):
            raise Mistake(f"two rows of {self.rounds[0].nodes} nodes do not tell c from h; leave one out", "rounds")
        return self


class PromptSet(Strict):
    """A set of prompts.

    Attributes:
        file: the file in the folder of `--data`, without ending.
        category: takes the file's lines whose category begins with it; None for all.
        stand_in: whether the paper's own prompts are others of the same kind.
        withheld: why none of these prompts ship, such as their licence; None where some do.
        part: the part of the set that ships, where what ships is of some of its tasks alone; None else.
    """

    file: str
    category: str | None = None
    stand_in: bool = False
    withheld: str | None = None
    part: str | None = None


class Axis(Strict):
    """What a figure or a sweep varies.

    Attributes:
        name: the name for people: "budget N".
        values: the values in order, as specifications, temperatures or lengths have them.
        grid: parameters with their values, instead of `values`, which are then all combinations, the last parameter
            running fastest: "depth=4,breadth=2".
        varies: "policy" fills `{axis}` in specifications, the others set the option of that name; "rows" are synthetic,
            with a vocabulary and an exponent of Zipf's law: "vocab=32000,alpha=0.7".
        ours: whether the paper does not tell its values, so that these are ours.
    """

    name: str
    values: list[AxisValue] = Field(min_length=1)
    grid: dict[str, list[AxisValue]] = {}
    varies: Literal["policy", "temperature", "max_new_tokens", "prompt_tokens", "rows"] = "policy"
    ours: bool = False

    @model_validator(mode="before")
    @classmethod
    def _combine(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "grid" not in given or "values" in given:
            return given
        points = product(*([f"{name}={value}" for value in values] for name, values in given["grid"].items()))
        return {**given, "values": [",".join(point) for point in points]}

    @model_validator(mode="after")
    def _can_be_set(self) -> "Axis":
        for value in self.values:
            if self.varies == "temperature" and not (isinstance(value, float | int) and value >= 0):
                raise Mistake(f"{value!r} is no temperature; give numbers of 0 or more", "values")
            if self.varies in ("max_new_tokens", "prompt_tokens") and not (isinstance(value, int) and value >= 1):
                raise Mistake(f"{value!r} is no length in tokens; give whole numbers of 1 or more", "values")
        return self


class Published(Strict):
    """A block of published numbers, as the paper prints it.

    Attributes:
        line: the line of the paper's text, where the block begins.
        metric: what the numbers are; shares are of 1, gains in per cent.
        columns: names of sets, `AVERAGE`, `UNTOLD`, or values of the axis.
        rows: per method, a number per column; "nan" where there is none.
        errors: what stands behind a number's ±, in the same places.
        model: the target in the paper.
        temperature: the temperature the target samples at.
        set: the set of prompts, where columns are values of the axis.
    """

    line: int
    metric: Metric
    columns: list[AxisValue]
    rows: dict[str, list[float]]
    errors: dict[str, list[float]] = {}
    model: str
    temperature: NotNegative = 0.0
    set: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Published":
        for name, row in (*self.rows.items(), *self.errors.items()):
            _among(name, self.rows, "errors", name)
            if len(row) != len(self.columns):
                raise ValueError(f"the row of {name} has {len(row)} numbers for {len(self.columns)} columns")
        return self


class _Claim(Strict):
    """What a paper says.

    Attributes:
        id: short, for a person to name it by.
        text: what the paper says, in our words.
        line: the line of the paper's text.
        main: whether it is one of the paper's main claims.
    """

    id: str
    text: str
    line: int
    main: bool = False

    @property
    def names(self) -> list[str]:
        """The methods that are measured for it, each as `method` or `method@value`."""
        return []


class _Measurable(_Claim):
    """A claim that is judged.

    Attributes:
        metric: what is compared.
        temperature: None for all of the result.
    """

    metric: Metric
    temperature: NotNegative | None = None


class Comparison(_Measurable):
    """A claim that one method is ahead of another, over all sets of the result.

    Attributes:
        left: method, or `method@value` for a value of the axis or a set of prompts.
        right: one method or several; of several, the one that the left one is least ahead of counts.
        right_metric: what is taken of the right side; None for the same metric.
        sign: whether left is greater or less.
        hangs_on: a number that the paper leaves open and that decides the claim, with the value that is taken here.
        others: methods in place of the left one at other values of that number, by value.
    """

    kind: Literal["comparison"] = "comparison"
    left: str
    right: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
    right_metric: Metric | None = None
    sign: Literal[">", "<"]
    hangs_on: str | None = None
    others: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return [self.left, *self.right, *self.others.values()]


class Bound(_Measurable):
    """A claim that a metric of a method, or its ratio to that of `over`, is above or below a number."""

    kind: Literal["bound"]
    method: str
    over: str | None = None
    sign: Literal[">", "<"]
    bound: float = Field(gt=0)

    @property
    def names(self) -> list[str]:
        return [self.method, self.over] if self.over else [self.method]


class Order(_Measurable):
    """A claim that methods come in an order, the highest first; it is judged by Kendall's tau.

    It cannot be a main claim: these are corrected for their number, which takes a p-value.
    """

    kind: Literal["order"]
    methods: list[str]
    main: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def names(self) -> list[str]:
        return self.methods


class Trend(_Measurable):
    """A claim that a metric of a method rises or falls along the axis, from its first value to its last.

    With `over`, a second method, it is the ratio of `method` to that one which rises or falls.
    """

    kind: Literal["trend"]
    method: str
    over: str | None = None
    sign: Literal[">", "<"]

    @property
    def names(self) -> list[str]:
        return [self.method, self.over] if self.over else [self.method]


class NotComparable(_Claim):
    """A claim that cannot be judged here, and why."""

    kind: Literal["not_comparable"]
    reason: str


Claim = Annotated[
    Annotated[Comparison, Tag("comparison")]
    | Annotated[Bound, Tag("bound")]
    | Annotated[Order, Tag("order")]
    | Annotated[Trend, Tag("trend")]
    | Annotated[NotComparable, Tag("not_comparable")],
    Discriminator(lambda claim: claim.get("kind", "comparison") if isinstance(claim, dict) else claim.kind),
]
"""One of five kinds; without a `kind` it is a comparison."""
JudgedClaim = Comparison | Bound | Order | Trend
"""One that is not `NotComparable`."""


class Result(Strict):
    """A table or figure.

    Attributes:
        title: short, in our words.
        line: the line of the paper's text.
        kind: how it is replayed: "decoding" runs methods over prompts, "acceptance" compares verifiers on the same
            contexts, "memory" runs each method in a process of its own, "expansion" times growth on synthetic rows.
        figure: how a picture of it is drawn; None for a table.
        methods: names of the paper's methods, as rows or lines.
        sets: names of the paper's sets.
        temperatures: the temperatures the target samples at.
        axis: what is varied; None for nothing.
        second_axis: what a sweep varies beside it, every value with every other; None for nothing. Published values
            and claims are of the result's own setting.
        metrics: shown, the first one first.
        over: by method, the method that its gains are over; plain decoding where none is named.
        max_new_tokens: new tokens of the paper.
        prompt_tokens: the paper's longest prompt, or that of each set; None if it is not told.
        published: values.
        claims: what the paper concludes.
        not_comparable: what of it says nothing here, and why; None if all of it does.
        unavailable: why it cannot be replayed at all; None where it can.
    """

    title: str
    line: int
    kind: Literal["decoding", "acceptance", "memory", "expansion"] = "decoding"
    figure: Literal["bars", "lines", "scatter", "heatmap", "boxes", "tokens"] | None = None
    methods: list[str] = []
    sets: list[str] = []
    temperatures: list[NotNegative] = Field([0.0], min_length=1)
    axis: Axis | None = None
    second_axis: Axis | None = None
    metrics: list[Metric] = []
    over: dict[str, str] = {}
    max_new_tokens: Count = 512
    prompt_tokens: Count | dict[str, Count] | None = None
    published: list[Published] = []
    claims: list[Claim] = []
    not_comparable: str | None = None
    unavailable: str | None = None

    def longest_prompt(self, prompt_set: str) -> int | None:
        """Tokens of a prompt of a set, at most."""
        return self.prompt_tokens.get(prompt_set) if isinstance(self.prompt_tokens, dict) else self.prompt_tokens

    @property
    def axes(self) -> list[Axis]:
        """What is varied, by one axis or two."""
        return [axis for axis in (self.axis, self.second_axis) if axis]

    @property
    def values(self) -> list[AxisValue]:
        """Of both axes."""
        return [value for axis in self.axes for value in axis.values]

    def printed_taus(self, model: str, method: str) -> dict[str, float]:
        """The tokens per round that are printed of a method on a target, by column."""
        for block in self.published:
            if block.metric == "tau" and block.model == model and method in block.rows:
                row = zip(map(str, block.columns), block.rows[method], strict=True)
                return {column: number for column, number in row if not isnan(number)}
        return {}

    def is_judged(self, claim: Claim, *, timed: bool) -> bool:
        """Whether a claim can be judged by time, or else by counts at given costs; claims on speed can by both."""
        if isinstance(claim, NotComparable) or self.unavailable:
            return False
        base = BASES.get(claim.metric, claim.metric)
        needs_clock = self.kind in ("memory", "expansion") or (self.kind == "decoding" and base in TIMED)
        return needs_clock if timed else not needs_clock or (self.kind == "decoding" and base in COUNTED)

    def check_names(self) -> None:
        """Whether claims and columns name what the result has.

        Raises:
            Mistake: one does not.
        """
        for name in (*self.over, *self.over.values()):
            _among(name, self._decoded, "over")
        column_names = [str(column) for column in (*self.sets, *self.values)]
        for number, claim in enumerate(self.claims):
            self._check_claim(claim, column_names, number)
        for number, block in enumerate(self.published):
            _among(block.set, self.sets, "published", number, "set")
            for column in block.columns:
                _among(str(column), (*column_names, AVERAGE, UNTOLD), "published", number, "columns")

    @property
    def _decoded(self) -> list[str]:
        return list(dict.fromkeys([AUTOREGRESSIVE, *self.methods]))

    def _check_claim(self, claim: Claim, places: Sequence[str], number: int) -> None:
        key_path = ("claims", number)
        if claim.id in [predecessor.id for predecessor in self.claims[:number]]:
            raise Mistake(f"{claim.id!r} is the id of an earlier claim, too; rename one", *key_path, "id")
        for name in claim.names:
            method, separator, value = name.partition("@")
            _among(method, self._decoded, *key_path)
            _among(value if separator else None, places, *key_path)
        if isinstance(claim, NotComparable):
            return
        temperatures = [value for axis in self.axes if axis.varies == "temperature" for value in axis.values]
        _among(claim.temperature, temperatures or self.temperatures, *key_path, "temperature")
        if claim.metric in GAINS:
            raise Mistake(
                f"claim {claim.id!r} is on {claim.metric}; compare {GAINS[claim.metric]}", *key_path, "metric"
            )
        if isinstance(claim, Order) and not 2 <= len(set(claim.methods)) == len(claim.methods):
            raise Mistake("an order takes two or more different methods", *key_path, "methods")
        if isinstance(claim, Trend) and not self.axis:
            raise Mistake(f"claim {claim.id!r} is a trend, but there is no axis", *key_path)


class Paper(Strict):
    """A paper.

    Attributes:
        title: the title.
        source: the source where it is published.
        ignore_eos: whether its texts go on past EOS tokens, so that all have the same length.
        averages: by metric how it averages, where it does otherwise than `OF_TEXTS` says.
        models: targets by name, the one that is compared by default first.
        roles: who drafts, by the paper's name.
        methods: the methods, by name, plain decoding under `AUTOREGRESSIVE` always among them.
        sets: sets of prompts by name.
        results: tables as "1" and figures as "fig3", by name; parts of one that differ in what is run as "fig3a".
    """

    title: str
    source: str
    ignore_eos: bool = False
    averages: dict[Metric, Average] = {}
    models: dict[str, Model] = Field(min_length=1)
    roles: dict[str, Role]
    methods: dict[str, PaperMethod]
    sets: dict[str, PromptSet]
    results: dict[str, Result]

    @model_validator(mode="after")
    def _refers_to_itself(self) -> "Paper":
        """Every name that is used is there."""
        if AUTOREGRESSIVE not in self.methods:
            message = f"plain decoding, {AUTOREGRESSIVE}, is missing among the methods; add {AUTOREGRESSIVE} = {{}}"
            raise Mistake(message, "methods")
        for name, method in self.methods.items():
            _among(method.role, self.roles, "methods", name, "role")
        for name, result in self.results.items():
            for method in result.methods:
                _among(method, self.methods, "results", name, "methods")
            for prompt_set in result.sets:
                _among(prompt_set, self.sets, "results", name, "sets")
            for number, block in enumerate(result.published):
                _among(block.model, (*self.models, UNTOLD), "results", name, "published", number, "model")
                for row in block.rows:
                    _among(row, self.methods, "results", name, "published", number, "rows", row)
            try:
                result.check_names()
            except Mistake as error:
                raise Mistake(str(error), "results", name, *error.place) from None
        for name, model in self.models.items():
            for role in model.draft_pass:
                _among(role, self.roles, "models", name, "draft_pass", role)
            for number, reference in enumerate(model.references):
                self._check_reference(reference, name, number)
        return self

    def _check_reference(self, reference: Reference, model: str, number: int) -> None:
        key_path = ("models", model, "references", number)
        _among(reference.result, self.results, *key_path)
        result = self.results[reference.result]
        _among(reference.method, [name for name in result.methods if self.methods[name].role], *key_path)
        if result.axis or result.unavailable:
            raise Mistake(f"{reference.result!r} is varied or cannot be run; a drafter is fitted to a table", *key_path)
        lacking_sets = set(result.sets) - result.printed_taus(model, reference.method).keys()
        if reference.tau is None and lacking_sets:
            message = f"{reference.result!r} prints no tokens per round of {reference.method} on {model}"
            raise Mistake(f"{message} for {', '.join(sorted(lacking_sets))}; give them as tau = 2.5", *key_path)


def _among(name: object, names: Collection[object], *place: str | int) -> None:
    if name is not None and name not in names:
        raise Mistake(f"{name!r} is none of {', '.join(map(str, names))}", *place)
