"""The cost curve of a target and a drafter, kept on disk for the next process."""

import hashlib
import json
import platform
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.disk_cache import DiskCache
from drafttree.core.errors import ConfigError
from drafttree.drafters.base import Drafter
from drafttree.models import Model, TargetModel
from drafttree.models.module.released import shapes


@dataclass(frozen=True)
class KeptCosts:
    """What is kept of a target and a drafter.

    Attributes:
        costs: costs as they were measured, or mended since.
        alone: what a target pass over several nodes cost in passes over one, without other work between them; it tells
            whether the machine is still as it was when the costs were measured.
    """

    costs: CostCurve
    alone: float

    @classmethod
    def parse(cls, kept: object) -> "KeptCosts":
        """What `to_json` made.

        Raises:
            ConfigError: it is no such thing.
        """
        match kept:
            case {"costs": costs, "alone": float(alone)} if alone > 0:
                return cls(parse_cost_curve(costs), alone)
        raise ConfigError("these are no kept costs; let them be measured again")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return {"costs": self.costs.to_json(), "alone": self.alone}


class CostFile:
    """Where the costs of a target and a drafter on this machine are kept, if they can be told from others.

    Args:
        target: the target, by its architecture, device, dtype and threads; one that is no transformers model is not
            kept.
        drafter: the drafter, by its architecture.
        greedy: whether rounds are; costs of the others are kept apart.
    """

    def __init__(self, target: Model, drafter: Drafter, *, greedy: bool = True) -> None:
        self._cache, self._key = DiskCache("costs"), cost_key(target, drafter, greedy=greedy)

    def read(self) -> KeptCosts | None:
        """The costs that are kept, None where there are none, or none that can be read."""
        kept = self._cache.get(self._key) if self._key else None
        try:
            return None if kept is None else KeptCosts.parse(kept)
        except ConfigError:
            return None

    def write(self, kept: KeptCosts) -> KeptCosts:
        """Keep the costs, and return them."""
        if self._key:
            self._cache.put(self._key, kept.to_json())
        return kept


def cost_key(target: Model, drafter: Drafter, *, greedy: bool = True) -> str | None:
    """What decides the costs, as a text; None where the target is no transformers model and cannot be told apart.

    Shapes and types of weights decide, their values do not.
    """
    if not isinstance(target, TargetModel):
        return None
    rounds = "greedy" if greedy else "sampled"
    parts = (_digest(target), _digest(drafter), machine(target.device), str(target.dtype), rounds, torch.__version__)
    return " | ".join(parts)


def machine(device: torch.device) -> str:
    """The part of a machine that passes take their time on; processors of two machines are taken to differ."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device} of {platform.node()}, {platform.machine()}, {torch.get_num_threads()} threads"


def _digest(model: Any) -> str:
    """A digest of the architecture of a target or a drafter."""
    return hashlib.sha256(json.dumps(_describe(model), default=str).encode()).hexdigest()[:16]


def _describe(part: Any, depth: int = 0) -> Any:
    if isinstance(part, TargetModel):
        return [type(part.backend).__name__, _describe(part.module)]
    if isinstance(part, nn.Module):
        config: Any = getattr(part, "config", None)
        return [type(part).__name__, config.to_diff_dict() if hasattr(config, "to_diff_dict") else None, shapes(part)]
    if isinstance(part, bool | int | float | str | torch.dtype) or part is None:
        return str(part)
    parts: dict[str, Any] = vars(part) if hasattr(part, "__dict__") and depth < 3 else {}
    return [type(part).__qualname__, [(name, _describe(each, depth + 1)) for name, each in sorted(parts.items())]]
