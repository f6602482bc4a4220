"""One prompt three ways: speculatively, plainly by the same engine, and by transformers' own `generate`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import random_seed
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.generation import Generation
from drafttree.measure.driver import by_turns
from drafttree.measure.law import LimitingFactor, SpeedupLaw, doubt, law_terms
from drafttree.measure.reference import Difference, ReferenceRun, find_difference, transformers_generate
from drafttree.models import TargetModel

WARM_UP = 16


@dataclass(frozen=True)
class Comparison:
    """The median runs of one prompt, and whether their texts agree.

    Attributes:
        speculative: the run of the decoder with its drafter.
        plain: the run of the same engine without speculation.
        transformers: the run by transformers; None where the target is none of its models, or has a
            `lossy_window`.
        from_plain: where the speculative text departs from the plain one; None if nowhere or not seeded.
        from_transformers: where it departs from transformers' greedy text; None if nowhere or not
            greedy.
        greedy: whether transformers' text can be compared at all.
        seeded: whether the text is a function of prompt and seed, so that the plain one can be compared.
    """

    speculative: Generation
    plain: Generation
    transformers: ReferenceRun | None
    from_plain: Difference | None
    from_transformers: Difference | None
    greedy: bool
    seeded: bool

    @property
    def law(self) -> SpeedupLaw:
        """The terms of the law, and R as measured."""
        return SpeedupLaw.of(self.speculative.metrics, self.plain.metrics)

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens per second of each way, prompts included."""
        runs = {
            "speculative": self.speculative.metrics.tokens_per_second,
            "plain": self.plain.metrics.tokens_per_second,
        }
        return runs | ({"transformers": self.transformers.tokens_per_second} if self.transformers else {})

    @property
    def doubt(self) -> str | None:
        """Why the times tell no ratio; None where they do."""
        return doubt(self.speculative.metrics, self.plain.metrics)

    @property
    def verdict(self) -> str:
        """In one sentence, how much faster and why, or why that cannot be told."""
        if self.doubt:
            return self.doubt
        law, nodes = self.law, self.speculative.metrics.mean_nodes
        how = f"{law.measured:.2f} times as fast as plain decoding"
        if "transformers" in self.speeds:
            how += f" and {self.speeds['speculative'] / self.speeds['transformers']:.2f} times transformers"
        return (
            f"{how}: each target pass yields {law.tau:.2f} tokens; scoring {nodes:.1f} nodes at once costs "
            f"{law.v:.2f} plain passes, drafting them {law.c * law.delta:.2f} and everything else {law.h:.2f}."
        )

    @property
    def limit(self) -> LimitingFactor:
        """What limits the gain."""
        return LimitingFactor.of(self.law, self.speculative.metrics)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON; no ratio where the times tell none."""
        return {
            "tokens_per_second": self.speeds,
            "law": law_terms(self.law, self.doubt),
            "seeded": self.seeded,
            "from_plain": asdict(self.from_plain) if self.from_plain else None,
            "from_transformers": asdict(self.from_transformers) if self.from_transformers else None,
            "verdict": self.verdict,
            "limit": None if self.doubt else asdict(self.limit),
        }


def compare(decoder: Decoder, prompt: Prompt, *, repeats: int = 3, **options) -> Comparison:
    """Run a prompt speculatively, plainly and with transformers, interleaved, after a warm-up.

    Args:
        decoder: a decoder with a drafter.
        prompt: text or token ids.
        repeats: the number of runs of each way; the median by speed is reported.
        **options: options of `Decoder.new_request`; all ways get the same seed.

    Raises:
        ConfigError: the decoder has no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("without a drafter all decoding is plain and there is nothing to compare; name a drafter")
    if options.get("seed") is None:
        options["seed"] = random_seed()
    request = decoder.new_request(prompt, **options)
    length = request.remaining
    ways = _ways(decoder, request.tokens, options)
    for way in ways.values():
        way(min(max(WARM_UP, options.get("min_new_tokens") or 0), length))
    runs: dict[str, list] = {name: [] for name in ways}
    for _, name in by_turns([*ways], max(repeats, 1)):
        runs[name].append(ways[name](length))
    return _judge(decoder, {name: _median(own) for name, own in runs.items()}, prompt, options)


def _ways(decoder: Decoder, prompt: list[int], options: dict) -> dict[str, Callable]:
    rest = {key: value for key, value in options.items() if key != "max_new_tokens"}

    def by(engine: Decoder) -> Callable[[int], Generation]:
        return lambda length: engine.generate(prompt, max_new_tokens=length, **rest)

    ways: dict[str, Callable] = {"speculative": by(decoder), "plain": by(decoder.plain())}
    if isinstance(decoder.target, TargetModel) and not decoder.target.lossy_window:
        ways["transformers"] = lambda length: transformers_generate(decoder, prompt, max_new_tokens=length, **rest)
    return ways


def _judge(decoder: Decoder, runs: dict, prompt: Prompt, options: dict) -> Comparison:
    request = decoder.new_request(prompt, **options)
    ids, sampling = request.tokens, request.verifier.sampling
    seeded = compatibility.is_text_of_seed(type(request.verifier))
    got, plain, other = runs["speculative"].tokens, runs["plain"].tokens, runs.get("transformers")

    def difference(expected: list[int], comparable: bool) -> Difference | None:
        return find_difference(decoder, ids, expected, got, **options) if other and comparable else None

    return Comparison(
        speculative=runs["speculative"],
        plain=runs["plain"],
        transformers=other,
        from_plain=difference(plain, seeded),
        from_transformers=difference(other.tokens if other else [], sampling.greedy),
        greedy=sampling.greedy,
        seeded=seeded,
    )


def _median(runs: list):
    def speed(run: Generation | ReferenceRun) -> float:
        return (run.metrics if isinstance(run, Generation) else run).tokens_per_second

    return sorted(runs, key=speed)[len(runs) // 2]
