"""Runs the cells of experiments: counts, which need no clock, and turns, in which all ways of a block run by turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from drafttree.core.errors import DraftTreeError
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.evaluation.by_turns import by_turns
from drafttree.evaluation.json_lines import UnwritableError
from drafttree.evaluation.method import Method
from drafttree.evaluation.run_store import RunStore
from drafttree_lab.replay.paper import AUTOREGRESSIVE
from drafttree_lab.replay.task import Fractions, Task, WayTimes
from drafttree_lab.replay.text_cell import TextCounts, TextTimes


@dataclass
class Runner:
    """Runs tasks, and keeps their cells.

    Attributes:
        make_decoder: makes the decoder of a method, or of plain decoding.
        measure: measures the methods of a task of another kind than decoding, after a prompt.
        prompts: token ids by paper and set.
        store: the store of the cells.
        seed: the random seed.
        timed: whether to time; else each way is counted once.
        ended: why no more of a result is run, by its id.
        warm: ways that have run in this process.
    """

    make_decoder: Callable[[Method], Decoder]
    measure: Callable[[Task, Sequence[int]], Fractions]
    prompts: Mapping[tuple[str, str], Sequence[Sequence[int]]]
    store: RunStore
    seed: int = 0
    timed: bool = True
    ended: dict[str, str] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)

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

    def _prompt(self, task: Task) -> list[int]:
        setting = task.block.setting
        return list(self.prompts[task.experiment.paper, setting.set][task.prompt][: setting.prompt_tokens])

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

    def _write(self, task: Task, way: Method) -> Generation:
        decoder, setting, prompt = self.make_decoder(way), task.block.setting, self._prompt(task)
        options = {"temperature": setting.temperature, "max_new_tokens": setting.max_new_tokens, "seed": self.seed}
        if self.timed and way.spec not in self.warm:
            self.warm.add(way.spec)
            decoder.generate(prompt, **options)
        return decoder.generate(prompt, **options)

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


def _is_same_text(task: Task, way: Method) -> bool:
    """Whether a way has to write plain decoding's text, and not only one of the same law."""
    return task.block.setting.temperature == 0 or way.verifier is None or is_text_of_seed(way.verifier)
