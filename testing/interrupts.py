"""Ctrl-C at a place that a test names."""


def interrupt_after(count):
    """A `progress` that Ctrl-C hits after so many runs."""
    seen = []

    def progress(name):
        seen.append(name)
        if len(seen) == count:
            raise KeyboardInterrupt

    return progress
