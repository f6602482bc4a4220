"""The data model of a paper: its methods, prompt sets, tables, figures, published numbers and claims.

A paper is a TOML file, in the folder `papers` or from the user; `docs/replay.md` says how to add one.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import isnan
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

AUTOREGRESSIVE = "AR"
"""The method that every paper compares with: plain decoding."""
CONTEXTS = 16
"""Default number of contexts after each prompt on which verifiers are compared."""
AVERAGE, UNTOLD = "average", "untold"
"""Columns of published numbers that are not a set: the mean over sets, and numbers whose set is not named."""
AxisValue = float | int | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Place = tuple[str | int, ...]
"""The path of a value in a TOML file: names of keys, and indices of list elements."""
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
"""The name of every metric, with its unit."""
GAINS: Mapping[Metric, Metric] = {"gain": "tau", "speed_gain": "tokens_per_second", "memory_gain": "peak_memory"}
"""The metric behind each gain."""
BASES: Mapping[Metric, Metric] = {**GAINS, "speedup": "tokens_per_second"}
"""The metric of texts behind each metric that is a ratio of two methods."""
TIMED: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot", "rounds_per_second", "overhead_share"})
"""Metrics that need measured times."""
COUNTED: frozenset[Metric] = frozenset({"tokens_per_second", "tpot"})
"""Timed metrics that can also be computed from counts and pass costs."""
Average = Literal["texts", "total"]
"""How a metric is averaged: the mean over texts, or the sum of numerators over the sum of denominators."""
OF_TEXTS: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot"})
"""Metrics that are averaged over texts unless a paper says otherwise; the others are totals."""


class Mistake(ValueError):
    """A mistake in a file, with its path from the table that is checked."""

    def __init__(self, message: str, *key_path: str | int) -> None:
        super().__init__(message)
        self.key_path = key_path


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperMethod(Strict):
    """A method of decoding, as in a row of a table or a line of a figure.

    Attributes:
        role: the drafter's name in the paper's `roles`; None for plain decoding.
        policy: the tree policy; `{axis}` in it is replaced by the value of the result's axis.
        policies: other policies, by the prompt set or axis value that they are for.
        verifier: name of the verifier above temperature 0; None for the one that keeps a seed's text.
        assisted: whether it is transformers' assisted generation at its defaults; the policy is then unused.
        lossy_window: number of latest tokens that the target attends to besides the first four; None for all tokens.
    """

    role: str | None = None
    policy: str = "chain"
    policies: dict[str, str] = {}
    verifier: str | None = None
    assisted: bool = False
    lossy_window: int | None = None

    def policy_at(self, prompt_set: str, value: AxisValue | None = None) -> str:
        """The policy for a prompt set and axis value, with the value filled in."""
        policies = (self.policies[key] for key in (prompt_set, str(value)) if key in self.policies)
        return next(policies, self.policy).replace("{axis}", str(value))


class Role(Strict):
    """A drafter in a paper's experiments.

    Attributes:
        paper: the paper's checkpoints.
        stand_in: the drafter that replaces it on the embedded target; None without one.
    """

    paper: str
    stand_in: str | None = None


class Reference(Strict):
    """A row that a drafter is fitted to, so that it has the row's published tokens per round.

    Attributes:
        method: method of the row.
        result: table of the row.
        tau: its tokens per round; None if the table prints them.
    """

    method: str
    result: str
    tau: float | None = Field(None, gt=1, allow_inf_nan=False)


class RoundCost(Strict):
    """The cost of a round of chains in a row of a paper: tau / R, in units of a target pass over one token.

    Attributes:
        nodes: number of nodes of the target pass, one more than the draft passes.
        cost: the cost.
        error: its standard error, from the ± of the row.
    """

    nodes: int = Field(ge=2)
    cost: Positive
    error: NotNegative


class Model(Strict):
    """A target of a paper, with the costs of passes in its experiments, in units of a target pass over one token.

    Attributes:
        draft_pass: c, the cost of a draft pass, by role.
        target_pass: v(n), the cost of a target pass, by number of nodes; linear between them, and 1 for one node.
        round: h, the cost of a round outside its passes.
        source: how the costs follow from the paper's numbers.
        line: line of these numbers in the paper's text.
        rounds: rows of chains that c and h follow from, if errors are printed. Two rows give both; one row gives c if h
            is from another paper.
        round_error: standard error of h if it is from another paper.
        samples: number of texts behind the errors of a row.
        references: rows that drafters are fitted to, for greedy and for sampled texts.
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
        file: name of the file in the folder of `--data`, without its ending.
        category: beginning of the category of the file's lines that belong to the set; None for all lines.
        stand_in: whether the paper's own prompts are others of the same kind.
        withheld: why none of these prompts ship, such as their licence; None if some do.
        part: which tasks of the set ship; None for all.
    """

    file: str
    category: str | None = None
    stand_in: bool = False
    withheld: str | None = None
    part: str | None = None


class Axis(Strict):
    """What a figure or a sweep varies.

    Attributes:
        name: name to display, such as "budget N".
        values: the values in order, as in policies, or as temperatures or lengths.
        grid: values by parameter, instead of `values`. These become all combinations, such as "depth=4,breadth=2"; the
            last parameter varies fastest.
        varies: "policy" fills `{axis}` in policies, and a name of an option sets it. "rows" describes synthetic logits
            by vocabulary and exponent of Zipf's law, such as "vocab=32000,alpha=0.7".
        ours: whether the values are ours, since the paper does not give its own.
    """

    name: str
    values: list[AxisValue] = Field(min_length=1)
    grid: dict[str, list[AxisValue]] = {}
    varies: Literal["policy", "temperature", "max_new_tokens", "prompt_tokens", "rows"] = "policy"
    ours: bool = False

    @model_validator(mode="before")
    @classmethod
    def _combine(cls, axis: Any) -> Any:
        if not isinstance(axis, dict) or "grid" not in axis or "values" in axis:
            return axis
        points = product(*([f"{name}={value}" for value in values] for name, values in axis["grid"].items()))
        return {**axis, "values": [",".join(point) for point in points]}

    @model_validator(mode="after")
    def _can_be_set(self) -> "Axis":
        for value in self.values:
            if self.varies == "temperature" and not (isinstance(value, float | int) and value >= 0):
                raise Mistake(f"{value!r} is not a temperature; give numbers of 0 or more", "values")
            if self.varies in ("max_new_tokens", "prompt_tokens") and not (isinstance(value, int) and value >= 1):
                raise Mistake(f"{value!r} is not a length in tokens; give whole numbers of 1 or more", "values")
        return self


class Published(Strict):
    """A block of published numbers, as the paper prints it or as its equations give it.

    Attributes:
        line: line of the block's beginning in the paper's text.
        metric: metric of the numbers; shares are between 0 and 1, gains in per cent.
        columns: names of sets, `AVERAGE`, `UNTOLD`, or values of the axis.
        rows: by method, a number per column; "nan" for a missing one.
        errors: the ± of the numbers, in the same form.
        model: the paper's target.
        temperature: sampling temperature.
        set: the prompt set, if columns are values of the axis.
        equation: the paper's equation by which the numbers follow from printed ones; None for printed numbers.
    """

    line: int
    metric: Metric
    columns: list[AxisValue]
    rows: dict[str, list[float]]
    errors: dict[str, list[float]] = {}
    model: str
    temperature: NotNegative = 0.0
    set: str | None = None
    equation: int | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Published":
        for name, row in (*self.rows.items(), *self.errors.items()):
            _among(name, self.rows, "errors", name)
            if len(row) != len(self.columns):
                raise ValueError(f"the row of {name} has {len(row)} numbers for {len(self.columns)} columns")
        return self


class _Claim(Strict):
    """A claim of a paper.

    Attributes:
        id: short name.
        text: the claim in our words.
        line: its line in the paper's text.
        main: whether it is one of the paper's main claims.
    """

    id: str
    text: str
    line: int
    main: bool = False

    @property
    def names(self) -> list[str]:
        """The methods that it needs, each as `method` or `method@value`."""
        return []


class _Measurable(_Claim):
    """A claim that is judged.

    Attributes:
        metric: metric that is compared.
        temperature: sampling temperature; None for all temperatures of the result.
    """

    metric: Metric
    temperature: NotNegative | None = None


class Comparison(_Measurable):
    """A claim that a metric of one method is greater or less than that of others, over all sets of the result.

    Attributes:
        left: a method, or `method@value` for a value of the axis or a prompt set.
        right: one method or several; the claim must hold for each.
        right_metric: metric of the right side; None for the same.
        sign: whether the left side is greater or less.
        hangs_on: a number that the paper leaves open and the claim depends on, with the value that is used here.
        others: by other value of that number, the method that replaces `left`.
    """

    kind: Literal["comparison"] = "comparison"
    left: str
    right: Annotated[list[str], BeforeValidator(lambda names: [names] if isinstance(names, str) else names)]
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

    It cannot be a main claim. Those are corrected for their number, which takes a p-value.
    """

    kind: Literal["order"]
    methods: list[str]
    main: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def names(self) -> list[str]:
        return self.methods


class Trend(_Measurable):
    """A claim that a metric of a method rises or falls along the axis, from its first value to its last.

    With `over`, the ratio of `method` to this second method rises or falls.
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
"""A claim of one of five kinds; without a `kind`, it is a comparison."""
JudgedClaim = Comparison | Bound | Order | Trend
"""A claim that can be judged."""


class Result(Strict):
    """A table or figure.

    Attributes:
        title: short title in our words.
        line: its line in the paper's text.
        kind: how it is replayed. "decoding" runs methods on prompts, "acceptance" compares verifiers on the same
            contexts, "memory" runs each method in a process of its own, "expansion" times growth on synthetic logits.
        figure: kind of figure; None for a table.
        methods: names of the paper's methods, as rows or lines.
        sets: names of the paper's prompt sets.
        temperatures: sampling temperatures.
        axis: what varies; None for nothing.
        second_axis: what a sweep also varies, in all combinations; None for nothing. Published numbers and claims are
            about the result's own setting.
        metrics: metrics in the order of display.
        over: by method, the method that its gains are measured against; plain decoding by default.
        max_new_tokens: new tokens in the paper.
        prompt_tokens: maximum length of prompts in the paper, for all sets or by set; None if it is not given.
        published: blocks of published numbers.
        claims: the paper's claims.
        not_comparable: what of it means nothing here, and why; None if everything is meaningful.
        unavailable: why it cannot be replayed; None if it can.
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
        """The maximum length of a set's prompts in tokens; None if the paper does not give it."""
        return self.prompt_tokens.get(prompt_set) if isinstance(self.prompt_tokens, dict) else self.prompt_tokens

    @property
    def axes(self) -> list[Axis]:
        """The axes: none, one or two."""
        return [axis for axis in (self.axis, self.second_axis) if axis]

    @property
    def values(self) -> list[AxisValue]:
        """The values of all axes."""
        return [value for axis in self.axes for value in axis.values]

    def printed_taus(self, model: str, method: str) -> dict[str, float]:
        """The published tokens per round of a method on a target, by column."""
        for block in self.published:
            if block.metric == "tau" and block.model == model and method in block.rows:
                row = zip(map(str, block.columns), block.rows[method], strict=True)
                return {column: number for column, number in row if not isnan(number)}
        return {}

    def is_judged(self, claim: Claim, *, timed: bool) -> bool:
        """Whether a claim can be judged by time, or by counts at given costs; claims about speed can by both."""
        if isinstance(claim, NotComparable) or self.unavailable:
            return False
        base = BASES.get(claim.metric, claim.metric)
        needs_clock = self.kind in ("memory", "expansion") or (self.kind == "decoding" and base in TIMED)
        return needs_clock if timed else not needs_clock or (self.kind == "decoding" and base in COUNTED)

    def check_names(self) -> None:
        """Check that claims and columns name methods, values and sets of the result.

        Raises:
            Mistake: a name is not among them.
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

    def _check_claim(self, claim: Claim, axis_points: Sequence[str], number: int) -> None:
        key_path = ("claims", number)
        if claim.id in [predecessor.id for predecessor in self.claims[:number]]:
            raise Mistake(f"{claim.id!r} is the id of an earlier claim, too; rename one", *key_path, "id")
        for name in claim.names:
            method, separator, value = name.partition("@")
            _among(method, self._decoded, *key_path)
            _among(value if separator else None, axis_points, *key_path)
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
        source: where it is published.
        ignore_eos: whether its texts continue past EOS tokens, so that all have the same length.
        averages: by metric, how it averages, if not as `OF_TEXTS` says.
        models: targets by name; the first is compared by default.
        roles: drafters by the paper's name.
        methods: methods by name; plain decoding is always among them, as `AUTOREGRESSIVE`.
        sets: prompt sets by name.
        results: tables and figures by name, such as "1", "fig3", or "fig3a" for a part that is run apart.
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
        """Check that every name that is used exists."""
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
                raise Mistake(str(error), "results", name, *error.key_path) from None
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


def _among(name: object, names: Collection[object], *key_path: str | int) -> None:
    if name is not None and name not in names:
        raise Mistake(f"{name!r} is not one of {', '.join(map(str, names))}", *key_path)
