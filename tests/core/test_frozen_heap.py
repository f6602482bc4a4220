"""What was loaded before is not looked at by garbage collections."""

import gc

import pytest

from drafttree.core.frozen_heap import frozen_heap


def test_what_was_there_before_is_left_out_until_the_end():
    counts = [gc.get_freeze_count()]

    def serve():
        with frozen_heap():
            counts.append(gc.get_freeze_count())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve()
    assert counts[1] > counts[0] + 1000
    assert gc.get_freeze_count() == 0
