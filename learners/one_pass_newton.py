"""One-pass Newton for the multinomial logit: every user in exactly one public batch.

Users come in public batches of growing size.  Within a batch everybody is served from the same
public belief about θ; at its end the gradient sum and the Hessian sum over that batch are
released, and the belief is updated (`privlearn.learners.newton_correlated`).  As every user is in
one batch, the noise of all may be correlated (`CorrelatedSums`) at the price of one release.  Plain
Gaussian sums, no exact minimiser, no order condition (compare objective perturbation).

Privacy: per user one vector in the unit ball, which holds the gradient and the Hessian
(`privlearn.learners.pooled_newton`); the guarantee is joint when users are served
(`select`/`observe`, `play`) and central when choices are logged (`partial_fit`).

Within a batch all users see the same belief, in which near-identical items look alike: the best K
would be variants of one another, of which users tell nothing but how one line sells.  So each
user's bonus of each item is moved by a public coin, from half to one and a half of its mean: as
long as a line may be the best, some of its items are among those shown.

Under a rule of participation persons come back, and persons are scarce, not visits: late batches
hold few that are still learned.  A person's visits in a batch are one contribution where the rule
is pooled, and how much a batch knows is taken from its released Hessian, as the number of rows that
were learned is data.  The best rule that was measured is ``Participation(most=1, pooled=True)``
(benchmarks/returning_people.py): everybody's first batch, with all visits in it.

Each batch has noise of its own where a person may be in several (``most`` above 1), as correlated
noise costs more there, and on a timetable (`Participation` with clock = 'timetable'), as a stream
takes one row for each slot.  There batches are stretches of time, in which any number of visits may
come: ``clock_`` is the present slot, and `skip` lets time pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.batch_sums import BatchSums, CorrelatedSums, IndependentSums
from privlearn.learners.batches import BatchLearner
from privlearn.learners.inputs import checked_offers, places_of
from privlearn.learners.newton import public_ends
from privlearn.learners.newton_correlated import MixedStatistics
from privlearn.learners.participation import given, one_row_budget, rule_of
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.pooled_newton import NewtonBall, contributions
from privlearn.learners.served import ServedMNL, Visit
from privlearn.learners.serving import Arrival, optimistic_items
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, Items
from privlearn.mechanisms.least_error import least_error
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Trust
from privlearn.values.validate import count, finite, not_negative, positive

_CLIP = 0.8


@final
@dataclass(eq=False, repr=False, kw_only=True)
class OnePassNewtonMNL(BatchLearner, ServedMNL):
    """Private MNL assortment learner (and MNL estimator for logged choices).

    Args:
        n_items: N, items on offer to every user.
        dim: d, features per item.
        max_items: K, the most items that may be shown; 1 <= K <= N.
        outside_option: whether users may choose nothing.
        first_batch: users in the first batch, who are shown items at random; default ⌈3·dim/√ρ⌉, at
            most an eighth of all.
        growth: ratio of consecutive batch sizes, > 1; default 1.2, and 1.5 for logged choices,
            where only the end counts.
        longest_batch: most users of a batch; default a thirtieth of all, or the first batch, and no
            limit for logged choices and under a rule of participation.
        gradient_clip: C, the size of a gradient that one contribution holds.  Default 0.8 of the
            root of the largest trace of a Hessian: that is 1, and 1/4 where users choose between
            one item and nothing.
        hessian_weight: weight of Hessians against gradients in a contribution: with less there is
            more noise on Hessians.
        prior_precision: precision of the prior belief about each coordinate of θ.
        exploration: α of the bonus α·(½ + U)·‖x‖_{P⁻¹} of an item, centred over the user's items,
            with U uniform on [0, 1), for each user and item anew, from public coins; 0 is greedy.
        feature_scale: public constant that features are divided by before each item is clipped
            into the unit ball.
        random_state: seed of the public coins.

    After `start`, ``theta_`` (d,) and ``precision_`` (d, d) are the public belief and ``clock_``
    the next arrival index.
    """

    _takes_timetables = True

    n_items: int
    dim: int
    max_items: int = 1
    outside_option: bool = True
    first_batch: int | None = None
    growth: float | None = None
    longest_batch: int | None = None
    gradient_clip: float | None = None
    hessian_weight: float = 1.0
    prior_precision: float = 3.0
    exploration: float = 0.8
    feature_scale: float = 1.0
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_market()
        if self.first_batch is not None:
            count(first_batch=self.first_batch)
        if self.growth is not None and finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        if self.longest_batch is not None:
            count(longest_batch=self.longest_batch)
        if self.gradient_clip is not None:
            positive(gradient_clip=self.gradient_clip)
        positive(hessian_weight=self.hessian_weight)
        positive(prior_precision=self.prior_precision)
        not_negative(exploration=self.exploration)

    def _plan(self) -> list[Plan]:
        return self._sums.plan()

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        rule = rule_of(accountant)
        self._pooled = rule is not None and rule.pooled
        self._ball = NewtonBall(
            self.dim, self._fixed("clip", lambda: self._clip(accountant)), self.hessian_weight
        )
        self._cut(accountant.users, self._fixed("ends", lambda: self._ends(accountant)))
        several = rule is not None and (rule.most > 1 or rule.clock == "timetable")
        self._sums = self._separate(accountant) if several else self._running(accountant)
        self._prepare_serving(accountant)
        self._released = MixedStatistics(
            self.dim,
            self.prior_precision,
            lambda batches: self._ball.clip**2 * self._sums.covariance(batches),
            lambda batches: self._sums.covariance(batches) / self.hessian_weight**2,
        )
        self.belief_ = self._released.belief

    def _clip(self, accountant: Accountant[Any]) -> float:
        """A Hessian is p(1 − p)·xxᵀ, of trace at most 1/4, if one item or nothing is chosen."""
        most = self.max_items if accountant.trust is Trust.JOINT else self.n_items
        largest = 0.25 if most == 1 and self.outside_option else 1.0
        return self.gradient_clip or _CLIP * math.sqrt(largest)

    def _ends(self, accountant: Accountant[Any]) -> list[int]:
        users, rho = len(accountant.users), float(accountant.budget.gaussian_mass() / 2)
        growth = self.growth or (1.2 if accountant.trust is Trust.JOINT else 1.5)
        longest = self.longest_batch or (None if self._early(accountant) else users)
        return public_ends(users, self.dim, rho, self.first_batch, growth, longest)

    def _early(self, accountant: Accountant[Any]) -> bool:
        """Whether early sums matter most: users are served, and late ones are learned as well."""
        return accountant.trust is Trust.JOINT and rule_of(accountant) is None

    def _separate(self, accountant: Accountant[Any]) -> BatchSums[Array]:
        """Noise of its own for each batch, at what one row may cost."""
        adjacency = accountant.adjacency

        def calibrated() -> NoisySum[Array]:
            budget: Currency = one_row_budget(accountant, self._batches)
            return NoisySum.calibrated(self._ball.domain, budget, adjacency=adjacency)

        mechanism = self._fixed("sums", calibrated)
        return IndependentSums("sums", mechanism, self._batches, accountant)

    def _running(self, accountant: Accountant[Any]) -> BatchSums[Array]:
        """Correlated noise, priced for all visits of a person."""
        sizes = [len(batch) for batch in self._batches]
        shape = BufferedToeplitz.early if self._early(accountant) else least_error

        def calibrated() -> BatchedPrefixSum[Array]:
            budgets = PersonBudgets(accountant, [accountant.users], [len(sizes)])
            (made,) = budgets.sums([self._ball.domain], [sizes], factorization=shape)
            return made

        stream = self._fixed("sums", calibrated)
        return CorrelatedSums("sums", stream, self._batches, accountant)

    @property
    def theta_(self) -> Array:
        """The public estimate of θ, shape (d,)."""
        return self.belief_.mean

    @property
    def precision_(self) -> Array:
        """The public precision of the estimate, shape (d, d)."""
        return self.belief_.precision

    def _ties(self, n: int) -> Array:
        """Public coins, which break ties while all items look alike, and explore afterwards."""
        if self._batch == 0 or self.exploration > 0:
            return self._coins.random((n, self.n_items))
        return np.zeros((n, self.n_items))

    def _policy(self, visit: Visit) -> Items:
        return optimistic_items(
            visit[0],
            self.belief_,
            max_items=self.max_items,
            exploration=self.exploration if self._batch > 0 else 0.0,
            coins=True,
            scale=self.feature_scale,
            shuffled=self._batch == 0,
        )

    def partial_fit(
        self,
        features: ArrayLike,
        choices: ArrayLike,
        *,
        offered: NDArray[np.bool_] | None = None,
        people: Sequence[Any] | None = None,
        slots: ArrayLike | None = None,
    ) -> Self:
        """Learns from logged choices, under a central accountant.

        Args:
            features: shape (n, N, d), the next n users; an array, or a list of rows.
            choices: chosen item per user, shape (n,); `NO_ITEM` for no purchase.
            offered: which items each user saw, shape (n, N); default all (``max_items`` is not
                used).  Features of the others are not read.
            people: under a rule of participation, and only then, who the users are, n ids; None, an
                empty one and nan: nobody who can be told apart, whose row is null.
            slots: on a timetable when each of them came, as `play` takes them.

        Rows that are no numbers of the right shape, and choices that name no item, count as null,
        each by itself; only ``private_messages_`` says so.

        Raises:
            ProvenanceError: the accountant is joint; people without a rule, or none with one.
            HorizonError: more users than are left.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: no array or list (of a frame, the choices can be a column), one of another
                type than numbers, or ids of another kind.
        """
        self._check_idle()
        self._check_logged()
        values = self._checked_block(features)
        places = places_of(choices, self.n_items, len(values))
        seen = checked_offers(offered, values.shape[:2])
        values = np.where(seen[..., None], values, 0.0)
        named = ((places[:, None] == np.arange(self.n_items)) & seen).any(axis=1)
        unanswered = ~(named | (self.outside_option & (places == NO_ITEM)))
        ids, nobody = self._who("people", people, given(people), len(values))
        unusable = self._unusable(values, np.ones((len(values), 1)))
        at = self._slots_of_next(slots, len(values))
        block, null = (values, places, seen), (unusable, unanswered, nobody)
        if at is None:
            self._take_logged(block, len(values), ids, self._logged, null)
            return self
        for part in self._parts(len(values), at):
            n = part.stop - part.start
            self.private_counts_.rows += n
            rows = self._sealed_next(tuple(field[part] for field in block), n)
            if ids is not None and self._accountant.people is not None:
                rows = self._accountant.people.admit(rows, ids[part])
            self._tell([self.clock_] * n, unusable[part], unanswered[part], nobody[part])
            self._take(rows.map_rows(self._logged))
        return self

    def _logged(self, block: tuple[Array, Items, NDArray[np.bool_]]) -> Answer:
        features, choice, seen = block
        shown = np.where(seen, np.arange(self.n_items), NO_ITEM)
        blank = np.zeros(shown.shape)
        own = Arrival(features, blank, blank, blank)
        return self._answered(own, shown, choice)

    def _release(self, rows: Rows[Answer], batch: range) -> None:
        theta, number = self.belief_.mean, self._batch
        self._sums.begin(batch)
        total = self._sums.release(self._vectors(rows, theta), self._board, number)
        if total is not None:
            self._released.add(number, theta, *self._ball.read(total))
            self.belief_ = self._released.belief

    def _vectors(self, rows: Rows[Answer], theta: Array) -> Rows[Array]:
        outside = self.outside_option
        own = rows.map_rows(lambda answer: contributions(answer, theta, outside=outside))
        return (
            own.pool(self._ball.of_person()) if self._pooled else own.map_rows(self._ball.vectors)
        )

    def _learned_state(self) -> dict[str, Any]:
        return {"coins": self._coins.bit_generator.state, "evidence": self._released.to_dict()}
