"""Certificates that every policy writes what the target writes, with two results.

The law is kept if every text is the reference's or differs by a tie, where logits are so close that rounding decides.
At temperature 0 the reference is transformers' own `generate`. Above 0 the text is a function of prompt and seed, and
the reference is plain decoding, without speculation, by the same engine.

The text is kept if it is that of plain decoding token for token. In float32 and with `exact_text` it must be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.compatibility import keeps_text, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.evaluation.pair_sweep import COUPLED
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.driver import Cell, Way, race
from drafttree.measure.method import PLAIN
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.reference import Difference, find_difference, transformers_generate
from drafttree.measure.run_store import RunStore
from drafttree.verifiers import Verifier

PLAIN_REFERENCE = "plain decoding"
"""The reference of sampled texts."""


@dataclass(frozen=True)
class PolicyCertificate:
    """The result for one policy.

    Attributes:
        policy: its canonical specification, or "plain" for decoding without speculation.
        prompts: texts that were compared.
        same_text: texts that are plain decoding's token for token.
        differences: by number of the prompt, the first difference of each text that is not the reference's.
    """

    policy: str
    prompts: int
    same_text: int
    differences: dict[int, Difference]

    @property
    def identical(self) -> int:
        """Texts that are the reference's token for token."""
        return self.prompts - len(self.differences)

    @property
    def widest_tie(self) -> Difference | None:
        """The tie with the largest gap in units of rounding; None if there is none."""
        ties = (difference for difference in self.differences.values() if difference.is_tie)
        return max(ties, key=lambda tie: tie.units, default=None)

    @property
    def ties(self) -> int:
        """Texts that differ from the reference's by a tie."""
        return sum(difference.is_tie for difference in self.differences.values())

    @property
    def passed(self) -> bool:
        """True if every text is the reference's or differs by a tie."""
        return self.ties == len(self.differences)


@dataclass(frozen=True)
class Certificate:
    """The outcome of a certification.

    Attributes:
        reference: what the texts were compared with.
        dtype: the dtype of the target.
        exact_text: whether texts must be plain decoding's, ties included.
        policies: one certificate for each policy, in the order asked for.
        truncated: prompts that were cut to their last tokens to fit the context.
        tokens: tokens that the reference generated.
        interrupted: whether prompts are missing because of Ctrl-C or the time limit.
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
        """True if every policy's texts are the reference's, except for ties."""
        return all(policy.passed for policy in self.policies)

    @property
    def keeps_text(self) -> bool:
        """True if every text is plain decoding's."""
        return all(policy.same_text == policy.prompts for policy in self.policies)

    @property
    def passed(self) -> bool:
        """True if the law is kept on every prompt, and the text too if it must be."""
        return not self.interrupted and self.keeps_law and (self.keeps_text or not self.exact_text)

    def summary(self) -> dict[str, object]:
        """All results, for JSON."""
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
        prompts: texts or token ids; prompts that do not fit are cut to their last tokens.
        policies: policies as `parse_policies` takes them.
        max_new_tokens: maximum number of tokens of a text.
        progress: called after every text with the policy or the reference that wrote it.
        store: keeps finished runs; by default none.
        **options: options of all texts, as for `Decoder.new_request`: temperature (0 unless given), seed (0 unless
            given, since a text without a seed cannot be repeated), repetition_penalty, grammar ...

    Raises:
        ConfigError: there is no prompt, a policy does not exist, the target is not a transformers model, or the
            verifier's texts depend on the tree.
        ContextError: `max_new_tokens` leaves no room for a prompt.
    """
    if options.get("temperature") is None and not options.get("do_sample"):
        options["temperature"] = 0.0
    greedy = RequestOptions.merge(decoder.defaults, options).sampling.greedy
    if not greedy:
        _check_text_is_fixed(decoder.verifier)
    options |= {"max_new_tokens": max_new_tokens, "seed": options.get("seed") or 0}
    policy_ways = _policy_ways(decoder, policies, options, with_plain=greedy)
    reference = "transformers generate" if greedy else PLAIN_REFERENCE
    ways = {reference: _reference_way(decoder, options, greedy=greedy), **policy_ways}
    fitted_prompts = [fit(decoder, prompt, max_new_tokens) for prompt in prompts]
    store = store or RunStore()
    cells = race(ways, [("", ids) for ids, _ in fitted_prompts], list[int], store=store, progress=progress)
    comparison = _Comparison(decoder, fitted_prompts, cells, reference, options)
    return Certificate(
        reference,
        precision_of(decoder.target),
        keeps_text(decoder.target),
        [comparison.judge(name) for name in policy_ways],
        truncated=comparison.truncated,
        tokens=sum(map(len, comparison.expected)),
        interrupted=store.interrupted,
    )


class _Comparison:
    """Compares the texts of ways with the reference's and with those of plain decoding.

    Args:
        decoder: the decoder whose target judges differences.
        fitted_prompts: per prompt, its token ids and whether it was cut.
        cells: the texts of all ways; prompts may be missing at the end.
        reference: the way that is the reference.
        options: the options of all texts.

    Attributes:
        expected: the reference's texts.
    """

    def __init__(
        self,
        decoder: Decoder,
        fitted_prompts: Sequence[tuple[list[int], bool]],
        cells: Sequence[Cell],
        reference: str,
        options: Mapping[str, Any],
    ) -> None:
        self._decoder = decoder
        self._fitted_prompts = fitted_prompts
        self._options = options
        self._texts: dict[str, list[list[int]]] = {}
        for cell in cells:
            self._texts.setdefault(cell.way, []).append(cell.result)
        self.expected = self._texts[reference]

    @property
    def truncated(self) -> int:
        """Prompts that were cut, of those that have texts."""
        return sum(is_cut for _, is_cut in self._fitted_prompts[: len(self.expected)])

    def judge(self, way: str) -> PolicyCertificate:
        """Compare the texts of a way with the reference's and with plain decoding's."""
        texts = self._texts[way]
        differences = {}
        for index, text_pair in enumerate(zip(self.expected, texts, strict=True)):
            prompt = self._fitted_prompts[index][0]
            if difference := find_difference(self._decoder, prompt, *text_pair, **self._options):
                differences[index] = difference
        plain_texts = self._texts.get(PLAIN, self.expected)
        same_count = sum(text == plain for text, plain in zip(texts, plain_texts, strict=True))
        return PolicyCertificate(way, len(texts), same_count, differences)


def _check_text_is_fixed(verifier: type[Verifier] | None) -> None:
    """Refuse a verifier whose texts above temperature 0 depend on more than prompt and seed."""
    if verifier is not None and not issubclass(verifier, COUPLED):
        raise ConfigError(
            f"texts of {verifier.__name__} depend on the draft trees, so they cannot be compared with a reference; "
            "look for evidence against them with certify --live, prove the verifier with certify --exact, or use "
            "'coupled'"
        )


def _policy_ways(
    decoder: Decoder, policies: Sequence[PolicyLike], options: dict[str, Any], *, with_plain: bool
) -> dict[str, Way]:
    """The ways that are certified: all policies, and plain decoding if asked for."""
    decoders = {PLAIN: decoder.plain()} if with_plain else {}
    decoders |= {spec: decoder.with_policy(policy) for spec, policy in parse_policies(policies).items()}
    return {name: partial(_tokens, policy_decoder, options) for name, policy_decoder in decoders.items()}


def _reference_way(decoder: Decoder, options: dict[str, Any], *, greedy: bool) -> Way:
    if greedy:
        return lambda prompt: transformers_generate(decoder, prompt, **options).tokens
    return partial(_tokens, decoder.plain(), options)


def _tokens(decoder: Decoder, options: dict[str, Any], prompt: list[int]) -> list[int]:
    return decoder.generate(prompt, **options).tokens
