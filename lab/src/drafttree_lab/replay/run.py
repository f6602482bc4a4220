"""Runs experiments: counts the texts of every way, and times all ways of a block alternately."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.compatibility import is_text_of_seed, keeps_text
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.model_digest import model_digest
from drafttree.loading.load import load
from drafttree.measure.driver import by_turns
from drafttree.measure.inflation import load_inflated
from drafttree.measure.json_lines import UnwritableError
from drafttree.measure.method import Method
from drafttree.measure.method_decoders import make_decoders
from drafttree.measure.prompt_encoding import encode_prompts
from drafttree.measure.prompt_form import PromptForm
from drafttree.measure.prompts import Example
from drafttree.measure.reference import Difference, find_difference, transformers_model
from drafttree.measure.run_store import RunStore
from drafttree_lab.graded import Grade, GradedDrafter, KnownText
from drafttree_lab.replay.agreement import (
    GRADED,
    Fit,
    find_reference,
    fit,
    plan_reference,
    published_tau,
    replace_drafter,
    replace_role,
)
from drafttree_lab.replay.assisted import AssistedGeneration, AssistedText, told_unassisting
from drafttree_lab.replay.costs import BY_PAPER, CostSource
from drafttree_lab.replay.inputs import Place
from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.measured import Fitted, Measured
from drafttree_lab.replay.other_kinds import measure_acceptance, measure_expansion, measure_memory
from drafttree_lab.replay.paper import AUTOREGRESSIVE, Reference
from drafttree_lab.replay.paper_files import read_paper
from drafttree_lab.replay.plan import (
    Block,
    Digests,
    Experiment,
    Key,
    ReplayMethod,
    Setting,
    Sizes,
    Task,
    clauses,
    groups,
    short_digest,
    tasks,
)
from drafttree_lab.replay.results import FORMAT, ResultSummary, summarise
from drafttree_lab.replay.text_cell import Fractions, TextCounts, TextTimes, WayTimes

DRAFT_MODEL = "embedded-draft"
"""The draft model that is mixed with the target to draft like a paper's drafter."""
MIN_FIT_PROMPTS = 2
"""Minimum number of prompts of a set that takes part in a fit."""
PASS_TOKENS = 8
"""Tokens before and in the text that times a pass of the target."""
Writer = Decoder | AssistedGeneration
"""Writes the texts of a method."""
Compare = Callable[[Setting, Sequence[int], Sequence[int], Sequence[int]], Difference | None]
"""Says how plain decoding's text and another one, both after a prompt, differ; None if they have to be the same."""
Prompts = Mapping[Place, Sequence[Sequence[int]]]
"""Token ids of the prompts, by paper and set."""


def run_replay(
    planned: Sequence[Experiment],
    runner: "Runner",
    *,
    repeats: int = 1,
    costs: CostSource = BY_PAPER,
    clusters: Mapping[str, str] = MappingProxyType({}),
    fits: "DrafterFits | None" = None,
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[list[ResultSummary]], None] = lambda _: None,
) -> list[ResultSummary]:
    """Run the tasks that are not stored yet, and summarise all experiments; p-values are not corrected.

    Args:
        planned: the experiments.
        runner: runs their tasks and stores the cells.
        repeats: number of turns of every prompt, if it is timed.
        costs: the source of the costs by which counts are judged.
        clusters: by digest of a prompt, the name of its cluster of similar prompts.
        fits: fits drafters to the papers' when a result first needs them; None to judge without fitted drafters.
        progress: called after every task with its result.
        keep: called with the summaries so far, since a run may be killed. First after the first task, then so often
            that it takes a twentieth of the time.
    """
    replay = Replay(planned, runner, repeats, costs, clusters, fits)
    due = -math.inf
    with runner.store.interruptible():
        for group in groups(planned):
            for experiment in group:
                replay.fit(experiment)
            for task in replay.tasks_of(group):
                runner.run(task)
                progress(task.experiment.id)
                if (start := time.monotonic()) >= due:
                    keep(replay.summaries())
                    due = time.monotonic() + 19 * (time.monotonic() - start)
    return replay.summaries()


class Replay:
    """Experiments that are run together, with their summaries; arguments as for `run_replay`."""

    def __init__(
        self,
        planned: Sequence[Experiment],
        runner: "Runner",
        repeats: int,
        costs: CostSource,
        clusters: Mapping[str, str],
        fits: "DrafterFits | None",
    ) -> None:
        self._planned = planned
        self._runner = runner
        self._repeats = repeats
        self._costs = costs
        self._clusters = clusters
        self._fits = fits
        self._digests = digests_of(runner.prompts)
        self._fitted: dict[str, Fitted | None] = {}

    def fit(self, experiment: Experiment, *, kept_fits_only: bool = False) -> None:
        """Fit the drafters of an experiment; arguments as for `DrafterFits.find`."""
        if self._fits:
            self._fitted[experiment.id] = self._fits.find(experiment, kept_fits_only=kept_fits_only)

    def tasks_of(self, experiments: Sequence[Experiment]) -> list[Task]:
        """The tasks of some experiments, with those of their fitted drafters."""
        all_experiments = list(experiments)
        for experiment in experiments:
            if fitted := self._fitted.get(experiment.id):
                all_experiments += fitted.experiments
        return list(tasks(all_experiments, self._digests, self._repeats if self._runner.timed else 1))

    def summaries(self) -> list[ResultSummary]:
        """The summary of every experiment from the stored cells."""
        summaries = []
        for experiment in self._planned:
            if experiment.id not in self._fitted:
                self.fit(experiment, kept_fits_only=True)
            all_tasks = self.tasks_of([experiment])
            measured = Measured(
                experiment,
                self._runner.store,
                digests_of_paper(self._digests, experiment.paper),
                self._repeats,
                costs=self._costs,
                clusters=self._clusters,
                fitted=self._fitted.get(experiment.id),
            )
            end_reason = self._runner.ended.get(experiment.id)
            done = sum(map(self._runner.is_done, all_tasks))
            summaries.append(summarise(measured, end_reason=end_reason, done=done, tasks=len(all_tasks)))
        return summaries


def digests_of(prompts: Prompts) -> dict[Place, list[str]]:
    """The digest of every prompt, by paper and set."""
    return {set_key: [short_digest(list(ids)) for ids in set_prompts] for set_key, set_prompts in prompts.items()}


def digests_of_paper(digests: Digests, paper: str) -> dict[str, Sequence[str]]:
    """The digests of the prompts of one paper, by set."""
    return {name: set_digests for (owner, name), set_digests in digests.items() if owner == paper}


@dataclass
class DrafterFits:
    """Fits drafters to the papers' reference rows, each once.

    Attributes:
        target: the target.
        runner: runs texts after prompts on which no claim is judged.
        drafters: by role, the drafters that replace the papers' own.
        sizes: how much is run.
        fits: by paper, model and result, the fit, or why there is none.
    """

    target: "ReplayTarget"
    runner: "Runner"
    drafters: Mapping[str, str]
    sizes: Sizes
    fits: dict[Key, Fit | str] = field(default_factory=dict)

    def find(self, experiment: Experiment, *, kept_fits_only: bool = False) -> Fitted | None:
        """An experiment with fitted drafters; None if no claim is judged by counts, or the drafter is the paper's own.

        Args:
            experiment: the experiment.
            kept_fits_only: whether to use only fits that an earlier command has stored.

        Raises:
            InputError: the fit cannot be stored.
        """
        result = experiment.result
        paper = read_paper(experiment.paper)
        if not any(result.is_judged(claim, timed=False) for claim in result.claims):
            return None
        if not experiment.blocks:
            return Fitted(reason="; ".join(clauses(experiment.missing)))
        model = paper.models[experiment.model]
        sampled = experiment.blocks[0].setting.temperature > 0
        reference = find_reference(paper, model, sampled=sampled)
        if reference is None:
            return Fitted(reason="its file names no row to fit a drafter to")
        role = paper.methods[reference.method].role or ""
        if role not in self.drafters:
            return None
        key = (experiment.paper, experiment.model, reference.result)
        drafter_fit = self.fits.get(key) or self._fit(experiment, reference, kept_fits_only=kept_fits_only)
        if drafter_fit is None:
            return Fitted(reason=f"no drafter was fitted yet to {reference.method} of {experiment.paper}")
        self.fits[key] = drafter_fit
        if isinstance(drafter_fit, str):
            return Fitted(reason=drafter_fit)
        by_confidence = {
            confidence: replace_role(experiment, role, name) for confidence, name in drafter_fit.drafters.items()
        }
        return Fitted(
            drafter_fit, by_confidence, replace_role(experiment, role, drafter_fit.moved) if drafter_fit.moved else None
        )

    def _fit(self, experiment: Experiment, reference: Reference, *, kept_fits_only: bool) -> Fit | str | None:
        row = ReferenceRow.plan(experiment, reference, self)
        if not row.experiment.blocks:
            return "no set has prompts left to fit a drafter on; lower --limit, or give a folder with more by --data"
        store = self.runner.store
        if kept_fits_only:
            return store.find(row.key, Fit)
        try:
            return store.run(row.key, Fit, lambda: row.fit(self.target))
        except UnwritableError:
            raise
        except DraftTreeError as error:
            return f"no drafter was fitted: {error}"


@dataclass(frozen=True)
class ReferenceRow:
    """A reference, planned on prompts on which no claim is judged.

    Attributes:
        experiment: the experiment with the reference alone, on the sets with enough prompts.
        method: the reference.
        without: the other sets.
        wanted: its published tokens per round; NaN without sets.
        runner: runs the texts.
    """

    experiment: Experiment
    method: str
    without: Sequence[str]
    wanted: float
    runner: "Runner"

    @classmethod
    def plan(cls, experiment: Experiment, reference: Reference, fits: DrafterFits) -> "ReferenceRow":
        """The row for an experiment.

        Args:
            experiment: the experiment that is judged with fitted drafters.
            reference: the reference of its paper.
            fits: fits the drafters.
        """
        sizes = replace(fits.sizes, model=experiment.model)
        all_runs = plan_reference(experiment.paper, reference, fits.drafters, sizes)
        blocks: list[Block] = []
        skipped_sets: list[str] = []
        for block in all_runs.blocks:
            set_name = block.setting.set
            if len(fits.runner.prompts.get((experiment.paper, set_name), ())) >= MIN_FIT_PROMPTS:
                blocks.append(block)
            else:
                skipped_sets.append(set_name)
        sets = [block.setting.set for block in blocks]
        wanted_tau = published_tau(all_runs, reference, sets) if sets else math.nan
        return cls(replace(all_runs, blocks=blocks), reference.method, skipped_sets, wanted_tau, fits.runner)

    @property
    def key(self) -> Key:
        """The key of the fit in a store."""
        digests = digests_of(self.runner.prompts)
        ways: list[str] = []
        settings: list[object] = []
        for block in self.experiment.blocks:
            ways.append(block.ways[self.method].key)
            settings += [*block.setting.key, *digests[self.experiment.paper, block.setting.set]]
        digest = short_digest([self.wanted, *ways, *settings])
        return ("fitted drafter", self.experiment.id, self.experiment.model, self.method, digest)

    def fit(self, target: "ReplayTarget") -> Fit:
        """Find the drafters with which the reference commits its published tokens per round."""
        texts = []
        for block in self.experiment.blocks:
            for ids in self.runner.prompts[self.experiment.paper, block.setting.set]:
                prompt = list(ids)[: block.setting.prompt_tokens]
                texts.append(target.read_text(prompt, block.setting, self.runner.seed))
        return replace(fit(self.method, self.wanted, self._tau, texts, self.runner.seed), without=self.without)

    def _tau(self, drafter: str) -> tuple[Jackknife, Tensor]:
        """The tokens per round with a drafter, from `Measured.tau`."""
        digests = digests_of(self.runner.prompts)
        blocks = [replace_drafter(block, drafter) for block in self.experiment.blocks]
        trial = replace(self.experiment, blocks=blocks)
        for task in tasks([trial], digests, 1):
            self.runner.run(task)
        if reason := self.runner.ended.pop(trial.id, None):
            raise ConfigError(reason)
        measured = Measured(trial, self.runner.store, digests_of_paper(digests, trial.paper))
        return measured.tau(self.method)


@dataclass
class Runner:
    """Runs tasks and stores their cells.

    Attributes:
        make_decoder: makes the writer of a method's texts; plain decoding is a method, too.
        measure: measures the methods of a task that is not about decoding, after a prompt.
        prompts: token ids by paper and set.
        store: the store of the cells.
        seed: random seed.
        timed: whether to time; otherwise each way is counted once.
        compare: compares texts that differ, since rounding may have decided a tie; without it, texts must be the same.
        ended: by id of a result that has ended early, the reason.
        warm: ways that have run in this process.
        histories: by method that learns between texts and setting, its writer and the index of its next prompt.
    """

    make_decoder: Callable[[ReplayMethod], Writer]
    measure: Callable[[Task, Sequence[int]], Fractions]
    prompts: Prompts
    store: RunStore
    seed: int = 0
    timed: bool = True
    compare: Compare = lambda *_: None
    ended: dict[str, str] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    histories: dict[Key, tuple[Writer, int]] = field(default_factory=dict)

    def is_done(self, task: Task) -> bool:
        """Whether all cells of a task are stored."""
        if task.experiment.result.kind != "decoding":
            return self.store.find(task.other_key, Fractions) is not None
        if self._is_timed(task) and self.store.find(task.turn_key, WayTimes) is None:
            return False
        keys = [task.counts_key(way) for way in task.block.ways.values()]
        return all(self.store.find(key, TextCounts) is not None for key in keys)

    def run(self, task: Task) -> None:
        """Run a task that is not stored, unless its result has ended.

        An error ends its result, and so does a text that differs by more than a tie.
        """
        experiment = task.experiment
        if experiment.id in self.ended:
            return
        if not self.is_done(task):
            self.store.check_time()
            try:
                if experiment.result.kind == "decoding":
                    self._decode(task)
                else:
                    self.store.run(task.other_key, Fractions, lambda: self.measure(task, self._prompt(task)))
            except UnwritableError:
                raise
            except DraftTreeError as error:
                self.ended[experiment.id] = str(error)
        if difference := self._difference(task):
            self.ended[experiment.id] = difference

    def _is_timed(self, task: Task) -> bool:
        return self.timed and task.experiment.is_timed

    def _prompt(self, task: Task, number: int | None = None) -> list[int]:
        setting = task.block.setting
        prompts = self.prompts[task.experiment.paper, setting.set]
        return list(prompts[task.prompt if number is None else number][: setting.prompt_tokens])

    def _decode(self, task: Task) -> None:
        times: WayTimes = {}
        for _, name in by_turns([*task.block.ways], 1, task.prompt + task.repeat):
            way = task.block.ways[name]
            key = task.counts_key(way)
            if not self._is_timed(task) and self.store.find(key, TextCounts) is not None:
                continue
            generation = self._write(task, way)
            self.store.run(key, TextCounts, lambda generation=generation: TextCounts.of(generation))
            times[name] = TextTimes.of(generation.metrics)
        if self._is_timed(task):
            self.store.run(task.turn_key, WayTimes, lambda: times)

    def _write(self, task: Task, way: ReplayMethod) -> Generation | AssistedText:
        setting = task.block.setting
        prompt = self._prompt(task)
        options: dict[str, Any] = {**setting.options, "seed": self.seed}
        if self._is_timed(task) and way.spec not in self.warm:
            self.warm.add(way.spec)
            self.make_decoder(way).generate(prompt, **options)
        if not way.learns:
            return self.make_decoder(way).generate(prompt, **options)
        # The prompts before it in the set come first in any case, so that its counts are the same in a replay that was
        # cut short and in one that was not.
        key = (task.experiment.paper, way.spec, setting.set, *setting.key)
        writer, next_prompt = self.histories.get(key, (None, 0))
        if writer is None or next_prompt != task.prompt:
            writer = self.make_decoder(way)
            for number in range(task.prompt):
                writer.generate(self._prompt(task, number), **options)
        self.histories[key] = writer, task.prompt + 1
        return writer.generate(prompt, **options)

    def _difference(self, task: Task) -> str | None:
        """A method whose text must be plain decoding's, but differs, and not by a tie; None without one."""
        ways = task.block.ways
        setting = task.block.setting
        plain = self.store.find(task.counts_key(ways[AUTOREGRESSIVE]), TextCounts)
        for name, way in ways.items():
            if way.assisted or way.lossy_window:
                continue
            if setting.temperature and way.verifier and not is_text_of_seed(way.verifier):
                continue  # these keep the distribution, not the text
            counts = self.store.find(task.counts_key(way), TextCounts)
            if not plain or not counts or counts.tokens == plain.tokens:
                continue
            if self.store.find(task.tie_key(way), Difference):
                continue
            difference = self.compare(setting, self._prompt(task), plain.tokens, counts.tokens)
            if difference and difference.is_tie:
                self.store.run(task.tie_key(way), Difference, lambda difference=difference: difference)
                continue
            location = f"after prompt {task.prompt} of {setting.set}"
            size = f", and not by a tie: token {difference.position}, gap {difference.gap:.3g}" if difference else ""
            return f"{name} wrote another text than {AUTOREGRESSIVE} {location}{size}"
        return None


class ReplayTarget:
    """A target that is loaded once; an inflated target is loaded once per drafter.

    Args:
        name: as for `drafttree.load`.
        dtype: dtype of the target.
        device: device of the target.
        shape: shape of a larger model, whose cost an inflated target gets; None for no inflation.
        exact_text: as for `drafttree.load`.
    """

    def __init__(self, name: str, dtype: str, device: str, shape: str | None, *, exact_text: bool = False) -> None:
        self._name = name
        self._dtype = dtype
        self._device = device
        self._shape = shape
        self._exact_text = exact_text
        self.load_drafter = cache(self._load_drafter)

    @cached_property
    def plain(self) -> Decoder:
        """The target without a drafter."""
        return load(self._name, "none", dtype=self._dtype, device=self._device, exact_text=self._exact_text)

    @cached_property
    def pass_seconds(self) -> float:
        """Seconds of a pass of the target over one token, the fastest of a few."""
        generation = self.plain.generate(
            [0] * PASS_TOKENS, max_new_tokens=PASS_TOKENS, temperature=0.0, ignore_eos=True
        )
        return min(text_round.target_seconds for text_round in generation.metrics.rounds)

    def compare(
        self, seed: int, setting: Setting, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
    ) -> Difference | None:
        """How two texts of the target differ; None if they have to be the same.

        Args:
            seed: the seed of both texts.
            setting: their setting.
            prompt: token ids of the prompt.
            expected: plain decoding's text.
            got: the other text.
        """
        if self._shape or keeps_text(self.plain.target):
            return None
        return find_difference(self.plain, prompt, expected, got, seed=seed, **setting.options)

    def make_decoder(self, method: ReplayMethod) -> Writer:
        """The writer of a method's texts.

        Raises:
            ConfigError: the method is assisted generation, and its drafter cannot assist transformers' `generate`.
            ModelError: its drafter cannot be loaded or does not fit the target; the message names it.
        """
        if method.assisted:
            return AssistedGeneration(self.load_drafter(method.drafter))
        return self._make_decoder(method, method.lossy_window)

    def refusal(self, method: ReplayMethod) -> str | None:
        """Why the loaded drafter of a method cannot be used for it; None if it can."""
        if not method.assisted:
            return None
        try:
            self.make_decoder(method)
        except ConfigError:
            return told_unassisting(method.drafter)
        return None

    def measure(self, seed: int, task: Task, ids: Sequence[int]) -> Fractions:
        """Measure a task that is not about decoding, after a prompt.

        Raises:
            ConfigError: the target is inflated, and the task cannot be measured on such a target.
        """
        result_kind = task.experiment.result.kind
        if result_kind == "expansion":
            return measure_expansion(task)
        if result_kind == "acceptance":
            return measure_acceptance(task, ids, self._make_decoder, seed)
        if self._shape:
            raise ConfigError("peak memory is measured on the target itself; leave --inflate out")
        return measure_memory(task, ids, self._name, self._dtype, self._device, seed)

    def encode(
        self, prompts: Mapping[Place, Sequence[Example]], length: int, *, chat: bool
    ) -> dict[Place, list[list[int]]]:
        """The token ids of all prompts' first turns, with room for `length` new tokens.

        Raises:
            InputError: a chat template is needed, and the target has none.
        """
        form = PromptForm(chat=chat, turns=1)
        return {set_key: encode_prompts(self.plain, texts, form, length) for set_key, texts in prompts.items()}

    def open_store(self, folder: Path, minutes: float | None, **options: object) -> RunStore:
        """The store of a folder, which belongs to this target.

        Args:
            folder: folder of the runs.
            minutes: minutes after which no more tasks are run; None for no limit.
            **options: further options that the cells depend on.

        Raises:
            InputError: the folder has the runs of another target, or something else.
        """
        target_model: Any = self.plain.target
        target = {"target": self._name, "dtype": str(target_model.dtype), "device": str(target_model.device)}
        weights = {"inflate": self._shape or "", "digest": model_digest(target_model)}
        if self._exact_text:  # folders of earlier versions have no such entry
            weights["exact_text"] = "True"
        command = {"command": "drafttree replay", "format": FORMAT, **target, **weights, **options}
        return RunStore(folder, command, partial=True, minutes=minutes)

    def _make_decoder(self, method: Method, lossy_window: int | None = None) -> Decoder:
        base = self.load_drafter(method.drafter)
        drafters = {method.drafter: base.drafter} if method.drafter and base.drafter else {}
        if lossy_window:
            module = transformers_model(base).module
            base = load(module, "none", tokenizer=base.tokenizer, lossy_window=lossy_window)
        return make_decoders(base, [method], drafters)[method.spec]

    def read_text(self, prompt: list[int], setting: Setting, seed: int) -> KnownText:
        """The logits of the embedded draft model and of the target along a text that the target writes.

        Raises:
            ConfigError: the target is inflated.
        """
        if self._shape:
            raise ConfigError("it would be fitted to the target itself; leave --inflate out")
        text_tokens = self.plain.generate(prompt, seed=seed, **setting.options).tokens
        draft: Any = self.load_drafter(DRAFT_MODEL).drafter
        return KnownText.read(draft.model, self.plain.target, prompt, text_tokens, setting.temperature)

    def _load_drafter(self, drafter: str | None) -> Decoder:
        if drafter and drafter.startswith(GRADED):
            base: Any = self.load_drafter(DRAFT_MODEL)
            grade = Grade.parse(drafter.removeprefix(GRADED))
            return base.with_drafter(GradedDrafter(base.drafter, LanguageModelDrafter(base.target), grade))
        if self._shape:
            return load_inflated(self._name, drafter or "none", self._shape, self._dtype, self._device)
        if drafter is None:
            return self.plain
        try:
            return make_decoders(self.plain, [Method.parse(drafter)])[Method.parse(drafter).spec]
        except DraftTreeError as error:
            raise ModelError(f"the drafter {drafter!r} cannot draft for {self._name!r}: {error}") from error
