"""Runs the cells of experiments: counts, which need no clock, and turns, in which all ways of a block run by turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from drafttree.core.errors import DraftTreeError
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.measure.driver import by_turns
from drafttree.measure.json_lines import UnwritableError
from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.paper import AUTOREGRESSIVE
from drafttree_lab.replay.replay_method import ReplayMethod
from drafttree_lab.replay.task import Fractions, Key, Task, WayTimes, setting_key
from drafttree_lab.replay.text_cell import TextCounts, TextTimes, Written


class Writer(Protocol):
    """What writes the texts of a method: a `Decoder`, or another loop."""

    def generate(self, prompt: list[int], **options: Any) -> Written:
        """The text after a prompt; options as for `Decoder.generate`."""
        ...


@dataclass
class Runner:
    """Runs tasks, and keeps their cells.

    Attributes:
        make_decoder: makes what writes the texts of a method, plain decoding among them.
        measure: measures the methods of a task of another kind than decoding, after a prompt.
        prompts: token ids by paper and set.
        store: the store of the cells.
        seed: the random seed.
        timed: whether to time; else each way is counted once.
        ended: why no more of a result is run, by its id.
        warm: ways that have run in this process.
        histories: of methods that go from text to text with what they learned, what writes the texts of a setting,
            with the number of the prompt that follows.
    """

    make_decoder: Callable[[ReplayMethod], Writer]
    measure: Callable[[Task, Sequence[int]], Fractions]
    prompts: Mapping[tuple[str, str], Sequence[Sequence[int]]]
    store: RunStore
    seed: int = 0
    timed: bool = True
    ended: dict[str, str] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    histories: dict[Key, tuple[Writer, int]] = field(default_factory=dict)

    def run(self, todo: Sequence[Task], progress: Callable[[str], None]) -> None:
        """Run tasks that are not kept.

        Args:
            todo: the tasks, in order.
            progress: called after every task with its result.
        """
        for task in todo:
            if task.experiment.id not in self.ended:
                self._complete(task)
            progress(task.experiment.id)

    def is_done(self, task: Task) -> bool:
        """Whether all cells of a task are kept."""
        if task.experiment.result.kind != "decoding":
            return self.store.find(task.other_key, Fractions) is not None
        if self.timed and self.store.find(task.turn_key, WayTimes) is None:
            return False
        keys = [task.counts_key(way) for way in task.block.ways.values()]
        return all(self.store.find(key, TextCounts) is not None for key in keys)

    def _complete(self, task: Task) -> None:
        if not self.is_done(task):
            self.store.check_time()
            self._run(task)
        if difference := self._difference(task):
            self.ended[task.experiment.id] = difference

    def _run(self, task: Task) -> None:
        try:
            self._decode(task) if task.experiment.result.kind == "decoding" else self._measure(task)
        except UnwritableError:
            raise
        except DraftTreeError as error:
            self.ended[task.experiment.id] = str(error)

    def _measure(self, task: Task) -> None:
        self.store.run(task.other_key, Fractions, lambda: self.measure(task, self._prompt(task)))

    def _prompt(self, task: Task, number: int | None = None) -> list[int]:
        setting = task.block.setting
        prompts = self.prompts[task.experiment.paper, setting.set]
        return list(prompts[task.prompt if number is None else number][: setting.prompt_tokens])

    def _decode(self, task: Task) -> None:
        times: WayTimes = {}
        for _, name in by_turns([*task.block.ways], 1, task.prompt + task.repeat):
            way = task.block.ways[name]
            key = task.counts_key(way)
            if not self.timed and self.store.find(key, TextCounts) is not None:
                continue
            generation = self._write(task, way)
            self.store.run(key, TextCounts, lambda own=generation: TextCounts.of(own))
            times[name] = TextTimes.of(generation.metrics)
        if self.timed:
            self.store.run(task.turn_key, WayTimes, lambda: times)

    def _write(self, task: Task, way: ReplayMethod) -> Written:
        setting, prompt = task.block.setting, self._prompt(task)
        options = {"temperature": setting.temperature, "max_new_tokens": setting.max_new_tokens, "seed": self.seed}
        options["ignore_eos"] = setting.ignore_eos
        if self.timed and way.spec not in self.warm:
            self.warm.add(way.spec)
            self.make_decoder(way).generate(prompt, **options)
        if way.learns:
            return self._write_next(task, way, options)
        return self.make_decoder(way).generate(prompt, **options)

    def _write_next(self, task: Task, way: ReplayMethod, options: dict[str, Any]) -> Written:
        """The text of a policy that learns between texts: the prompts before it in the set come first, in any case.

        So the text's counts are the same in a replay that was cut short and in one that was not.
        """
        key = (task.experiment.paper, way.spec, task.block.setting.set, *setting_key(task.block.setting))
        writer, following = self.histories.get(key, (None, 0))
        if writer is None or following != task.prompt:
            writer = self.make_decoder(way)
            for number in range(task.prompt):
                writer.generate(self._prompt(task, number), **options)
        self.histories[key] = writer, task.prompt + 1
        return writer.generate(self._prompt(task), **options)

    def _difference(self, task: Task) -> str | None:
        """The method whose text is another than plain decoding's, where both are to write the same."""
        ways, key = task.block.ways, task.counts_key
        plain = self.store.find(key(ways[AUTOREGRESSIVE]), TextCounts)
        for name, way in ways.items():
            found = self.store.find(key(way), TextCounts)
            if plain and found and _is_same_text(task, way) and found.tokens != plain.tokens:
                where = f"after prompt {task.prompt} of {task.block.setting.set}"
                return f"{name} wrote another text than {AUTOREGRESSIVE} {where}"
        return None


def _is_same_text(task: Task, way: ReplayMethod) -> bool:
    """Whether a way has to write plain decoding's text, and not only one of the same law."""
    if way.assisted or way.lossy_window:
        return False
    return task.block.setting.temperature == 0 or way.verifier is None or is_text_of_seed(way.verifier)
