"""Private convex fits: the minimiser of a randomly tilted objective, blurred by a little noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np

from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import AdjacencyError, BudgetError, CurrencyError, HorizonError, SolverError
from privlearn.losses import (
    Loss,
    MinimizerLoss,
    VisitsLoss,
    compose,
    gaussian_loss,
    gaussian_std,
    zcdp_rate,
)
from privlearn.losses.budgets import ZCDP, B, Currency, Renyi
from privlearn.mechanisms.far_tilts import Reach, minimise_far
from privlearn.mechanisms.objectives import Objective, check_objective, spot_check
from privlearn.mechanisms.partitioned_objective import MOST_DIMENSIONS, AddedUp, ObjectiveSums
from privlearn.mechanisms.published import Tilt
from privlearn.mechanisms.regions import EuclideanBall, Region, WholeSpace
from privlearn.mechanisms.solver import (
    FAR_TAIL,
    STEEPEST,
    TILT_BITS,
    Minimised,
    Problem,
    attainable,
    minimise,
    tail_of,
)
from privlearn.noise import GaussianNoise
from privlearn.noise.exact.near import nearly
from privlearn.noise.exact.pool import Variates
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import user_code
from privlearn.rows.partitions.rows import PartitionedRows
from privlearn.values.adjacency import Adjacency, Calibration
from privlearn.values.exact import exact
from privlearn.values.grid import Grid
from privlearn.values.validate import count, positive

X = TypeVar("X")

BLUR_SHARE = "0.001"
"""Part of the budget that pays for the solver's error."""
PASSES = 16
"""Over rows in several processes: twice what Newton's method usually takes."""
BLUR_BITS = 40
"""Fractional bits of the blur: θ leaves in steps of v·2^−40."""


@final
@dataclass(frozen=True, slots=True)
class ObjectivePerturbation(Generic[X]):
    """argmin over θ of Σℓ(θ; z) + (Δ/2)‖θ‖² + bᵀθ with b ~ N(0, σ²I), plus N(0, v²I), projected.

    On R^d the minimum is over a ball so large that only tilts beyond 9σ could make it matter
    (`privlearn.mechanisms.far_tilts`).

    Privacy: a `MinimizerLoss` for the exact minimiser θ*.  The computed one lies within a distance
    e of it for every data set and every tilt (`privlearn.mechanisms.solver`; on polyhedra for tilts
    up to 40σ, and the spend does not say ``exact``), where e follows from public constants; given
    θ* the error is therefore a vector of norm at most e in both worlds, and the output noise makes
    it cost a Gaussian of mass (2e/v)² more (``docs/proofs.md``).

    Args:
        objective: ℓ with its bounds; they are tried on random records (`check_objective`).
        ridge: Δ > 0.
        noise_std: σ of the tilt, unit of the gradient.
        blur_std: v of the output noise, unit of θ.
        max_rows: the most rows one release may open; e grows with it.
        region: closed convex set for θ; default R^d.
        adjacency: must be the accountant's.
        calibration: where Δ and σ come from; for the ledger.

    Raises:
        ValueError: a number is out of range, or a stated bound of the objective is broken.
    """

    objective: Objective[X]
    ridge: float
    noise_std: float
    blur_std: float
    max_rows: int
    region: Region | None = None
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    calibration: Calibration = Calibration.PROVED

    def __post_init__(self) -> None:
        positive(ridge=self.ridge)
        positive(noise_std=self.noise_std)
        positive(blur_std=self.blur_std)
        count(max_rows=self.max_rows)
        if not isinstance(self.adjacency, Adjacency):
            raise TypeError(f"adjacency = {self.adjacency!r}: must be an Adjacency")
        _check_problem(self.objective, self.region)

    @classmethod
    def calibrated(
        cls,
        objective: Objective[X],
        budget: Currency,
        *,
        max_rows: int,
        calls: int = 1,
        theta_norm: float = 1.0,
        region: Region | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        visits: int | Sequence[int] = 1,
    ) -> ObjectivePerturbation[X]:
        """The (Δ, σ) with the least expected error that ``budget`` allows for ``calls`` releases.

        The tilt and the pull of the ridge move the gradient at the true θ by a vector of mean
        square dσ² + Δ²‖θ‖²; that is minimised.  A thousandth of the budget pays for the blur.

        Args:
            budget: ZCDP or Renyi, for all calls together.
            theta_norm: public guess of ‖θ‖.
            visits: the most rows of one person in a release (`Loss.for_visits`), or in each of the
                ``calls``; ``budget`` is then of a person.

        Raises:
            CurrencyError: a currency in which objective perturbation has no price.
            ValueError: not one number of visits for each call.
        """
        _check_problem(objective, region)
        single = _not_zero(budget).share(f"1/{count(calls=calls)}")
        blur = single.share(BLUR_SHARE)
        tally, exact_part = Counter(_each_call(visits, calls)), single - blur
        if len(tally) == 1:
            tally = Counter(tally.keys())
        else:  # calls of different prices share one σ
            exact_part *= calls
        bounds = _Bounds.of(objective, adjacency)._replace(visits=tuple(tally.items()))
        ridge = _best_ridge(bounds, objective.dim, exact_part, positive(theta_norm=theta_norm))
        # so large a budget that the ridge is only for the solver
        ridge = max(ridge, 2 * count(max_rows=max_rows) * objective.trace / STEEPEST)
        tilt = Tilt(ridge, _least_noise(bounds, ridge, exact_part))
        return cls._blurred(objective, tilt, blur.gaussian_mass(), max_rows, region, adjacency)

    @classmethod
    def with_ridge(
        cls,
        objective: Objective[X],
        ridge: float,
        budget: Currency,
        *,
        max_rows: int,
        region: Region | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        visits: int = 1,
    ) -> ObjectivePerturbation[X]:
        """The least σ that ``budget`` allows for one release at a given Δ.

        Args:
            visits: the most rows of one person in it; ``budget`` is then of a person.

        Raises:
            BudgetError: no σ is enough, because Δ is too small.
            CurrencyError: see `calibrated`.
        """
        _check_problem(objective, region)
        blur = _not_zero(budget).share(BLUR_SHARE)
        std = least_noise(objective, ridge, budget - blur, adjacency, visits=visits)
        return cls._blurred(
            objective, Tilt(ridge, std), blur.gaussian_mass(), max_rows, region, adjacency
        )

    @classmethod
    def published(
        cls,
        objective: Objective[X],
        tilt: Tilt,
        *,
        max_rows: int,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> ObjectivePerturbation[X]:
        """A printed (Δ, σ) of `privlearn.mechanisms.published`, priced by what it really costs."""
        _check_problem(objective, None)
        loss = _Bounds.of(objective, adjacency).loss(tilt.ridge, tilt.noise_std)
        mass = 2 * loss.zcdp() * exact("share", BLUR_SHARE)
        return cls._blurred(objective, tilt, mass, max_rows, None, adjacency, Calibration.PUBLISHED)

    @classmethod
    def _blurred(
        cls,
        objective: Objective[X],
        tilt: Tilt,
        mass: Fraction,
        max_rows: int,
        region: Region | None,
        adjacency: Adjacency,
        calibration: Calibration = Calibration.PROVED,
    ) -> ObjectivePerturbation[X]:
        error = _solver_error(
            objective, region, tilt.ridge, tilt.noise_std, count(max_rows=max_rows)
        )
        dim, more = objective.dim, 2.0**-30
        # the blur's grid is paid for, too, and depends on the blur
        while _on_grid(error, blur := gaussian_std(2 * error * (1 + more), mass), dim) > error * (
            1 + more
        ):
            more *= 2
        return cls(
            objective, tilt.ridge, tilt.noise_std, blur, max_rows, region, adjacency, calibration
        )

    @property
    def solver_error(self) -> float:
        """e, the certified distance of the computed from the exact one, with the blur's grid."""
        return _on_grid(self._certified, self.blur_std, self.objective.dim)

    @property
    def _certified(self) -> float:
        return _solver_error(self.objective, self.region, self.ridge, self.noise_std, self.max_rows)

    def loss(self) -> Loss:
        """The price of one release: the exact minimiser, and its blurred error.

        The error is bounded for all data sets alike, however many rows change.
        """
        exactly = _Bounds.of(self.objective, self.adjacency).loss(self.ridge, self.noise_std)
        blurred = gaussian_loss(2 * self.solver_error, self.blur_std, self.adjacency)
        return exactly + VisitsLoss(blurred, most=self.max_rows)

    def spend(self) -> Spend:
        return Spend(
            "objective-perturbation",
            self.objective.domain,
            GaussianNoise(self.noise_std),
            own_loss=self.loss(),
            parameters={
                **self.objective.to_dict(),
                "region": self._region.to_dict(),
                "ridge": self.ridge,
                "blur_std": self.blur_std,
                "solver_error": self.solver_error,
                "max_rows": self.max_rows,
            },
            calibration=self.calibration,
            functions=tuple(f"objective({name})" for name in user_code(self.objective)),
            exact=self._reach is not None,
        )

    @property
    def _reach(self) -> Reach | None:
        return _reach(self.objective, self.region, self.ridge, self.noise_std, self.max_rows)

    @property
    def _region(self) -> Region:
        return self.region or WholeSpace(self.objective.dim)

    def error_std(self) -> float:
        return self.noise_std

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Releases the blurred minimiser over ``rows``; null rows have no influence.

        Returns:
            θ, shape (d,).

        Raises:
            HorizonError: more than ``max_rows`` rows.
            AdjacencyError: the token is for another neighbour relation.
            TokenError, UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        self._check_adjacency(token)
        if len(rows) > self.max_rows:
            raise HorizonError(f"{len(rows)} rows: at most max_rows = {self.max_rows}")
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            records = receipt.open(rows)
            dim = self.objective.dim
            drawn = receipt.draw_variates(2 * dim)
            theta = self._minimiser(records, nearly(drawn.part(0, dim)))
            spot_check(self.objective, records, theta)
            theta = self._blurred_on_grid(theta, _floors(drawn.part(dim, 2 * dim)))
            return receipt.release(self._region.project(theta))

    def release_partitions(
        self, rows: PartitionedRows[X], token: Token[B], *, passes: int = PASSES
    ) -> Released[Array]:
        """As `release`, over rows that lie in several processes (`privlearn.rows.partitions`).

        The law is that of `release`, at the same price: both put out a point within the certified
        distance of the exact minimiser, blurred (`privlearn.mechanisms.partitioned_objective`).
        The solver runs here, and asks the workers for sums at its iterates, which travel
        encrypted.  Whoever watches the cluster sees how many passes over the rows there are, and
        nothing else; ``passes`` are made in any case, and more if the solver needs them.

        Args:
            rows: logged rows.
            token: for their users.
            passes: over the rows, at least; the first is made before the token is spent, so that
                what cannot be read costs nothing.

        Returns:
            θ, shape (d,).

        Raises:
            PartitionError: a partition cannot be read or added up; if that happens after the first
                pass, the token stays spent.
            HorizonError, AdjacencyError, TokenError, UsersError, ProvenanceError: as `release`.
        """
        self._check_adjacency(token)
        count(passes=passes)
        token.check_partitions(rows)
        if rows.count > self.max_rows:
            raise HorizonError(f"{rows.count} rows: at most max_rows = {self.max_rows}")
        dim = self.objective.dim
        if dim > MOST_DIMENSIONS:
            raise ValueError(f"dim = {dim}: at most {MOST_DIMENSIONS} over partitions")
        rows = rows.without_forgotten()  # the same rows in all passes
        sums, start = ObjectiveSums(self.objective), self._region.inner()
        first = start, rows._asked(sums, start)
        with token.spend(self.spend()) as receipt:
            opened = receipt.open_partitions(rows)
            drawn = receipt.draw_variates(2 * dim)
            made: list[AddedUp] = []

            def problem(tilt: Array) -> AddedUp:
                made.append(AddedUp(opened, sums, rows.count, self.ridge, tilt, first))
                return made[-1]

            theta = self._minimised(problem, nearly(drawn.part(0, dim)))
            made[-1].pass_on(theta, passes)
            theta = self._blurred_on_grid(theta, _floors(drawn.part(dim, 2 * dim)))
            return receipt.release(self._region.project(theta))

    def _check_adjacency(self, token: Token[Any]) -> None:
        if token.adjacency is not self.adjacency:
            raise AdjacencyError(
                f"a fit for {self.adjacency.value}, a token for {token.adjacency.value}"
            )

    def _minimiser(self, records: Array, known: list[int]) -> Array:
        def problem(tilt: Array) -> Problem:
            return Problem(self.objective, records, self.ridge, tilt)

        return self._minimised(problem, known)

    def _minimised(self, problem_of: Callable[[Array], Minimised], known: list[int]) -> Array:
        """Within `_certified` of the exact minimiser, for ``known`` near 2^58·Z, the tilt σZ."""
        far = max(max(m, ~m) for m in known) >= int(tail_of(self._region)) << TILT_BITS
        reach = self._reach if far or isinstance(self.region, EuclideanBall) else None
        if far and reach is None:
            raise SolverError(
                f"a tilt beyond {FAR_TAIL:g} standard deviations on {self._region!r}: the outcome "
                "of this release is not covered"
            )
        # beyond what doubles hold, `minimise_far` looks at ``known`` alone
        tilt = np.array([_double(m) for m in known]) * self.noise_std
        problem = problem_of(tilt)
        if reach is not None:
            return minimise_far(problem, reach, known, self.noise_std)
        return minimise(problem, self._region, self._certified)

    def _blurred_on_grid(self, theta: Array, noise: list[int]) -> Array:
        """g(⌊θ/g⌋ + N) with g = v·2^−40 and N = ⌊2^40 Z⌋; integers of any size."""
        step = Grid(self.blur_std, BLUR_BITS).step
        exactly = Fraction(step)
        steps = [math.floor(Fraction(x) / exactly) for x in theta.tolist()]
        return np.array([float(x + n) * step for x, n in zip(steps, noise, strict=True)])


def _floors(drawn: Variates) -> list[int]:
    return [
        m if abs(m) < 1 << 62 else drawn.refined(i, BLUR_BITS)
        for i, m in enumerate(drawn.floors.tolist())
    ]


def _double(m: int) -> float:
    return float(Fraction(2 * m + 1, 2 << TILT_BITS)) if m.bit_length() < 900 else math.inf


def _on_grid(error: float, blur_std: float, dim: int) -> float:
    """``error`` and what rounding down to the blur's grid adds to it."""
    return error + blur_std * 2.0**-BLUR_BITS * math.sqrt(dim) * (1 + 1e-9)


def _check_problem(objective: Objective[Any], region: Region | None) -> None:
    if not isinstance(objective, Objective):
        raise TypeError(f"objective = {objective!r}: must be an Objective, such as LinearObjective")
    if region is not None and not hasattr(region, "step"):
        raise TypeError(f"region = {region!r}: must be a set of privlearn.mechanisms.regions")
    if region is not None and region.dim != objective.dim:
        raise ValueError(f"region in R^{region.dim}: the objective is on R^{objective.dim}")
    check_objective(objective)


def _not_zero(budget: Currency) -> Currency:
    if not isinstance(budget, ZCDP | Renyi):
        raise CurrencyError(
            f"objective perturbation has no price in {type(budget).__name__}: use ZCDP or Renyi "
            "(an accountant turns (ε, δ) into either: `accountant.budget`)"
        )
    if budget.is_zero:
        raise BudgetError(f"{budget}: noise needs a budget > 0")
    return budget


class _Bounds(NamedTuple):
    """All that the price of a minimiser depends on, beside Δ and σ; a key of a cache."""

    difference: float
    trace: float
    rank: int
    directions: int
    adjacency: Adjacency
    dimension: int
    visits: tuple[tuple[int, int], ...] = ((1, 1),)
    """Rows of one person in a release, and in how many releases."""

    @classmethod
    def of(cls, objective: Objective[Any], adjacency: Adjacency) -> _Bounds:
        return cls(
            objective.spread(adjacency),
            objective.trace,
            objective.rank,
            objective.directions(adjacency),
            adjacency,
            objective.dim,
        )

    def loss(self, ridge: float, noise_std: float) -> MinimizerLoss:
        numbers = self._asdict()
        del numbers["visits"]
        return MinimizerLoss(**numbers, ridge=ridge, noise_std=noise_std)

    def of_person(self, ridge: float, noise_std: float) -> list[tuple[MinimizerLoss, int]]:
        single = self.loss(ridge, noise_std)
        return [(single.several(m, 1) if m > 1 else single, n) for m, n in self.visits]

    def least_std(self, budget: Currency) -> float:
        """The σ that the gradients' differences alone would need."""
        rows = math.sqrt(sum(n * m * m for m, n in self.visits))
        return self.difference * rows / math.sqrt(budget.gaussian_mass())


def _each_call(visits: int | Sequence[int], calls: int) -> list[int]:
    listed = [visits] * calls if isinstance(visits, int) else list(visits)
    if len(listed) != calls:
        raise ValueError(
            f"visits = {visits!r}: must be one number, or one for each of the {calls} calls"
        )
    return [count(visits=number) for number in listed]


def _solver_error(
    objective: Objective[Any], region: Region | None, ridge: float, noise_std: float, rows: int
) -> float:
    reach = _reach(objective, region, ridge, noise_std, rows)
    usual = attainable(
        objective, region or WholeSpace(objective.dim), rows=rows, ridge=ridge, tilt_std=noise_std
    )
    if reach is None:
        return usual
    return reach.distance if isinstance(region, EuclideanBall) else max(usual, reach.distance)


def _reach(
    objective: Objective[Any], region: Region | None, ridge: float, noise_std: float, rows: int
) -> Reach | None:
    return Reach.of(objective, region, rows=rows, ridge=ridge, tilt_std=noise_std)


def least_noise(
    objective: Objective[Any],
    ridge: float,
    budget: Currency,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    *,
    visits: int = 1,
) -> float:
    """The smallest σ (to a relative 1e-9) whose exact minimiser at Δ = ``ridge`` fits ``budget``.

    ``budget`` is of a person with so many ``visits``, rows of the one release.

    Raises:
        BudgetError: none does.
        CurrencyError: the currency is neither ZCDP nor Renyi.
    """
    bounds = _Bounds.of(objective, adjacency)._replace(visits=((count(visits=visits), 1),))
    return _least_noise(bounds, ridge, _not_zero(budget))


@lru_cache(maxsize=256)
def _least_noise(bounds: _Bounds, ridge: float, budget: Currency) -> float:
    from scipy.optimize import brentq

    share = _share_of(budget)
    floor = bounds.least_std(budget)

    def excess(log_std: float) -> float:
        losses = bounds.of_person(ridge, floor * math.exp(log_std))
        return math.fsum(n * share(loss) for loss, n in losses) - _FULL

    high = 0.25
    while excess(high) > 0:
        high *= 2
        if high > 30:
            raise BudgetError(
                f"ridge = {ridge!r}: its determinants alone cost more than {budget}; no noise is "
                "enough, take a larger ridge"
            )
    std = floor * math.exp(float(brentq(excess, 0.0, high, xtol=1e-10)))
    while not budget.covers(budget.price(compose(bounds.of_person(ridge, std)))):
        std *= 1 + 1e-10
    return std


_FULL = 1 - 1e-10  # Leaves room for the rounding of the sum of two prices


def _share_of(budget: Currency) -> Callable[[MinimizerLoss], float]:
    if isinstance(budget, ZCDP):
        rho = float(budget.rho)
        return lambda loss: zcdp_rate(loss) / rho
    assert isinstance(budget, Renyi), "_not_zero has refused every other currency"
    points = [(float(order), float(epsilon)) for order, epsilon in budget.curve.items()]
    return lambda loss: max(loss.renyi(order) / epsilon for order, epsilon in points)


@lru_cache(maxsize=256)
@lru_cache(maxsize=256)
def _best_ridge(bounds: _Bounds, dim: int, budget: Currency, theta_norm: float) -> float:
    """The Δ that minimises Δ²‖θ‖² + dσ(Δ)², up to a percent or so: the minimum is flat."""
    from scipy.optimize import minimize_scalar

    def error(log_ridge: float) -> float:
        ridge = math.exp(log_ridge)
        try:
            std = _least_noise(bounds, ridge, budget)
        except BudgetError:
            return math.inf
        return math.log(ridge**2 * theta_norm**2 + dim * std**2)

    floor = bounds.least_std(budget)
    most = max(m for m, _ in bounds.visits)
    right = math.log(10 * max(most * bounds.trace, math.sqrt(dim) * floor / theta_norm))
    while math.isinf(best := error(right)):
        right += 1
    # The minimum of two bounds can have two valleys: look at all, from the right, where there is
    # nothing but bias, to where no noise is enough or there is nothing but noise.
    middle, x, end = right, right - 0.5, math.log(bounds.trace) - 20
    while x > end and not math.isinf(now := error(x)) and now < best + 2:
        if now < best:
            middle, best = x, now
        x -= 0.5
    found = minimize_scalar(
        lambda x: min(error(x), 1e9), bounds=(middle - 0.5, middle + 0.5), options={"xatol": 0.01}
    )
    return math.exp(float(found.x))
