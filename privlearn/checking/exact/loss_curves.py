"""A loss against the laws that it is about: its curve, its other numbers, and what follows from it.

A bound that is below the exact number of some pair of laws is refuted; a bound that is above is
none the worse for falling or bending.  Where no laws are known nothing is refuted but a bound below
0, and a ledger that gives back less than was written."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np

from privlearn.checking.exact.check import ORDERS, ExactResult, Largest, Row, curve_rows, price_rows
from privlearn.checking.exact.distributions import Value, code_of, dense_orders, knots, renyi, scan
from privlearn.checking.isolation import TimeLimit, kept_alive, silenced
from privlearn.checking.mined import mined
from privlearn.checking.reports import Axis, CheckReport, Coverage, Finding, Verdict
from privlearn.errors import AdjacencyError, BudgetError, CheckError, UnknownKindError
from privlearn.losses import GaussianLoss, Loss, PerArrivalLoss, PureLoss, ZCDPLoss, loss_from_dict
from privlearn.losses.base import is_foreign
from privlearn.losses.output_laws import Density, Discrete, LawPair, Product
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array, exponent_of
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact_text

Pairs = Sequence[LawPair] | Callable[[int], Sequence[LawPair]]
Oracle = Callable[[float], float]
_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.2, 2.0)
"""Of the divergence at order 16: where δ(ε) is compared."""
_FEW_SHARES = (0.0, 0.5)
_FACTORS = (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(5), Fraction(1, 5))
_THIRD = Fraction(1, 3)  # What no decimal text, and no double, gives back
_VISITS = ((2, 1), (3, 1), (3, 5), (10, 2))
_TIMES = (Fraction(1, 100), Fraction(1, 10), Fraction(1, 2), Fraction(3), Fraction(10))
_NOT_MADE = (ValueError, TypeError, ArithmeticError, KeyError)
_EXACT = tuple(map(operator.methodcaller, ("zcdp", "gaussian", "pure")))
_MOST_NUMBERS = 8  # Values of one field, besides these multiples
_MASS = 1e-6  # By which the logarithm of a law's mass may be off
_UNSEEN = (
    "whether a mechanism's outputs have these laws, and no worse pair exists: check_mechanism",
    "orders between those asked, and methods of its own that no accountant calls",
)
_MOST_USERS = 2**20
_FEW_PAIRS = 4  # Of each of two losses, for their sum
_FEW = (1.0001, 1.01, 1.1, 1.5, 2.0, 4.0, 8.0, 32.0, 128.0, 1000.0)
"""Orders at which losses that follow from another one are compared."""


@silenced
def check_loss(
    loss: Loss,
    *,
    pairs: Pairs | None = None,
    oracle: Oracle | None = None,
    seconds: float = 60.0,
    raise_error: bool = True,
) -> CheckReport:
    """Compares everything that a loss says of its price with the laws that it is about.

    Its curve at some thousand orders, its other numbers and its step; what it makes of more noise,
    two steps, several rows, copies and sums; JSON; the same kind with other numbers.

    Args:
        loss: of any class.
        pairs: laws of the output on the worst neighbours, besides its own ``worst_pairs``; or a
            function that returns them for so many rows of one person.
        oracle: the Rényi divergence of an order in nats, or what it is at least.
        seconds: time limit of all; what is not reached in time is not done.
        raise_error: whether to raise, or only report.

    Returns:
        A finding for each method; "weak" where no laws are known, "not applicable" where it makes
        no such promise.

    Raises:
        PrivacyViolation: a number is too small.
        CheckError: something could not be done.
    """
    end, findings = time.monotonic() + seconds, list[Finding]()
    with kept_alive(type(loss).__name__):
        for name, look in ways(loss, pairs, oracle).items():
            started = time.monotonic()
            try:
                with TimeLimit(max(end - started, 1e-3), name):
                    found = look()
            except CheckError as error:
                found = Finding(name, "not done", str(error))
            except (Exception, SystemExit) as error:  # whatever code of somebody else does
                found = Finding(name, "not done", f"raised {type(error).__name__}: {error}")
            findings.append(replace(found, check=name, seconds=time.monotonic() - started))
    report = CheckReport(f"{type(loss).__name__} ({loss.kind})", tuple(findings), _UNSEEN)
    if raise_error:
        report.raise_if_bad()
    return report


def ways(
    loss: Loss, pairs: Pairs | None = None, oracle: Oracle | None = None
) -> dict[str, Callable[[], Finding]]:
    """One way of looking for each method of a loss, by the names that `check_loss` reports."""
    look = _Look(loss, pairs, oracle)
    return {
        "renyi": look.curve,
        "zcdp, gaussian, pure": look.prices,
        "step, failure": look.step,
        "to_dict": look.read_back,
        "noisier": partial(look.related, look.noisier, "noise"),
        "doubled": partial(look.related, look.doubled, refused=(AdjacencyError,)),
        "several": partial(look.related, look.several, "persons"),
        "+ and *": partial(look.related, look.composed, refused=()),
        "over, unless_failed": partial(look.related, look.users),
        "other numbers": partial(look.related, look.numbers, "values", _NOT_MADE),
    }


class _Truth(Largest):
    """What pairs of laws cost, and what somebody says that the exact curve is."""

    def __init__(self, pairs: Sequence[LawPair], label: str, oracle: Oracle | None = None) -> None:
        both = [(p, q, label) for p, q in pairs]
        super().__init__([*both, *((q, p, f"{label}, reversed") for p, q, _ in both)])
        self.pairs, self.oracle, self.label = pairs, oracle, label

    def divergence(self, order: float) -> tuple[Value, str]:
        found = [super().divergence(order)] if self.pairs else []
        if self.oracle:
            value = float(self.oracle(order))
            if not value >= 0:
                raise CheckError(f"oracle({order:g}) = {value!r}: must be a divergence >= 0")
            error = 1e-9 * value + 1e-14 / (order - 1) if value < math.inf else 0.0
            found.append((Value(value, error), "the oracle"))
        return max(found, key=lambda one: one[0].value)

    def ratio(self) -> tuple[Value, str]:
        return super().ratio() if self.pairs else self.divergence(1e4)  # D does not fall

    @property
    def on_the_line(self) -> bool:
        return bool(self.pairs) and super().on_the_line

    def __mul__(self, n: int) -> _Truth:
        """Of n independent runs."""
        both = [(Product(((p, n),)), Product(((q, n),))) for p, q in self.pairs]
        one = self.oracle
        return _Truth(both, f"{n} runs", None if one is None else lambda order: n * one(order))

    def __add__(self, other: _Truth) -> _Truth:
        """Of this run and one of another loss, at some of the pairs of each."""
        pairs = [
            (Product(((p, 1), (r, 1))), Product(((q, 1), (t, 1))))
            for p, q in self.pairs[:_FEW_PAIRS]
            for r, t in other.pairs[:_FEW_PAIRS]
        ]
        one = self.oracle
        both = None if one is None else lambda order: one(order) + other.divergence(order)[0].value
        return _Truth(pairs, f"{self.label} and {other.label}", both)


def _truth(
    pairs: Sequence[LawPair] | None, label: str, oracle: Oracle | None = None
) -> _Truth | None:
    """The exact numbers of these laws; None without any. Raises CheckError: one of the laws
    does not have mass 1."""
    if not pairs and oracle is None:
        return None
    for law in {id(law): law for pair in pairs or () for law in pair}.values():
        mass = renyi(law, law, 2.0)  # log ∫p²/p
        if abs(mass.value) > _MASS + mass.error:
            raise CheckError(f"{label}: a law of mass {math.exp(mass.value):.8g}, not 1")
    return _Truth(pairs or (), label, oracle)


@dataclass(frozen=True)
class _Relative:
    """A loss that follows from another one, and what it costs at least."""

    name: str
    make: Callable[[], Loss]
    exact: _Truth | None = None
    settled: bool = True  # Whether ``exact`` is what it costs, and not only less than that
    group: int = 0  # Steps of which the price by group privacy is enough in any case


class _Look:
    """What is known of a loss, and one way of looking for each of its methods."""

    def __init__(self, loss: Loss, pairs: Pairs | None, oracle: Any) -> None:
        self.loss, self.oracle = loss, oracle
        self._given = pairs

    @cached_property
    def pairs(self) -> list[LawPair]:
        """Those that were given, and its own."""
        given = self._given(1) if callable(self._given) else self._given or ()
        return [*given, *(self.loss.worst_pairs(knots(2)) or ())]

    @cached_property
    def exact(self) -> _Truth | None:
        """What one run costs at least; None where nothing is known."""
        return _truth(self.pairs, "its laws", self.oracle)

    @cached_property
    def own_word(self) -> bool:
        """Whether a class of somebody else states the laws itself, and nobody else does."""
        return is_foreign(self.loss) and not self._given and not self.oracle

    def laws(self) -> Axis:
        said = ", by its own word" if self.own_word else ", and an oracle" if self.oracle else ""
        return Axis("laws", f"{len(self.pairs)} pairs{said}", enough=self.exact is not None)

    def curve(self) -> Finding:
        dense = dense_orders(200, *code_of(self.loss))
        exact = self.exact or _Truth((), "any laws", lambda order: 0.0)
        found = scan(self.loss.renyi, exact.divergence, knots(8) if self.exact else (2.0,), dense)
        if found.troubles:
            return Finding("", "not done", "; ".join(found.troubles[:3]))
        tried = (
            f"{len(found.orders)} from {dense[0] - 1:.0e} above 1 to {dense[-1]:.0e}, "
            f"{len(found.points)} of them compared exactly"
        )
        none = "" if self.exact else "no laws, pairs or oracle"
        return self._finding(curve_rows(found), Axis("orders", tried, found.enough), open_=none)

    def prices(self) -> Finding:
        if self.exact is None:
            return self._finding((), open_="no laws are known")
        return self._finding(price_rows(self.loss, self.exact, knots(8)))

    def step(self) -> Finding:
        if self.exact is None or not self.exact.on_the_line:
            return self._finding((), open_="no δ(ε) of such laws is known")
        return self._finding(_step_rows(self.loss, self.exact))

    def _finding(self, rows: Sequence[Row], *axes: Axis, open_: str = "") -> Finding:
        tried = Coverage((*axes, self.laws()))
        if not rows:
            told = open_ or "it states no such number"
            return Finding("", "weak" if open_ else "not applicable", told, tried)
        worst = min(rows, key=lambda row: (not row.violated, row.ratio))
        told = (
            f"{worst.measure}: claimed {worst.claimed:.8g}, exact {worst.exact:.8g} "
            f"± {worst.error:.1g} ({worst.pair})"
        )
        verdict: Verdict = "holds"
        if worst.violated:
            verdict = "violated"
        elif open_ or not all(axis.enough for axis in axes):
            verdict, told = "weak", open_ or told
        elif all(row.tight for row in rows) and self.exact and not self.own_word:
            verdict = "tight"
        kept = ExactResult(self.loss.kind, worst.measure, tuple(rows), 0.0)
        return Finding("", verdict, told, tried, kept)

    def related(
        self,
        relatives: Callable[[], Iterable[_Relative]],
        axis: str = "methods",
        refused: tuple[type[Exception], ...] = (BudgetError, AdjacencyError, ValueError),
    ) -> Finding:
        rows: list[Row] = []
        made, open_, refusals = list[str](), list[str](), list[str]()
        for one in relatives():
            try:
                other = one.make()
            except refused as error:
                refusals.append(f"{one.name}: {error!s:.200}")
                continue
            made.append(one.name)
            exact = one.exact or self._own_laws(other)
            if exact is not None:
                found = rows_at_few_orders(other, exact)
                rows += [replace(row, pair=f"{one.name}, {row.pair}") for row in found]
            if (exact is None or not one.settled) and not self._as_a_group(other, one.group):
                open_.append(one.name)
        if not rows and not open_:
            return Finding("", "not applicable", refusals[0] if refusals else "nothing to compare")
        told = f"no law is known of {', '.join(open_)}, beyond its own word" if open_ else ""
        return self._finding(rows, Axis(axis, ", ".join(made), not open_), open_=told)

    def _as_a_group(self, other: Loss, steps: int) -> bool:
        """Whether it states what so many steps cost at most: shared noise, or group privacy."""
        if not steps:
            return False
        shared = self._moved(steps)
        if shared and not any(row.violated for row in rows_at_few_orders(other, shared)):
            return True
        kinds = ((ZCDPLoss, steps**2), (GaussianLoss, steps**2), (PureLoss, steps))
        prices = zip(kinds, (price(self.loss) for price in _EXACT), strict=True)
        bounds: list[Loss] = [kind(times * price) for (kind, times), price in prices if price]
        for price in _EXACT:
            known = [number for bound in bounds if (number := price(bound)) is not None]
            said = price(other)
            if said is not None and not (known and said >= min(known)):
                return False
        return bool(bounds) and all(
            other.renyi(order) >= min(bound.renyi(order) for bound in bounds) * (1 - 1e-12)
            for order in (*knots(4), *ORDERS)
        )

    def _moved(self, times: float) -> _Truth | None:
        """What additive noise of these laws costs after so many times the move."""
        found = [pair for pair in (moved(pair, times) for pair in self.pairs) if pair]
        whole = found if len(found) == len(self.pairs) else None
        return _truth(whole, f"{times:g} times the move")

    def _own_laws(self, other: Loss) -> _Truth | None:
        """By the word of a loss that follows; None if its laws are cut off where these are not."""
        pairs = other.worst_pairs(_FEW)
        if pairs and type(other) is type(self.loss):
            cut = [pair for pair in pairs if isinstance(pair[0], Discrete) and not moved(pair, 1)]
            if cut and all(moved(pair, 1) for pair in self.pairs):
                return None
        return _truth(pairs, "its own laws")

    def noisier(self) -> Iterator[_Relative]:
        for factor in _FACTORS:
            exact = self.exact if factor == 1 else self._moved(float(1 / factor))
            make, settled = partial(self.loss.noisier, factor), exact is not None
            yield _Relative(f"noisier({factor})", make, exact, settled)
        two, half = _FACTORS[1:3]
        again = lambda: self.loss.noisier(two).noisier(half)  # noqa: E731
        yield _Relative("noisier(2).noisier(1/2)", again, self.exact)

    def doubled(self) -> Iterator[_Relative]:
        def make() -> Loss:
            found = self.loss.doubled()
            if found.adjacency is not Adjacency.REPLACE_ONE:
                raise CheckError(f"doubled() is for {found.adjacency.value}, not for replace-one")
            return found

        exact = self._for(2) or self._moved(2)
        yield _Relative("doubled()", make, exact or self.exact, exact is not None, 2)

    def _for(self, rows: int) -> _Truth | None:
        laws = self._given(rows) if callable(self._given) else None
        return _truth(laws, f"laws of {rows} rows")

    def several(self) -> Iterator[_Relative]:
        for rule in _VISITS:
            exact = self._for(rule[0]) if rule[1] == 1 else None
            make, settled = partial(self.loss.for_visits, *rule), exact is not None
            yield _Relative(f"for_visits{rule}", make, exact or self.exact, settled, rule[0])

    def composed(self) -> Iterator[_Relative]:
        loss, exact = self.loss, self.exact
        if exact is None:
            if any(getattr(type(loss), x) is not getattr(Loss, x) for x in ("__add__", "__mul__")):
                yield _Relative("loss * 2", lambda: loss * 2)
            return
        yield _Relative("loss * 2", lambda: loss * 2, exact * 2)
        yield _Relative("7 * loss", lambda: 7 * loss, exact * 7)
        others: list[Loss] = [GaussianLoss("0.5", adjacency=loss.adjacency)]
        others += [one for _, one in itertools.islice(self.made(), 1)]
        for other in others:  # a sum merges losses that are equal, or say that they are
            if (laws := self._own_laws(other)) is not None:
                for one, two in ((loss, other), (other, loss)):
                    total = partial(operator.add, one, two)
                    yield _Relative(f"{one.kind} + {two.kind}", total, exact + laws)

    def read_back(self) -> Finding:
        """Whether a ledger gives back what it costs, with these numbers and with others."""
        rows: list[Row] = []
        pairs = [("as it is", self.loss), *self.made()]
        for name, loss in pairs:
            try:
                found = _read(loss)
            except UnknownKindError as error:
                return Finding("", "not applicable", str(error))
            made = _read_rows(loss, found)
            exact = self.exact if loss is self.loss else None
            if any(row.violated for row in made):  # it may have been above the truth
                exact = exact or self._own_laws(loss)
            if exact is not None:
                made = rows_at_few_orders(found, exact)
            rows += [replace(row, pair=f"{name}, {row.pair}") for row in made]
            said = [(price(loss), price(found)) for price in _EXACT]
            less = any(None not in both and both[1] < both[0] for both in said)
            if less and not any(row.violated for row in rows):
                raise CheckError(f"{name}: {loss.to_dict()} costs less once it was read")
        return self._finding(rows, Axis("numbers", ", ".join(name for name, _ in pairs)))

    def users(self) -> Iterator[_Relative]:
        relatives = [_Relative("over(users)", self._dearest, self.exact, not is_foreign(self.loss))]
        if not self.loss.failure():
            relatives.append(_Relative("unless_failed()", self.loss.unless_failed, self.exact))
        yield from (one for one in relatives if one.make() is not self.loss)

    def _dearest(self) -> Loss:
        """What the dearest of the users pays, of as many as it has a price for."""
        most, pieces = 0, []
        for bit in reversed(range(_MOST_USERS.bit_length())):
            with contextlib.suppress(ValueError):
                pieces = self.loss.over(range(most + 2**bit))
                most += 2**bit
        if not pieces:
            raise CheckError("over(range(1)) has no price for a single user")
        if len(pieces) == 1:
            return pieces[0][1]
        return PerArrivalLoss([(len(piece), part) for piece, part in pieces])

    def made(self) -> Iterator[tuple[str, Loss]]:
        """Losses of the same kind with other numbers, by their names."""
        for one in self.numbers():
            with contextlib.suppress(*_NOT_MADE):
                yield one.name, one.make()

    def numbers(self) -> Iterator[_Relative]:
        """The same kind with one of its fields changed, or for another relation."""
        numbers, make = self.loss.numbers(), type(self.loss).from_numbers
        extra = [x * k for x in mined(*code_of(self.loss)).numbers for k in (1, 2)]
        for name, value in numbers.items():
            try:
                exact = Fraction(value)
            except (TypeError, ValueError):
                continue
            near = [Fraction(x) for x in extra if exact / 1000 <= x <= exact * 1000]
            tried = [*(exact * k for k in _TIMES), _THIRD, *near[:_MOST_NUMBERS]]
            for other in dict.fromkeys(tried):
                if isinstance(value, str) or not isinstance(value, int) or other.denominator == 1:
                    told = exact_text(other) if isinstance(value, str) else type(value)(other)
                    made = partial(make, {**numbers, name: told}, self.loss.adjacency)
                    yield _Relative(f"{name}={float(other):g}", made)
        for relation in (x for x in Adjacency if x is not self.loss.adjacency):
            yield _Relative(relation.value, partial(make, numbers, relation))


def _read(loss: Loss) -> Loss:
    form = json.loads(json.dumps(loss.to_dict()))
    found = loss_from_dict(form)
    if json.loads(json.dumps(found.to_dict())) != form:
        raise CheckError(f"{form}: is written otherwise once it was read")
    return found


def _read_rows(before: Loss, after: Loss) -> list[Row]:
    """Each number of a loss that was read, beside the same of the one that was written."""
    ways = [(f"D({order:g})", operator.methodcaller("renyi", order)) for order in _FEW]
    ways += zip(("rho", "mu²", "epsilon"), _EXACT, strict=True)
    ways.append(("failure", operator.methodcaller("failure")))
    both = [
        (name, way(after), float(old)) for name, way in ways if (old := way(before)) is not None
    ]
    return [
        Row(name, float(math.inf if new is None else new), old, 1e-12 * min(old, 1e300), "read")
        for name, new, old in both
    ]


def rows_at_few_orders(loss: Loss, exact: Largest) -> list[Row]:
    """What a loss says of its price, beside the exact numbers."""
    found = scan(loss.renyi, exact.divergence, _FEW, dense_orders(12), nearest=4)
    if found.troubles:
        raise CheckError(f"{loss.kind}: {found.troubles[0]}")
    steps = _step_rows(loss, exact, _FEW_SHARES) if exact.on_the_line else []
    return [*curve_rows(found), *price_rows(loss, exact, _FEW), *steps]


def _step_rows(loss: Loss, exact: Largest, shares: Sequence[float] = _SHARES) -> list[Row]:
    """δ(ε) of one run by what stands for it in a tight composition, failures included."""
    from privlearn.accountants.composition import Composition
    from privlearn.accountants.tight_composition import step_of

    failed, unit = float(loss.failure()), exact.divergence(16.0)[0].value
    by_step = Composition([(step_of(loss.unless_failed()), 1)], delta=1e-6)
    parts = {share * unit for share in shares} if 0 < unit < math.inf else {0.0, 0.25, 1.0, 4.0}
    rows = []
    for epsilon in sorted(parts):
        claimed = failed + (1 - failed) * by_step.delta(epsilon).value
        (value, error), pair = exact.delta(epsilon)
        rows.append(Row(f"delta({epsilon:.6g})", claimed, value, error + 1e-12, pair))
    return rows


_TRIED = 30.0  # Widths of the law on either side of its centre
_NEGLIGIBLE = 1e-10  # Mass beyond the ends of a list of symbols


def moved(pair: LawPair, times: float) -> LawPair | None:
    """The laws after ``times`` the move of these; None if they are not those of a move."""
    p, q = pair
    match p, q:
        case Density(), Density():
            return _density(p, q, times)
        case Discrete(), Discrete() if len(p.log_mass) == len(q.log_mass):
            return _discrete(p.log_mass, q.log_mass, times)
    return None


def _density(p: Density, q: Density, times: float) -> LawPair | None:
    shift = p.centre[0] - q.centre[0]
    points = q.centre[0] + np.linspace(-_TRIED, _TRIED, 401)[:, None] * q.scale
    if not _same(p.log_density(points + shift), q.log_density(points)):
        return None
    far = times * shift
    jumps = tuple(tuple(x + far for x in part) for part in q.jumps)
    centre = (q.centre[0] + far,)
    return replace(q, log_density=lambda x: q.log_density(x - far), centre=centre, jumps=jumps), q


def _same(one: Array, two: Array) -> bool:
    return np.array_equal(np.isneginf(one), np.isneginf(two)) and np.allclose(
        one[np.isfinite(one)], two[np.isfinite(two)], rtol=1e-8, atol=1e-8
    )


def _discrete(p: Array, q: Array, times: float) -> LawPair | None:
    """Of integers in their order, and by whole numbers; what lies beyond the ends is left out."""
    step = int(p.argmax()) - int(q.argmax())
    if step < 0:
        p, q, step = p[::-1], q[::-1], -step
    far, n = round(step * times), len(q)
    left = np.exp(p[:step]).sum() + np.exp(q[n - step :]).sum()
    if not step or far != step * times or far >= n or left > _NEGLIGIBLE:
        return None
    if not _same(p[step:], q[: n - step]):
        return None
    try:
        return Discrete(q[: n - far]), Discrete(q[far:])
    except CheckError:  # the list is too short
        return None


_NOISE_ORDERS = (1.01, 1.5, 2.0, 4.0, 16.0, 128.0)
_DRAWS = 100_000
_CHANCE = 1e-6  # That numbers of the right law are refuted
_REACH, _CELLS = 200.0, 80_001  # Widths of a law on both sides of its centre, and points in them


def why_wrong(noise: Any, loss: Loss, sensitivity: float, dim: int) -> str:
    """What is wrong with the price of additive noise of another package; empty if nothing is.
    ``loss`` is what it costs when a record moves ``dim`` sums by the sensitivity in its norm.
    Raises CheckError: its loss names no law on the line."""
    for p, q in loss.worst_pairs(_NOISE_ORDERS) or ():
        if not (isinstance(p, Density) and isinstance(q, Density) and len(q.centre) == 1):
            continue
        if moved((p, q), 1.0) is None:
            continue
        shift = abs(p.centre[0] - q.centre[0])
        drawn = noise.draw(NoiseSource.simulation(0).pool(), (_DRAWS // dim, dim))
        standard = np.asarray(drawn, dtype=float) * shift / sensitivity
        return _of_numbers(standard, q) or _of_price(loss, (p, q), noise.norm, dim)
    raise CheckError("its loss names no law on the line that is moved (worst_pairs)")


def _of_numbers(numbers: Array, law: Density) -> str:
    """Whether they are independent and of this law: Kolmogorov's distance, by Massart's bound."""
    allowed = math.sqrt(math.log(2 / _CHANCE) / 2 / len(numbers))
    from scipy.stats import kstest, spearmanr  # late, as it takes a second

    points = law.centre[0] + law.scale * np.linspace(-_REACH, _REACH, _CELLS)
    with np.errstate(all="ignore"):
        density = np.exp(law.log_density(points[:, None]))
    below = np.cumsum(density)
    for column in numbers.T:
        far = kstest(column, lambda x: np.interp(x, points, below / below[-1])).statistic
        if far > allowed + 1e-3:
            return f"what is drawn has another law than its loss names: {far:.3g} apart"
    for one, two in itertools.pairwise(numbers.T):
        related = spearmanr(one, two).statistic
        if abs(related) > 4 * allowed:
            return f"numbers of one draw depend on each other: correlation {related:.3g}"
    return ""


def _of_price(loss: Loss, pair: LawPair, norm: Any, dim: int) -> str:
    """The price beside the loss of a move along one sum, and of the same along all of them."""
    both = [(*pair, "a move along one sum")]
    each = moved(pair, dim ** (-1 / exponent_of(norm)))
    if dim > 1 and each is not None:
        p, q = (Product(((law, dim),)) for law in each)
        both.append((p, q, f"a move along {dim} sums that is as long in {norm}"))
    for one in both:
        for row in rows_at_few_orders(loss, Largest([one])):
            if row.violated:
                return f"{row.measure}: claimed {row.claimed:.6g}, exact {row.exact:.6g} ({one[2]})"
    return ""
