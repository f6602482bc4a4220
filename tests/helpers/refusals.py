"""Errors that users see: what they say."""

import pytest

from drafttree.errors import DraftTreeError


def told(error: type[DraftTreeError], call, *arguments, **options) -> str:
    """The message of the error a call raises, which is one line."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
