"""The target of a replay, with a decoder for every method."""

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError
from drafttree.engine.decoder import Decoder
from drafttree.engine.model_digest import model_digest
from drafttree.loading.load import load
from drafttree.measure.inflation import load_inflated
from drafttree.measure.method import Method
from drafttree.measure.method_decoders import make_decoders
from drafttree.measure.prompt_encoding import encode_prompts
from drafttree.measure.prompt_form import PromptForm
from drafttree.measure.reference import transformers_model
from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.assisted import AssistedGeneration
from drafttree_lab.replay.other_kinds import measure_acceptance, measure_expansion, measure_memory
from drafttree_lab.replay.prompt_texts import PromptTexts
from drafttree_lab.replay.replay_method import ReplayMethod
from drafttree_lab.replay.results_folder import FORMAT
from drafttree_lab.replay.runner import Writer
from drafttree_lab.replay.task import Fractions, Task


class ReplayTarget:
    """A target that is loaded once, or once per drafter where it is inflated.

    Args:
        name: as for `drafttree.load`.
        dtype: the dtype of the target.
        device: the device of the target.
        shape: the shape whose cost the target is to have; None for its own.
    """

    def __init__(self, name: str, dtype: str, device: str, shape: str | None) -> None:
        self._name, self._dtype, self._device, self._shape = name, dtype, device, shape
        self._decoders = cache(self._load)

    @cached_property
    def plain(self) -> Decoder:
        """The target as it is, without a drafter."""
        return load(self._name, "none", dtype=self._dtype, device=self._device)

    def make_decoder(self, method: ReplayMethod) -> Writer:
        """What writes the texts of a method.

        Raises:
            ConfigError: its drafter cannot assist transformers' `generate`, where that is asked for.
            ModelError: its drafter cannot be loaded or does not fit the target; the message names it.
        """
        if method.assisted:
            return AssistedGeneration(self._decoders(method.drafter))
        return self._make_decoder(method, method.lossy_window)

    def load_drafter(self, drafter: str) -> Decoder:
        """The target with a drafter.

        Raises:
            ModelError: it cannot be loaded or does not fit the target; the message names it.
        """
        return self._decoders(drafter)

    def check(self, drafters: Iterable[str]) -> None:
        """Load drafters, so that one that cannot be used is told before anything is run.

        Raises:
            ModelError: one cannot be loaded or does not fit the target; the message names it.
        """
        for drafter in drafters:
            self.load_drafter(drafter)

    def measure(self, seed: int, task: Task, ids: Sequence[int]) -> Fractions:
        """What a task of another kind than decoding measures after a prompt.

        Raises:
            ConfigError: it cannot be measured on an inflated target.
        """
        kind = task.experiment.result.kind
        if kind == "expansion":
            return measure_expansion(task)
        if kind == "acceptance":
            return measure_acceptance(task, ids, self._make_decoder, seed)
        if self._shape:
            raise ConfigError("peak memory is measured on the target itself; leave --inflate out")
        return measure_memory(task, ids, self._name, self._dtype, self._device, seed)

    def encode(self, prompts: PromptTexts, length: int, *, chat: bool) -> dict[tuple[str, str], list[list[int]]]:
        """The token ids of all prompts' first turns, with room for so many new tokens.

        Raises:
            InputError: the target has no chat template, where it is needed.
        """
        form = PromptForm(chat=chat, turns=1)
        return {place: encode_prompts(self.plain, texts, form, length) for place, texts in prompts.texts.items()}

    def open_store(self, folder: Path, minutes: float | None, **options: object) -> RunStore:
        """The store of a folder, which is for this target alone.

        Args:
            folder: the folder of the runs.
            minutes: after which nothing is run any more.
            **options: what else decides the cells.

        Raises:
            InputError: the folder holds the runs of another target, or something else.
        """
        loaded: Any = self.plain.target
        target = {"target": self._name, "dtype": str(loaded.dtype), "device": str(loaded.device)}
        weights = {"inflate": self._shape or "", "digest": model_digest(loaded)}
        command = {"command": "drafttree replay", "format": FORMAT, **target, **weights, **options}
        return RunStore(folder, command, partial=True, minutes=minutes)

    def _make_decoder(self, method: Method, lossy_window: int | None = None) -> Decoder:
        base = self._decoders(method.drafter)
        drafters = {method.drafter: base.drafter} if method.drafter and base.drafter else {}
        if lossy_window:
            module = transformers_model(base).module
            base = load(module, "none", tokenizer=base.tokenizer, lossy_window=lossy_window)
        return make_decoders(base, [method], drafters)[method.spec]

    def _load(self, drafter: str | None) -> Decoder:
        if self._shape:
            return load_inflated(self._name, drafter or "none", self._shape, self._dtype, self._device)
        if drafter is None:
            return self.plain
        try:
            return make_decoders(self.plain, [Method.parse(drafter)])[Method.parse(drafter).spec]
        except DraftTreeError as error:
            raise ModelError(f"the drafter {drafter!r} cannot draft for {self._name!r}: {error}") from error
