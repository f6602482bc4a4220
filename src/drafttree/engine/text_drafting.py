"""How one text is drafted for."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import DraftTreeError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.tree import FORCED, DraftTree
from drafttree.drafters.base import Drafter, HiddenStates, Session, accepted_rows
from drafttree.drafters.session import LateReader
from drafttree.engine.acceptance_watch import BEST, AcceptanceWatch, HeadWatch
from drafttree.engine.drafting.controller import Controller, as_written
from drafttree.policies.base import TextContext

logger = logging.getLogger("drafttree")


@dataclass
class TextDrafting:
    """The drafter's session of a text and what its policy knows.

    Attributes:
        wanted: whether anything is drafted for the text.
        temperature: divides the drafter's logits.
        session: the session of the drafter; None for plain decoding, before `RoundLoop.open` and after the drafter has
            failed. What becomes of the text it is told by `prefill` and `commit` here.
        watch: compares the text's drafts with its earlier ones; None after it has found them far worse, and for lookup,
            which drafts only where the text repeats itself.
        head_watch: tests heads by this text and others; None where its tokens are less likely than in the target's law.
        claim: a position and the log-probabilities `[vocab]` that a head has given there; None where none is tested.
        most_forced: tokens that a round drafts at most where constraints leave them alone possible; twice as many as
            the text has lately taken of them, since its target may spell in another way.
        expects: whether the session tells how many tokens it expects to be accepted.
        reads_prompt: whether the drafter reads the prompt too.
        controller: decides how much is drafted; that of the batch, or one of a text that is written alone.
        context: what the policy was told when the text began.
        state: what the policy has learned of the text.
        pauses: whether the next round drafts nothing, since memory ran out in this one.
        on_failure: told of an error of the drafter, behind which the text goes on without drafts; None to raise it.
    """

    wanted: bool = True
    temperature: float = 1.0
    session: Session | None = None
    watch: AcceptanceWatch | None = field(default_factory=AcceptanceWatch)
    head_watch: HeadWatch | None = None
    claim: tuple[int, Tensor] | None = None
    most_forced: int = 16
    expects: bool = False
    reads_prompt: bool = False
    controller: Controller = field(default_factory=as_written)
    context: TextContext | None = None
    state: Any = None
    pauses: bool = False
    on_failure: Callable[[Exception], None] | None = None
    _late: LateReader | None = None
    _counted: tuple[float, int] = (0.0, 0)

    @property
    def costs(self) -> CostCurve | None:
        """The cost curve that the policy uses, None for one that needs none."""
        return self.context.costs if self.context else None

    def start(self, session: Session) -> None:
        """Draft by a session that has just begun; see `Session.follows_text`."""
        self.session = session
        self._late = None if session.follows_text else LateReader(session)
        self.expects = type(session).expected_accepted is not Session.expected_accepted
        self.watch = None if session.follows_text or (self.expects and not session.mixes) else self.watch

    def close(self) -> None:
        """Give the session's memory back."""
        self.session = self._late = None
        self._counted = 0.0, 0

    def rest(self, resting: bool) -> None:
        """Note whether nothing is drafted at present: a draft model then reads the text when it is to draft again."""
        if self._late:
            self._late.resting = resting
        if self.session and self.session.mixes:
            self.session.resting = resting

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        """Let the session read a part of the prompt, now or when it is to draft."""
        if reader := self._late or self.session:
            with self.failing_softly():
                reader.prefill(hidden_states, tokens)

    def commit(self, tokens: list[int], hidden_states: HiddenStates, path: list[int]) -> None:
        """Let the session take note of what a round has committed, now or when it is to draft.

        Args:
            tokens: the committed tokens.
            hidden_states: of all nodes of the round's tree.
            path: those that were accepted.
        """
        try:  # every round comes here, and a context manager would take longer than all else in it
            if self._late:
                self._late.commit(tokens, hidden_states, path)
            elif self.session:
                self.session.commit(tokens, accepted_rows(hidden_states, path))
        except Exception as error:
            self._fail(error, begun=True)

    def count_forced(self, drafted: int, accepted: int) -> None:
        """Note how many tokens that constraints forced a round has drafted and accepted."""
        self.most_forced = max(2 * accepted, self.most_forced if accepted == drafted else 2)

    def catch_up(self) -> Session | None:
        """The session, told all of the text; None where there is none, or where that has failed."""
        if self._late:
            with self.failing_softly(begun=True):
                self._late.catch_up()
        return self.session

    def asked(self) -> Session | None:
        """The session, told all of the text if that is what it expects acceptance by."""
        return self.catch_up() if self.expects else self.session

    def choose(self, source: int) -> Session | None:
        """The session of the model that drafts the next round, told all of the text; None where that has failed."""
        if (session := self.catch_up()) is None:
            return None
        with self.failing_softly(begun=True):
            return session.choose(source)

    def read_costs(self) -> tuple[float, int]:
        """Seconds and passes of the drafter that were not read yet."""
        if self.session is None:
            return 0.0, 0
        seconds, passes = self._counted
        self._counted = self.session.seconds, self.session.passes
        return self._counted[0] - seconds, self._counted[1] - passes

    def takes_claim(self, position: int, vocab: int) -> Callable[[Tensor], None] | None:
        """Notes what a head says of the next token, while heads are tested; see `HeadWatch`."""
        if not (self.head_watch and self.head_watch.is_open):
            return None

        def take(logits: Tensor) -> None:
            self.claim = position, logits[0].float().log_softmax(-1)[:vocab]

        return take

    def check_head(self, tokens: Sequence[int], token: int, drafter: Drafter | None) -> None:
        """Say in the log, once for a target and a drafter, where a head claims far more than its tokens are worth."""
        watch = self.head_watch
        claim, self.claim = self.claim, None
        if not (watch and claim and watch.is_open) or claim[0] != len(tokens):
            return
        watch.observe(tokens, claim[1], token)
        if watch.is_misread:
            logger.warning(
                "the drafter %s may be misread: the target's token was among the %d likeliest of its head in %s "
                "rounds, and should have been in %.0f by the head's own probabilities. The head may be made for "
                "another target or another version of it, be in a variant of its format that is read in a wrong way, "
                "or know no such texts. Try it with drafttree inspect HEAD --target MODEL; if it is made for this "
                "target, report what that prints",
                *(getattr(drafter, "name", "") or repr(drafter), BEST, watch.found, watch.claimed),
            )

    def has_collapsed(self, tokens: Sequence[int], tree: DraftTree, *, accepted: bool, context: int | None) -> bool:
        """Whether this round has shown that drafts are of use no more, which is said in the log once per text.

        Args:
            tokens: the text before the round, prompt included, which goes on.
            tree: the tree of the round.
            accepted: whether a drafted token was accepted.
            context: tokens that the drafter can read, None for any number.
        """
        if self.watch is None or self.session is None:
            return False
        if context is not None and len(tokens) >= context:
            fact = f"a text has reached the drafter's context of {context} tokens, and nothing is drafted for its rest"
            advice = "use a drafter with a longer context, or lookup"
        else:
            drafted = tree.size > 1 and tree.source not in ((FORCED, 0) if self.session.mixes else (FORCED,))
            if not drafted or not self.watch.observe(tokens, accepted):
                return False
            fact = (
                f"from token {self.watch.begin} of a text on, {self.watch.since} rounds accepted a drafted token, and "
                f"{self.watch.before} before"
            )
            advice = (
                "the text may be longer than those the drafter was trained on, or in a language it does not know; use "
                "another drafter for such texts, or none (speculate=False)"
            )
        self.watch = None
        logger.warning("%s: %s", fact, advice)
        return True

    @contextmanager
    def failing_softly(self, *, begun: bool = False) -> Iterator[None]:
        """Let an error of the drafter end the drafts and not the text, if somebody is to be told of it.

        Args:
            begun: whether tokens of the text were chosen, so that memory that runs out must not drop it: it would be
                drawn again.
        """
        try:
            yield
        except Exception as error:
            self._fail(error, begun=begun)

    def _fail(self, error: Exception, *, begun: bool) -> None:
        ends_drafts = begun if is_out_of_memory(error) else self.on_failure and not isinstance(error, DraftTreeError)
        if not ends_drafts:
            raise error
        self.close()
        if self.on_failure:
            self.on_failure(error)
        else:
            logger.warning("memory ran out in the drafter, so the text goes on without drafts")
