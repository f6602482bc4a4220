"""The names of a decoder's parts, as users give them."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from drafttree.drafters.base import Drafter, ShownBySize
from drafttree.engine.compatibility import precision_of
from drafttree.engine.decoder import Decoder
from drafttree.loading import zoo
from drafttree.loading.methods import VERIFIER_CLASSES
from drafttree.loading.specs import policy_spec
from drafttree.models import Model

SNAPSHOT = re.compile(r"models--(.+?)--(.+?)/snapshots/[^/]+(?:/|/(.+\.gguf))?$")
"""Matches the end of the path of a model in the hub's cache, or of a GGUF file in it."""


class PartNames(NamedTuple):
    """The names of a decoder's parts.

    Attributes:
        target: the target's embedded name, hub name or folder.
        drafter: the name that the drafter was loaded by, else its class; "none" without one.
        policy: the specification of the policy.
        verifier: the name of the verifier; "auto" if none was chosen.
        precision: the dtype of the target, and the quantisation of its weights, if any.
    """

    target: str
    drafter: str
    policy: str
    verifier: str
    precision: str

    @classmethod
    def of(cls, decoder: Decoder) -> "PartNames":
        """The names of the parts of a decoder."""
        return cls(
            target=target_name(decoder.target),
            drafter=drafter_name(decoder.drafter),
            policy=policy_spec(decoder.policy),
            verifier=VERIFIER_CLASSES.name_of(decoder.verifier) if decoder.verifier else "auto",
            precision=precision_of(decoder.target),
        )


def model_name(source: str | Path) -> str:
    """The name of a model by its location: an embedded name, a hub name, or the last part of a path."""
    path = Path(source)
    if embedded := zoo.name_of(path):
        return embedded
    if snapshot := SNAPSHOT.search(path.as_posix()):
        owner, name, file = snapshot.groups()
        return f"{owner}/{name}:{file}" if file else f"{owner}/{name}"
    return path.resolve().name if os.path.exists(path) else str(source)


def target_name(target: Model) -> str:
    """The name that a target was loaded by, else the name of its class."""
    module = getattr(target, "module", None)
    source = getattr(module, "name_or_path", "")
    return model_name(source) if source else type(target if module is None else module).__name__


def drafter_name(drafter: Drafter | None) -> str:
    """The name a drafter was loaded by, such as "mixed:embedded-eagle3", else that of its class; "none" for None."""
    if drafter is None:
        return "none"
    return (drafter.name if isinstance(drafter, ShownBySize) else "") or type(drafter).__name__
