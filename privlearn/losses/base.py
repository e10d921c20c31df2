r"""What one run of a mechanism costs, as data: a kind and its numbers.

A loss is a value, not code: the ledger stores it, and anybody can rebuild it and recompute every
price.  Each kind states every bound it has: a Rényi curve, a zCDP constant, a Gaussian mass, a
worst case.  ``a + b`` runs both, ``a * n`` runs n copies; multiplicity is applied in one place
(`Composed`).  Third parties add a kind with `register`; reading a ledger with an unknown kind
raises `UnknownKindError`, which an audit reports as a problem.

Symbols: D_α(P‖Q) is the Rényi divergence of order α; K(s) = log E_Q[(dP/dQ)^s], so that
D_α = K(α)/(α−1), K(0) = K(1) = 0.

Lemma (used for `BoundedRange`).  Let c ↦ K_c be a family with K_c''(s) = g(s + c),
where g is even, positive and non-increasing on [0, ∞).  Then the supremum over c of K_c(α)/(α(α−1))
is non-increasing in α > 1; its limit at α → 1 is the supremum of the KL divergence.
Proof.  K(α)/(α(α−1)) is the divided difference K[0,1,α] = ½∫M K'' with M the B-spline with knots
0, 1, α; its derivative in α is K[0,1,α,α], a positive multiple of ∫N K''' with N the B-spline with
knots 0, 1, α, α.  On [0,1] N/M is a multiple of s, on [1,α] it is linear with larger slope, so N/M
increases.  At a maximising c, ∫M K''' = 0; K''' changes sign once, from + to −, so
∫N K''' <= (N/M)(sign change)·∫M K''' = 0.  The envelope theorem concludes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, final

from privlearn._json_forms import LIST, OBJECT, TEXT, WHOLE, Form, check_curve, check_form, named
from privlearn._validate import count as valid_count
from privlearn._validate import finite
from privlearn.adjacency import Adjacency
from privlearn.errors import AdjacencyError, UnknownKindError
from privlearn.exact import Exact, exact, exact_text, float_up, round_up


def _context(epsilon: Fraction) -> Context:
    """Precision that leaves 60 digits after the cancellation of ε − ε²/2 + …."""
    digits = len(str(epsilon.denominator)) - len(str(epsilon.numerator))
    return Context(prec=60 + 3 * max(digits, 0))


@lru_cache(maxsize=2**14)
def _laplace_zcdp(epsilon: Fraction) -> Fraction:
    precise = _context(epsilon)
    eps = _decimal(epsilon, precise)
    small = precise.exp(precise.minus(eps))  # -eps would round to the ambient precision
    return _fraction_up(precise.subtract(precise.add(eps, small), Decimal(1)))


@lru_cache(maxsize=2**14)
def _bounded_range_zcdp(epsilon: Fraction) -> Fraction:
    precise = _context(epsilon)
    eps = _decimal(epsilon, precise)
    ratio = precise.divide(eps, precise.subtract(precise.exp(eps), Decimal(1)))
    return _fraction_up(precise.subtract(precise.subtract(ratio, Decimal(1)), precise.ln(ratio)))


_MOST_BITS = 4096
"""Of an exact sum's denominator; beyond, the sum is rounded up at 60 digits."""
_ROUNDING = 1e-14
"""Relative slack that covers the float evaluation of the closed forms below (a few ulps)."""


class Loss(ABC):
    """The price of one run, for one neighbour relation."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """The neighbour relation the numbers hold for."""

    @abstractmethod
    def renyi(self, order: float) -> float:
        """Upper bound on D_order (nats), both directions; ``inf`` where there is none.

        Raises:
            ValueError: order <= 1 or not finite.
        """

    def zcdp(self) -> Fraction | None:
        """The zCDP constant ρ (an upper bound), or None."""
        return None

    def gaussian(self) -> Fraction | None:
        """mu² if the loss is dominated by a Gaussian mechanism of that mass, or None."""
        return None

    def pure(self) -> Fraction | None:
        """The worst-case privacy loss ε in nats, or None."""
        return None

    def failure(self) -> Fraction:
        """The probability δ of an event in which nothing is promised; it adds up.

        Where it is above 0 the bounds above are infinite or None, as they must be; those of
        `unless_failed` hold apart from that event, which is the same under both neighbours.
        """
        return Fraction(0)

    def unless_failed(self) -> Loss:
        """The loss apart from the event of probability `failure`."""
        return self

    def over(self, users: range) -> list[tuple[range, Loss]]:
        """What each of these users pays, in ranges of arrival indices; by default all the same.

        Raises:
            ValueError: the loss does not say what so many users pay.
        """
        return [(users, self)]

    def inner(self) -> Sequence[tuple[Loss, int]]:
        """The losses that this one is made of, with counts; empty for a loss of its own kind."""
        return ()

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """The JSON numbers that define the loss, without kind and adjacency."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, from which `loss_from_dict` rebuilds an equal loss."""
        return {"kind": self.kind, "adjacency": self.adjacency.value, **self.numbers()}

    def __add__(self, other: Loss) -> Loss:
        return compose([(self, 1), (other, 1)])

    def __mul__(self, count: int) -> Loss:
        return compose([(self, count)])

    __rmul__ = __mul__


_Read = Callable[[Mapping[str, Any], Adjacency], Loss]
_REGISTRY: dict[str, tuple[_Read, Form | None]] = {}
L = TypeVar("L", bound=type[Loss])


def register(read: _Read, form: Form | None = None) -> Callable[[L], L]:
    """Class decorator that lets ledgers rebuild a loss kind through ``read(numbers, adjacency)``.

    ``form`` has the names of its numbers with their JSON types; other names are then refused.

    Raises:
        ValueError: the kind is taken.
    """

    def add(cls: L) -> L:
        if cls.kind in _REGISTRY:
            raise ValueError(f"loss kind {cls.kind!r} is registered already")
        _REGISTRY[cls.kind] = read, form
        return cls

    return add


def loss_from_dict(data: Mapping[str, Any]) -> Loss:
    """Rebuilds a loss from its JSON form.

    Raises:
        UnknownKindError: a kind that is not registered.  ValueError: a number is missing, bad or
        of another JSON type, or something else stands there.
    """
    kind = named("loss", data, "kind")
    if kind not in _REGISTRY:
        raise UnknownKindError(f"loss kind {kind!r} is unknown; known: {', '.join(_REGISTRY)}")
    read, form = _REGISTRY[kind]
    try:
        if form is not None:
            check_form(f"{kind} loss", data, {"kind": TEXT, "adjacency": TEXT, **form})
        return read(data, Adjacency(data["adjacency"]))
    except KeyError as missing:
        raise ValueError(f"{kind} loss lacks {missing}") from None


def _order(order: float) -> float:
    alpha = finite(order=order)
    if alpha <= 1:
        raise ValueError(f"order = {order!r}: must be > 1")
    return alpha


def _up(value: float) -> float:
    return value * (1 + _ROUNDING)


def _fraction_up(value: Decimal) -> Fraction:
    """A decimal of about 60 exact digits, rounded up to 30, which covers its last-digit errors."""
    return Fraction(value.normalize(Context(prec=30, rounding=ROUND_CEILING)))


def _decimal(value: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def _epsilon(value: Exact) -> Fraction:
    epsilon = exact("epsilon", value)
    if not Fraction(1, 10**100) <= epsilon <= 700:
        raise ValueError(f"epsilon = {value!r}: must lie in [1e-100, 700]")
    return epsilon


@final
@register(
    lambda data, adjacency: Gaussian(data["mu_squared"], adjacency=adjacency),
    {"mu_squared": TEXT},
)
@dataclass(frozen=True, slots=True, init=False)
class Gaussian(Loss):
    """Noise N(0, std²) on each coordinate of a vector with ℓ2 sensitivity mu·std.

    D_α = α·mu²/2 exactly, attained at the extremal pair (Bun & Steinke 2016, Lemma 2.4), and the
    loss is dominated by N(mu, 1) against N(0, 1) (Dong, Roth & Su 2022, Theorem 2.7).
    """

    kind = "gaussian"
    mu_squared: Fraction
    adjacency: Adjacency

    def __init__(self, mu_squared: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        mass = exact("mu_squared", mu_squared)
        if mass <= 0:
            raise ValueError(f"mu_squared = {mu_squared!r}: must be > 0")
        object.__setattr__(self, "mu_squared", mass)
        object.__setattr__(self, "adjacency", adjacency)

    def __hash__(self) -> int:  # that of a fraction takes a modular inverse
        return hash((self.mu_squared.numerator, self.mu_squared.denominator))

    def renyi(self, order: float) -> float:
        return _up(_order(order) * float_up(self.mu_squared) / 2)

    def zcdp(self) -> Fraction:
        return self.mu_squared / 2

    def gaussian(self) -> Fraction:
        return self.mu_squared

    def numbers(self) -> dict[str, Any]:
        return {"mu_squared": exact_text(self.mu_squared)}


@final
@register(lambda data, adjacency: Laplace(data["epsilon"], adjacency=adjacency), {"epsilon": TEXT})
@dataclass(frozen=True, slots=True, init=False)
class Laplace(Loss):
    """Laplace noise of scale (ℓ1 sensitivity)/ε on each coordinate.

    D_α = log(α/(2α−1)·e^{(α−1)ε} + (α−1)/(2α−1)·e^{−αε})/(α−1) in one dimension (Mironov 2017,
    Proposition 6); a sensitivity spread over coordinates costs no more, because the sum of the
    coordinates' curves is convex and vanishes at 0 in each share.
    ρ = ε + e^{−ε} − 1, the KL divergence, is the tight zCDP constant; proof in
    ``docs/proofs.md#laplace``.
    """

    kind = "laplace"
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        alpha, eps = _order(order), float_up(self.epsilon)
        # log of the convex combination of two exponentials, as top + log1p(...)
        weight = alpha / (2 * alpha - 1)
        rest = (alpha - 1) / (2 * alpha - 1) * math.exp(-alpha * eps)
        top = (alpha - 1) * eps
        log_moment = (
            math.log(weight * math.exp(top) + rest)
            if top < 300
            else (top + math.log(weight + rest * math.exp(-top)))
        )
        evaluated = (log_moment + _ROUNDING * (1 + top)) / (alpha - 1)
        return min(evaluated, eps, _up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _laplace_zcdp(self.epsilon)

    def pure(self) -> Fraction:
        return self.epsilon

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon)}


@final
@register(
    lambda data, adjacency: BoundedRange(data["epsilon"], adjacency=adjacency), {"epsilon": TEXT}
)
@dataclass(frozen=True, slots=True, init=False)
class BoundedRange(Loss):
    """A privacy loss that lies in some interval [t−ε, t]: the exponential mechanism.

    Source: Durfee & Rogers 2019; Dong, Durfee & Rogers 2020.  For a given t and α > 1 the moment
    E_Q[(dP/dQ)^α] is largest for the two-point law on {e^t, e^{t−ε}} with mean 1, since x^α lies
    below its chord; there it is A·e^{(α−1)t} + B·e^{αt} with A = (1−e^{−αε})/(1−e^{−ε}),
    B = (e^{−αε}−e^{−ε})/(1−e^{−ε}) < 0, which is maximal at e^t = A(α−1)/(−Bα).
    ρ = ε/(e^ε−1) − 1 − ln(ε/(e^ε−1)): for two-point laws K'' = ε²·σ'(εs + c) with σ' the even,
    unimodal logistic density, so the module's Lemma gives sup_α D_α/α = sup_t KL, and
    KL = t + ε/(1−e^{−ε}) − ε − ε·e^{t−ε}/(1−e^{−ε}) is maximal at e^t = (e^ε−1)/ε.
    """

    kind = "bounded-range"
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        object.__setattr__(self, "epsilon", _epsilon(epsilon))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        alpha, eps = _order(order), float_up(self.epsilon)
        log_a = math.log(math.expm1(-alpha * eps) / math.expm1(-eps))
        # -B = e^{-ε}(1 − e^{−(α−1)ε})/(1 − e^{−ε})
        log_b = -eps + math.log(math.expm1(-(alpha - 1) * eps) / math.expm1(-eps))
        t = min(max(log_a + math.log(alpha - 1) - log_b - math.log(alpha), 0.0), eps)
        log_moment = log_a + (alpha - 1) * t + math.log1p(-math.exp(log_b + t - log_a))
        evaluated = (log_moment + _ROUNDING * (1 + alpha * (1 + eps))) / (alpha - 1)
        return min(evaluated, eps, _up(alpha * float_up(self.zcdp())))

    def zcdp(self) -> Fraction:
        return _bounded_range_zcdp(self.epsilon)

    def pure(self) -> Fraction:
        return self.epsilon

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": exact_text(self.epsilon)}


def _read_curve(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    check_curve("renyi-curve loss", data["curve"])
    return RenyiCurve(dict(data["curve"]), adjacency=adjacency)


@final
@register(_read_curve, {"curve": LIST})
@dataclass(frozen=True, slots=True, init=False)
class RenyiCurve(Loss):
    """Any mechanism for which Rényi bounds at finitely many orders are known.

    Between two orders the bound is the chord of the convex function (α−1)D_α, which is 0 at α = 1
    (van Erven & Harremoës 2014, Corollary 2); beyond the largest order there is none.  An order
    that is not a float is asked for by its nearest float.
    """

    kind = "renyi-curve"
    points: tuple[tuple[Fraction, Fraction], ...]
    adjacency: Adjacency

    def __init__(
        self, curve: Mapping[Exact, Exact], *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        points = sorted((exact("order", a), exact("epsilon", e)) for a, e in curve.items())
        if not points or points[0][0] <= 1 or any(e < 0 for _, e in points):
            raise ValueError(f"curve = {dict(curve)!r}: needs orders > 1 with bounds >= 0")
        if len({a for a, _ in points}) != len(points):
            raise ValueError(f"curve = {dict(curve)!r}: names an order twice")
        object.__setattr__(self, "points", tuple(points))
        object.__setattr__(self, "adjacency", adjacency)

    def renyi(self, order: float) -> float:
        alpha = Fraction(_order(order))
        left, left_value = Fraction(1), Fraction(0)
        for right, epsilon in self.points:
            right_value = (right - 1) * epsilon
            if order == float(right):
                return float_up(epsilon)
            if alpha <= right:
                share = (alpha - left) / (right - left)
                chord = left_value + share * (right_value - left_value)
                return float_up(chord / (alpha - 1))
            left, left_value = right, right_value
        return math.inf

    def numbers(self) -> dict[str, Any]:
        return {"curve": [[exact_text(a), exact_text(e)] for a, e in self.points]}


def _read_composed(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
    return of_relation(adjacency, compose(read_parts(data["parts"], "count")))


def read_parts(parts: list[dict[str, Any]], number: str) -> list[tuple[Loss, int]]:
    """The losses in the parts of another one, each with the integer that it names ``number``.

    Raises:
        As `loss_from_dict`.
    """
    for part in parts:
        if not isinstance(part, Mapping):
            raise ValueError(f"parts of a loss: {part!r:.80}: must be an object")
        check_form("parts of a loss", part, {"loss": OBJECT, number: WHOLE})
    return [(loss_from_dict(part["loss"]), part[number]) for part in parts]


def of_relation(adjacency: Adjacency, loss: Loss) -> Loss:
    """A loss that is inside another one, or made of its parts, for the same neighbour relation.

    Raises:
        AdjacencyError: it is for another one.
    """
    if loss.adjacency is not adjacency:
        raise AdjacencyError(f"a loss for {loss.adjacency.value} in one for {adjacency.value}")
    return loss


@final
@register(_read_composed, {"parts": LIST})
@dataclass(frozen=True, slots=True)
class Composed(Loss):
    """Several losses one after the other, each possibly many times; made by `compose`.

    Rényi curves add up under adaptive composition (Mironov 2017, Proposition 1), and so do zCDP
    constants, Gaussian masses and worst cases.  The only place where a count is applied.
    """

    kind = "composed"
    parts: tuple[tuple[Loss, int], ...]

    @property
    def adjacency(self) -> Adjacency:
        return self.parts[0][0].adjacency

    def renyi(self, order: float) -> float:
        return _up(math.fsum(loss.renyi(order) * count for loss, count in self.parts))

    def zcdp(self) -> Fraction | None:
        return self._total(lambda loss: loss.zcdp())

    def gaussian(self) -> Fraction | None:
        return self._total(lambda loss: loss.gaussian())

    def pure(self) -> Fraction | None:
        return self._total(lambda loss: loss.pure())

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return self.parts

    def failure(self) -> Fraction:
        return self._total(lambda loss: loss.failure()) or Fraction(0)

    def unless_failed(self) -> Loss:
        return compose([(loss.unless_failed(), count) for loss, count in self.parts])

    def over(self, users: range) -> list[tuple[range, Loss]]:
        columns = [(loss.over(users), count) for loss, count in self.parts]
        starts = sorted({piece.start for column, _ in columns for piece, _ in column})
        same = (c[0][1] is p for (c, _), (p, _) in zip(columns, self.parts, strict=True))
        if len(starts) == 1 and all(same):
            return [(users, self)]
        stops = [*starts[1:], users.stop]
        return [
            (
                range(start, stop),
                compose(
                    [
                        (next(loss for piece, loss in column if start in piece), count)
                        for column, count in columns
                    ]
                ),
            )
            for start, stop in zip(starts, stops, strict=True)
        ]

    def _total(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        total = Fraction(0)
        for loss, count in self.parts:
            single = value(loss)
            if single is None:
                return None
            total += single * count
            if total.denominator.bit_length() > _MOST_BITS:
                total = round_up(total, 60)
        return total

    def numbers(self) -> dict[str, Any]:
        return {"parts": [{"loss": loss.to_dict(), "count": n} for loss, n in self.parts]}


def leaves_of(loss: Loss, count: int = 1) -> Iterator[tuple[Loss, int]]:
    """The losses at the bottom of ``loss``, however deeply it is nested, with their counts."""
    inner = loss.inner()
    if not inner:
        yield loss, count
    for part, times in inner:
        yield from leaves_of(part, count * times)


def compose(parts: Sequence[tuple[Loss, int]]) -> Loss:
    """Composes losses with multiplicities; equal losses are merged, nested ones flattened.

    Prices do not depend on the order, so the parts are sorted: equal compositions are equal.

    Raises:
        ValueError: no parts, or a count below 1.  AdjacencyError: adjacencies differ.
    """
    merged: dict[Loss, int] = {}
    for loss, count in parts:
        number = valid_count(count=count)
        inner = loss.parts if isinstance(loss, Composed) else ((loss, 1),)
        for single, times in inner:
            merged[single] = merged.get(single, 0) + times * number
    if not merged:
        raise ValueError("parts = []: needs at least one loss")
    relations = {loss.adjacency for loss in merged}
    if len(relations) > 1:
        names = " and ".join(sorted(a.value for a in relations))
        raise AdjacencyError(f"cannot compose losses for {names}: convert one explicitly first")
    if list(merged.values()) == [1]:
        return next(iter(merged))
    return Composed(tuple(sorted(merged.items(), key=lambda part: _name(part[0]))))


def _name(loss: Loss) -> tuple[str, str]:
    return loss.kind, str(loss.numbers())


def gaussian_loss(sensitivity: float, noise_std: float, adjacency: Adjacency) -> Gaussian:
    """The loss of N(0, noise_std²) per coordinate at an ℓ2 sensitivity (same unit), rounded up.

    Raises:
        ValueError: a number is not finite and > 0.
    """
    return Gaussian(round_up(_squared_ratio(sensitivity, noise_std)), adjacency=adjacency)


def gaussian_std(sensitivity: float, mass: Fraction) -> float:
    """A noise std (unit of the sensitivity) whose rounded-up loss is at most ``mass``.

    It is within a relative 1e-11 of the smallest such std.

    Raises:
        ValueError: sensitivity or mass is not > 0.
    """
    if mass <= 0:
        raise ValueError(f"mass = {exact_text(mass)}: noise needs a budget > 0")
    std = sensitivity / math.sqrt(mass)
    step = math.ulp(std)
    while round_up(_squared_ratio(sensitivity, std)) > mass:
        std, step = std + step, 2 * step
    return std


def _squared_ratio(sensitivity: float, noise_std: float) -> Fraction:
    top, bottom = finite(sensitivity=sensitivity), finite(noise_std=noise_std)
    if top <= 0 or bottom <= 0:
        raise ValueError(
            f"sensitivity = {sensitivity!r}, noise_std = {noise_std!r}: both must be > 0"
        )
    return (Fraction(top) / Fraction(bottom)) ** 2
