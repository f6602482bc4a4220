"""A command that measures a toy decoder, and Ctrl-C at a place of it that a test names."""

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.policies import Chain
from testing.toy import Table, ToyModel

TARGET = Table(8, order=2, seed=3, scale=1.0)
DRAFT = TARGET.blurred(0.7)
COMMAND = {"command": "drafttree bench methods", "seed": "0"}
PROMPTS = [[1, 2, 3], [2, 3, 4], [3, 4, 5]]


def decoder():
    return Decoder(ToyModel(TARGET), LanguageModelDrafter(ToyModel(DRAFT)), Chain(depth=3))


def interrupt_after(count):
    """A `progress` that Ctrl-C hits after so many runs."""
    seen = []

    def progress(name):
        seen.append(name)
        if len(seen) == count:
            raise KeyboardInterrupt

    return progress
