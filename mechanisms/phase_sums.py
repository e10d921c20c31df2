"""Private sums over phases: one token for a range of users, and an end of each phase in public.

A phase is a run of consecutive users.  `PhaseStream.begin` says where it ends, before the first of
them is served; `PhaseStream.end` opens the rows of all of them and releases their noisy sum.  The
end may depend on what was released before, and never on rows: so every user is in exactly one
released sum, whose noise alone protects the row, and the price of all of them is that of one sum
(docs/proofs.md, "Sums over phases").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.receipts import Released
from privlearn.contract.spends import PHASES, Spend
from privlearn.contract.tokens import Token
from privlearn.errors import HorizonError, UsersError
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency, PureDP
from privlearn.mechanisms.grids import grid_of
from privlearn.mechanisms.least_noise import gaussian_noise, laplace_noise
from privlearn.mechanisms.receipt_stream import OpenReceipt, StreamAdjacency
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import sum_of_rows
from privlearn.values.validate import Count, assign, check_fields

X = TypeVar("X")
Signs = NDArray[np.int8]
"""Public, shape (n, outputs): −1, 0 or 1, and at most one that is not 0 in each row."""


@final
@dataclass(frozen=True, slots=True)
class PhaseSum(Generic[X]):
    """Sums of clipped contributions over phases whose ends follow from what was released.

    Privacy: that of one sum, for any number of phases; `NoisySum` has the formulas.  A person with
    k rows moves all sums together by at most k sensitivities: k·ε, and at most k²·ρ.

    Args:
        domain: what one user can contribute.
        noise: on every number of every sum, in the unit of the data.
        horizon: the most users of one stream; integers of so many are added up exactly.
        outputs: numbers of sums in each release; public signs say to which of them a user's
            contribution is added, or from which it is taken away.
        adjacency: replace-one or zero-out.

    Raises:
        TypeError: noise of another family, or a domain that clips to no integers.
        ValueError: contributions are too large for the noise, see `Grid.fitting`.
    """

    domain: Domain[X]
    noise: LaplaceNoise | GaussianNoise
    horizon: Count
    outputs: Count = 1
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.noise, LaplaceNoise | GaussianNoise):
            raise TypeError(f"noise = {self.noise!r}: must be LaplaceNoise or GaussianNoise")
        grid = grid_of(self.domain, self.noise, self.horizon)
        if grid is None:
            raise TypeError(f"domain = {self.domain!r}: has no integers, which these sums are of")
        spend = Spend(
            "phase-sum",
            self.domain,
            self.noise,
            parameters={PHASES: {"horizon": self.horizon, "outputs": self.outputs}},
            interactive=True,
            grid=grid,
        )
        assign(self, _spend=spend)
        self.loss()

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        horizon: int,
        outputs: int = 1,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> PhaseSum[X]:
        """The least noise that ``budget`` allows: Laplace for PureDP, else Gaussian.

        Raises:
            CurrencyError: neither has a price in this currency.
            ValueError: a budget of zero; as the class.
        """
        make = laplace_noise if isinstance(budget, PureDP) else gaussian_noise
        return cls(domain, make(domain, budget, adjacency), horizon, outputs, adjacency)

    def spend(self) -> Spend:
        return self._spend

    def loss(self) -> Loss:
        """The price of all sums together, for one row."""
        return self._spend.loss(self.adjacency)

    def error_std(self) -> float:
        """Standard deviation of the noise on each number of one sum, unit of the data."""
        return math.sqrt(self.noise.variance(self.domain.size))

    def for_last(self, users: range) -> PhaseSum[X]:
        """The mechanism for the last ``users`` of a stream that ended early: the same.

        Raises:
            HorizonError: more users than the horizon.
        """
        if len(users) > self.horizon:
            raise HorizonError(f"users = {users!r} exceed horizon = {self.horizon}")
        return self

    def open(self, token: Token[B]) -> PhaseStream[X]:
        """Spends ``token`` for all phases.

        Raises:
            HorizonError: the token's users outnumber the horizon.
            AdjacencyError: the token is for another neighbour relation.
            TokenError: see `Token.spend`.
        """
        return PhaseStream(self.for_last(token.users), token)


@final
class PhaseStream(OpenReceipt[X]):
    """Open phases; the end of the last one retires the token.

    If it is closed before that its token ends ``lost``: its users whose rows were not opened are
    charged nothing, and those of a phase that was begun stay one phase for whoever goes on.
    """

    __slots__ = ("_domain", "_outputs", "_phase", "_signs", "_users")

    def __init__(self, mechanism: PhaseSum[X], token: Token[B]) -> None:
        self._domain, self._outputs = mechanism.domain, mechanism.outputs
        self._users, self._phase = token.users, range(token.users.start, token.users.start)
        self._signs: NDArray[np.int64] | None = None
        super().__init__(mechanism.spend(), token, mechanism.adjacency)

    @property
    def phase(self) -> range | None:
        """The users of the phase that was begun and has not ended; None between two."""
        return self._phase or None

    def begin(self, stop: int, signs: Signs | None = None) -> None:
        """Begins the phase of the next users, up to ``stop``, before any of them is served.

        It follows from what was released and from public numbers only, and so do the signs.
        Returns when the end stands in the ledger.

        Args:
            stop: one past the last of them.
            signs: what is added of each row, and to which sum; default: every row, to the one sum.

        Raises:
            UsersError: a phase is open, or it would not end among the users that are left.
            ValueError, TypeError: other signs; nothing is begun.
            LedgerError: after a restart, another end stands in the ledger.
            TokenSpentError: closed.
        """
        with self._lock:
            if self._phase:
                raise UsersError(f"the phase of {self._phase!r} is open: end it first")
            left = range(self._next, self._users.stop)
            if type(stop) is not int or not left.start < stop <= left.stop:
                raise UsersError(f"stop = {stop!r}: must lie in {left.start + 1}..{left.stop}")
            phase = range(self._next, stop)
            checked = None
            if signs is not None or self._outputs > 1:
                checked = _checked(signs, len(phase), self._outputs)
            self._receipt.begin_phase(stop)
            self._phase, self._signs = phase, checked

    def end(self, rows: Rows[X]) -> Released[Array]:
        """Opens the rows of the phase, null ones among them, and releases their noisy sums.

        Returns:
            shape (outputs,) where contributions are single numbers, else (outputs, size), or
            (outputs, dim, dim) for `PSDTrace`.

        Raises:
            UsersError: no phase is open, or the rows are of other users.
            DataError: of a form that the domain cannot use; nothing is opened.
            TokenSpentError: closed.
        """
        with self._lock, self._receipt.round():
            self._check_in_step()
            if not self._phase or rows.users != self._phase:
                raise UsersError(f"rows of {rows.users!r}: the open phase is of {self.phase!r}")
            total = self._total(self._next_rows(rows, self._receipt.open_integers))
            released = self._receipt.publish(self._noisy(total))
            self._in_step = self._next
            self._phase, self._signs = range(self._next, self._next), None
            if self._complete and not self.closed:
                self._receipt.close()
            return released

    def _total(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The exact sums, in steps, shape (outputs, size); the grid has room for them."""
        if self._signs is None:
            return sum_of_rows(values)[None]
        return np.asarray(np.einsum("ij,ik->jk", self._signs, values))

    def _noisy(self, total: NDArray[np.int64]) -> Array:
        grid = self._receipt.grid
        assert grid is not None
        noise = self._receipt.draw_integers(total.shape)
        found = self._domain.decode(grid.values(total + noise))
        return found[:, 0] if found.shape == (self._outputs, 1) else found

    def close(self) -> None:
        """Retires the token before its last phase ended; nothing more is released.

        Raises:
            TokenSpentError: closed before.
        """
        with self._lock:
            if self._complete or self.closed:
                self._receipt.close()
            else:
                self._receipt.abandon()

    @property
    def _complete(self) -> bool:
        return self._next == self._users.stop


def _checked(signs: Signs | None, users: int, outputs: int) -> NDArray[np.int64]:
    if signs is None:
        raise ValueError(f"signs = None: must say to which of {outputs} sums each row is added")
    if not isinstance(signs, np.ndarray) or signs.dtype.kind not in "iu":
        raise TypeError(f"signs = {signs!r:.80}: must be an array of integers")
    if signs.shape != (users, outputs):
        raise ValueError(f"signs of shape {signs.shape}: must be {(users, outputs)}")
    kept = signs.astype(np.int64)
    inside = (kept >= -1) & (kept <= 1)  # the size of −2⁶³ is no int64
    if not inside.all() or np.count_nonzero(kept, axis=1).max(initial=0) > 1:
        raise ValueError("signs: must be -1, 0 or 1, and at most one in a row may not be 0")
    return kept
