"""The grammars of requests: made one at a time, the shortest first, in a thread that comes behind the texts."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from queue import PriorityQueue
from typing import Any, Literal

from drafttree.constraints import grammar
from drafttree.constraints.grammar import Grammar
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.open_request import open_request

NICENESS = 5
"""By how much less urgent the thread is than those that write texts."""


@dataclass(frozen=True)
class WantedGrammar:
    """A grammar as a request asks for it.

    Attributes:
        kind: what the text is.
        text: the grammar.
        field: the field of the request that has it.
    """

    kind: Literal["json_schema", "json_choice", "structural_tag", "regex", "ebnf"]
    text: str
    field: str

    def parse(self) -> Grammar:
        """The grammar.

        Raises:
            ConfigError: it is malformed, or a part of it would not be enforced.
        """
        match self.kind:
            case "regex":
                return grammar.regex(self.text)
            case "ebnf":
                return grammar.ebnf(self.text)
            case "json_choice":
                quoted = (json.dumps(each, ensure_ascii=False) for each in json.loads(self.text))
                return grammar.ebnf(f"root ::= {' | '.join(quoted)}")
            case "structural_tag":
                return grammar.structural_tag(json.loads(self.text))
        return grammar.json_schema(self.text)


class Grammars:
    """Makes the grammars of a server's requests.

    What one grammar may take is bounded by its length and by `drafttree.constraints`; the longest takes a second.

    Args:
        decoder: the decoder of the served model.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._wanted: PriorityQueue[tuple[int, int, Future[Grammar], WantedGrammar, tuple[int, ...]]] = PriorityQueue()
        self._order = count()
        self._thread = threading.Thread(target=self._make_all, name="grammars", daemon=True)

    async def made(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a text with the grammar that they want, if any, in place of its `WantedGrammar`.

        Raises:
            ServerError: the request's time is over (503).
            ConfigError: it is malformed, a part of it would not be enforced, or nothing could end its text.
        """
        wanted = options.get("grammar")
        if not isinstance(wanted, WantedGrammar):
            return {**options}
        if options.get("ignore_eos"):
            raise ServerError(400, "a grammar ends its text with an EOS token; leave out ignore_eos")
        merged = RequestOptions.merge(self._decoder.defaults, {**options, "grammar": None})
        eos = merged.eos(self._decoder.eos, self._decoder.target.vocab_size)
        if not self._thread.ident:
            self._thread.start()
        request, making = open_request(), Future[Grammar]()
        self._wanted.put((len(wanted.text), next(self._order), making, wanted, eos))
        try:
            async with asyncio.timeout(request.seconds_left if request else None):
                return {**options, "grammar": await asyncio.wrap_future(making)}
        except TimeoutError:
            message = f"the time of this request (--timeout) was over before {wanted.field} was read; try again later"
            raise ServerError(503, message, code="timeout", headers={"Retry-After": "1"}) from None

    def _make_all(self) -> None:
        """Make what is wanted; what nobody waits for any more is left out."""
        if sys.platform == "linux":  # where a thread has a niceness of its own
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
        while True:
            _, _, making, wanted, eos = self._wanted.get()
            if not making.set_running_or_notify_cancel():
                continue
            try:
                made = _parsed(wanted)
                # The first state makes the matcher that the states of all texts are copied from.
                made.new_state(self._decoder.tokenizer, self._decoder.target.vocab_size, eos)
                making.set_result(made)
            except Exception as error:
                making.set_exception(error)


@lru_cache(maxsize=64)
def _parsed(wanted: WantedGrammar) -> Grammar:
    return wanted.parse()
