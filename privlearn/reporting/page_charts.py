"""Charts of a page as shapes in a drawing area; the template writes them as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.accountants.shown_numbers import part
from privlearn.ledger.chain import minute_of
from privlearn.reporting.model import Balance, Curve, Spent
from privlearn.reporting.privacy_curves import PrivacyCurve

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 400, 16, 214
_TWO_DAYS = 2 * 24 * 60


@final
@dataclass(frozen=True)
class Bar:
    """A rectangle of a kind that the style sheet colours."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@final
@dataclass(frozen=True)
class Tick:
    """A text at a place of an axis."""

    at: float
    text: str
    anchor: str = "middle"


@final
@dataclass(frozen=True)
class Chart:
    """Shapes between two axes, in the units of the drawing."""

    x_name: str
    y_name: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    bars: Sequence[Bar] = ()
    line: str = ""
    """The points of a line."""
    area: str = ""  # The points around an area
    limit: float | None = None  # The height of a dashed line across
    limit_name: str = ""
    diagonal: bool = False


def budget_bar(balance: Balance) -> list[Bar]:
    """Spent, reserved and left of a cap, next to each other, 100 wide; empty if unknown."""
    parts = {"spent": balance.spent, "reserved": balance.reserved, "remaining": balance.remaining}
    if any(amount is None for amount in parts.values()):
        return []
    total = max(sum(amount or 0.0 for amount in parts.values()), balance.cap)
    bars, x = [], 0.0
    for kind, amount in parts.items():
        width = 100 * (amount or 0.0) / total if math.isfinite(total) and total else 0.0
        if width:
            bars.append(Bar(kind, _short(x), 0, _short(width), 8))
        x += width
    return bars


def time_chart(lines: Sequence[Spent], cap: float) -> Chart | None:
    """What the most charged user had paid by each time, as a part of the cap."""
    told = [
        (minute_of(line.since), minute_of(line.until), line.so_far)
        for line in lines
        if line.since is not None and line.until is not None
    ]
    points = [
        (since, until, amount / cap)
        for since, until, amount in told
        if since is not None and until is not None and amount is not None and cap
    ]
    if len(points) < 2:
        return None
    first, last = points[0][0], max(until for _, until, _ in points)
    span = max(last - first, 1)
    top = _top([amount for *_, amount in points])
    level, corners = 0.0, []
    for since, until, amount in points:
        begins, height = _across((since - first) / span), _up(amount, top)
        corners += [(begins, _up(level, top)), (begins, height)]  # it may all be at the beginning
        corners += [(_across((until - first) / span), height)]
        level = amount
    corners.append((RIGHT, _up(level, top)))
    begin, end = lines[0].since or "", max(line.until or "" for line in lines)
    return Chart(
        "time (UTC)",
        "part of the cap",
        [Tick(LEFT, _day(begin, span), "start"), Tick(RIGHT, _day(end, span), "end")],
        _parts_of_cap(top),
        line=_path(corners),
        area=_path([(LEFT, BOTTOM), *corners, (RIGHT, BOTTOM)]),
        limit=_up(1.0, top),
        limit_name="cap",
    )


def range_chart(lines: Sequence[Spent], users: tuple[int, int]) -> Chart | None:
    """The most that anybody in each range of arrival indices paid, as a part of the cap."""
    told = [(line.users, line.of_cap) for line in lines if line.of_cap is not None]
    if len(told) < 2:
        return None
    start, span = users[0], max(users[1] - users[0], 1)
    top = _top([share for _, share in told])
    bars = []
    for (begin, end), share in told:
        x, y = _across((begin - start) / span), _up(share, top)
        width = max(_across((end - start) / span) - x - 1.5, 0.5)
        bars.append(Bar("spent", x, y, _short(width), _short(max(BOTTOM - y, 0))))
    ticks = [Tick(LEFT, f"{users[0]:,}", "start"), Tick(RIGHT, f"{users[1] - 1:,}", "end")]
    y_ticks = _parts_of_cap(top)
    limit = _up(1.0, top)
    return Chart("arrival index", "part of the cap", ticks, y_ticks, bars, "", "", limit, "cap")


def trade_off_chart(curve: Curve) -> Chart:
    """What the best attack still misses, against its rate of false alarms."""
    rates = np.concatenate([[0.0], np.geomspace(1e-4, 1, 80)])
    missed = 1 - PrivacyCurve(np.array(curve.epsilons), np.array(curve.deltas)).power(rates)
    corners = [
        (_across(float(rate)), _up(float(part), 1.0))
        for rate, part in zip(rates, missed, strict=True)
    ]
    ticks = [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")]
    return Chart(
        "false alarms",
        "missed",
        [Tick(_across(part), text) for part, text in ticks],
        [Tick(_up(part, 1.0), text) for part, text in ticks],
        line=_path(corners),
        area=_path([*corners, (LEFT, TOP)]),
        diagonal=True,
    )


def _top(parts: Sequence[float]) -> float:
    return max(1.0, *(part for part in parts if math.isfinite(part)), 1.0)


def _parts_of_cap(top: float) -> list[Tick]:
    ticks = [Tick(_up(share, top), f"{share:.0%}") for share in (0.0, 0.5, 1.0)]
    return [*ticks, Tick(TOP, part(top))] if top > 1.3 else ticks


def _across(part: float) -> float:
    return _short(LEFT + (RIGHT - LEFT) * part)


def _up(part: float, top: float) -> float:
    share = min(part / top, 1.0) if math.isfinite(part) else 1.0
    return _short(BOTTOM - (BOTTOM - TOP) * max(share, 0.0))


def _short(value: float) -> float:
    return round(float(value), 2)


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in corners)


def _day(minute: str, span: int) -> str:
    return minute[:10] if span > _TWO_DAYS else minute[:-1].replace("T", " ")
