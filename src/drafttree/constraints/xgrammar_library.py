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
    """The error's message without the time stamp and source location that xgrammar puts before it.

    A message that names a byte of a character beyond ASCII comes as the `UnicodeDecodeError` of reading it.
    """
    said = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    return " ".join(re.sub(r"^\[[\d:]+\] \S+: ", "", said).split())
