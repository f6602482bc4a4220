"""The grammars of requests: compiled in processes of their own, one at a time for each client, and kept."""

import asyncio
import math
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakValueDictionary

from drafttree.constraints.carried_grammar import CarriedGrammar, CompiledGrammar
from drafttree.constraints.grammar import CACHE_BYTES, vocabulary_of
from drafttree.core.errors import DraftTreeError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.interfaces.server import grammar_process
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammar_process import AGAIN, MEMORY, NICENESS, WantedGrammar
from drafttree.interfaces.server.open_request import open_request

PLACES = 2
"""Grammars that are compiled at once. A client has one place, so that no one client takes all of them."""
LOOKS = 0.05
"""Seconds between looks at whether the client of a running compilation is still there."""
BRIEF = 1.0
"""Seconds after which a compilation gets only the time that nothing else wants."""
LEAST_URGENT = 19
ADVICE = "make it simpler: fewer optional properties, alternatives and repetitions with bounds"


class Grammars:
    """Compiles the grammars of a server's requests.

    Nothing is started before the first one. A process ends when its grammar has been compiled, when it takes too long
    or too much memory, when its client goes away, and with the server.

    Args:
        decoder: the decoder of the served model.
        seconds: the time that compiling a grammar may take.
        memory: the bytes that it may take.
    """

    def __init__(self, decoder: Decoder, seconds: float, memory: int = MEMORY) -> None:
        self._decoder, self._seconds, self._memory = decoder, seconds, memory
        self._kept = KeptGrammars(CACHE_BYTES)
        self._places = asyncio.Semaphore(PLACES)
        self._clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(PLACES, "grammar", initializer=_give_way)
        self._vocabulary = lru_cache(maxsize=4)(self._read_vocabulary)

    async def compiled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a text with the grammar that they want, if any, in place of its `WantedGrammar`.

        Raises:
            ServerError: it takes too long or too much memory (400), or the request's time is over (503).
            ConfigError: it is malformed, a part of it would not be enforced, or nothing could end its text.
        """
        wanted = options.get("grammar")
        if not isinstance(wanted, WantedGrammar):
            return {**options}
        if options.get("ignore_eos"):
            raise ServerError(400, "a grammar ends its text with an EOS token; leave out ignore_eos")
        merged = RequestOptions.merge(self._decoder.defaults, {**options, "grammar": None})
        eos = merged.eos(self._decoder.eos, self._decoder.target.vocab_size)
        return {**options, "grammar": await self._compiled(wanted, eos)}

    async def _compiled(self, wanted: WantedGrammar, eos: tuple[int, ...]) -> CompiledGrammar:
        key = sha256(repr((wanted.kind, wanted.text, eos)).encode()).hexdigest()
        if found := self._kept.get(key):
            return found
        request = open_request()
        turn = self._clients.setdefault(request.client if request else "", asyncio.Lock())
        try:
            async with asyncio.timeout(request.seconds_left if request else None), turn, self._places:
                if found := self._kept.get(key):
                    return found
                made = await self._make(wanted, eos)
                self._kept.put(key, made)
                return made
        except TimeoutError:
            message = (
                f"the time of this request (--timeout) was over before {wanted.field} was compiled; try again later"
            )
            raise ServerError(503, message, code="timeout", headers={"Retry-After": "1"}) from None

    async def _make(self, wanted: WantedGrammar, eos: tuple[int, ...]) -> CompiledGrammar:
        """A grammar, made in a thread that waits for a process and ends when nobody waits for it."""
        given_up = threading.Event()

        def make() -> CompiledGrammar:
            vocabulary, text = self._vocabulary(eos)
            return compile_apart(wanted, text, self._seconds, self._memory, given_up).unpack(vocabulary)

        making = asyncio.get_running_loop().run_in_executor(self._threads, make)
        try:
            await asyncio.wait([making])
        finally:
            given_up.set()
            await asyncio.wait([making])  # its place is not free before
            making.exception()  # what it raised after it was given up interests nobody
        return making.result()

    def _read_vocabulary(self, eos: tuple[int, ...]) -> tuple[Any, str]:
        """xgrammar's `TokenizerInfo` for some EOS tokens, and its JSON."""
        info = vocabulary_of(self._decoder.tokenizer, self._decoder.target.vocab_size, eos)
        return info, info.serialize_json()


class KeptGrammars:
    """Compiled grammars, the latest used ones.

    Args:
        most: bytes of all of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def get(self, key: str) -> CompiledGrammar | None:
        """A grammar, None if it is not kept."""
        if key not in self._grammars:
            return None
        self._grammars.move_to_end(key)
        return self._grammars[key]

    def put(self, key: str, grammar: CompiledGrammar) -> None:
        """Keep a grammar, and drop those that were used longest ago where all of them are too large."""
        self._grammars[key] = grammar
        self._grammars.move_to_end(key)
        while sum(each.nbytes for each in self._grammars.values()) > self._most:
            self._grammars.popitem(last=False)


def compile_apart(
    wanted: WantedGrammar, vocabulary: str, seconds: float, memory: int, given_up: threading.Event
) -> CarriedGrammar:
    """Compile a grammar in a process of its own.

    Args:
        wanted: the grammar.
        vocabulary: xgrammar's JSON of the `TokenizerInfo` to compile it for.
        seconds: the time that it may take from when the process has begun.
        memory: the bytes that it may take.
        given_up: is set when nobody waits for it any more.

    Raises:
        ServerError: it takes too long or too much memory, or was given up.
        DraftTreeError: it is malformed, a part of it would not be enforced, or xgrammar cannot compile it.
    """
    context = get_context("forkserver") if "forkserver" in get_all_start_methods() else get_context("spawn")
    context.set_forkserver_preload([grammar_process.__name__])
    receiving, sending = context.Pipe(duplex=False)
    arguments = (wanted, vocabulary, memory, sending)
    process = context.Process(target=grammar_process.compile_grammar, args=arguments, name="grammar", daemon=True)
    with sending:
        process.start()
    try:
        _receive(process, receiving, math.inf, given_up)
        outcome = _receive(process, receiving, seconds, given_up)
    except TimeoutError:
        raise _too_large(wanted, f"{seconds:.3g} s") from None
    except (EOFError, OSError):  # it took the memory where xgrammar does not expect that, or the system has ended it
        outcome = MemoryError()
    finally:
        receiving.close()
        if process.is_alive():
            process.kill()
        process.join()
    match outcome:
        case MemoryError():
            raise _too_large(wanted, f"{memory >> 20:,} MB")
        case TimeoutError():
            raise _too_large(wanted, f"{AGAIN} s")
        case DraftTreeError():
            raise outcome
    return outcome


def _receive(process: BaseProcess, receiving: Connection, seconds: float, given_up: threading.Event) -> Any:
    """The next message of a process, which gives way to all others when it takes long.

    Raises:
        TimeoutError: it does not come in time.
        EOFError: the process has ended.
        ServerError: it was given up.
    """
    begun = time.monotonic()
    while not receiving.poll(LOOKS):
        if given_up.is_set():
            raise ServerError(503, "the client has gone")
        if time.monotonic() > begun + seconds:
            raise TimeoutError
        if time.monotonic() > begun + BRIEF:
            _take_what_is_left(process)
    return receiving.recv()


def _take_what_is_left(process: BaseProcess) -> None:
    """Let a process have only the time that nothing else wants, where the system can do that."""
    with suppress(AttributeError, OSError):  # it may have ended
        os.setpriority(os.PRIO_PROCESS, process.pid or 0, LEAST_URGENT)


def _too_large(wanted: WantedGrammar, most: str) -> ServerError:
    size = f"{wanted.field} has {len(wanted.text):,} characters and takes more than {most} to compile as a grammar"
    return ServerError(400, f"{size}; {ADVICE}", param=wanted.field, code="grammar_too_large")


def _give_way() -> None:
    """Let a thread's work, and the processes that it starts, come behind the texts that are written."""
    if sys.platform == "linux":  # where a thread has a niceness of its own
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
