"""Private prefix sums: one token for a whole stream, a noisy running total after every row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from numpy.typing import NDArray

from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import HorizonError
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.least_error import least_error
from privlearn.mechanisms.least_noise import first_that_fits, generalized_gaussian_noise
from privlearn.mechanisms.receipt_stream import ReceiptStream, StreamAdjacency
from privlearn.mechanisms.running_sums import running_sums
from privlearn.mechanisms.stream_terms import StreamTerms, least_std, stream_terms
from privlearn.mechanisms.stream_visits import StreamVisits, visits_in_slots
from privlearn.noise import GaussianNoise, GeneralizedGaussianNoise, SmoothExponent
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency, Calibration
from privlearn.values.participation import Participation
from privlearn.values.validate import Positive, assign, check_fields

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class PrefixSum(Generic[X]):
    """Running sums of clipped contributions, released after every row of a stream.

    Releases B·(C·x + z) = A·x + B·z for the prefix-sum matrix A = B·C with iid Gaussian z of std
    ``noise_std``.  One user changes one row of x by at most the domain's sensitivity, so the whole
    stream is a single Gaussian mechanism of mass (sensitivity·max_j‖C_j‖/noise_std)².  C is lower
    triangular and the noise Gaussian, so rows may be chosen after seeing earlier outputs (Denisov
    et al. 2022, Theorem 2.1).

    x and z are integers, in steps of a public grid (`privlearn.mechanisms.factorization`): C·x + z
    is then known within a few steps, which the price pays for (`stream_price`), and what leaves is
    a function of the continuous mechanism's output.  The finest grid is taken on which no sum can
    overflow, so contributions may be at most 2³¹/horizon times as large as the noise.

    With an ``exponent`` p > 2 each row of z is generalized Gaussian in ℓp
    (`GeneralizedGaussianNoise`), and row t of C·x + z moves by C_tj·v when x_j moves by v.  Given
    the rows before, that costs ρ = (p−1)·C_tj²·‖v‖_p²/(2·noise_std²); zCDP adds up over adaptive
    releases, so the stream costs what one release with the sensitivity in ℓp times ‖C_j‖ does.

    Args:
        domain: what one user can contribute (use `PSDTrace` for sums of outer products).
        factorization: B and C; default in `calibrated` is that of least error (`least_error`).
        noise_std: standard deviation of z per coordinate, unit of the sum.
        adjacency: replace-one or zero-out; under add-remove all later rows would shift.
        calibration: where ``noise_std`` comes from; for the ledger.
        by_arrival: charge each user for the own column of C, (sensitivity·‖C_j‖/noise_std)², where
            late ones are shorter; the horizon is then a fixed, public number.
        exponent: p in [2, 1000] of the noise; 2 is Gaussian, and never worse where measured.
        participation: how often one person may come back.  The price is then that of a person with
            all visits: with S of the factorisation (`Factorization.participation_norm`) in place of
            ‖C_j‖, in ℓ2 and in ℓp.

    Raises:
        ValueError: contributions are too large for the noise, see `Grid.fitting`; the factorisation
            has no S; ``by_arrival`` and ``participation`` together.
    """

    domain: Domain[X]
    factorization: Factorization
    noise_std: Positive
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    calibration: Calibration = Calibration.PROVED
    by_arrival: bool = False
    exponent: SmoothExponent = 2.0
    participation: Participation | None = None
    _terms: StreamTerms = field(init=False, repr=False, compare=False)
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        rule = self.participation
        if self.by_arrival and rule is not None:
            raise ValueError(
                "by_arrival = True with a rule of participation: a person's visits are in many "
                "columns, early and late ones; leave one of the two out"
            )
        noise = stream_noise(self.noise_std, self.exponent)
        visits = _visits(rule, self.factorization.horizon)
        terms = stream_terms(self.domain, noise, self.factorization, self.adjacency, visits=visits)
        profile = terms.profile() if self.by_arrival else ()
        spend = Spend(
            "prefix-sum",
            self.domain,
            noise,
            gain=profile[0][1] if profile else terms.gain(),
            parameters={**terms.parameters(), **stated_rule(rule)},
            calibration=self.calibration,
            interactive=True,
            profile=profile,
            visits=None if rule is None else (rule.most, rule.apart),
            grid=terms.grid,
        )
        assign(self, _terms=terms, _spend=spend)

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        horizon: int | None = None,
        factorization: Factorization | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        exponent: float | None = 2.0,
        participation: Participation | None = None,
        objective: Objective = "max",
    ) -> PrefixSum[X]:
        """The least noise that ``budget`` allows for a stream of at most ``horizon`` rows.

        Args:
            factorization: instead of the default one for that horizon, which is the one of least
                error at hand for ``participation``.
            exponent: of the noise; None chooses by computed error between Gaussian noise and the
                least κ, as `least_noise`.
            participation: as above; the budget is then that of a person.
            objective: what the default factorisation makes small, the largest error over rows or
                the ``mean`` (rms) over all.

        Raises:
            TypeError: not exactly one of horizon and factorization.
            CurrencyError, ValueError: as for `NoisySum.calibrated`; the factorisation has no S.
        """
        if (horizon is None) == (factorization is None):
            raise TypeError("give either horizon or factorization")
        if factorization is None:
            assert horizon is not None
            factorization = least_error(horizon, _visits(participation, horizon), objective)
        visits = _visits(participation, factorization.horizon)
        single = generalized_gaussian_noise(domain, budget, exponent, adjacency)
        power = single.exponent

        def gain(std: float) -> float:
            noise = stream_noise(std, power)
            return stream_terms(domain, noise, factorization, adjacency, visits=visits).gain()

        norm = factorization.column_norm() if visits is None else float(visits.norm(factorization))
        if power == 2:
            std = least_std(domain, budget, adjacency, gain, norm)
            return cls(domain, factorization, std, adjacency, participation=participation)

        def made(std: float) -> PrefixSum[X]:
            return cls(
                domain, factorization, std, adjacency, exponent=power, participation=participation
            )

        def fits(std: float) -> bool:
            return budget.covers(budget.price(made(std).loss()))

        return made(first_that_fits(single.std * gain(single.std * norm), fits))

    def spend(self) -> Spend:
        return self._spend

    def loss(self) -> Loss:
        return self.spend().loss(self.adjacency)

    def error_std(self, t: int) -> float:
        """Standard deviation per coordinate of the running sum after ``t`` >= 1 rows."""
        single = GeneralizedGaussianNoise(self.noise_std, self.exponent)
        return single.coordinate_std(self.domain.size) * self.factorization.error_std(t)

    def for_last(self, users: range) -> PrefixSum[X]:
        """The mechanism for the last ``users`` of a stream that ended early: the same.

        Raises:
            ValueError: charges are by arrival, which is for all users from the first on.
            HorizonError: more users than the horizon.
        """
        horizon = self.factorization.horizon
        if len(users) > horizon:
            raise HorizonError(f"users = {users!r} exceed horizon = {horizon}")
        if self.by_arrival and len(users) != horizon:
            raise ValueError(
                "by_arrival = True: users are charged by their place in the stream, from its first "
                "row on, so that no other stream can follow one that ended early"
            )
        return self

    def open(self, token: Token[B]) -> PrefixSumStream[X]:
        """Spends ``token`` for the whole stream.

        Raises:
            HorizonError: the token's users outnumber the horizon.
            AdjacencyError: the token is for another neighbour relation.
            TokenError: see `Token.spend`.
        """
        horizon = self.factorization.horizon
        if len(token.users) > horizon:
            raise HorizonError(f"users = {token.users!r} exceed horizon = {horizon}")
        return PrefixSumStream(self._spend, self._terms, token, self.adjacency)


def _visits(rule: Participation | None, slots: int) -> StreamVisits | None:
    return None if rule is None else visits_in_slots(rule, slots)


def stated_rule(rule: Participation | None) -> dict[str, Any]:
    """For a spend's parameters."""
    return {} if rule is None else {"participation": rule.to_dict()}


def stream_noise(std: float, exponent: float) -> GaussianNoise | GeneralizedGaussianNoise:
    """The noise of each row; 2 is Gaussian."""
    return GaussianNoise(std) if exponent == 2 else GeneralizedGaussianNoise(std, exponent)


class SummingStream(ReceiptStream[X]):
    """An open stream of running sums."""

    __slots__ = ("_domain", "_first", "_sums")

    def __init__(
        self, spend: Spend, terms: StreamTerms, token: Token[Any], adjacency: Adjacency
    ) -> None:
        super().__init__(spend, token, adjacency)
        self._domain, self._first = spend.domain, token.users.start
        self._sums = running_sums(self._receipt, spend, terms)

    def _values(self, rows: Rows[X]) -> NDArray[Any]:
        return self._next_rows(rows, self._sums.open_sums)

    def _noisy(self, values: NDArray[Any]) -> Array:
        return self._sums.after(values, self._next - self._first)


@final
class PrefixSumStream(SummingStream[X]):
    """An open stream; close it (or leave its ``with`` block) to retire the token."""

    __slots__ = ()

    def append(self, rows: Rows[X]) -> Released[Array]:
        """Adds the next rows and releases the running sum after each of them.

        Returns:
            shape (n, size), or (n, dim, dim) for `PSDTrace`.

        Raises:
            UsersError: not the next users of the stream.
        """
        return self._append(rows, slice(None))

    def advance(self, rows: Rows[X]) -> Released[Array]:
        """Adds the next rows and releases only the running sum after the last of them.

        Returns:
            shape (1, size), or (1, dim, dim) for `PSDTrace`.

        Raises:
            UsersError: as `append`.
        """
        return self._append(rows, slice(-1, None))

    def _append(self, rows: Rows[X], kept: slice) -> Released[Array]:
        with self._lock, self._receipt.round():  # one noise row is for one sum
            self._check_in_step()
            noisy = self._noisy(self._values(rows))
            released = self._receipt.publish(self._domain.decode(noisy[kept]))
            self._in_step = self._next
            return released
