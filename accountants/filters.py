"""Filters and odometers: what holds when every next spend is chosen after seeing everything before.

A *filter* allows a spend only if a sum, of amounts that are known before the spend runs, stays
under a cap fixed in advance; then the cap is the guarantee, whenever one stops (Rogers, Roth,
Ullman & Vadhan 2016).  An accountant without a plan is one filter for each arrival index, so ranges
of indices compose in parallel and cost their maximum; `Filter` is the same rule for one index,
without a ledger.  An *odometer* has no cap: it bounds the privacy loss so far, with a probability
that is fixed in advance, at all times at once.

What an accountant reports as *spent* is neither: it is the price of what happened, ex post, and
becomes a guarantee only through the cap or through an odometer that was declared in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, cast, final, overload

from privlearn.accountants.guarantee import Composite, as_loss, delta_of, epsilon_of
from privlearn.accountants.state import AccountState
from privlearn.errors import AdjacencyError, BudgetError, InsufficientBudgetError
from privlearn.losses import FailingLoss, Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, B, Currency, GaussianDP, PureDP, Renyi
from privlearn.losses.conversion import Bounded, gaussian_mu_squared
from privlearn.losses.gaussian_rest import Part, gaussian_parts, rest_after
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_down, float_up
from privlearn.values.validate import count as valid_count

THEOREMS: dict[type[Currency], str] = {
    PureDP: "sums of ε (Rogers, Roth, Ullman & Vadhan 2016)",
    ZCDP: "sums of ρ (Feldman & Zrnic 2021; Whitehouse, Ramdas, Rogers & Wu 2023)",
    GaussianDP: "sums of μ² (Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023)",
    Renyi: "sums at each order fixed in advance (Feldman & Zrnic 2021; Lécuyer 2021)",
}
"""What makes a cap in each currency a filter; proofs in ``docs/proofs.md#filters``."""

RESTS = (
    "what remains is Gaussian DP after every output (Dong, Roth & Su 2022, Theorem 3.2; "
    "docs/proofs.md#gaussian-rests)"
)

FAILURES = (
    "failures add up under a cap of their own (Whitehouse, Ramdas, Rogers & Wu 2023, for "
    "approximate zCDP)"
)

CONCURRENT = (
    "every filter and odometer for (ε, δ), f-DP or one Rényi order holds for interleaved "
    "interactive mechanisms (Haney, Shoemate, Tian, Vadhan, Vyrros, Xu & Zhang 2023); plans: "
    "Vadhan & Zhang 2023 for f-DP, Lyu 2022 for (ε, δ), Rényi and zCDP"
)


@dataclass(frozen=True, slots=True)
class _Price:
    """What a loss costs a filter: at most ``amounts``, under a Gaussian cap by its ``parts``."""

    amounts: tuple[Fraction, ...]
    failure: Fraction
    parts: tuple[Part, ...] | None


def _gaussian_cap(promise: ApproxDP, failure: Fraction) -> GaussianDP:
    """The largest mass that keeps a promise, of whose δ some is set aside for failures."""
    rest = (promise.delta - failure) / (1 - failure)
    mass = gaussian_mu_squared(float_down(promise.epsilon), float_down(rest))
    return GaussianDP.from_mu_squared(mass)


@final
class Filter(Generic[B]):
    """A privacy filter for one user: adaptively chosen losses, as long as they fit under the cap.

    Args:
        cap: in the currency that is counted.  A Rényi cap of several orders is kept at every one
            of them, so each is a filter by itself and the best may be chosen at the end; a filter
            that stopped only when *all* orders are exceeded would need another proof.  An
            `ApproxDP` is counted as the largest `GaussianDP` that keeps it.
        failure: the probability of failing set aside for losses such as `ApproxLoss`: part of the
            δ of an `ApproxDP`, else beside the cap.  With a cap in ZCDP this is the (ε, δ) filter
            of Whitehouse et al. 2023, with ρ = ε·tanh(ε/2) in the place of ε²/2 and the exact
            conversion in the place of theirs.

    Under a cap in GaussianDP a pure loss costs what it takes from the rest, between ε² and π/2·ε²
    for small ε: nearly ε² while ε² is small against the rest, most at the end.  So spend large
    losses first, and Gaussians, whose mass is always μ², last; the parts of one composed loss are
    counted in that order.  A subsampled Gaussian costs what the plain one does.

    A loss counts as it is: for a person with several rows in a release, spend `Loss.for_visits`.
    It holds no tokens and writes no ledger: it is the arithmetic of an accountant, for simulations
    and for mechanisms of one's own.  Threads may share it.
    """

    cap: B

    @overload
    def __init__(
        self: Filter[GaussianDP],
        cap: ApproxDP,
        *,
        failure: Exact = 0,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> None: ...

    @overload
    def __init__(
        self, cap: B, *, failure: Exact = 0, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ) -> None: ...

    def __init__(
        self,
        cap: Currency | ApproxDP,
        *,
        failure: Exact = 0,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> None:
        self.failure = exact("failure", failure)
        most = cap.delta if isinstance(cap, ApproxDP) else Fraction(1)
        if not 0 <= self.failure < most:
            raise BudgetError(f"failure = {failure!r}: must lie in [0, {exact_text(most)})")
        if isinstance(cap, ApproxDP):
            cap = _gaussian_cap(cap, self.failure)
        if not isinstance(cap, Currency) or cap.is_zero:
            raise BudgetError(f"cap = {cap!r}: must be a currency above zero, or an ApproxDP")
        self.cap, self.adjacency = cast(B, cap), adjacency
        self._sum = cap.zero().amounts, Fraction(0)
        self._lock = Exclusive("a filter")
        self._prices: dict[Loss, _Price] = {}

    @property
    def theorem(self) -> str:
        """What makes the cap a guarantee."""
        basis = THEOREMS.get(type(self.cap), "no theorem is known for this currency")
        if isinstance(self.cap, GaussianDP):
            basis = RESTS
        return f"{basis}; {FAILURES}" if self.failure else basis

    @property
    def spent(self) -> B:
        """The sum so far."""
        return self.cap._with(self._sum[0])

    @property
    def failed(self) -> Fraction:
        """The sum of the probabilities of failing so far."""
        return self._sum[1]

    @property
    def remaining(self) -> B:
        """What still fits."""
        return self.cap - self.spent

    def fits(self, loss: Loss, count: int = 1) -> bool:
        """Whether so many runs of ``loss`` could be spent now.

        Raises:
            AdjacencyError, CurrencyError: the loss has no price here.
        """
        return self._after(loss, count) is not None

    def spend(self, loss: Loss, count: int = 1) -> None:
        """Counts runs of ``loss``, which are about to be made; refused, they must not be made.

        Raises:
            InsufficientBudgetError: they do not fit, and nothing is counted.
            AdjacencyError, CurrencyError: the loss has no price here.
            ReentryError: called from inside a call that is not done.
        """
        with self._lock:
            after = self._after(loss, count)
            if after is None:
                price = self._price(loss)
                failure = price.failure
                failing = f" and failure {exact_text(failure * count)}" if failure else ""
                raise InsufficientBudgetError(
                    spent=f"{self.spent}" + (f" and failure {self.failed}" if failure else ""),
                    requested=f"{self.cap._with(price.amounts) * count}{failing}",
                    remaining=self.remaining,
                    users=range(1),
                )
            self._sum = after

    def _after(self, loss: Loss, count: int) -> tuple[tuple[Fraction, ...], Fraction] | None:
        price = self._price(loss)
        number = 1 if count == 1 and count is not True else valid_count(count=count)
        spent, failed = self._sum
        if price.failure:
            failed = failed + price.failure * number
            if failed > self.failure:
                return None
        caps = self.cap.amounts
        if price.parts is not None:
            rest = rest_after(caps[0] - spent[0], price.parts, number)
            return None if rest is None else ((caps[0] - rest,), failed)
        amounts = tuple([a + p * number for a, p in zip(spent, price.amounts, strict=True)])
        within = all([a <= c for a, c in zip(amounts, caps, strict=True)])
        return (amounts, failed) if within else None

    def _price(self, loss: Loss) -> _Price:
        found = self._prices.get(loss)
        if found is None:
            if loss.adjacency is not self.adjacency:
                raise AdjacencyError(
                    f"a loss for {loss.adjacency.value} in a filter for {self.adjacency.value}"
                )
            apart = loss.unless_failed()
            amounts = self.cap.price(apart).amounts
            by_rest = isinstance(self.cap, GaussianDP)
            parts = gaussian_parts(apart) if by_rest else None
            found = _Price(amounts, loss.failure(), parts)
            if len(self._prices) >= 4096:
                self._prices.clear()
            self._prices[loss] = found
        return found

    def _guarantee(self) -> Composite:
        if not self.failure:
            return self.cap
        return FailingLoss(as_loss(self.cap, self.adjacency), self.failure)

    def epsilon(self, delta: float) -> Bounded:
        """ε of the guarantee, which is the cap's, at ``delta``."""
        return epsilon_of(self._guarantee(), delta)

    def delta(self, epsilon: float) -> Bounded:
        """δ of the guarantee, which is the cap's, at ``epsilon``."""
        return delta_of(self._guarantee(), epsilon)


@final
@dataclass(frozen=True, slots=True)
class RunningBound:
    """With probability 1 − ``delta``, at no time so far did the privacy loss exceed the bound then.

    ``epsilon`` is the bound now.  The loss is log(dP/dQ) of all that was released, under P, for
    every pair of neighbours (where something may fail: of a view from which that is computed).
    This is a statement about probabilities of losses, not (ε, δ)-DP: ε depends on what happened.
    """

    epsilon: float
    delta: float
    theorem: str


_TARGETS = tuple(4.0**k for k in range(-10, 7))
"""Sums of ρ at which the odometer's lines touch; fixed here, so chosen before any data."""


@final
class Odometer:
    """A running bound on the privacy loss, time-uniform, for adaptively chosen losses and no cap.

    For a zCDP sum V and every λ > 0, exp(λL − λ(λ+1)V) is a supermartingale under P; by Ville's
    inequality, L <= (λ+1)V + log(1/δ)/λ at all times at once with probability 1 − δ.  The bound is
    the least over 17 values of λ, each at δ/17, which were fixed in advance: within 7% of the best
    λ at the least favourable V between 4⁻¹⁰ and 4⁶, apart from the 17.  (Whitehouse, Ramdas, Rogers
    & Wu 2023 have further families of such lines; this is the union of lines, with its own proof in
    ``docs/proofs.md#odometers``.)  Gaussian losses count by ρ = μ²/2.  For Rényi orders the same
    with λ = α − 1 for each order; pure ε just adds up.

    Args:
        delta: the probability with which it may be wrong at some time; fixed in advance.
        currency: a budget of the currency (and Rényi orders) to count in, of whatever amount.
        failure: what the failures of the losses may add up to; it is added to δ.
    """

    def __init__(
        self,
        delta: Exact,
        *,
        currency: Currency | None = None,
        failure: Exact = 0,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> None:
        self.delta = exact("delta", delta)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {delta!r}: must lie strictly between 0 and 1")
        self.failure, self.adjacency = exact("failure", failure), adjacency
        if not 0 <= self.failure < 1 - self.delta:
            raise ValueError(f"failure = {failure!r}: must lie in [0, 1 − delta)")
        self._zero = (ZCDP(1) if currency is None else currency).zero()
        self._sum = self._zero, Fraction(0)
        self._lock = Exclusive("an odometer")

    def spend(self, loss: Loss, count: int = 1) -> None:
        """Counts runs of ``loss``, which are about to be made.

        Raises:
            InsufficientBudgetError: failures beyond what was declared.
            AdjacencyError, CurrencyError: the loss has no price here.
            ReentryError: called from inside a call that is not done.
        """
        if loss.adjacency is not self.adjacency:
            raise AdjacencyError(
                f"a loss for {loss.adjacency.value} in an odometer for {self.adjacency.value}"
            )
        number = valid_count(count=count)
        price = self._zero.price(loss.unless_failed()) * number
        failure = loss.failure() * number
        with self._lock:
            spent, failed = self._sum
            if failed + failure > self.failure:
                raise InsufficientBudgetError(
                    spent=f"failure {exact_text(failed)}",
                    requested=f"failure {exact_text(failure)}",
                    remaining=f"failure {exact_text(self.failure - failed)}",
                    users=range(1),
                )
            self._sum = spent + price, failed + failure

    @property
    def bound(self) -> RunningBound:
        """The bound now."""
        return _bound(self._sum[0], self.delta, self.failure)


def running_bound(state: AccountState, users: range | None = None) -> RunningBound | None:
    """The odometer of an account, the largest over users; None if none was declared."""
    if state.odometer is None:
        return None
    tallies = state.charged.spent
    firsts = [users.start] if users is not None else [top.first for top in tallies.tops()]
    spent = set(tallies.sums(lambda loss: state.prices.of(loss).budget.amounts, firsts))
    if len(state.cap.amounts) == 1:
        spent = {max(spent)}
    values = [state.cap._of(amounts) if amounts else state.cap.zero() for amounts in spent]
    bounds = [_bound(value, state.odometer, state.failure) for value in values]
    return max(bounds, key=lambda bound: bound.epsilon)


def _bound(spent: Currency, delta: Fraction, failure: Fraction) -> RunningBound:
    total = float_up(delta + failure)
    match spent:
        case PureDP():
            return RunningBound(float_up(spent.epsilon), total, "sum of ε, at all times")
        case ZCDP() | GaussianDP():
            rho = spent.rho if isinstance(spent, ZCDP) else spent.mu_squared / 2
            chance = math.log(len(_TARGETS)) - _log_down(delta)
            slopes = [math.sqrt(chance / target) for target in _TARGETS]
            above = float_up(rho)
            if above == 0:  # nothing was released: the privacy loss is 0
                return RunningBound(0.0, total, _VILLE)
            least = min((slope + 1) * above + chance / slope for slope in slopes)
            return RunningBound(least * (1 + 1e-14), total, _VILLE)
        case Renyi():
            chance = math.log(len(spent.curve)) - _log_down(delta)
            values = [
                float_up(e) + chance * (1 + 1e-14) / (float(a) - 1) for a, e in spent.curve.items()
            ]
            return RunningBound(min(values) * (1 + 1e-14), total, _VILLE)
    raise BudgetError(f"{spent}: no odometer is proved for this currency")


def _log_down(delta: Fraction) -> float:
    return math.log(delta.numerator) - math.log(delta.denominator) - 1e-12


_VILLE = "Ville's inequality for a supermartingale per line, union over lines fixed in advance"
