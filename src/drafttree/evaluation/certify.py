"""Certificates that every policy writes what the target writes, in two results.

The law: every text is the reference's, or differs by a tie, where logits are so close that rounding decides. At
temperature 0 the reference is transformers' own `generate`. Above it the text is a function of prompt and seed, and the
reference is plain decoding, without speculation, by the same engine.

The text: it is that of plain decoding token for token, as must be in float32 and with `exact_text`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from drafttree.core.errors import ConfigError
from drafttree.engine.compatibility import keeps_text, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.evaluation.pair_sweep import COUPLED
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.driver import Way, race
from drafttree.measure.method import PLAIN
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.reference import Difference, find_difference, transformers_generate
from drafttree.measure.run_store import RunStore


@dataclass(frozen=True)
class PolicyCertificate:
    """The result for one policy.

    Attributes:
        policy: its canonical specification, or "plain" for decoding without speculation.
        prompts: the number of texts that were compared.
        same_text: the number of texts that are plain decoding's token for token.
        differences: of the texts that are not the reference's, by the number of the prompt, where they first differ.
    """

    policy: str
    prompts: int
    same_text: int
    differences: dict[int, Difference]

    @property
    def identical(self) -> int:
        """Texts that are identical token for token."""
        return self.prompts - len(self.differences)

    @property
    def widest_tie(self) -> Difference | None:
        """The tie with the largest gap in units of rounding; None without ties."""
        ties = (difference for difference in self.differences.values() if difference.is_tie)
        return max(ties, key=lambda tie: tie.units, default=None)

    @property
    def ties(self) -> int:
        """Texts that differ by a tie."""
        return sum(difference.is_tie for difference in self.differences.values())

    @property
    def passed(self) -> bool:
        """True if every text is identical, or differs by a tie."""
        return self.ties == len(self.differences)


@dataclass(frozen=True)
class Certificate:
    """The outcome of a certification.

    Attributes:
        reference: what the texts were compared with.
        dtype: the dtype of the target.
        exact_text: whether texts must be plain decoding's, ties included.
        policies: one certificate for each policy, in the order asked for.
        truncated: the number of prompts cut to their last tokens to fit the context.
        tokens: the number of tokens that the reference generated.
        interrupted: whether Ctrl-C or the time left prompts out.
    """

    reference: str
    dtype: str
    exact_text: bool
    policies: list[PolicyCertificate]
    truncated: int
    tokens: int
    interrupted: bool

    @property
    def keeps_law(self) -> bool:
        """True if every policy's texts are the reference's, ties aside."""
        return all(policy.passed for policy in self.policies)

    @property
    def keeps_text(self) -> bool:
        """True if every text is plain decoding's."""
        return all(policy.same_text == policy.prompts for policy in self.policies)

    @property
    def passed(self) -> bool:
        """True if the law is kept on every prompt, and the text where it was promised."""
        return not self.interrupted and self.keeps_law and (self.keeps_text or not self.exact_text)

    def summary(self) -> dict[str, object]:
        """Everything found, for JSON."""
        entries = [
            {**asdict(policy), "identical": policy.identical, "ties": policy.ties, "widest_tie": _units(policy)}
            for policy in self.policies
        ]
        results = {"keeps_law": self.keeps_law, "keeps_text": self.keeps_text, "passed": self.passed}
        return {**asdict(self), "policies": entries, **results}


def _units(policy: PolicyCertificate) -> float | None:
    return policy.widest_tie.units if policy.widest_tie else None


def certify(
    decoder: Decoder,
    prompts: Sequence[str | Sequence[int]],
    policies: Sequence[PolicyLike] = ("all",),
    *,
    max_new_tokens: int = 128,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> Certificate:
    """Compare the texts of policies with the reference's and with those of plain decoding.

    Args:
        decoder: the decoder whose target, drafter and verifier to use.
        prompts: texts or token ids; longer ones than fit are cut to their last tokens.
        policies: policies as `parse_policies` takes them; results are keyed by their specifications.
        max_new_tokens: tokens per prompt at most.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`, on both sides: temperature, seed, repetition_penalty, grammar ...;
            without a seed it is 0, since a text without one cannot be repeated.

    Raises:
        ConfigError: there is no prompt, a policy does not exist, the target is no transformers model, or the verifier's
            texts depend on the tree.
        ContextError: `max_new_tokens` leaves no room for a prompt.
    """
    if options.get("temperature") is None and not options.get("do_sample"):
        options["temperature"] = 0.0
    sampling = RequestOptions.merge(decoder.defaults, options).sampling
    if not sampling.greedy and decoder.verifier is not None and not issubclass(decoder.verifier, COUPLED):
        name = decoder.verifier.__name__
        raise ConfigError(
            f"texts of {name} depend on the tree, so no other text is to be the same; look for evidence against them "
            "with certify --live, prove the verifier with certify --exact, or use 'coupled'"
        )
    options |= {"max_new_tokens": max_new_tokens, "seed": options.get("seed") or 0}
    runners = {PLAIN: decoder.plain()} if sampling.greedy else {}
    runners |= {spec: decoder.with_policy(policy) for spec, policy in parse_policies(policies).items()}

    def write(runner: Decoder, prompt: list[int]) -> list[int]:
        return runner.generate(prompt, **options).tokens

    def by_transformers(prompt: list[int]) -> list[int]:
        return transformers_generate(decoder, prompt, **options).tokens

    reference = "transformers generate" if sampling.greedy else "plain decoding"
    ways: dict[str, Way] = {reference: by_transformers if sampling.greedy else partial(write, decoder.plain())}
    ways |= {name: partial(write, runner) for name, runner in runners.items()}
    fitted_prompts = [fit(decoder, prompt, max_new_tokens) for prompt in prompts]
    store = store or RunStore()
    cells = race(ways, [("", ids) for ids, _ in fitted_prompts], list[int], store=store, progress=progress)
    texts = {name: [cell.result for cell in cells if cell.way == name] for name in ways}
    expected = texts[reference]

    def judge(name: str) -> PolicyCertificate:
        text_pairs = [*zip(expected, texts[name], strict=True)]
        all_differences = {
            index: find_difference(decoder, fitted_prompts[index][0], *text_pair, **options)
            for index, text_pair in enumerate(text_pairs)
        }
        differences = {index: difference for index, difference in all_differences.items() if difference}
        same_count = sum(text == plain for text, plain in zip(texts[name], texts.get(PLAIN, expected), strict=True))
        return PolicyCertificate(name, len(text_pairs), same_count, differences)

    return Certificate(
        reference,
        precision_of(decoder.target),
        keeps_text(decoder.target),
        [judge(name) for name in runners],
        truncated=sum(cut for _, cut in fitted_prompts[: len(expected)]),
        tokens=sum(map(len, expected)),
        interrupted=store.interrupted,
    )
