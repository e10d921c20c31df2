"""Private prefix sums over public batches: one token, a noisy running total after every batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import UsersError
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.least_error import least_error
from privlearn.mechanisms.prefix_sums import SummingStream, stated_rule
from privlearn.mechanisms.receipt_stream import StreamAdjacency
from privlearn.mechanisms.stream_terms import StreamTerms, least_std, stream_terms
from privlearn.mechanisms.stream_visits import visits_in_batches
from privlearn.noise import GaussianNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.validate import Positive, assign, check_fields, count

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class BatchedPrefixSum(Generic[X]):
    """Running sums of clipped contributions, released at the end of every public batch.

    With x_j the sum over batch j, this releases A·x + B·z as `PrefixSum` does, so there is noise
    for as many arrivals as there are batches.  The batches are fixed beforehand by counts, hence
    one user changes one x_j, by at most the domain's sensitivity: one Gaussian mechanism of mass
    (sensitivity·max_j‖C_j‖/noise_std)² for the whole stream, also if contributions are chosen after
    seeing earlier outputs (Denisov et al. 2022, Theorem 2.1).  Nothing leaves within a batch, and
    memory is O(size) besides the noise ahead.  Numbers are integers as there, and x_j is an exact
    sum; what rounding adds to the price grows with the largest batch.

    Args:
        domain: what one user can contribute.
        sizes: users in each batch.
        factorization: B and C over the batches.
        noise_std: standard deviation of z per coordinate, unit of the sum.
        adjacency: replace-one or zero-out.
        participation: how often one person may come back; the price is then that of a person with
            all visits, as for `PrefixSum`, and patterns are of batches (`stream_visits`).  A rule
            that counts within batches must count within these, or within longer ones that these
            divide.

    Raises:
        ValueError: no batches, or more than the factorisation has rows; as `PrefixSum`.
    """

    domain: Domain[X]
    sizes: tuple[int, ...]
    factorization: Factorization
    noise_std: Positive
    adjacency: StreamAdjacency = Adjacency.REPLACE_ONE
    participation: Participation | None = None
    _terms: StreamTerms = field(init=False, repr=False, compare=False)
    _spend: Spend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, tuple) or not self.sizes:
            raise ValueError(f"sizes = {self.sizes!r}: must be a tuple with one entry per batch")
        for size in self.sizes:
            count(size=size)
        check_fields(self)
        horizon = self.factorization.horizon
        if horizon < len(self.sizes):
            raise ValueError(f"factorization: for {horizon} batches, not {len(self.sizes)}")
        noise = GaussianNoise(self.noise_std)
        rule = self.participation
        terms = stream_terms(
            self.domain,
            noise,
            self.factorization,
            self.adjacency,
            max(self.sizes),
            None if rule is None else visits_in_batches(rule, self.sizes),
        )
        spend = Spend(
            "batched-prefix-sum",
            self.domain,
            noise,
            gain=terms.gain(),
            parameters={"sizes": list(self.sizes), **terms.parameters(), **stated_rule(rule)},
            interactive=True,
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
        sizes: Sequence[int],
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        participation: Participation | None = None,
        objective: Objective = "max",
        factorization: Factorization | None = None,
    ) -> BatchedPrefixSum[X]:
        """The least noise that ``budget`` allows, with least error over the batches.

        Args:
            domain, sizes, adjacency, participation: as above.
            budget: for the whole stream.
            objective: what error `least_error` makes least.
            factorization: another one than it finds, for at least as many batches; ``objective``
                is not used then.

        Raises:
            CurrencyError, ValueError: as for `NoisySum.calibrated`; no batches.
        """
        batches = tuple(sizes)
        visits = None
        if participation is not None and batches:
            visits = visits_in_batches(participation, batches)
        if factorization is None:
            factorization = least_error(max(len(batches), 1), visits, objective)
        used = factorization
        together = max(batches, default=1)

        def gain(std: float) -> float:
            noise = GaussianNoise(std)
            return stream_terms(domain, noise, used, adjacency, together, visits).gain()

        norm = factorization.column_norm() if visits is None else float(visits.norm(factorization))
        std = least_std(domain, budget, adjacency, gain, norm)
        return cls(domain, batches, factorization, std, adjacency, participation)

    def spend(self) -> Spend:
        return self._spend

    def loss(self) -> Loss:
        return self.spend().loss(self.adjacency)

    def error_std(self, batch: int) -> float:
        """Standard deviation per coordinate of the sum after ``batch`` >= 1 batches."""
        return self.noise_std * self.factorization.error_std(batch)

    def partial(self, rows: Rows[X]) -> PartialSum:
        """The sealed sum over ``rows`` of one batch, for `BatchedStream.append_partial`.

        Partial sums add up to the integers that one sum over all rows of the batch would be, in any
        order and on any number of machines (`privlearn.rows.merge`).

        Raises:
            ValueError: the domain is somebody's own, without integers.
            TypeError: no rows.
        """
        return partial_sum(self._spend, rows)

    def for_last(self, users: range) -> BatchedPrefixSum[X]:
        """The mechanism for the last ``users`` of a stream that ended early; costs no more.

        Its batches end where they did; the first may be a part of one.

        Raises:
            UsersError: no users, or more than the stream has.
        """
        missing = sum(self.sizes) - len(users)
        if not missing:
            return self
        if missing < 0 or not users:
            raise UsersError(f"users = {users!r}: must be some of the last {sum(self.sizes)}")
        ends = [end - missing for end in accumulate(self.sizes) if end > missing]
        sizes = tuple(b - a for a, b in pairwise([0, *ends]))
        return replace(self, sizes=sizes)

    def open(self, token: Token[B]) -> BatchedStream[X]:
        """Spends ``token`` for the whole stream.

        Raises:
            UsersError: the token's users are not those of the batches, or the rule of participation
                counts within others.
            AdjacencyError: the token is for another neighbour relation.
            TokenError: see `Token.spend`.
        """
        if len(token.users) != sum(self.sizes):
            raise UsersError(f"users = {token.users!r}: the batches hold {sum(self.sizes)}")
        if self.participation is not None and self.participation.batched:
            starts = accumulate(self.sizes, initial=token.users.start)
            token.check_batches(self.participation, list(starts))
        return BatchedStream(self, token)


@final
class BatchedStream(SummingStream[X]):
    """An open stream; it retires the token with its last batch."""

    __slots__ = ("_batch", "_ends", "_total")

    def __init__(self, mechanism: BatchedPrefixSum[X], token: Token[B]) -> None:
        super().__init__(mechanism._spend, mechanism._terms, token, mechanism.adjacency)
        self._total: NDArray[Any] | None = None  # of the open batch
        self._ends = [token.users.start + int(end) for end in np.cumsum(mechanism.sizes)]
        self._batch = 0

    @property
    def next_end(self) -> int:
        """The arrival index at which the open batch ends.

        Raises:
            UsersError: all batches have ended.
        """
        if self._complete:
            raise UsersError("the last batch has ended")
        return self._ends[self._batch]

    def append(self, rows: Rows[X]) -> Released[Array] | None:
        """Adds the next rows, all of one batch; releases the running sum if they complete it.

        Returns:
            shape (size,), or (dim, dim) for `PSDTrace`; None within a batch.

        Raises:
            UsersError: not the next users of the stream, or of more than one batch.
        """
        with self._lock, self._receipt.round():
            self._check_in_step()
            self._check_batch(rows.users)
            return self._added(self._values(rows))

    def append_partial(self, total: PartialSum) -> Released[Array] | None:
        """As `append`, for the sum of the next rows, which `BatchedPrefixSum.partial` made.

        Raises:
            UsersError: as `append`, or users are left out.
            ValueError: another mechanism made it.
            TypeError: no partial sum.
        """
        if not isinstance(total, PartialSum):
            raise TypeError(f"total: must be a PartialSum, not {type(total).__name__}")
        with self._lock, self._receipt.round():
            self._check_in_step()
            users = range(total.users[0].start, total.users[-1].stop)
            if len(total.users) > 1 or users.start != self._next:
                raise UsersError(f"the stream is at user {self._next}, not at {total!r}")
            self._check_batch(users)
            values = self._sums.opened_total(total)
            self._next = users.stop
            return self._added(values)

    def _check_batch(self, users: range) -> None:
        if users.stop > self.next_end:
            raise UsersError(
                f"the stream is at user {self._next} and its batch ends before {self.next_end}; "
                f"the rows are {users!r}"
            )

    def _added(self, values: NDArray[Any]) -> Released[Array] | None:
        if self._total is not None:
            values[0] += self._total
        self._total = np.add.accumulate(values, axis=0)[-1]
        if self._next < self.next_end:
            self._in_step = self._next
            return None
        self._batch += 1
        noisy = self._noisy(self._total[None])[0]
        self._total = None
        released = self._receipt.publish(self._domain.decode(noisy))
        self._in_step = self._next
        if self._complete and not self.closed:  # it is, if its process died before it wrote so
            self._receipt.close()
        return released

    @property
    def _complete(self) -> bool:
        return self._batch == len(self._ends)


def even_sizes(users: int, batches: int) -> tuple[int, ...]:
    """So many batches (at most one per user) of nearly equal sizes."""
    parts = min(count(batches=batches), count(users=users))
    ends = np.round(np.linspace(0, users, parts + 1)).astype(int).tolist()
    return tuple(stop - start for start, stop in pairwise(ends))
