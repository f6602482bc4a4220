"""What `auto` is meant to reach, and the rows in which it does not, with the reason. Nothing is asserted."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from drafttree_lab.experiment.aim import Aim
from drafttree_lab.experiment.auto import DYNATREE, TALON, AutoRow
from drafttree_lab.experiment.timed_row import AUTO

OF_BEST, OVER_SINGLE, OVER_DEFAULTS, OF_RIVALS, OF_PLAIN = 0.98, 1.05, 1.10, 0.95, 0.98


def aims(rows: Sequence[AutoRow]) -> list[Aim]:
    """All aims over some rows."""
    timed = [row.timed for row in rows if row.timed]
    found = [_share("counted", [row.over_best for row in rows])]
    found += [_share("timed", [1 + each.over_best.mean for each in timed])] if timed else []
    single = max((spec for spec in rows[0].counted if spec != AUTO), key=lambda spec: _mean(rows, spec))
    found.append(
        _ratio(f"the best single setting, {single}, counted", _mean(rows, AUTO), _mean(rows, single), OVER_SINGLE)
    )
    for name in (TALON, DYNATREE):
        said = f"the defaults of {name}"
        found.append(_ratio(f"{said}, counted", _mean(rows, AUTO), _mean(rows, name), OVER_DEFAULTS))
        if timed and name in timed[0].over_plain:
            ours, theirs = (fmean(1 + each.over_plain[way].mean for each in timed) for way in (AUTO, name))
            found.append(_ratio(f"{said}, timed", ours, theirs, OVER_DEFAULTS))
    if timed:
        least = min(each.over_rivals for each in timed)
        found.append(
            Aim(f"lowest speed of auto over the fastest of four usual settings: {least:.3f}", least, OF_RIVALS)
        )
    if bounded := [each.over_plain[AUTO] for each in timed if math.isfinite(each.over_plain[AUTO].margin)]:
        high = min(1 + each.high for each in bounded)
        found.append(Aim(f"lowest upper end of an interval of auto over plain decoding: {high:.3f}", high, OF_PLAIN))
    return found


def shortfalls(rows: Sequence[AutoRow]) -> Iterator[str]:
    """A sentence for every row and aim that it misses, with the term of the law that explains most of it."""
    for row in rows:
        if row.over_best < OF_BEST:
            yield f"{row.name}: {row.over_best:.3f} of {row.best}, counted; {row.shortfall}"
        if not (timed := row.timed):
            continue
        if 1 + timed.over_best.mean < OF_BEST:
            ratio, margin = 1 + timed.over_best.mean, timed.over_best.margin
            yield f"{row.name}: {ratio:.3f} ±{margin:.3f} of {timed.best}, timed; {timed.shortfall}"
        if 1 + timed.over_plain[AUTO].high < OF_PLAIN:
            yield f"{row.name}: below plain decoding, {1 + timed.over_plain[AUTO].high:.3f} at most; {timed.limit}"


def _share(how: str, ratios: Sequence[float]) -> Aim:
    reached = sum(ratio >= OF_BEST for ratio in ratios)
    said = f"rows in which auto is at least {OF_BEST} of the row's best policy, {how}: {reached} of {len(ratios)}"
    return Aim(said, reached / len(ratios), 1.0)


def _ratio(what: str, ours: float, theirs: float, least: float) -> Aim:
    return Aim(
        f"mean of auto over that of {what}: {ours / theirs:.3f} ({ours:.2f} / {theirs:.2f})", ours / theirs, least
    )


def _mean(rows: Sequence[AutoRow], spec: str) -> float:
    return fmean(row.counted[spec].speedup for row in rows)
