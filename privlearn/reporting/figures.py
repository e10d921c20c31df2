"""Plots of the trade-off curve, ε(δ), spending over time and over users, and regret.

Only this module and the studies of papers import matplotlib, which is an extra (``plots``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn.accountants.epsilon_delta import Evaluated
from privlearn.accountants.shown_numbers import fixed, up
from privlearn.accountants.state import AccountState
from privlearn.errors import DataError
from privlearn.reporting.privacy_curves import PrivacyCurve, curve_of, reading
from privlearn.reporting.report import look_at, spending_of
from privlearn.reporting.spending import Spending
from privlearn.reporting.visible import in_plot
from privlearn.rows.domains import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from privlearn.accountants.arrivals import ArrivalSpend

COLORS = ["#0072b2", "#d55e00", "#4a4a4a", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"]
"""Told apart by the colour-blind, too (Okabe and Ito 2008)."""
STYLES = [("#0072b2", "-"), ("#4a4a4a", "--"), ("#d55e00", "-."), ("#888888", ":")]
"""Of a private learner and of up to three references."""
_MOST_LABELS = 12
_MOST_STEPS = 4000
_MOST_PANELS = 16
_LAST_DAY = 2_932_000  # Since 1970, of the year 9997: later ones cannot be drawn
_POINTS = 400  # Of a curve over users; with more, dashes run together and files grow


NEEDED = "pictures need matplotlib: pip install 'privlearn[plots]'"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot_guarantee(
    path: str | os.PathLike[str],
    evaluated: Evaluated,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
) -> list[str]:
    """Draws the trade-off curve and ε(δ), marks one point, and returns the reading.

    Args:
        path: where the picture goes; the ending says the form (png, svg, pdf).
        evaluated: what is drawn.
        epsilon, delta: the point to mark, if both are given.

    Raises:
        DataError: the ending is not a form that can be drawn.
    """
    curve = curve_of(evaluated)
    words = reading(evaluated, curve)
    figure = new_figure(10, 5.2)
    tradeoff, profile = figure.subplots(1, 2)
    draw_tradeoff(tradeoff, curve)
    _draw_profile(profile, curve)
    if epsilon is not None and delta is not None and delta > 0:
        profile.plot([delta], [epsilon], "o", color=COLORS[1], markersize=7, zorder=5)
        left = delta > 1e-4
        profile.annotate(
            f"ε = {fixed(epsilon)} at δ = {up(delta)}",
            (delta, epsilon),
            textcoords="offset points",
            xytext=(-10, -14) if left else (10, 8),
            ha="right" if left else "left",
            color=COLORS[1],
        )
    figure.suptitle(
        f"{evaluated.total.adjacency.value}: what all of it together gives away", fontsize=12
    )
    figure.supxlabel("\n".join(_wrapped(words)), fontsize=8.5, x=0.02, ha="left", color="#333333")
    save(figure, path)
    return words


def draw_tradeoff(axes: Axes, curve: PrivacyCurve) -> None:
    """Draws the least errors that any attack makes."""
    rates = np.concatenate([[0.0], np.geomspace(1e-6, 1, 300)])
    missed = 1 - curve.power(rates)
    axes.plot([0, 1], [1, 0], color="#999999", linewidth=1, linestyle="--", label="guessing")
    axes.plot(rates, missed, color=COLORS[0], linewidth=2, label="no attack is below")
    axes.fill_between(rates, missed, 1 - rates, color=COLORS[0], alpha=0.12)
    axes.set(
        xlabel="false alarms", ylabel="missed", title="trade-off curve", xlim=(0, 1), ylim=(0, 1)
    )
    axes.legend(frameon=False, loc="upper right")
    tidy(axes)


def _draw_profile(axes: Axes, curve: PrivacyCurve) -> None:
    shown = curve.deltas > 0
    axes.plot(curve.deltas[shown], curve.epsilons[shown], color=COLORS[0], linewidth=2)
    if not shown.all():  # a worst case: nothing is needed beyond it
        axes.axhline(
            float(curve.epsilons[~shown][0]), color=COLORS[0], linestyle=":", label="worst case"
        )
        axes.legend(frameon=False)
    axes.set(xscale="log", xlabel="δ", ylabel="ε (nats)", title="ε at each δ")
    axes.set_ylim(bottom=0)
    tidy(axes)


def spending(path: str | os.PathLike[str]) -> list[Spending]:
    """Reads from a ledger what was paid over time; for each accountant, its most charged user.

    Amounts are those of the accountant's currency (of a Rényi cap, at the order that is used up
    first), in the order of the entries; they are facts about one run, not guarantees.  Accountants
    with a rule of participation are left out: there an index is a slot, and nobody is the most
    charged user.

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.
    """
    return spending_of(look_at(path))


def plot_spending(path: str | os.PathLike[str], ledger: str | os.PathLike[str]) -> list[Spending]:
    """Draws what was paid over time, one colour per mechanism and label, one panel per accountant.

    Of very many accountants the first are drawn, and a title says so.

    Raises:
        LedgerUnreadableError: see `spending`.
        DataError: nothing to draw, or an unknown ending.
    """
    looked = look_at(ledger)
    found = spending_of(looked)
    draw_spending(path, found, looked.states)
    return found


def draw_spending(
    path: str | os.PathLike[str], found: Sequence[Spending], states: Sequence[AccountState]
) -> None:
    """Draws what was paid over time, of a ledger with the accounts ``states``.

    Raises:
        DataError: nothing to draw, or an unknown ending.
    """
    persons = sum(state.visits is not None for state in states)
    if not found:
        why = "all are of persons, where no user is the most charged one" if persons else "none"
        raise DataError(f"the ledger opens no accountant that can be drawn ({why})")
    drawn = found[:_MOST_PANELS]
    figure = new_figure(7.5 * min(len(drawn), 2), 4.2 * math.ceil(len(drawn) / 2))
    if len(drawn) < len(found):
        figure.suptitle(f"the first {len(drawn)} of {len(found)} accountants")
    elif persons:
        figure.suptitle(f"without {persons} accountant(s) of persons who may come back")
    grid: Any = figure.subplots(math.ceil(len(drawn) / 2), min(len(drawn), 2), squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    for axes, one in zip(grid.flat, drawn, strict=False):
        labels, levels = _readable(one)
        spends = one.cumulated.shape[1]
        shown = np.unique(np.linspace(0, spends - 1, min(spends, _MOST_STEPS)).astype(int))
        times = _times(one, shown)
        if labels:
            colors = [COLORS[k % len(COLORS)] for k in range(len(labels))]
            axes.stackplot(
                times,
                np.pad(levels[:, shown], ((0, 0), (0, 1)), "edge"),
                labels=labels,
                colors=colors,
                alpha=0.8,
                step="post",
            )
        axes.axhline(one.cap, color="#333333", linestyle="--", linewidth=1, label="cap")
        axes.set(
            xlabel="UTC, as the ledger declares"
            if len(one.minutes)
            else "spends that touch this user",
            ylabel=f"paid so far, {in_plot(one.unit)}",
            title=f"most charged user ({one.user}) of accountant {in_plot(one.accountant)}",
        )
        _set_time(axes, times, known=len(one.minutes) > 0)
        axes.set_ylim(0, 1.02 * max(one.cap, float(one.cumulated.sum(axis=0).max(initial=0.0))))
        axes.legend(loc="best", fontsize=8, framealpha=0.9, edgecolor="none")
        tidy(axes)
    save(figure, path)


def _times(one: Spending, shown: Array) -> Array:
    """Where levels begin, and where the last one ends: days since 1970, or spends."""
    if not len(one.minutes):
        return np.append(shown, one.cumulated.shape[1])  # the last level is shown for one step
    days: Array = np.minimum(one.minutes / (24 * 60), _LAST_DAY - 1)
    return np.append(days[shown], max(days[-1], days[shown[-1]]))


def _set_time(axes: Axes, times: Array, *, known: bool) -> None:
    if not known:
        axes.set_xlim(0, times[-1])
        whole: Any = axes.xaxis.get_major_locator()
        whole.set_params(integer=True)
        return
    from matplotlib import dates

    kinds: Any = dates
    locator = kinds.AutoDateLocator(maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(kinds.ConciseDateFormatter(locator))
    spare = max(times[-1] - times[0], 2 / (24 * 60)) / 50
    axes.set_xlim(max(times[0] - spare, 0), min(times[-1] + spare, _LAST_DAY))


def _readable(one: Spending) -> tuple[list[str], Array]:
    labels = [in_plot(label) for label in one.labels]
    if len(labels) <= _MOST_LABELS:
        return labels, one.cumulated
    order = np.argsort(-one.cumulated[:, -1], kind="stable")
    first = order[: _MOST_LABELS - 1]
    rest = one.cumulated[order[_MOST_LABELS - 1 :]].sum(axis=0, keepdims=True)
    others = f"{len(labels) - len(first)} others"
    return [*(labels[k] for k in first), others], np.concatenate([one.cumulated[first], rest])


def plot_arrivals(
    path: str | os.PathLike[str], spends: Sequence[ArrivalSpend], title: str = ""
) -> None:
    """Draws ε promised to, and spent on, each user against the arrival index.

    Args:
        path: where the picture goes.
        spends: from `CentralAccountant.spend_by_arrival`.
        title: what was run.

    Raises:
        ValueError: nothing to draw.
    """
    if not spends:
        raise ValueError("spends = []: needs at least one range of users")
    figure = new_figure(8, 4)
    axes = figure.subplots()
    edges = [piece.users.start for piece in spends] + [spends[-1].users.stop]
    for name, values, color in (
        ("guarantee", [piece.promised for piece in spends], COLORS[0]),
        ("spent, ex post", [piece.spent for piece in spends], COLORS[1]),
    ):
        axes.stairs(values, edges, label=name, color=color, linewidth=2, baseline=None)
    axes.set(
        xlabel="arrival index",
        ylabel=f"ε at δ = {up(spends[0].delta)}",
        title=title,
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    tidy(axes)
    save(figure, path)


def plot_regret(
    path: str | os.PathLike[str],
    regrets: Mapping[str, Array],
    title: str,
    unit: str = "user",
    lost: str = "sales",
) -> None:
    """Draws cumulative regret and its running average per user, one curve per learner.

    Args:
        path: where the picture goes.
        regrets: regret of each user, shape (T,), by the learner's name; at most four.
        title: what was run.
        unit: what is counted, if not users.
        lost: what regret is counted in.
    """
    figure = new_figure(10, 4)
    total, rate = figure.subplots(1, 2)
    for (name, regret), (color, line) in zip(regrets.items(), STYLES, strict=False):
        served = np.arange(1.0, len(regret) + 1)
        _draw_curve(total, served, np.cumsum(regret), color, line, name)
        _draw_curve(rate, *running_average(regret, len(regret) // 40), color, line, name)
    total.set(xlabel=f"{unit}s served", ylabel=f"cumulative regret ({lost})", title=title)
    total.legend(frameon=False)
    rate.set(xlabel=f"{unit}s served", ylabel=f"regret per {unit}", yscale="log")
    rate.set_title(f"per {unit}")
    for axes in (total, rate):
        axes.xaxis.set_major_formatter("{x:,.0f}")
        tidy(axes)
    save(figure, path)


def plot_running_averages(
    path: str | os.PathLike[str],
    curves: Mapping[str, Array],
    x: str,
    y: str,
    *,
    bottom: float | None = None,
) -> None:
    """Draws running averages over a tenth of the users, one curve per learner.

    Args:
        path: where the picture goes.
        curves: a value of each user, shape (T,), by the learner's name; at most four.
        x, y: labels of the axes.
        bottom: where the vertical axis begins; None for where the values do.
    """
    figure = new_figure(7, 4.4)
    axes = figure.subplots()
    for (name, values), (color, line) in zip(curves.items(), STYLES, strict=False):
        if len(values):
            _draw_curve(axes, *running_average(values, len(values) // 10), color, line, name)
    axes.set(xlabel=x, ylabel=y, title="running average over a tenth of the users")
    axes.set_ylim(bottom=bottom)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    tidy(axes)
    save(figure, path)


def _draw_curve(axes: Axes, x: Array, y: Array, color: str, line: str, name: str) -> None:
    at = np.unique(np.linspace(0, len(x) - 1, _POINTS).astype(int))
    axes.plot(x[at], y[at], color=color, linestyle=line, linewidth=2, label=name)


def running_average(values: Array, window: int) -> tuple[Array, Array]:
    """Means over ``window`` (at least one) users, and how many users came until then."""
    window = max(window, 1)
    sums = np.cumsum(np.insert(values, 0, 0.0))
    users = np.arange(window, len(values) + 1, dtype=np.float64)
    return users, (sums[window:] - sums[:-window]) / window


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, without a window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if not can_draw():
        raise ImportError(NEEDED, name="matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Takes the frame away and adds a pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes the picture; the ending says the form.

    Raises:
        DataError: the ending is not a form that can be drawn.
    """
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:
        raise DataError(f"{os.fspath(path)}: cannot be drawn: {error}") from None


def _wrapped(words: Sequence[str]) -> list[str]:
    from textwrap import wrap

    return [line for text in words for line in wrap(text, 150)]
