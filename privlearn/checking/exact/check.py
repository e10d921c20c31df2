"""Claims against the exact divergence of a mechanism's output distributions on worst neighbours.

Nothing is sampled: output distributions are computed from a measurement of what the code does with
noise.  A claim that stands is right for *these* neighbours and up to the stated numerical error."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from privlearn.checking.exact.additive import additive_distributions, law_of_coins
from privlearn.checking.exact.choices import ERROR as CHOICE_ERROR
from privlearn.checking.exact.choices import PICKS_ERROR, choice_pairs, pick_pairs
from privlearn.checking.exact.distributions import (
    DistributionPair,
    Scan,
    Value,
    code_of,
    dense_orders,
    hockey_stick,
    knots,
    largest_ratio,
    renyi,
    scan,
)
from privlearn.checking.exact.one_number import PIECE_ERROR
from privlearn.checking.exact.persons import visit_pairs
from privlearn.checking.exact.probe import NOT_ADDED, UnpredictedError
from privlearn.checking.exact.reports import ERROR as REPORT_ERROR
from privlearn.checking.exact.reports import report_pairs
from privlearn.checking.exact.search import Found
from privlearn.checking.exact.thresholds import ERROR as THRESHOLD_ERROR
from privlearn.checking.exact.thresholds import threshold_pairs
from privlearn.checking.isolation import own_copy, silenced
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.targets import Claimable, name_of
from privlearn.errors import CheckError
from privlearn.losses import ApproxLoss, Loss, without_visits
from privlearn.losses.base import is_foreign
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.losses.output_laws import Density, Discrete, Distribution, Normal, normal
from privlearn.mechanisms import ObjectivePerturbation
from privlearn.values.exact import exact_text, float_up

ORDERS = (1.01, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_EPSILONS = (0.0, 0.25, 1.0, 4.0)  # Where a Gaussian claim is compared as a curve of (ε, δ)
_TIGHT = 1e-6
_TELLING = "outputs that are no function of noisy integers"
_PairsOf = Callable[
    [Any, Sequence[tuple[Any, Any]] | None], tuple[list[DistributionPair], Coverage] | None
]
_MEASURED: tuple[tuple[_PairsOf, float], ...] = (
    (choice_pairs, CHOICE_ERROR),
    (pick_pairs, PICKS_ERROR),
    (report_pairs, REPORT_ERROR),
    (threshold_pairs, THRESHOLD_ERROR),
)  # What finds the measured output distributions, if they are of its kind, and their error


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a claim, and the same number computed; the larger one of both directions."""

    measure: str
    """"D(order)", "rho", "mu²", "epsilon" or "delta(epsilon)"; or what there must be none of."""
    claimed: float
    exact: float
    error: float  # Numerical error of ``exact``, estimated
    pair: str

    @property
    def violated(self) -> bool:
        return self.exact - self.error > self.claimed

    @property
    def ratio(self) -> float:
        """claimed/exact; below 1 where the claim is too small, 1 for 0/0 and inf/inf."""
        if self.claimed == self.exact:
            return 1.0
        if self.exact <= 0 or math.isinf(self.claimed):
            return math.inf
        return self.claimed / self.exact

    @property
    def tight(self) -> bool:
        return self.claimed <= self.exact * (1 + _TIGHT) + self.error


@dataclass(frozen=True, slots=True)
class ExactResult:
    """A claim beside the exact numbers, one row for each, and what was tried."""

    subject: str
    claim: str
    rows: tuple[Row, ...]
    seconds: float
    coverage: Coverage = field(default_factory=Coverage)
    bound: bool = False
    """Whether the numbers are bounds: what leaves is made of data plus noise, and tells no more."""

    @property
    def whole(self) -> bool:
        """Whether enough was tried; else the numbers are lower bounds of the exact ones."""
        return not self.coverage.missing

    @property
    def looked(self) -> str:
        """Which arrivals of a stream."""
        return next((axis.tried for axis in self.coverage.axes if axis.name == "arrivals"), "")

    @property
    def violated(self) -> bool:
        """Whether some number of the claim is below the exact one."""
        return any(row.violated for row in self.rows)

    @property
    def curve(self) -> tuple[Row, ...]:
        """The rows of the Rényi curve."""
        return tuple(row for row in self.rows if row.measure.startswith("D("))

    @property
    def tight(self) -> bool:
        """Whether the claim is equal to the exact number throughout (on the curve, if any)."""
        tight = all(row.tight for row in self.curve or self.rows)
        return self.whole and tight and not (self.violated or self.bound)

    @property
    def worst(self) -> Row:
        """The row with the least slack."""
        return min(self.rows, key=lambda row: row.ratio)

    @property
    def error(self) -> float:
        """The largest numerical error."""
        return max(row.error for row in self.rows)

    def __str__(self) -> str:
        verdict = "VIOLATED" if self.violated else "tight" if self.tight else "not violated"
        if not (self.whole or self.violated):
            short = ", ".join(self.coverage.missing)
            verdict = f"NOT LOOKED AT AS A WHOLE ({short}), not violated within a window"
        word = "at most" if self.bound else "exact" if self.whole else "at least"
        worst = self.worst
        head = f"{self.subject}: {verdict}. Claimed {self.claim}; least slack at {worst.measure}: "
        head += f"claimed {worst.claimed:.8g}, {word} {worst.exact:.8g} ± {worst.error:.1g} "
        head += f"({worst.pair}{', ' if self.looked else ''}{self.looked}, {self.seconds:.2f} s)"
        lines = [
            f"  {row.measure:>12}  claimed {row.claimed:<14.8g} {word} {row.exact:<14.8g} "
            f"± {row.error:.1g}{'  VIOLATED' if row.violated else ''}"
            for row in self.rows
        ]
        tried = [f"  tried: {self.coverage}"] if self.coverage.axes else []
        return "\n".join([head, *lines, *tried])


def compare(
    claim: Claimable,
    pairs: Sequence[DistributionPair],
    *,
    subject: str = "laws",
    orders: Sequence[float] = ORDERS,
) -> ExactResult:
    """Compares every number of a claim with the largest one over pairs and directions. Raises
    CheckError: no pairs, or a claim that says nothing about laws like these."""
    started = time.perf_counter()
    if not pairs:
        raise CheckError("pairs = []: no two data sets whose outputs differ were given or found")
    both = [(pair.p, pair.q, pair.label) for pair in pairs]
    both += [(pair.q, pair.p, pair.label + ", reversed") for pair in pairs]
    rows = _rows(claim, Largest(both), [float(order) for order in orders])
    if not rows:
        raise CheckError(f"{_named(claim)} makes no promise that can be compared with laws")
    return ExactResult(subject, _named(claim), tuple(rows), time.perf_counter() - started)


class Largest:
    """The largest numbers over pairs of laws."""

    def __init__(self, both: Sequence[tuple[Distribution, Distribution, str]]) -> None:
        self._both = both
        self._kept: dict[float, tuple[Value, str]] = {}

    def _over(self, number: Any) -> tuple[Value, str]:
        return max(((number(p, q), name) for p, q, name in self._both), key=lambda v: v[0].value)

    def divergence(self, order: float) -> tuple[Value, str]:
        """D at an order, and the pair's name."""
        if order not in self._kept:
            self._kept[order] = self._over(lambda p, q: renyi(p, q, order))
        return self._kept[order]

    def rate(self, orders: Sequence[float]) -> tuple[Value, str]:
        """The largest D_α/α."""
        rates = []
        for order in orders:
            with contextlib.suppress(CheckError):  # elsewhere it can be computed
                (value, error), name = self.divergence(order)
                rates.append((Value(value / order, error / order), name))
        if not rates:
            raise CheckError(f"no divergence could be computed at any of {len(orders)} orders")
        return max(rates, key=lambda result: result[0].value)

    def delta(self, epsilon: float) -> tuple[Value, str]:
        """δ(ε), where `on_the_line`."""
        return self._over(lambda p, q: hockey_stick(p, q, epsilon))

    def ratio(self) -> tuple[Value, str]:
        """The worst case ε, at least."""
        return self._over(largest_ratio)

    @property
    def on_the_line(self) -> bool:
        """Whether δ(ε) is computed for such laws."""
        return all(isinstance(p, Discrete | Normal | Density) for p, _, _ in self._both)


def _row(measure: str, claimed: float, result: tuple[Value, str], times: float = 1.0) -> Row:
    (value, error), pair = result
    return Row(measure, claimed, value * times, error * times, pair)


def _rows(claim: Claimable, exact: Largest, orders: Sequence[float]) -> list[Row]:
    match claim:
        case ApproxDP():
            epsilon, delta = float(claim.epsilon), float_up(claim.delta)
            return [_row(f"delta({epsilon:g})", delta, exact.delta(epsilon))]
        case PureDP():
            return [_row("epsilon", float_up(claim.epsilon), exact.ratio())]
        case ZCDP():
            return [_row("rho", float_up(claim.rho), exact.rate(orders))]
        case GaussianDP():
            return _gaussian_rows(float_up(claim.mu_squared), exact, orders)
        case Renyi():
            points = [(float(a), float_up(e)) for a, e in claim.curve.items()]
            return [_row(f"D({a:g})", e, exact.divergence(a)) for a, e in points]
        case Loss():
            return _loss_rows(claim, exact, orders)
    raise CheckError(f"claim = {claim!r}: must be a Loss, a Currency or ApproxDP")


def _gaussian_rows(mass: float, exact: Largest, orders: Sequence[float]) -> list[Row]:
    rows = [_row("mu²", mass, exact.rate(orders), 2.0)]
    if exact.on_the_line:
        shifted = normal(math.sqrt(mass), 1.0), normal(0.0, 1.0)
        for epsilon in _EPSILONS:
            promised = hockey_stick(*shifted, epsilon)
            result, name = exact.delta(epsilon)
            row = Row(f"delta({epsilon:g})", promised.value, *result, name)
            rows.append(replace(row, error=result.error + promised.error))
    return rows


def _loss_rows(loss: Loss, exact: Largest, orders: Sequence[float]) -> list[Row]:
    loss = without_visits(loss)
    if loss.failure():
        if isinstance(loss, ApproxLoss):
            return _rows(ApproxDP(loss.epsilon, loss.delta), exact, orders)
        told = f"a {loss.kind} loss may fail with probability {exact_text(loss.failure())}"
        raise CheckError(f"{told}, and says nothing about the laws as a whole: claim an (ε, δ)")
    if is_foreign(loss):
        rows = curve_rows(
            scan(loss.renyi, exact.divergence, knots(2), dense_orders(50, *code_of(loss)))
        )
    else:
        curve = [(order, loss.renyi(order)) for order in orders]
        rows = [_row(f"D({a:g})", e, exact.divergence(a)) for a, e in curve if math.isfinite(e)]
    return [*rows, *price_rows(loss, exact, orders)]


def curve_rows(found: Scan) -> list[Row]:
    """Where a curve was compared, but for orders at which there is no bound."""
    return [
        Row(f"D({order:.10g})", claimed, *exact, pair)
        for order, claimed, exact, pair in found.points
        if claimed < math.inf
    ]


def price_rows(loss: Loss, exact: Largest, orders: Sequence[float]) -> list[Row]:
    """What a loss says besides its curve: ρ, the Gaussian mass and the worst case."""
    rows: list[Row] = []
    if (rho := _number("zcdp()", loss.zcdp())) is not None:
        rows.append(_row("rho", rho, exact.rate(orders)))
    if (mass := _number("gaussian()", loss.gaussian())) is not None:
        rows += _gaussian_rows(mass, exact, orders)
    if (epsilon := _number("pure()", loss.pure())) is not None:
        rows.append(_row("epsilon", epsilon, exact.ratio()))
    return rows


def _number(name: str, value: Any) -> float | None:
    if value is None or (isinstance(value, Fraction | int | float) and value >= 0):
        return None if value is None else float_up(Fraction(value))
    raise CheckError(f"{name} = {value!r:.80}: must be an exact number >= 0, or None")


def _named(claim: Claimable) -> str:
    if isinstance(claim, Loss):
        text = ", ".join(f"{k}={v}" for k, v in claim.numbers().items())
        return f"{claim.kind}({text if len(text) < 200 else text[:200] + '…'})"
    return repr(claim)


@silenced
def white_box(
    mechanism: Any,
    claim: Claimable | None = None,
    neighbours: Sequence[tuple[Any, Any]] | None = None,
    *,
    users: int | None = None,
    orders: Sequence[float] = ORDERS,
) -> ExactResult:
    """Compares what a mechanism claims with what it does to its worst neighbours, exactly.

    Neighbours are blocks of records; by default extreme ones of a shipped domain, in a stream at
    every arrival of ``users``, by default all that it is for, as far as they can be probed.

    Raises:
        CheckError: the mechanism is of another make; it must be checked by sampling.
    """
    started, neighbours = time.perf_counter(), own_copy(neighbours)
    result = _compared(mechanism, claim, neighbours, users, orders)
    result = _with_persons(result, mechanism, claim, orders)
    return replace(result, subject=name_of(mechanism), seconds=time.perf_counter() - started)


def _with_persons(
    result: ExactResult, mechanism: Any, claim: Claimable | None, orders: Sequence[float]
) -> ExactResult:
    """All visits of a person in place of one record, where the claim is about them or violated."""
    visits = visit_pairs(mechanism, claim)
    if visits is None:
        return result
    kept, axis = [result], visits.axis
    for k, (promise, pair, laws) in enumerate(visits.asked):
        try:
            if laws is None:
                found = _compared(mechanism, promise, [pair], None, orders)
            else:
                found = compare(promise, [laws], orders=orders)
        except CheckError as error:
            axis = replace(axis, tried=f"{axis.tried}; not compared, as {error}", enough=False)
            continue
        if k < visits.ruled or found.violated:
            kept.append(found)
    worst = min(kept, key=lambda one: (not one.violated, one.worst.ratio))
    return replace(worst, coverage=result.coverage + Coverage((axis,)))


def _compared(
    mechanism: Any,
    claim: Claimable | None,
    neighbours: Sequence[tuple[Any, Any]] | None,
    users: int | None,
    orders: Sequence[float],
) -> ExactResult:
    if isinstance(mechanism, ObjectivePerturbation):
        raise CheckError("a minimiser of a tilted objective: check it by sampling")
    refused: CheckError | None = None
    for pairs_of, error in _MEASURED:
        try:
            measured = pairs_of(mechanism, neighbours)
        except CheckError as unlike:  # it may still be of the next kind
            refused = refused or unlike
            continue
        if measured is not None:
            pairs, coverage = measured
            if neighbours is not None and claim is None:  # its own claim is about all data
                pairs, coverage = _with_own(mechanism, pairs_of, pairs, coverage)
            promise = mechanism.loss() if claim is None else claim
            result = with_error(compare(promise, pairs, orders=orders), error)
            return replace(result, coverage=coverage)
    if neighbours is None and (law := law_of_coins(mechanism)) is not None:
        result = compare(mechanism.loss() if claim is None else claim, [law.pair], orders=orders)
        return replace(result, coverage=law.coverage)
    if refused is not None:
        raise refused
    return _additive(mechanism, claim, neighbours, users, orders)


def _with_own(
    mechanism: Any, pairs_of: _PairsOf, given: list[DistributionPair], coverage: Coverage
) -> tuple[list[DistributionPair], Coverage]:
    """Given pairs with those that are looked for where none are given, if that can be done."""
    with contextlib.suppress(CheckError):  # a domain of somebody else's
        own = pairs_of(mechanism, None)
        if own is not None:
            found = [replace(pair, label=f"found {pair.label}") for pair in own[0]]
            return [*given, *found], own[1]
    return given, coverage + Coverage((Axis("records", "as given", False),))


def with_error(result: ExactResult, error: float) -> ExactResult:
    """With the error of log probabilities that were measured: of D(α) it is 2α/(α−1) times it."""
    rows = []
    for row in result.rows:
        order = float(row.measure[2:-1]) if row.measure.startswith("D(") else ORDERS[0]
        twice = row.measure == "epsilon" or row.measure.startswith("delta")
        rows.append(
            replace(row, error=row.error + error * (2 if twice else 2 * order / (order - 1)))
        )
    return replace(result, rows=tuple(rows))


def _additive(
    mechanism: Any,
    claim: Claimable | None,
    neighbours: Sequence[tuple[Any, Any]] | None,
    users: int | None,
    orders: Sequence[float],
) -> ExactResult:
    laws = additive_distributions(mechanism, claim, neighbours, users)
    parts = [compare(promise, pairs, orders=orders) for promise, pairs in laws.parts if pairs]
    if laws.found is not None:
        parts = _with_odd(parts, laws.parts[0][0], laws.found, orders)
    worst = min(parts, key=lambda result: (not result.violated, result.worst.ratio))
    rows = worst.rows
    if laws.telling:
        rows += (Row(_TELLING, 0.0, float(laws.telling), 0.0, "the same noisy integers"),)
    return replace(worst, rows=rows, coverage=laws.coverage)


def _with_odd(
    parts: list[ExactResult], promise: Claimable, found: Found, orders: Sequence[float]
) -> list[ExactResult]:
    """With neighbours between which the output does more than move. Raises UnpredictedError where
    there are such, and nothing can be said of them. Raises CheckError: nor do small noise and
    the data sets at hand act as predicted."""
    unclear = bool(found.suspects)
    if found.odd:
        odd = with_error(compare(promise, found.odd, orders=orders), PIECE_ERROR)
        parts = [*parts, *([odd] if odd.violated else [])]
    if found.bounded:
        bounds = [pair.laws for pair in found.bounded]
        bound = replace(compare(promise, bounds, orders=orders), bound=True)
        unclear = unclear or bound.violated
        parts += [] if bound.violated else [bound]
    if unclear and not any(part.violated for part in parts):
        if not found.near:
            raise CheckError(f"{NOT_ADDED}: check it by sampling")
        pairs = [*found.suspects, *(pair[:2] for pair in found.bounded)]
        raise UnpredictedError(NOT_ADDED, pairs)
    if not parts:
        compare(promise, [], orders=orders)
    return parts
