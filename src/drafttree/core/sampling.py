"""Applies temperature and truncation (top-k, top-p, min-p, ...) to logits.

`Sampling` is the only place that does this, for the target and the drafter alike.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.core.lazy import Tensor, torch, transformers

MIN_TEMPERATURE = 1e-6
TOP_P_SORTED = 1024
"""Tokens of a row sorted for top-p over a large vocabulary."""
FIELD_TYPES = {float: (Real, "a number"), int: (Integral, "a whole number")}


@dataclass(frozen=True)
class Sampling:
    """Turns logits into the sampling distribution, with the names and order of transformers.

    The order is temperature, top-h, top-k, top-p, min-p, typical, epsilon, eta.

    Attributes:
        temperature: divides the logits; 0 is greedy decoding, 1 the model's own distribution.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose probability reaches top_p.
        min_p: drop tokens less probable than min_p times the most probable one.
        seed: random seed; the same seed and prompt give the same text.
        typical_p: keep tokens whose surprise is nearest the entropy, up to this probability (Meister et al. 2023).
        epsilon_cutoff: drop tokens less probable than this (Hewitt et al. 2022); 0 drops none.
        eta_cutoff: drop tokens below a bound that falls with the entropy (Hewitt et al. 2022); 0 drops none.
        top_h: keep the most probable tokens up to this share of the entropy (Potraghloo et al. 2025); 0 keeps all.

    Raises:
        ConfigError: a value is out of range or of another type.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_h: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            number_type, name = FIELD_TYPES[field.type]
            value = getattr(self, field.name)
            if not isinstance(value, number_type) or isinstance(value, bool):
                raise ConfigError(f"{field.name} is {value!r}; it must be {name}")
        in_range = MIN_TEMPERATURE <= self.temperature <= sys.float_info.max
        allowed = {
            "temperature": (self.temperature == 0 or in_range, f"0 (greedy) or a number of at least {MIN_TEMPERATURE}"),
            "top_k": (self.top_k >= 0, "at least 0 (0 keeps all)"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "seed": (-(2**63) <= self.seed < 2**63, "a 64-bit integer"),
            "typical_p": (0 < self.typical_p <= 1, "in (0, 1]"),
            "epsilon_cutoff": (0 <= self.epsilon_cutoff < 1, "in [0, 1); 0 drops no token"),
            "eta_cutoff": (0 <= self.eta_cutoff < 1, "in [0, 1); 0 drops no token"),
            "top_h": (0 <= self.top_h <= 1, "in [0, 1]; 0 keeps all"),
        }
        for field in fields(self):
            legal, range_ = allowed[field.name]
            if not legal:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}; it must be {range_}")
            field_type: Any = field.type  # torch takes no Fraction, and no whole number of more than 64 bits
            object.__setattr__(self, field.name, field_type(getattr(self, field.name)))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Sampling":
        """Make a `Sampling` from a request's options; others are ignored, and None means the default."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if options.get(field.name) is not None})

    @property
    def greedy(self) -> bool:
        """Whether every token is the most probable one."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether tokens may be excluded."""
        shares = self.top_p, self.typical_p
        return bool(self.top_k or self.min_p or self.epsilon_cutoff or self.eta_cutoff or self.top_h or min(shares) < 1)

    def process(self, logits: Tensor) -> Tensor:
        """Apply temperature and truncation to logits `[..., vocab]`; excluded tokens are at -inf.

        The result is float32, or float64 if the logits are. At temperature 0 the values stay unchanged: their argmax
        is the next token.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.greedy:
            return logits
        logits = logits / self.temperature
        if self.top_h > 0:
            logits = _warp(transformers.TopHLogitsWarper(self.top_h), logits)
        if 0 < self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -math.inf)
        if self.top_p < 1:
            logits = _top_p(logits, self.top_p)
        if self.min_p > 0:
            floor = logits.amax(-1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < floor, -math.inf)
        if self.typical_p < 1:
            logits = _warp(transformers.TypicalLogitsWarper(self.typical_p), logits)
        if self.epsilon_cutoff > 0:
            logits = _warp(transformers.EpsilonLogitsWarper(self.epsilon_cutoff), logits)
        if self.eta_cutoff > 0:
            logits = _warp(transformers.EtaLogitsWarper(self.eta_cutoff, device=str(logits.device)), logits)
        return logits


def _warp(warper: "transformers.LogitsProcessor", logits: Tensor) -> Tensor:
    """Apply a warper of transformers to logits `[..., vocab]`; warpers ignore the token ids, so none are given.

    Rows without a possible token, or with NaN, stay as they are: warpers that compute an entropy would raise for them.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    usable = rows.amax(-1, keepdim=True) > -math.inf
    tokens = torch.empty(len(rows), 0, dtype=torch.long)
    warped = warper(tokens, rows.where(usable, 0.0))  # pyright: ignore[reportArgumentType]
    return warped.where(usable, rows).view_as(logits)


def _top_p(logits: Tensor, top_p: float) -> Tensor:
    """Apply top-p (nucleus) truncation to logits `[..., vocab]`; the most probable token always stays.

    Over a large vocabulary only the `TOP_P_SORTED` most probable tokens are sorted, unless their probability does not
    reach top_p. Their cumulative sums are float64, since in float32 the sums over 128,000 tokens would lose the last
    digits. So the cut may differ from that of a full float32 sort by tokens that float32 cannot tell apart.
    """
    if logits.shape[-1] <= 4 * TOP_P_SORTED:
        return _full_sort_top_p(logits, top_p)
    rows = logits.reshape(-1, logits.shape[-1])
    top, order = rows.topk(TOP_P_SORTED)
    total = (rows - top[:, :1]).exp_().sum(-1, keepdim=True, dtype=torch.float64)
    mass = (top - top[:, :1]).exp_().cumsum(-1, dtype=torch.float64) / total
    dropped = mass.roll(1, -1) >= top_p
    dropped[:, 0] = False
    kept_logits = torch.full_like(rows, -math.inf).scatter_(-1, order, top.masked_fill_(dropped, -math.inf))
    too_flat = mass[:, -1] < top_p
    if too_flat.any():
        kept_logits[too_flat] = _full_sort_top_p(rows[too_flat], top_p)
    return kept_logits.view_as(logits)


def _full_sort_top_p(logits: Tensor, top_p: float) -> Tensor:
    ascending, order = logits.sort(dim=-1)
    tail = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    tail[..., -1] = False
    return logits.masked_fill(torch.zeros_like(tail).scatter_(-1, order, tail), -math.inf)
