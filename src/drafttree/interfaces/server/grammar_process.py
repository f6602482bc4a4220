"""The process that compiles one grammar of a request: what it does, and what it may take.

It is forked from a process that has imported this module, which takes some 20 ms where importing xgrammar takes
seconds: xgrammar imports torch and transformers.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from drafttree.constraints import grammar
from drafttree.constraints.carried_grammar import CarriedGrammar, pack
from drafttree.constraints.grammar import Grammar
from drafttree.constraints.xgrammar_library import load_xgrammar
from drafttree.core.errors import DraftTreeError

with suppress(DraftTreeError):
    load_xgrammar()  # here, so that no forked process has to

MEMORY = 1 << 30
"""Bytes that compiling a grammar may take by default."""
AGAIN = 5
"""CPU seconds that compiling a grammar may take which the server has to compile again; nothing can end that."""
NICENESS = 5
"""By how much less urgent compiling is than writing texts."""
THREADS = max(1, min(8, (os.cpu_count() or 1) // 4))


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


def compile_grammar(wanted: WantedGrammar, vocabulary: str, memory: int, results: Connection) -> None:
    """Compile a grammar and send it, or the error that it has; the whole work of a process.

    Args:
        wanted: the grammar.
        vocabulary: xgrammar's JSON of the `TokenizerInfo` to compile it for.
        memory: the bytes that it may take.
        results: takes None when the process has begun, and then a `CarriedGrammar`, a `DraftTreeError`, a
            `MemoryError` for a grammar that takes too much, or a `TimeoutError` for one that would take too long again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    _limit_memory(memory)
    results.send(None)
    results.send(_outcome(wanted, vocabulary))


def _outcome(wanted: WantedGrammar, vocabulary: str) -> CarriedGrammar | DraftTreeError | MemoryError | TimeoutError:
    try:
        info = load_xgrammar().TokenizerInfo.deserialize_json(vocabulary)
        begun = time.process_time()
        carried = pack(wanted.parse(), info, THREADS)
        return carried if carried.compiled or time.process_time() - begun < AGAIN else TimeoutError()
    except (DraftTreeError, RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return MemoryError()
        if isinstance(error, DraftTreeError):
            return error
        raise


def _end_with_parent() -> None:
    """End when the server does, however it does; xgrammar lets other threads run while it compiles."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _limit_memory(most: int) -> None:
    """Let the process have so many bytes more than it has; only Linux can do that."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most += pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
