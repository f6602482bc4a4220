"""How many rows the KV caches of an engine may have together."""

import sys

from drafttree.core.counts import check_count
from drafttree.core.errors import ContextError
from drafttree.engine.memory import SHARE, rows_in_memory
from drafttree.engine.prefixes import PrefixCache
from drafttree.models import Model


class KVMemory:
    """Reserves rows of KV caches for requests, so that one that was admitted always has room to end.

    Args:
        target: the target whose rows they are.
        max_tokens: rows there may be in all, None for half of the device's memory.

    Attributes:
        rows: as given, or found; infinite where the size of a row or of the memory is not known.
        reserved: rows that are reserved by the requests that run.
        prefixes: beginnings of finished texts, whose rows count as well, and go where a request needs the room.

    Raises:
        ConfigError: `max_tokens` is no whole number of at least 1.
    """

    def __init__(self, target: Model, max_tokens: int | None = None) -> None:
        if max_tokens is not None:
            check_count("max_kv_tokens", max_tokens, ", or None for what fits")
        self.rows = rows_in_memory(target, SHARE) if max_tokens is None else float(min(max_tokens, sys.float_info.max))
        self.reserved = 0
        self.prefixes = PrefixCache(0)

    @property
    def usage(self) -> float:
        """The share of the rows that is reserved; 0 where it is not known how many there are."""
        return self.reserved / max(self.rows, 1)

    def check(self, rows: int) -> None:
        """Refuse a request that could never run.

        Raises:
            ContextError: it needs more rows than there are.
        """
        if rows > self.rows:
            raise ContextError(
                f"the request needs {rows} rows of the KV cache for its prompt, max_new_tokens and the largest tree, "
                f"and the engine has {self.rows:.0f}; shorten them, or raise max_kv_tokens"
            )

    def fits(self, rows: int) -> bool:
        """Whether so many more rows can be reserved; what is kept of finished texts has made room for them then."""
        room = self.rows - self.reserved - rows
        if room < 0:
            return False
        self.prefixes.shrink(room)
        return True
