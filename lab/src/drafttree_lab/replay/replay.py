"""Replays results of papers: plans their runs, runs what time allows, and tells what came out."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.experiment import Experiment, Sizes, clauses, plan
from drafttree_lab.replay.main_claims import correct_main_claims
from drafttree_lab.replay.measured import Measured
from drafttree_lab.replay.pass_costs import BY_PAPER, CostSource
from drafttree_lab.replay.prompt_texts import PromptTexts
from drafttree_lab.replay.replay_method import ReplayMethod
from drafttree_lab.replay.roles import Roles
from drafttree_lab.replay.runner import Runner, Writer
from drafttree_lab.replay.summary import ResultSummary, summarise
from drafttree_lab.replay.task import Digests, Fractions, Task, short_digest, tasks

Prompts = Mapping[tuple[str, str], Sequence[Sequence[int]]]
"""Token ids by the name of the paper and of the set."""


@dataclass(frozen=True)
class Replay:
    """What a replay has found so far.

    Attributes:
        results: results of the papers; main claims are not corrected for their number.
    """

    results: list[ResultSummary]

    @property
    def corrected(self) -> list[ResultSummary]:
        """The results with main claims corrected for their number."""
        return correct_main_claims(self.results)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"results": [each.to_json() for each in self.corrected]}


def experiments(
    results: Sequence[tuple[str, str]],
    roles: Roles,
    texts: PromptTexts,
    sizes: Sizes,
) -> list[Experiment]:
    """The runs of results, without sets that have no prompts.

    Args:
        results: papers and names.
        roles: who drafts.
        texts: the prompts of the papers' sets.
        sizes: how much is run.
    """
    planned = (plan(paper, name, roles.drafters, roles.missing, sizes) for paper, name in results)
    return [_with_texts(each, texts) for each in planned]


def run_replay(
    planned: Sequence[Experiment],
    prompts: Prompts,
    make_decoder: Callable[[ReplayMethod], Writer],
    measure: Callable[[Task, Sequence[int]], Fractions],
    store: RunStore,
    *,
    repeats: int = 1,
    seed: int = 0,
    timed: bool = True,
    costs: CostSource = BY_PAPER,
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[Replay], None] = lambda _: None,
) -> Replay:
    """Run what is not kept yet, and tell what all of it amounts to.

    Args:
        planned: the experiments.
        prompts: token ids by paper and set.
        make_decoder: makes the decoder of a method.
        measure: what a task of another kind than decoding measures after a prompt.
        store: the store of the cells.
        repeats: turns of every prompt.
        seed: the random seed.
        timed: whether to time; counts need no quiet machine.
        costs: where the costs come from by which counts are judged.
        progress: called after every task with its result.
        keep: takes what is found so far, since a run may be killed: after the first task, and then so often that it
            takes a twentieth of the time.
    """
    digests = {place: [short_digest(list(ids)) for ids in each] for place, each in prompts.items()}
    todo = list(tasks(planned, digests, repeats if timed else 1))
    runner = Runner(make_decoder, measure, prompts, store, seed=seed, timed=timed)
    due = -math.inf

    def found() -> Replay:
        return Replay([_summary(each, runner, todo, digests, costs, repeats) for each in planned])

    def advance(result: str) -> None:
        nonlocal due
        progress(result)
        if (begun := time.monotonic()) >= due:
            keep(found())
            due = time.monotonic() + 19 * (time.monotonic() - begun)

    with store.interruptible():
        runner.run(todo, advance)
    return found()


def _summary(
    each: Experiment, runner: Runner, todo: Sequence[Task], digests: Digests, costs: CostSource, repeats: int
) -> ResultSummary:
    own = [task for task in todo if task.experiment is each]
    own_digests = {name: of for (paper, name), of in digests.items() if paper == each.paper}
    measured = Measured(each, runner.store, own_digests, repeats, costs=costs)
    done = sum(map(runner.is_done, own))
    return summarise(measured, ended=runner.ended.get(each.id), done=done, tasks=len(own))


def _with_texts(each: Experiment, texts: PromptTexts) -> Experiment:
    """A result's runs of sets that have prompts, with what the sets lack."""
    blocks = [block for block in each.blocks if (each.paper, block.setting.set) not in texts.missing]
    sets = [(name, (each.paper, name)) for name in each.result.sets]
    missing = {name: texts.missing[place] for name, place in sets if place in texts.missing}
    notes = {name: texts.notes[place] for name, place in sets if place in texts.notes}
    return replace(each, blocks=blocks, missing={**each.missing, **missing}, notes=clauses(notes))
