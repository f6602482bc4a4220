"""Stand-ins for a recorder of CUDA graphs, on a CPU."""

from torch import Tensor

from drafttree.models.buffer_pool import RecordedPass


class Replays:
    """Repeats passes as a graph does: into the memory of the first time."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, run: RecordedPass) -> RecordedPass:
        self.recorded += 1
        first = run()

        def replay() -> tuple[Tensor, ...]:
            for old, new in zip(first, run(), strict=True):
                old.copy_(new)
            return first

        return replay


def frozen(run: RecordedPass) -> RecordedPass:
    """Repeats nothing: gives the outputs of the first time again."""
    outputs = run()
    return lambda: outputs
