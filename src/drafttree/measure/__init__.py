"""Measurements: prompts, ways that run on them alternately, records of texts, and numbers with intervals.

Names are imported lazily, so that prompts and names of methods can be read before numpy, scipy and torch are imported.

- `prompts`: prompt files; `prompt_form` and `prompt_encoding`: the form in which they are asked.
- `method`: a drafter, a policy and a verifier by one specification; `method_decoders`: the decoders of methods.
- `reference`: transformers' own `generate` on the same weights.
- `inflation` and `shapes`: the function of a small target at the cost of a larger one.
- `driver`: ways x prompts x repeats; `run_store`: finished runs, which let an interrupted command continue.
- `record`: rounds in columns; `law`: the terms of the speed-up; `interval` and `table`: how figures are shown.
"""

from typing import TYPE_CHECKING

from drafttree.core.lazy import lazy_door

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell, by_turns, race
    from drafttree.measure.interval import Interval, total_speed
    from drafttree.measure.law import Speedup, SpeedupLaw
    from drafttree.measure.record import columns, describe, from_lists, loops
    from drafttree.measure.reference import ReferenceRun, find_difference, transformers_generate, transformers_model
    from drafttree.measure.table import to_json, to_table

__all__ = [
    "Cell",
    "Interval",
    "ReferenceRun",
    "Speedup",
    "SpeedupLaw",
    "by_turns",
    "columns",
    "describe",
    "find_difference",
    "from_lists",
    "loops",
    "race",
    "to_json",
    "to_table",
    "total_speed",
    "transformers_generate",
    "transformers_model",
]

_MODULES = [f"{__name__}.{name}" for name in ("interval", "table", "driver", "record", "law", "reference")]
__getattr__ = lazy_door(__name__, __all__, _MODULES)
