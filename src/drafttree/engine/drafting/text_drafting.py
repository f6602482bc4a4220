"""The state of drafting for one text."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.tree import FORCED, DraftTree, GrowthObserver
from drafttree.drafters.base import Drafter, HiddenStates, Session, accepted_rows
from drafttree.drafters.lookup import LookupSession
from drafttree.drafters.session import LateReader
from drafttree.engine.drafting.acceptance_watch import BEST, AcceptanceWatch, HeadWatch
from drafttree.engine.drafting.controller import Controller, as_written
from drafttree.engine.metrics import Metrics
from drafttree.engine.task import Task
from drafttree.engine.written_text import WrittenText
from drafttree.models import Output
from drafttree.policies.base import RoundOutcome, TextContext

logger = logging.getLogger("drafttree")


@dataclass(eq=False)
class TextDrafting:
    """The drafter's session, the policy's state and the controller of one text.

    Attributes:
        task: the task of the text.
        head_watch: tests heads by this text and others; None if an option makes tokens less likely than the target
            does.
        session: the drafter's session; None for plain decoding, before `start` and after the drafter has failed.
            `prefill` and `commit` of this object tell it the text.
        watch: notices if drafts become useless to the text; None after that, and for lookup, which drafts only if the
            text repeats itself.
        claim: a position, and a head's log-probabilities `[vocab]` of the token there; None if no head is tested.
        max_forced: maximum number of forced tokens that a round drafts. It follows the number that the target accepts,
            which may spell the text in another way.
        estimates_accepted: whether the session can estimate how many of its tokens will be accepted.
        reads_prompt: whether the drafter reads the prompt too.
        controller: decides how much is drafted. A text that is written alone has its own; a batch shares one.
        context: what the policy got when the text began.
        state: what the policy has learned from the text.
        pauses: whether the next round drafts nothing, since memory ran out in this one.
        on_failure: called with an error of the drafter; the text then continues without drafts. None raises the error.
    """

    task: Task
    head_watch: HeadWatch | None = None
    session: Session | None = None
    watch: AcceptanceWatch | None = field(default_factory=AcceptanceWatch)
    claim: tuple[int, Tensor] | None = None
    max_forced: int = 16
    estimates_accepted: bool = False
    reads_prompt: bool = False
    controller: Controller = field(default_factory=as_written)
    context: TextContext | None = None
    state: Any = None
    pauses: bool = False
    on_failure: Callable[[Exception], None] | None = None
    _late: LateReader | None = None
    _reported_costs: tuple[float, int] = (0.0, 0)

    @property
    def costs(self) -> CostCurve | None:
        """The cost curve that the policy uses; None if it uses none."""
        return self.context.costs if self.context else None

    def start(self, session: Session) -> None:
        """Use a new session."""
        self.session = session
        self._late = None if session.follows_text else LateReader(session)
        self.estimates_accepted = type(session).expected_accepted not in (Session.expected_accepted, None)
        self.watch = None if session.follows_text or isinstance(session, LookupSession) else self.watch

    def begin(self, context: TextContext) -> None:
        """Store the policy's context, and make its state."""
        self.context = context
        self.state = self.task.policy.init_state(context) if self.session else None

    def follow(self, controller: Controller, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Set the controller, and what is called if the drafter fails."""
        self.controller = controller
        self.on_failure = on_failure

    def begin_prompt(self, *, reads: bool, batch: int) -> None:
        """Decide whether the drafter reads the prompt, and whether it can do so later.

        Args:
            reads: whether the text has room for drafted levels.
            batch: number of texts that are written at once.
        """
        self.reads_prompt = self.session is not None and reads
        wants_draft = self.session is None or self.task.policy.wants_draft(self.state, self.session)
        self.rest(self.controller.rests(batch) or not wants_draft)

    def pause_once(self) -> None:
        """Draft nothing in the next round, since memory ran out in this one."""
        self.pauses = True

    def consume_pause(self) -> bool:
        """Return whether `pause_once` was called since the last call."""
        pauses_now = self.pauses
        self.pauses = False
        return pauses_now

    def seen(self, tokens: int) -> int:
        """The number of tokens that the drafter sees of the first `tokens` tokens of the text."""
        return self.session.images.seen(tokens) if self.session else tokens

    def observe(self, outcome: RoundOutcome) -> None:
        """Let the policy learn from a round."""
        self.state = self.task.policy.observe(self.state, outcome)

    def close(self) -> None:
        """Drop the session and its memory."""
        self.session = self._late = None
        self._reported_costs = 0.0, 0

    def rest(self, resting: bool) -> None:
        """Set whether drafting pauses. In a pause, a draft model does not read the text until it drafts again."""
        if self._late:
            self._late.resting = resting
        if self.session and self.session.mixes:
            self.session.resting = resting

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        """Tell the session a part of the prompt. It reads it now, or before it drafts next."""
        if reader := self._late or self.session:
            with self.failing_softly():
                reader.prefill(hidden_states, tokens)

    def commit(self, tokens: list[int], hidden_states: HiddenStates, path: list[int]) -> None:
        """Tell the session a round's tokens. It reads them now, or before it drafts next.

        Args:
            tokens: the committed tokens.
            hidden_states: the target's hidden states of all nodes of the round's tree.
            path: the accepted nodes.
        """
        try:  # not `failing_softly`: a context manager would take longer than the rest of this, in every round
            if self._late:
                self._late.commit(tokens, hidden_states, path)
            elif self.session:
                self.session.commit(tokens, accepted_rows(hidden_states, path))
        except Exception as error:
            self._fail(error, has_begun=True)

    def count_forced(self, drafted: int, accepted: int) -> None:
        """Set `max_forced` by the numbers of forced tokens that a round has drafted and accepted."""
        self.max_forced = max(2 * accepted, self.max_forced if accepted == drafted else 2)

    def catch_up(self) -> Session | None:
        """Let the session read the whole text, and return it; None if there is no session or reading failed."""
        if self._late:
            with self.failing_softly(has_begun=True):
                self._late.catch_up()
        return self.session

    def up_to_date_session(self) -> Session | None:
        """Return the session. One that estimates its accepted tokens has then read the whole text."""
        return self.catch_up() if self.estimates_accepted else self.session

    def session_of(self, source: int) -> Session | None:
        """Return the session of one of the drafter's models, which has read the whole text; None if that failed."""
        if (session := self.catch_up()) is None:
            return None
        with self.failing_softly(has_begun=True):
            return session.choose(source)

    def read_costs(self) -> tuple[float, int]:
        """Return the drafter's seconds and passes since the last call."""
        if self.session is None:
            return 0.0, 0
        seconds, passes = self._reported_costs
        self._reported_costs = self.session.seconds, self.session.passes
        return self._reported_costs[0] - seconds, self._reported_costs[1] - passes

    def claim_recorder(self, position: int, vocab: int) -> Callable[[Tensor], None] | None:
        """Return a function that stores a head's claim from its logits of the next token; None if no head is tested."""
        if not (self.head_watch and self.head_watch.is_open):
            return None

        def record_claim(logits: Tensor) -> None:
            self.claim = position, logits[0].float().log_softmax(-1)[:vocab]

        return record_claim

    def check_head(self, tokens: Sequence[int], token: int, drafter: Drafter | None) -> None:
        """Test a head's claim by the target's token. Warn once per target and drafter if the head seems misread."""
        watch = self.head_watch
        claim = self.claim
        self.claim = None
        if not (watch and claim and watch.is_open) or claim[0] != len(tokens):
            return
        watch.observe(tokens, claim[1], token)
        if watch.is_misread:
            logger.warning(
                "the drafter %s may be misread: the target's token was among the head's %d likeliest in %s rounds; "
                "by the head's own probabilities it should have been in %.0f. The head may be made for another "
                "target or version, drafttree may read its format wrongly, or it was not trained on such texts. Try "
                "it with drafttree inspect HEAD --target MODEL; if it is made for this target, report what that "
                "prints",
                *(getattr(drafter, "name", "") or repr(drafter), BEST, watch.found, watch.claimed),
            )

    def has_collapsed(self, tokens: Sequence[int], tree: DraftTree, *, accepted: bool, context: int | None) -> bool:
        """Return whether drafts have become useless to the text in this round; if so, log a warning.

        Args:
            tokens: the text before the round, prompt included.
            tree: the tree of the round.
            accepted: whether a drafted token was accepted.
            context: maximum number of tokens that the drafter can read; None for no limit, or if the text ends now.
        """
        if self.watch is None or self.session is None:
            return False
        if context is not None and self.seen(len(tokens)) >= context:
            fact = f"a text has reached the drafter's context of {context} tokens, and nothing is drafted for its rest"
            advice = "use a drafter with a longer context, or lookup"
        else:
            drafted = tree.size > 1 and tree.source not in ((FORCED, 0) if self.session.mixes else (FORCED,))
            if not drafted or not self.watch.observe(tokens, accepted):
                return False
            fact = (
                f"from token {self.watch.begin} of a text on, {self.watch.since} rounds accepted a drafted token; "
                f"before, it was {self.watch.before}"
            )
            advice = (
                "the text may be longer than those the drafter was trained on, or in a language it does not know; use "
                "another drafter for such texts, or none (speculate=False)"
            )
        self.watch = None
        logger.warning("%s: %s", fact, advice)
        return True

    @contextmanager
    def failing_softly(self, *, has_begun: bool = False) -> Iterator[None]:
        """Context manager: with `on_failure`, an error of the drafter ends drafting instead of the text.

        Args:
            has_begun: whether a round has chosen tokens. If so, running out of memory also ends only drafting, since
                those tokens must not be drawn again.
        """
        try:
            yield
        except Exception as error:
            self._fail(error, has_begun=has_begun)

    def _fail(self, error: Exception, *, has_begun: bool) -> None:
        if is_out_of_memory(error):
            text_continues = has_begun
        else:
            text_continues = self.on_failure is not None and not isinstance(error, DraftTreeError)
        if not text_continues:
            raise error
        self.close()
        if self.on_failure:
            self.on_failure(error)
        else:
            logger.warning("memory ran out in the drafter, so the text goes on without drafts")


class DraftedRequest(Protocol):
    """The part of a `drafttree.engine.request.Request` that drafting uses."""

    task: Task
    text: WrittenText
    drafting: TextDrafting
    metrics: Metrics
    growth_observer: GrowthObserver | None
    root_output: Output | None
