"""Verifiers: which drafted tokens are accepted. One file per method."""

from drafttree.verifiers.base import Verifier
from drafttree.verifiers.block import Block
from drafttree.verifiers.coupled import Coupled
from drafttree.verifiers.greedy import Greedy
from drafttree.verifiers.k_seq import KSeq
from drafttree.verifiers.multi_draft import GreedyMultiDraft
from drafttree.verifiers.point_mass import PointMass
from drafttree.verifiers.rejection import RRS, RRSw
from drafttree.verifiers.traversal import Traversal
from drafttree.verifiers.typical import LossyTypical

VERIFIERS: dict[str, type[Verifier]] = {
    "greedy": Greedy,
    "coupled": Coupled,
    "point-mass": PointMass,
    "rrsw": RRSw,
    "rrs": RRS,
    "traversal": Traversal,
    "block": Block,
    "k-seq": KSeq,
    "multi-draft": GreedyMultiDraft,
    "lossy-typical": LossyTypical,
}

__all__ = [
    "RRS",
    "VERIFIERS",
    "Block",
    "Coupled",
    "Greedy",
    "GreedyMultiDraft",
    "KSeq",
    "LossyTypical",
    "PointMass",
    "RRSw",
    "Traversal",
    "Verifier",
]
