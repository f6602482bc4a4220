"""xgrammar, an optional extra, and what its errors say."""

import re
from typing import Any

from drafttree.core.errors import ConfigError


def load_xgrammar() -> Any:
    """Import xgrammar.

    Raises:
        ConfigError: xgrammar is not installed.
    """
    try:
        import xgrammar
    except ImportError:
        raise ConfigError('grammars need xgrammar, which is not installed: pip install "drafttree[grammar]"') from None
    return xgrammar


def library_message(error: Exception) -> str:
    """The error's message without the time stamp and source location that xgrammar puts before it."""
    return " ".join(re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)).split())
