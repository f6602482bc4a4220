"""The decoder of toy models: the real one, with randomness that may be enumerated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from drafttree.core.cost_curve import CostCurve
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.batching import Engine
from drafttree.engine.batching.engine import EngineThread
from drafttree.engine.batching.loop import BatchLoop
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.acceptance_watch import HeadWatch
from drafttree.engine.drafting.controller import SHORTEST, Controller
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request, RequestContext
from drafttree.evaluation.scripted_random import ScriptedRandom
from drafttree.evaluation.toy_models import TOY_COSTS, Context, TabularDrafter, TabularModel, TabularTarget
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass(frozen=True)
class Reach:
    """How far texts were tried; nothing is known beyond it.

    Attributes:
        rounds: maximum number of rounds of a text.
        position: the last position of a root.
        siblings: maximum number of children of a node.
        levels: maximum number of levels of a tree.
        columns: maximum number of columns of the target's logits.
        texts: maximum number of texts that were written at once.
    """

    rounds: int = 0
    position: int = 0
    siblings: int = 0
    levels: int = 0
    columns: int = 0
    texts: int = 1

    def __or__(self, other: "Reach") -> "Reach":
        return Reach(*map(max, vars(self).values(), vars(other).values()))


class SteppedEngine(Engine):
    """An engine without a thread, whose rounds run in `run`, so that every repetition is the same."""

    _thread: "_SteppedThread"

    def _start(self, loop: BatchLoop) -> "_SteppedThread":
        return _SteppedThread(loop)

    def run(self) -> None:
        """Write all submitted texts to their end."""
        self._thread.run()


class _SteppedThread(EngineThread):
    """Takes requests as the thread of an engine does, without a thread."""

    def _begin(self) -> None:
        """Do nothing: there is no thread."""

    @property
    def closed(self) -> bool:
        return self._closing

    def check_open(self) -> None:
        """Do nothing: it is not closed while in use."""

    def close(self, *, drain: bool = False) -> None:
        self._closing = True

    def run(self) -> None:
        """Run rounds until no request waits or runs."""
        self._take_all()
        while self._loop.busy:
            self._loop.step()


class _WatchedController(Controller):
    """A controller that acts on the test of a head after two rounds instead of some thousand."""

    def reason(self, batch: int) -> str | None:
        if self._head_watch and self._head_watch.found.rounds > 1:
            return "the head's test has ended"
        return super().reason(batch)


class ToyDecoder(Decoder):
    """Writes texts of toy models, and records how far they go.

    Args:
        target: the toy target.
        draft: the toy draft; its vocabulary may be smaller.
        policy: how the tree grows.
        verifier: the verifier; it may be one that is not lossless with the policy.
        levels: maximum number of levels of a tree.
        costs: costs of passes.
        eos: token ids that end a text.
        script: answers for the random numbers of all seeds; None to use the numbers themselves.
        pause: rounds without drafts at the beginning of a text, if drafting may pause.
        is_head: whether the draft is taken for a head, whose test then decides whether it drafts.

    Attributes:
        reach: how far the rounds went so far.
    """

    def __init__(
        self,
        target: TabularModel,
        draft: TabularModel,
        policy: TreePolicy,
        verifier: type[Verifier],
        levels: int,
        *,
        costs: CostCurve = TOY_COSTS,
        eos: Context = (),
        script: ScriptedRandom | None = None,
        pause: int = 0,
        is_head: bool = False,
    ) -> None:
        drafter = TabularDrafter(draft, levels, is_head=is_head)
        self._pause = pause
        super().__init__(TabularTarget(target), drafter, policy, eos=eos, learned=LearnedState(costs))
        # set here, since the base class refuses pairs that are not lossless
        self.verifier: type[Verifier] | None = verifier
        self.levels = levels
        self.script = script
        self.reach = Reach(columns=target.vocab)

    def randomness(self, seed: int) -> Randomness:
        return self.script.of(seed) if self.script else super().randomness(seed)

    def _new_controller(self, prices: Prices, budget: float | None, head_watch: HeadWatch | None) -> Controller:
        reads_hidden_states = self.drafter is not None and bool(self.drafter.hidden_layers)
        controller_class = _WatchedController if head_watch and reads_hidden_states else Controller
        controller = controller_class(prices, budget=budget, head_watch=head_watch)
        if not self._pause or controller.budget is not None:
            return controller
        for batch in (1, 2):
            while not controller.rests(batch):  # fruitless drafts, until drafting pauses
                controller.learn(batch, batch, 0, [(0, (batch,))])
            for _ in range(SHORTEST - self._pause):  # plain rounds, until `pause` rounds of the pause are left
                controller.learn(batch, batch, batch, [])
        return controller

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        """Do nothing; `settled` sees the tree that was verified."""

    def settled(
        self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        """Record how far a round goes; see `RoundObserver`."""
        rounds = len(request.metrics.rounds) + 1
        position = len(request.tokens) - text_round.committed - 1
        self.reach |= Reach(rounds, position, max(map(len, tree.children)), tree.levels)

    def write_rounds(self, prompt: Context, count: int, options: Mapping[str, Any]) -> Request:
        """Write some rounds of a text, which has room for more."""
        new_tokens = (count + 1) * (self.levels + 1)
        request = self.new_request(prompt, RequestContext(observer=self), max_new_tokens=new_tokens, **options)
        for _ in range(count):
            self.step(request)
        return request
