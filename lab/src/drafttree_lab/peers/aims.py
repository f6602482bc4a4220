"""What decoding is meant to reach beside llama.cpp. Nothing is asserted."""

from collections.abc import Iterator

from drafttree.evaluation.method import PLAIN
from drafttree_lab.experiment.aim import Aim
from drafttree_lab.peers.bench import BFLOAT16, FLOAT32, INT8, PeerBench
from drafttree_lab.peers.packages import LLAMA_CPP

PLAIN_OVER = {FLOAT32: 1.0, BFLOAT16: 1.0, INT8: 1.3}
DRAFTS_OVER = {FLOAT32: 2.5, BFLOAT16: 2.5, INT8: 4.0}


def peer_aims(result: PeerBench) -> Iterator[Aim]:
    """Our speeds over llama.cpp's in the same dtype: plain decoding, and the fastest method."""
    for dtype in dict.fromkeys(row.dtype for row in result.rows):
        speeds = {row.name: row.over_baseline.mean for row in result.rows if row.dtype == dtype}
        if not (theirs := speeds.get(LLAMA_CPP)):
            continue
        ours = [name for name in speeds if name not in result.versions]
        fastest = max(ours, key=speeds.__getitem__)
        for name, least in ((PLAIN, PLAIN_OVER[dtype]), (fastest, DRAFTS_OVER[dtype])):
            ratio = speeds[name] / theirs
            yield Aim(f"{dtype}: {name} over {LLAMA_CPP}: {ratio:.2f}", ratio, least)
