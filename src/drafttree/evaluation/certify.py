"""Certificates that every policy writes what the target writes, in two results.

The law: every text is the reference's, or differs by a tie, where logits are so close that rounding decides. At
temperature 0 the reference is transformers' own `generate`. Above it the text is a function of prompt and seed, and the
reference is plain decoding, without speculation, by the same engine.

The text: it is that of plain decoding token for token, as must be in float32 and with `exact_text`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.compatibility import keeps_text, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.evaluation.pair_sweep import COUPLED
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.method import PLAIN
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.reference import Difference, find_difference, transformers_generate
from drafttree.measure.run_store import NothingFinished, RunStore


@dataclass(frozen=True)
class Finding:
    """A prompt whose text differs from the reference's."""

    prompt: int
    difference: Difference


@dataclass
class PolicyCertificate:
    """The result for one policy.

    Attributes:
        policy: its canonical specification, or "plain" for decoding without speculation.
        prompts: the number of texts that were compared.
        findings: the texts that differ.
        same_text: the number of texts that are plain decoding's token for token.
    """

    policy: str
    prompts: int = 0
    same_text: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def identical(self) -> int:
        """Texts that are identical token for token."""
        return self.prompts - len(self.findings)

    @property
    def passed(self) -> bool:
        """True if every text is identical, or differs by a tie of the dtype's precision."""
        return all(finding.difference.explained for finding in self.findings)


@dataclass
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
    truncated: int = 0
    tokens: int = 0
    interrupted: bool = False

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
        entries = [{**asdict(policy), "identical": policy.identical} for policy in self.policies]
        results = {"keeps_law": self.keeps_law, "keeps_text": self.keeps_text, "passed": self.passed}
        return {**asdict(self), "policies": entries, **results}


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
        ConfigError: a policy does not exist, the target is no transformers model, or the verifier's texts depend on
            the tree.
        ContextError: `max_new_tokens` leaves no room for a prompt.
    """
    if options.get("temperature") is None and not options.get("do_sample"):
        options["temperature"] = 0.0
    sampling = RequestOptions.merge(decoder.defaults, options).sampling
    if not sampling.greedy and decoder.verifier is not None and not issubclass(decoder.verifier, COUPLED):
        name = decoder.verifier.__name__
        raise ConfigError(f"texts of {name} depend on the tree; prove it with certify --exact, or use 'coupled'")
    seed = options.pop("seed", None) or 0
    run = _Run(decoder, sampling.greedy, {"max_new_tokens": max_new_tokens, "seed": seed, **options})
    runners = {PLAIN: decoder.plain()} if sampling.greedy else {}
    runners |= {spec: decoder.with_policy(policy) for spec, policy in parse_policies(policies).items()}
    entries = {name: PolicyCertificate(name) for name in runners}
    reference = "transformers generate" if sampling.greedy else "plain decoding"
    precision, promised = precision_of(decoder.target), keeps_text(decoder.target)
    certificate = Certificate(reference, precision, promised, list(entries.values()))
    store = store or RunStore()
    with store.interruptible():
        for index, prompt in enumerate(prompts):
            ids, cut = fit(decoder, prompt, max_new_tokens)
            expected = store.run((index, "reference"), list[int], functools.partial(run.reference, ids))
            certificate.truncated += cut
            certificate.tokens += len(expected)
            progress(reference)
            plain = expected
            for name, entry in entries.items():
                text = store.run((index, name), list[int], functools.partial(run.text, runners[name], ids))
                plain = text if name == PLAIN else plain
                entry.prompts += 1
                entry.same_text += text == plain
                if difference := run.compare(ids, expected, text):
                    entry.findings.append(Finding(index, difference))
                progress(name)
    if store.interrupted and not certificate.tokens:
        raise NothingFinished(store)
    certificate.interrupted = store.interrupted
    return certificate


@dataclass(frozen=True)
class _Run:
    decoder: Decoder
    greedy: bool
    options: dict[str, Any]

    def reference(self, prompt: list[int]) -> list[int]:
        if not self.greedy:
            return self.text(self.decoder.plain(), prompt)
        return transformers_generate(self.decoder, prompt, **self.options).tokens

    def text(self, decoder: Decoder, prompt: list[int]) -> list[int]:
        return decoder.generate(prompt, **self.options).tokens

    def compare(self, prompt: list[int], expected: list[int], text: list[int]) -> Difference | None:
        return find_difference(self.decoder, prompt, expected, text, **self.options)
