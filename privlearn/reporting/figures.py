"""Privacy to look at: trade-off curve, ε(δ), spending over time, and what they mean in words."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from privlearn.accountants.epsilon_delta import Evaluated
from privlearn.adjacency import Adjacency
from privlearn.budgets import Currency, budget_from_dict
from privlearn.domains import Array
from privlearn.entries import IssueEntry, OpenEntry, SpendEntry, parse_entry
from privlearn.errors import DataError
from privlearn.ledger import read_records
from privlearn.losses import loss_from_dict
from privlearn.reporting.visible import in_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ["#1b6ca8", "#c0392b", "#4a4a4a", "#e0a030", "#2e8b57", "#8e44ad", "#7f8c8d"]
_SMALLEST_DELTA = 1e-12
_FALSE_ALARMS = 0.01
_MOST_LABELS = 12


@final
@dataclass(frozen=True)
class Curve:
    """(ε, δ(ε)) at some ε, and the trade-off between an attack's two errors that follows.

    Any (ε, δ) guarantee that holds in both directions bounds the power of a test at false-alarm
    rate a by min(e^ε·a + δ, 1 − e^{−ε}(1 − δ − a)) (Dong, Roth & Su 2022, Proposition 2.5);
    finitely many ε give a bound that is valid and a little too pessimistic.
    """

    epsilons: Array
    deltas: Array

    def power(self, false_alarms: float | Array) -> Array:
        """The most that an attack can catch at a rate of false alarms in [0, 1]."""
        rate = np.asarray(false_alarms, dtype=float)[..., None]
        up = np.exp(np.minimum(self.epsilons, 700.0)) * rate + self.deltas
        down = 1 - np.exp(-self.epsilons) * (1 - self.deltas - rate)
        bound: Array = np.clip(np.minimum(up, down).min(axis=-1), 0.0, 1.0)
        return bound

    @property
    def advantage(self) -> float:
        """The most by which an attack's power can exceed its rate of false alarms: δ(0)."""
        return float(self.deltas[0])


def curve_of(evaluated: Evaluated, slow_points: int = 21) -> Curve:
    """δ at 81 values of ε from 0 to where δ is 1e-12, or a failure's δ is reached.

    A few more lie just below the end; it is ``slow_points`` where each takes up to seconds.
    """
    failure = float(evaluated.total.failure())
    answer = evaluated.epsilon(min(max(_SMALLEST_DELTA, failure * 1.001), 0.999))
    top = answer.value if math.isfinite(answer.value) and answer.value > 0 else 1.0
    quick = answer.method in ("gaussian", "pure", "renyi")
    number = 81 if quick else slow_points
    # δ can fall steeply just below a worst case
    near = 1 - 10.0 ** -np.arange(2, 13, 1 if quick else 5)
    epsilons = top * np.unique(np.concatenate([np.linspace(0, 1, number) ** 1.5, near]))
    deltas = np.array([min(evaluated.delta(float(epsilon)).value, 1.0) for epsilon in epsilons])
    return Curve(epsilons, np.minimum.accumulate(deltas))


def reading(evaluated: Evaluated, curve: Curve | None = None) -> list[str]:
    """What the numbers mean, in two sentences without symbols."""
    curve = curve if curve is not None else curve_of(evaluated, 13)
    caught = float(curve.power(_FALSE_ALARMS))
    odds = caught / _FALSE_ALARMS
    what = {
        Adjacency.REPLACE_ONE: "which of two records a person contributed",
        Adjacency.ZERO_OUT: "whether a person's record was used or blanked out",
        Adjacency.ADD_REMOVE: "whether a person took part",
    }[evaluated.total.adjacency]
    return [
        f"Attack: whoever knows all other records and guesses {what} is right in at most "
        f"{_up(50 + 50 * curve.advantage, 2)}% of cases (50% is tossing a coin; membership "
        f"advantage {_up(curve.advantage, 4)}).",
        f"Posterior odds: an alarm that goes off for 1% of those it is wrong about goes off for at "
        f"most {_up(100 * caught, 2)}% of those it is right about; it turns even odds into at most "
        f"{_up(odds, 2)} to 1 (probability {_up(100 * odds / (1 + odds), 1)}%).",
    ]


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
    figure = _figure(10, 5.2)
    tradeoff, profile = figure.subplots(1, 2)
    _draw_tradeoff(tradeoff, curve)
    _draw_profile(profile, curve)
    if epsilon is not None and delta is not None and delta > 0:
        profile.plot([delta], [epsilon], "o", color=_COLORS[1], markersize=7, zorder=5)
        left = delta > 1e-4
        profile.annotate(
            f"ε = {_up(epsilon, 4)} at δ = {delta:.3g}",
            (delta, epsilon),
            textcoords="offset points",
            xytext=(-10, -14) if left else (10, 8),
            ha="right" if left else "left",
            color=_COLORS[1],
        )
    figure.suptitle(
        f"{evaluated.total.adjacency.value}: what all of it together gives away", fontsize=12
    )
    figure.supxlabel("\n".join(_wrapped(words)), fontsize=8.5, x=0.02, ha="left", color="#333333")
    _save(figure, path)
    return words


def _draw_tradeoff(axes: Axes, curve: Curve) -> None:
    rates = np.concatenate([[0.0], np.geomspace(1e-6, 1, 300)])
    missed = 1 - curve.power(rates)
    axes.plot([0, 1], [1, 0], color="#999999", linewidth=1, linestyle="--", label="tossing a coin")
    axes.plot(rates, missed, color=_COLORS[0], linewidth=2, label="best attack at most here")
    axes.fill_between(rates, missed, 1 - rates, color=_COLORS[0], alpha=0.12)
    axes.set(
        xlabel="false alarms", ylabel="missed", title="trade-off curve", xlim=(0, 1), ylim=(0, 1)
    )
    axes.legend(frameon=False, loc="upper right")
    _tidy(axes)


def _draw_profile(axes: Axes, curve: Curve) -> None:
    shown = curve.deltas > 0
    axes.plot(curve.deltas[shown], curve.epsilons[shown], color=_COLORS[0], linewidth=2)
    if not shown.all():  # a worst case: nothing is needed beyond it
        axes.axhline(
            float(curve.epsilons[~shown][0]), color=_COLORS[0], linestyle=":", label="worst case"
        )
        axes.legend(frameon=False)
    axes.set(xscale="log", xlabel="δ", ylabel="ε (nats)", title="ε at each δ")
    axes.set_ylim(bottom=0)
    _tidy(axes)


@final
@dataclass(frozen=True)
class Spending:
    """What the most charged user of one accountant paid, spend by spend."""

    accountant: str
    user: int
    unit: str
    cap: float
    labels: list[str]
    cumulated: Array
    """Shape (labels, spends + 1): paid under each label after each spend."""


def spending(path: str | os.PathLike[str]) -> list[Spending]:
    """Reads from a ledger what was paid over time; for each accountant, its most charged user.

    Amounts are those of the accountant's currency (at its first order, for a Rényi cap), in the
    order of the entries; they are facts about one run, not guarantees.

    Raises:
        LedgerUnreadableError: missing, torn or not a ledger.
    """
    entries = [parse_entry(record.body) for record in read_records(path)]
    labels = {e.token: e.label for e in entries if isinstance(e, IssueEntry)}
    found = []
    for opened in (entry for entry in entries if isinstance(entry, OpenEntry)):
        cap = budget_from_dict(opened.cap)
        if not isinstance(cap, Currency):
            continue
        spends = [
            entry
            for entry in entries
            if isinstance(entry, SpendEntry) and entry.accountant == opened.accountant
        ]
        paid = [_by_users(entry, cap) for entry in spends]
        user = _most_charged(opened.users[0], paid)
        rows: dict[str, list[tuple[int, Fraction]]] = {}
        times = 0
        for entry, pieces in zip(spends, paid, strict=True):
            for users, price in pieces:
                if user in users:
                    times += 1
                    name = f"{entry.mechanism}: {labels.get(entry.token, '?')}"
                    rows.setdefault(name, []).append((times, price))
        cumulated = np.zeros((len(rows), times + 1))
        for row, charges in enumerate(rows.values()):
            for time, price in charges:
                cumulated[row, time:] += float(price)
        found.append(
            Spending(
                opened.accountant,
                user,
                cap.kind,
                float(cap.amounts[0]),
                list(rows),
                cumulated,
            )
        )
    return found


def _by_users(entry: SpendEntry, cap: Currency) -> list[tuple[range, Fraction]]:
    """What one spend costs which users, apart from failures."""
    pieces = loss_from_dict(entry.loss).over(range(*entry.users))
    return [(users, cap.price(loss.unless_failed()).amounts[0]) for users, loss in pieces]


def _most_charged(first: int, paid: Sequence[Sequence[tuple[range, Fraction]]]) -> int:
    """A user with the largest sum; sums change only where ranges begin or end."""
    steps: dict[int, Fraction] = {first: Fraction(0)}
    for users, price in (piece for pieces in paid for piece in pieces):
        steps[users.start] = steps.get(users.start, Fraction(0)) + price
        steps[users.stop] = steps.get(users.stop, Fraction(0)) - price
    best, most, total = first, Fraction(-1), Fraction(0)
    for user in sorted(steps):
        total += steps[user]
        if total > most:
            best, most = user, total
    return best


def plot_spending(path: str | os.PathLike[str], ledger: str | os.PathLike[str]) -> list[Spending]:
    """Draws what was paid over time, one colour per mechanism and label, one panel per accountant.

    Raises:
        LedgerUnreadableError: see `spending`.  DataError: nothing to draw, or an unknown ending.
    """
    found = spending(ledger)
    if not found:
        raise DataError("the ledger opens no accountant: there is nothing to draw")
    figure = _figure(7.5 * min(len(found), 2), 4.2 * math.ceil(len(found) / 2))
    grid: Any = figure.subplots(math.ceil(len(found) / 2), min(len(found), 2), squeeze=False)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    for axes, one in zip(grid.flat, found, strict=False):
        labels, levels = _readable(one)
        times = np.arange(one.cumulated.shape[1] + 1)  # the last level is shown for one step
        if labels:
            colors = [_COLORS[k % len(_COLORS)] for k in range(len(labels))]
            axes.stackplot(
                times,
                np.pad(levels, ((0, 0), (0, 1)), "edge"),
                labels=labels,
                colors=colors,
                alpha=0.8,
                step="post",
            )
        axes.axhline(one.cap, color="#333333", linestyle="--", linewidth=1, label="cap")
        symbol = {"zcdp": "ρ", "gdp": "μ²", "pure": "ε"}.get(
            one.unit, f"{in_plot(one.unit)} (first order)"
        )
        axes.set(
            xlabel="spends that touch this user",
            ylabel=f"paid so far, {symbol}",
            title=f"most charged user ({one.user}) of accountant {in_plot(one.accountant)}",
        )
        axes.set_xlim(0, max(len(times) - 1, 1))
        axes.set_ylim(0, 1.02 * max(one.cap, float(one.cumulated.sum(axis=0).max(initial=0.0))))
        axes.legend(loc="best", fontsize=8, framealpha=0.9, edgecolor="none")
        _tidy(axes)
    _save(figure, path)
    return found


def _readable(one: Spending) -> tuple[list[str], Array]:
    """Labels for a legend and their levels; more labels than a legend can hold are one."""
    labels = [in_plot(label) for label in one.labels]
    if len(labels) <= _MOST_LABELS:
        return labels, one.cumulated
    order = np.argsort(-one.cumulated[:, -1], kind="stable")
    first = order[: _MOST_LABELS - 1]
    rest = one.cumulated[order[_MOST_LABELS - 1 :]].sum(axis=0, keepdims=True)
    others = f"{len(labels) - len(first)} others"
    return [*(labels[k] for k in first), others], np.concatenate([one.cumulated[first], rest])


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:
        raise DataError(f"{os.fspath(path)}: cannot be drawn: {error}") from None


def _wrapped(words: Sequence[str]) -> list[str]:
    from textwrap import wrap

    return [line for text in words for line in wrap(text, 150)]


def _up(value: float, digits: int) -> float:
    """Rounds up for display, so that no printed number understates."""
    scaled = value * 10**digits
    return math.ceil(scaled) / 10**digits if math.isfinite(scaled) else value
