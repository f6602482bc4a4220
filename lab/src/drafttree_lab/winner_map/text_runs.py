"""Runs the texts of the map and keeps their counts: any machine will do, since nothing is timed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.loading import make_policy
from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.task import Key, short_digest
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.agreement import GradedAgreement, KnownText, find_grade
from drafttree_lab.winner_map.cost_grid import GridCosts
from drafttree_lab.winner_map.families import AUTO
from drafttree_lab.winner_map.graded_drafter import GradedDrafter


@dataclass
class TextRuns:
    """The greedy texts after some prompts, by graded drafters and policies.

    Args:
        decoder: target with a language model as its drafter.
        store: keeps finished texts.
        length: new tokens of a text.
        seed: seed of the drafters' noise.

    Attributes:
        prompts: token ids of the prompts; set before anything but `plain` is run.

    Raises:
        ConfigError: the drafter is no language model.
    """

    decoder: Decoder
    store: RunStore
    length: int
    seed: int
    prompts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.decoder.drafter, LanguageModelDrafter):
            raise ConfigError("the map grades a language model that drafts; the drafter is none, name one with --as")
        self._draft: LanguageModelDrafter = self.decoder.drafter

    def plain(self, prompt: Sequence[int]) -> TextCounts:
        """The target's own greedy text."""
        return self.store.run(_plain_key(prompt), TextCounts, lambda: self._write(self.plain_decoder, prompt))

    def is_looping(self, prompt: Sequence[int]) -> bool:
        """Whether the target's own text after a prompt ends in a loop."""
        return self.plain(prompt).looping

    def found_plain(self, prompt: Sequence[int]) -> TextCounts | None:
        """The target's own text where it is kept."""
        return self.store.find(_plain_key(prompt), TextCounts)

    def grade(self, wanted: float) -> GradedAgreement:
        """The grade of an agreement, found on the texts of the prompts."""
        key = self._grade_key(wanted)
        return self.store.run(key, GradedAgreement, lambda: find_grade(wanted, self._known, self.seed))

    def found_grade(self, wanted: float) -> GradedAgreement | None:
        """The grade of an agreement where it is kept."""
        return self.store.find(self._grade_key(wanted), GradedAgreement)

    def counts(self, grade: GradedAgreement, policy: str, prompt: Sequence[int]) -> TextCounts:
        """The text of a prompt by a graded drafter and a policy."""
        key = self._counts_key(grade.wanted, policy, prompt)
        return self.store.run(key, TextCounts, lambda: self._write(self._graded(grade, policy), prompt))

    def auto_counts(self, grade: GradedAgreement, costs: GridCosts) -> list[TextCounts]:
        """The texts of all prompts by `auto` at given costs, each of which goes on from what the last one learned."""
        key = self._auto_key(grade.wanted, costs)
        return self.store.run(key, list[TextCounts], lambda: self._write_by_auto(grade, costs))

    def found(self, agreement: float, policy: str) -> list[TextCounts] | None:
        """The texts of all prompts by a drafter and a policy; None where some are not kept."""
        keys = [self._counts_key(agreement, policy, prompt) for prompt in self.prompts]
        texts = [self.store.find(key, TextCounts) for key in keys]
        return texts if texts and None not in texts else None

    def found_auto(self, agreement: float, costs: GridCosts) -> list[TextCounts] | None:
        """The texts by `auto`; None where they are not kept."""
        return self.store.find(self._auto_key(agreement, costs), list[TextCounts])

    @cached_property
    def plain_decoder(self) -> Decoder:
        """The target without drafts."""
        return self.decoder.plain()

    @cached_property
    def _known(self) -> list[KnownText]:
        """Both models' logits along the target's own texts."""
        model, target = self._draft.model, self.decoder.target
        return [KnownText.read(model, target, prompt, self.plain(prompt).tokens) for prompt in self.prompts]

    def _graded(self, grade: GradedAgreement, policy: str) -> Decoder:
        drafter = GradedDrafter(self._draft, LanguageModelDrafter(self.decoder.target), grade.grade)
        return self.decoder.with_drafter(drafter).with_policy(make_policy(policy))

    def _write(self, decoder: Decoder, prompt: Sequence[int]) -> TextCounts:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "seed": 0}
        return TextCounts.of(decoder.generate(list(prompt), max_new_tokens=self.length, **options))

    def _write_by_auto(self, grade: GradedAgreement, costs: GridCosts) -> list[TextCounts]:
        decoder = self._graded(grade, AUTO).with_costs(costs.curve)
        return [self._write(decoder, prompt) for prompt in self.prompts]

    @cached_property
    def _digests(self) -> str:
        return short_digest(self.prompts)

    def _grade_key(self, agreement: float) -> Key:
        return ("grade", agreement, self._digests)

    def _counts_key(self, agreement: float, policy: str, prompt: Sequence[int]) -> Key:
        return ("counts", agreement, policy, self._digests, short_digest(list(prompt)))

    def _auto_key(self, agreement: float, costs: GridCosts) -> Key:
        return (AUTO, agreement, costs.draft, costs.slope, self._digests)


def _plain_key(prompt: Sequence[int]) -> Key:
    return ("plain", short_digest(list(prompt)))
