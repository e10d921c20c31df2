"""Budgets: what may be spent or is promised, in exact rational arithmetic.

A currency (`PureDP`, `ZCDP`, `GaussianDP`, `Renyi`) adds up under composition; tokens are typed by
it.  `ApproxDP` is a promise that an accountant turns into a currency.  Numbers enter exactly:
``ZCDP("0.1")``, ``ZCDP("1/200")`` and ``ZCDP(0.1)`` (floats by their shortest decimal) hold a tenth
or a two-hundredth, not a nearby binary fraction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, final

from privlearn.errors import CurrencyError
from privlearn.losses.base import parts_of
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.losses.gaussian_rest import gaussian_parts, total_price
from privlearn.values.exact import Exact, exact, exact_text, float_down, round_up
from privlearn.values.json_forms import LIST, TEXT, Form, check_curve, check_form, named
from privlearn.values.validate import count

if TYPE_CHECKING:
    from privlearn.losses import Loss

B = TypeVar("B", bound="Currency")  # The currency of a token or of an accountant


def _non_negative(name: str, value: Exact) -> Fraction:
    number = exact(name, value)
    if number < 0:
        raise ValueError(f"{name} = {value!r}: must be >= 0")
    return number


class Budget(ABC):
    """Exact non-negative amounts, compared by `covers` within one kind only."""

    __slots__ = ("amounts",)
    kind: ClassVar[str]
    amounts: tuple[Fraction, ...]
    """The exact numbers that add up, in a fixed order."""

    def covers(self, other: Self) -> bool:
        """Whether every amount of ``other`` is at most the same amount here.

        Raises:
            CurrencyError: ``other`` is of another kind.
        """
        self._same_kind(other)
        if len(self.amounts) == 1:
            (a,), (b,) = self.amounts, other.amounts
            return a.numerator * b.denominator >= b.numerator * a.denominator
        # cross-multiplied: comparing fractions takes several times as long
        return all(
            [
                a.numerator * b.denominator >= b.numerator * a.denominator
                for a, b in zip(self.amounts, other.amounts, strict=True)
            ]
        )

    def _same_kind(self, other: Budget) -> None:
        if type(self) is not type(other):
            raise CurrencyError(f"cannot compare or add {self} and {other}: different budgets")

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form; exact numbers are strings."""

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, "amounts"):
            raise AttributeError(f"budgets are immutable: cannot set {name}")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.kind, self.amounts))


class Currency(Budget):
    """A budget that adds up under composition, so that an accountant can count in it."""

    __slots__ = ()

    @abstractmethod
    def _with(self, amounts: tuple[Fraction, ...]) -> Self: ...

    @abstractmethod
    def price(self, loss: Loss) -> Self:
        """What ``loss`` costs in this currency.

        Raises:
            CurrencyError: it has no finite price here.
        """

    def gaussian_mass(self) -> Fraction:
        """The largest mu² of a Gaussian mechanism that this budget holds.

        Raises:
            CurrencyError: a Gaussian has no finite price in this currency.
        """
        raise CurrencyError(
            f"Gaussian noise has no finite price in {type(self).__name__}; it has in ApproxDP, "
            "ZCDP and GaussianDP"
        )

    def _of(self, amounts: tuple[Fraction, ...]) -> Self:
        """Amounts that are known to be good, in the same currency and at the same orders."""
        made = type(self).__new__(type(self))
        if hasattr(self, "_orders"):
            object.__setattr__(made, "_orders", self._orders)
        object.__setattr__(made, "amounts", amounts)
        return made

    def zero(self) -> Self:
        """Nothing, in this currency."""
        return self._with(tuple(Fraction(0) for _ in self.amounts))

    @property
    def is_zero(self) -> bool:
        """Whether nothing is left (some amount is zero)."""
        return any([not a for a in self.amounts])

    def share(self, part: Exact) -> Self:
        """Returns ``part`` (0 to 1, exact) of this budget."""
        fraction = exact("part", part)
        if not 0 <= fraction <= 1:
            raise ValueError(f"part = {part!r}: must lie between 0 and 1")
        return self._with(tuple(a * fraction for a in self.amounts))

    def split(self, parts: int) -> list[Self]:
        """``parts`` equal parts, exact: together they are this budget.

        Raises:
            ValueError, TypeError: parts is no integer >= 1.
        """
        number = count(parts=parts)
        return [self.share(Fraction(1, number))] * number

    def __add__(self, other: Self) -> Self:
        self._same_kind(other)
        pairs = zip(self.amounts, other.amounts, strict=True)
        return self._of(tuple([a + b for a, b in pairs]))

    def __sub__(self, other: Self) -> Self:
        if not self.covers(other):
            raise ValueError(f"cannot take {other} from {self}")
        pairs = zip(self.amounts, other.amounts, strict=True)
        return self._of(tuple([a - b for a, b in pairs]))

    def __mul__(self, count: int) -> Self:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"count = {count!r}: must be an integer >= 0")
        return self._with(tuple(a * count for a in self.amounts))

    __rmul__ = __mul__


@final
class PureDP(Currency):
    """Pure differential privacy with parameter ``epsilon`` >= 0 (nats)."""

    __slots__ = ()
    kind = "pure"

    def __init__(self, epsilon: Exact):
        self.amounts = (_non_negative("epsilon", epsilon),)

    @property
    def epsilon(self) -> Fraction:
        """The bound on the absolute privacy loss, in nats."""
        return self.amounts[0]

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self)(amounts[0])

    def price(self, loss: Loss) -> Self:
        """The worst-case privacy loss."""
        epsilon = loss.pure()
        if epsilon is None:
            raise CurrencyError(f"a {loss.kind} loss is not pure-DP: its privacy loss is unbounded")
        return type(self)(epsilon)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": exact_text(self.epsilon)}

    def __repr__(self) -> str:
        return f"PureDP({exact_text(self.epsilon)!r})"


@final
class ZCDP(Currency):
    """Zero-concentrated DP: D_α <= ρ·α for every order α > 1 (Bun & Steinke 2016)."""

    __slots__ = ()
    kind = "zcdp"

    def __init__(self, rho: Exact):
        self.amounts = (_non_negative("rho", rho),)

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter."""
        return self.amounts[0]

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self)(amounts[0])

    def price(self, loss: Loss) -> Self:
        """The loss's zCDP constant, else half the mass of a Gaussian that dominates it."""
        rho = loss.zcdp()
        if rho is None:
            rho = sum((_rho(part) * count for part, count in parts_of(loss)), Fraction(0))
        return type(self)(rho)

    def gaussian_mass(self) -> Fraction:
        """mu² = 2ρ (Bun & Steinke 2016, Proposition 1.6)."""
        return 2 * self.rho

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rho": exact_text(self.rho)}

    def __repr__(self) -> str:
        return f"ZCDP({exact_text(self.rho)!r})"


def _rho(loss: Loss) -> Fraction:
    rho = loss.zcdp()
    if rho is not None:
        return rho
    parts = gaussian_parts(loss)
    if parts is None:
        raise CurrencyError(
            f"a {loss.kind} loss has no zCDP constant: use a Renyi accountant for it"
        )
    return total_price(parts) / 2


@final
class GaussianDP(Currency):
    """μ-Gaussian DP (Dong, Roth & Su 2022), stored as μ², which is what adds up."""

    __slots__ = ()
    kind = "gdp"

    def __init__(self, mu: Exact):
        self.amounts = (_non_negative("mu", mu) ** 2,)

    @classmethod
    def from_mu_squared(cls, mu_squared: Exact) -> GaussianDP:
        """Makes the budget from μ² itself, exactly."""
        budget = cls.__new__(cls)
        budget.amounts = (_non_negative("mu_squared", mu_squared),)
        return budget

    @property
    def mu_squared(self) -> Fraction:
        """μ², exact."""
        return self.amounts[0]

    @property
    def mu(self) -> float:
        """μ as a float."""
        return math.sqrt(self.amounts[0])

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self).from_mu_squared(amounts[0])

    def price(self, loss: Loss) -> Self:
        """The mass of a Gaussian that dominates the loss, whatever else is spent.

        A `Filter` charges less than this for pure losses, by what remains: `gaussian_parts`.
        """
        mass = loss.gaussian()
        if mass is None:
            parts = gaussian_parts(loss)
            if parts is None:
                raise CurrencyError(
                    f"a {loss.kind} loss is not dominated by a Gaussian: use a ZCDP accountant "
                    "for it"
                )
            mass = total_price(parts)
        return self._with((mass,))

    def gaussian_mass(self) -> Fraction:
        """mu² itself."""
        return self.mu_squared

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "mu_squared": exact_text(self.mu_squared)}

    def __repr__(self) -> str:
        return f"GaussianDP.from_mu_squared({exact_text(self.mu_squared)!r})"


@final
class Renyi(Currency):
    """Rényi DP at a finite set of orders: D_α <= ε(α) at each of them (Mironov 2017).

    A cap holds at every order at once, so each single order is a Rényi filter in its own right
    (Feldman & Zrnic 2021) and the minimum over orders may be taken at the end.
    """

    __slots__ = ("_orders",)
    kind = "renyi"
    _orders: tuple[Fraction, ...]

    def __init__(self, curve: Mapping[Exact, Exact]):
        points = sorted((exact("order", a), _non_negative("epsilon", e)) for a, e in curve.items())
        if not points or points[0][0] <= 1:
            raise ValueError(f"curve = {dict(curve)!r}: needs at least one order, all > 1")
        if len({a for a, _ in points}) != len(points):
            raise ValueError(f"curve = {dict(curve)!r}: names an order twice")
        self._orders = tuple(a for a, _ in points)
        self.amounts = tuple(e for _, e in points)

    @property
    def curve(self) -> dict[Fraction, Fraction]:
        """The bound ε(α) in nats at each order α."""
        return dict(zip(self._orders, self.amounts, strict=True))

    def covers(self, other: Self) -> bool:
        """Whether ``other`` is at most this curve at each of this curve's orders."""
        self._same_kind(other)
        theirs = other.curve
        return all(a in theirs and theirs[a] <= e for a, e in self.curve.items())

    def _same_kind(self, other: Budget) -> None:
        super()._same_kind(other)
        if isinstance(other, Renyi) and self._orders != other._orders:
            raise CurrencyError(f"{self} and {other} have different orders")

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self)(dict(zip(self._orders, amounts, strict=True)))

    def price(self, loss: Loss) -> Self:
        """The loss's Rényi curve at this budget's orders; exact where a Gaussian dominates it."""
        mass = loss.gaussian()
        if mass is not None:
            return type(self)({a: a * mass / 2 for a in self._orders})
        prices = {a: loss.renyi(float(a)) for a in self._orders}
        for order, epsilon in prices.items():
            if not math.isfinite(epsilon):
                raise CurrencyError(f"a {loss.kind} loss is infinite at order {float(order):g}")
        return type(self)({a: round_up(Fraction(e)) for a, e in prices.items()})

    def gaussian_mass(self) -> Fraction:
        """min over orders of 2ε(α)/α."""
        return min(2 * e / a for a, e in self.curve.items())

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "curve": [[exact_text(a), exact_text(e)] for a, e in self.curve.items()],
        }

    def __repr__(self) -> str:
        inside = ", ".join(f"{exact_text(a)}: {exact_text(e)!r}" for a, e in self.curve.items())
        return f"Renyi({{{inside}}})"


@final
class ApproxDP(Budget):
    """The promise of (ε, δ)-differential privacy, 0 < δ < 1."""

    __slots__ = ()
    kind = "approx"

    def __init__(self, epsilon: Exact, delta: Exact):
        amounts = (_non_negative("epsilon", epsilon), exact("delta", delta))
        if not 0 < amounts[1] < 1:
            raise ValueError(f"delta = {delta!r}: must lie strictly between 0 and 1")
        self.amounts = amounts

    @property
    def epsilon(self) -> Fraction:
        """ε in nats."""
        return self.amounts[0]

    @property
    def delta(self) -> Fraction:
        """δ, a probability."""
        return self.amounts[1]

    def split(self, parts: int) -> list[GaussianDP]:
        """Equal parts for Gaussian noise, that together keep this promise.

        (ε, δ) itself does not add up without loss.  Its Gaussian form does: μ² is the largest that
        is (ε, δ)-DP (Balle & Wang 2018, Theorem 8), and masses μ²/parts add up to it, whatever
        each part is chosen by (Dong, Roth & Su 2022, Corollary 2).  For other noise, split the
        ``budget`` of an accountant, which is in its currency.

        Raises:
            ValueError, TypeError: as of a currency, or ε or δ is beyond the range of
                `gaussian_mu_squared`.
        """
        mass = gaussian_mu_squared(float_down(self.epsilon), float_down(self.delta))
        return GaussianDP.from_mu_squared(mass).split(parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "epsilon": exact_text(self.epsilon),
            "delta": exact_text(self.delta),
        }

    def __repr__(self) -> str:
        return f"ApproxDP({exact_text(self.epsilon)!r}, {exact_text(self.delta)!r})"


def check_currency(budget: object) -> None:
    """Raises CurrencyError for what is no currency, such as the promise of an (ε, δ)."""
    if not isinstance(budget, Currency):
        raise CurrencyError(
            f"budget = {budget!r}: noise is fitted to a currency, such as ZCDP('0.5'), GaussianDP, "
            "PureDP or Renyi; an accountant turns (ε, δ) into one: "
            "CentralAccountant(ApproxDP(1, '1e-6'), ...).budget"
        )


_BUDGETS: dict[str, tuple[Form, Callable[[Mapping[str, Any]], Budget]]] = {
    "pure": ({"epsilon": TEXT}, lambda data: PureDP(data["epsilon"])),
    "zcdp": ({"rho": TEXT}, lambda data: ZCDP(data["rho"])),
    "gdp": ({"mu_squared": TEXT}, lambda data: GaussianDP.from_mu_squared(data["mu_squared"])),
    "renyi": ({"curve": LIST}, lambda data: Renyi(dict(data["curve"]))),
    "approx": (
        {"epsilon": TEXT, "delta": TEXT},
        lambda data: ApproxDP(data["epsilon"], data["delta"]),
    ),
}


def budget_from_dict(data: Mapping[str, Any]) -> Budget:
    """Rebuilds a budget from its JSON form.

    Raises:
        ValueError: unknown kind, a number that is missing or of another JSON type, or more.
    """
    try:
        kind = named("budget", data, "kind")
        if kind is None:
            raise KeyError("kind")
        if kind not in _BUDGETS:
            raise ValueError(f"budget kind {kind!r}: must be pure, zcdp, gdp, renyi or approx")
        form, read = _BUDGETS[kind]
        check_form(f"{kind} budget", data, {"kind": TEXT, **form})
    except KeyError as missing:
        raise ValueError(f"budget {dict(data)!r} lacks {missing}") from None
    if kind == "renyi":
        check_curve("renyi budget", data["curve"])
    return read(data)
