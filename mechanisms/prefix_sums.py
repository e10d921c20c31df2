"""Private prefix sums: one token for a whole stream, a noisy running total after every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import numpy as np

from privlearn._validate import Checked, Positive
from privlearn.adjacency import Adjacency, Calibration
from privlearn.budgets import B, Currency
from privlearn.domains import Array, Domain
from privlearn.errors import HorizonError
from privlearn.losses import Loss
from privlearn.mechanisms.factorization import BufferedToeplitz, Factorization
from privlearn.mechanisms.least_noise import (
    first_that_fits,
    gaussian_noise,
    generalized_gaussian_noise,
)
from privlearn.mechanisms.receipt_stream import ReceiptStream, StreamAdjacency
from privlearn.noise import GaussianNoise, GeneralizedGaussianNoise, SmoothExponent
from privlearn.rows import Rows
from privlearn.tokens import Released, Spend, Token

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class PrefixSum(Checked, Generic[X]):
    """Running sums of clipped contributions, released after every row of a stream.

    Releases A·x + B·z for the prefix-sum matrix A = B·C with iid Gaussian z of std ``noise_std``,
    which is post-processing of C·x + z.  One user changes one row of x by at most the domain's
    sensitivity, so the whole stream is a single Gaussian mechanism of mass
    (sensitivity·max_j‖C_j‖/noise_std)².  C is lower triangular and the noise Gaussian, so rows may
    be chosen after seeing earlier outputs (Denisov et al. 2022, Theorem 2.1).

    With an ``exponent`` p > 2 each row of z is generalized Gaussian in ℓp
    (`GeneralizedGaussianNoise`), and row t of C·x + z moves by C_tj·v when x_j moves by v.  Given
    the rows before, that costs ρ = (p−1)·C_tj²·‖v‖_p²/(2·noise_std²); zCDP adds up over adaptive
    releases, so the stream costs what one release with the sensitivity in ℓp times ‖C_j‖ does.

    Args:
        domain: what one user can contribute (use `PSDTrace` for sums of outer products).
        factorization: B and C; default in `calibrated` is the buffered Toeplitz one (BLT).
        noise_std: standard deviation of z per coordinate, unit of the sum.
        adjacency: replace-one or zero-out; under add-remove all later rows would shift.
        calibration: where ``noise_std`` comes from; for the ledger.
        by_arrival: charge each user for the own column of C, (sensitivity·‖C_j‖/noise_std)², where
            late ones are shorter; the horizon is then a fixed, public number.
        exponent: p in [2, 1000] of the noise; 2 is Gaussian, and never worse where measured.
    """

    domain: Domain[X]
    factorization: Factorization
    noise_std: Positive
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    calibration: Calibration = Calibration.PROVED
    by_arrival: bool = False
    exponent: SmoothExponent = 2.0

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
    ) -> PrefixSum[X]:
        """The least noise that ``budget`` allows for a stream of at most ``horizon`` rows.

        Args:
            domain: as above.
            budget: for the whole stream.
            horizon: the most rows.
            factorization: instead of the default one for that horizon.
            adjacency: as above.
            exponent: of the noise; None chooses by computed error between Gaussian noise and the
                least κ, as `least_noise`.

        Raises:
            TypeError: not exactly one of horizon and factorization.  CurrencyError, ValueError: as
            for `NoisySum.calibrated`.
        """
        if (horizon is None) == (factorization is None):
            raise TypeError("give either horizon or factorization")
        if factorization is None:
            assert horizon is not None
            factorization = BufferedToeplitz.fitted(horizon)
        norm = factorization.column_norm()
        if exponent != 2:
            single = generalized_gaussian_noise(domain, budget, exponent, adjacency)
            if single.exponent != 2:

                def made(std: float) -> PrefixSum[X]:
                    return cls(domain, factorization, std, adjacency, exponent=single.exponent)

                def fits(std: float) -> bool:
                    return budget.covers(budget.price(made(std).loss()))

                return made(first_that_fits(single.std * norm, fits))
        noise = gaussian_noise(domain, budget, adjacency, gain=norm)
        return cls(domain, factorization, noise.std, adjacency)

    def spend(self) -> Spend:
        """The statement for the ledger."""
        return Spend(
            "prefix-sum",
            self.domain,
            self._noise(),
            gain=self.factorization.column_norm(),
            parameters={
                "factorization": self.factorization.kind,
                **self.factorization.parameters(),
            },
            calibration=self.calibration,
            interactive=True,
            profile=self._profile() if self.by_arrival else (),
        )

    def _noise(self) -> GaussianNoise | GeneralizedGaussianNoise:
        if self.exponent == 2:
            return GaussianNoise(self.noise_std)
        return GeneralizedGaussianNoise(self.noise_std, self.exponent)

    def _profile(self) -> tuple[tuple[int, float], ...]:
        """Numbers of users and bounds on their column norms, in at most about 40 steps.

        Steps are halved towards the horizon, and each has the largest norm of its columns.
        """
        horizon = self.factorization.horizon
        if horizon is None:
            raise HorizonError("by_arrival = True: columns differ only up to a horizon")
        norms = [self.factorization.column_norm_at(j) for j in range(1, horizon + 1)]
        top = max(*norms, self.factorization.column_norm())
        steps: list[tuple[int, float]] = []
        start = 0
        while start < horizon:
            stop = start + max((horizon - start) // 2, 1)
            steps.append((stop - start, max(norms[start:stop])))
            start = stop
        return ((steps[0][0], top), *steps[1:])

    def loss(self) -> Loss:
        """The price of the whole stream."""
        return self.spend().loss(self.adjacency)

    def error_std(self, t: int) -> float:
        """Standard deviation per coordinate of the running sum after ``t`` >= 1 rows."""
        single = GeneralizedGaussianNoise(self.noise_std, self.exponent)
        return single.coordinate_std(self.domain.size) * self.factorization.error_std(t)

    def open(self, token: Token[B]) -> PrefixSumStream[X]:
        """Spends ``token`` for the whole stream.

        Raises:
            HorizonError: the token's users outnumber the horizon.  AdjacencyError: the token is for
            another neighbour relation.  TokenError: see `Token.spend`.
        """
        horizon = self.factorization.horizon
        if horizon is not None and len(token.users) > horizon:
            raise HorizonError(f"users = {token.users!r} exceed horizon = {horizon}")
        return PrefixSumStream(self.spend(), self.factorization, token, self.adjacency)


class SummingStream(ReceiptStream[X]):
    """An open stream of running sums, with the noise of a factorisation ahead."""

    __slots__ = ("__total", "_domain", "_noise")

    def __init__(
        self, spend: Spend, factorization: Factorization, token: Token[Any], adjacency: Adjacency
    ) -> None:
        super().__init__(spend, token, adjacency)
        self._domain, size = spend.domain, spend.domain.size
        self._noise = factorization.stream(lambda n: self._receipt.draw((n, size)))
        self.__total = np.zeros(size)

    def _sums(self, rows: Rows[X]) -> Array:
        """Sums of all rows so far, after each of the next ones; however these were cut."""
        values = self._opened(rows)
        values[0] += self.__total
        sums = values if len(values) == 1 else np.cumsum(values, axis=0)
        self.__total = sums[-1].copy()
        return sums


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
            As `append`.
        """
        return self._append(rows, slice(-1, None))

    def _append(self, rows: Rows[X], kept: slice) -> Released[Array]:
        with self._lock, self._receipt.round():  # one noise row is for one sum
            sums = self._sums(rows)
            noisy = sums + self._noise.next(len(sums))
            return self._receipt.publish(self._domain.decode(noisy[kept]))
