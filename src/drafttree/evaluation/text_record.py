from dataclasses import dataclass

from drafttree.engine.metrics import Metrics


@dataclass(frozen=True)
class TextRecord:
    """One text of a measurement; the lists have a member per round.

    Attributes:
        way: the way of decoding, a specification or "plain".
        group: the group of prompts, such as a file or a category.
        prompt: number of the prompt in its group, from 0.
        repeat: number of the run, from 0.
        tokens: the number of tokens of the text.
        seconds: wall time, the prompt included.
        ttft: seconds to the first committed token.
        tpot: seconds per token after the first round.
        mean_path_length: accepted drafted tokens per round.
        committed: the number of tokens that each round added to the text.
        accepted: how many of them were drafted.
        nodes: the number of nodes that the target scored, the root included.
        levels: the number of levels that were drafted.
        draft_passes: the number of passes of the drafter.
        ranks: ranks of the accepted nodes among their siblings, as `Round` has them.
    """

    way: str
    group: str
    prompt: int
    repeat: int
    tokens: int
    seconds: float
    ttft: float
    tpot: float
    mean_path_length: float
    committed: list[int]
    accepted: list[int]
    nodes: list[int]
    levels: list[int]
    draft_passes: list[int]
    ranks: list[tuple[int, ...]]

    @classmethod
    def of(cls, metrics: Metrics, way: str, prompt: int, *, group: str = "all", repeat: int = 0) -> "TextRecord":
        """The record of one text from its metrics."""
        rounds = metrics.rounds
        return cls(
            way=way,
            group=group,
            prompt=prompt,
            repeat=repeat,
            tokens=metrics.tokens,
            seconds=metrics.seconds,
            ttft=metrics.time_to_first_token,
            tpot=metrics.time_per_output_token,
            mean_path_length=metrics.mean_path_length,
            committed=[each.committed for each in rounds],
            accepted=[each.accepted for each in rounds],
            nodes=[each.nodes for each in rounds],
            levels=[each.levels for each in rounds],
            draft_passes=[each.draft_passes for each in rounds],
            ranks=[each.ranks for each in rounds],
        )
