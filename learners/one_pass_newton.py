"""One-pass Newton for the multinomial logit: every user in exactly one public batch.

Users come in public batches of growing size.  Within a batch everybody is served from the same
public belief about θ; at its end the gradient sum and the Hessian sum over that batch are
released, and the belief is updated (`privlearn.learners.newton`).  As every user is in one batch,
each batch may spend the whole budget: parallel composition over public batches.  Plain Gaussian
sums, no exact minimiser, no order condition (compare objective perturbation).

Privacy: per user one gradient (ℓ2 ball of radius ``gradient_clip``) and one Hessian (PSD, trace
at most ``trace_bound``); the guarantee is joint when users are served (`select`/`observe`, `play`)
and central when choices are logged (`partial_fit`).

Under a rule of participation persons come back, and persons are scarce, not visits: late batches
hold few that are still learned.  Noise of its own would then cost a batch too much, so where each
person is in one batch the noise of all is correlated (`CorrelatedSums`); a person's visits in a
batch are one contribution where the rule is pooled (`privlearn.learners.pooled_newton`); and how
much a batch knows is taken from its released Hessian, as the number of rows that were learned is
data (`privlearn.learners.newton_correlated`).  The best rule that was measured is
``Participation(most=1, pooled=True)`` (benchmarks/returning_people.py): everybody's first batch,
with all visits in it.

On a timetable (`Participation` with clock = 'timetable') batches are stretches of time, in which
any number of visits may come: ``clock_`` is the present slot, and `skip` lets time pass.  A stream
takes one row for each slot, so that there the noise of each batch is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import ProvenanceError
from privlearn.learners.batch_sums import BatchSums, CorrelatedSums, IndependentSums
from privlearn.learners.batches import BatchLearner
from privlearn.learners.inputs import places_of
from privlearn.learners.newton import BatchStatistics, batch_ends, default_first_batch
from privlearn.learners.newton_correlated import MixedStatistics
from privlearn.learners.participation import given, one_row_budget, rule_of
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.pooled_newton import contributions, pooled, scaled
from privlearn.learners.served import ServedMNL, Visit
from privlearn.learners.serving import Arrival, optimistic_items
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, Items, gradients, hessian_factors
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Domain, PSDTrace
from privlearn.values.adjacency import Trust
from privlearn.values.exact import exact
from privlearn.values.validate import count, finite, not_negative, positive, within


@final
@dataclass(eq=False, repr=False, kw_only=True)
class OnePassNewtonMNL(BatchLearner, ServedMNL):
    """Private MNL assortment learner (and MNL estimator for logged choices).

    Args:
        n_items: N, items on offer to every user.
        dim: d, features per item.
        max_items: K, the most items that may be shown; 1 <= K <= N.
        outside_option: whether users may choose nothing.
        first_batch: users in the first batch; default `default_first_batch`, at four times the
            budget where noise is correlated.
        growth: ratio of consecutive batch sizes, > 1; default 1.5, and 1.2 where noise is
            correlated.
        gradient_clip: ℓ2 bound C on one user's gradient.
        trace_bound: bound on the trace of one user's Hessian; beyond it gradient and Hessian are
            scaled down together.  Default 1, which no single answer exceeds, and 0.7 under a rule.
        correlated: whether the noise of the batches is correlated; default under rules with
            ``most=1`` only, as it costs more where a person is in several batches.  After a restart
            the rest of the batches has noise of its own, if ``most=1`` or there is no rule; under
            other rules nothing more is learned.
        hessian_share: part of the budget that pays for the Hessian sums, in (0, 1).
        prior_precision: precision of the prior belief about each coordinate of θ.
        exploration: α of the bonus α·‖x‖_{P⁻¹}, centred over the user's items; 0 is greedy.
        feature_scale: public constant that features are divided by before each item is clipped
            into the unit ball.
        random_state: seed of the public coins that break ties.

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
    gradient_clip: float = 1.0
    trace_bound: float | None = None
    correlated: bool | None = None
    hessian_share: float = 0.3
    prior_precision: float = 3.0
    exploration: float = 2.0
    feature_scale: float = 1.0
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_market()
        if self.first_batch is not None:
            count(first_batch=self.first_batch)
        if self.growth is not None and finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        positive(gradient_clip=self.gradient_clip)
        if self.trace_bound is not None:
            within("(0, 1]", trace_bound=self.trace_bound)
        if self.correlated not in (None, True, False):
            raise TypeError(f"correlated = {self.correlated!r}: must be True, False or None")
        within("(0, 1)", hessian_share=self.hessian_share)
        positive(prior_precision=self.prior_precision)
        not_negative(exploration=self.exploration)

    def _plan(self) -> list[Plan]:
        plans = zip(self._gradient.plan(), self._hessian.plan(), strict=True)
        return [plan for both in plans for plan in both]

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        rule = rule_of(accountant)
        timed = rule is not None and rule.clock == "timetable"
        if timed and self.correlated:
            raise ValueError(
                f"correlated = True with {rule}: a stream takes one row for each slot, and a "
                "timetable any number of them; leave it out, or use clock = 'arrivals'"
            )
        once = rule is not None and rule.most == 1 and not timed
        correlated = self._fixed(
            "correlated", lambda: once if self.correlated is None else self.correlated
        )
        default_bound = 1.0 if rule is None else 0.7
        self._bound = self._fixed("trace_bound", lambda: self.trace_bound or default_bound)
        ends = self._fixed("ends", lambda: self._ends(accountant, correlated))
        self._cut(accountant.users, ends)
        self._pooled = rule is not None and rule.pooled
        self._gradient, self._hessian = self._sums(accountant, correlated)
        self._prepare_serving(accountant)
        self._released: BatchStatistics | MixedStatistics
        if correlated or rule is not None:
            noise = self._gradient.covariance, self._hessian.covariance
            self._released = MixedStatistics(self.dim, self.prior_precision, *noise)
        else:
            stds = self._gradient.std, self._hessian.std
            self._released = BatchStatistics(self.dim, self.prior_precision, *stds)
        self.belief_ = self._released.belief()

    def _ends(self, accountant: Accountant[Any], correlated: bool) -> list[int]:
        users, rho = len(accountant.users), float(accountant.budget.gaussian_mass() / 2)
        # correlated noise ends with little in the totals, so that batches may begin small
        enough = 4 * rho if correlated else rho
        first = self.first_batch or default_first_batch(users, self.dim, enough)
        return batch_ends(users, first, self.growth or (1.2 if correlated else 1.5))

    def _domains(self) -> dict[str, tuple[Domain[Array], Fraction]]:
        share = exact("hessian_share", self.hessian_share)
        return {
            "gradient": (Ball(self.gradient_clip, self.dim), 1 - share),
            "hessian": (PSDTrace(self._bound, self.dim), share),
        }

    def _sums(self, accountant: Accountant[Any], correlated: bool) -> list[BatchSums[Array]]:
        """Each at what one row may cost, or running sums priced for all visits of a person."""

        def separate(domain: Domain[Array], part: Fraction) -> NoisySum[Array]:
            budget: Currency = one_row_budget(accountant, self._batches)
            share = budget.share(part)
            return NoisySum.calibrated(domain, share, adjacency=accountant.adjacency)

        def running(domain: Domain[Array], part: Fraction) -> BatchedPrefixSum[Array]:
            sizes = [len(batch) for batch in self._batches]
            budgets = PersonBudgets(accountant, [accountant.users], [len(sizes)])
            (made,) = budgets.sums([domain], [sizes], part)
            return made

        def sums(label: str, domain: Domain[Array], part: Fraction) -> BatchSums[Array]:
            if correlated:
                stream = self._fixed(label, lambda: running(domain, part))
                return CorrelatedSums(label, stream, self._batches, accountant)
            mechanism = self._fixed(label, lambda: separate(domain, part))
            return IndependentSums(label, mechanism, self._batches, accountant)

        return [sums(label, *domain) for label, domain in self._domains().items()]

    @property
    def theta_(self) -> Array:
        """The public estimate of θ, shape (d,)."""
        return self.belief_.mean

    @property
    def precision_(self) -> Array:
        """The public precision of the estimate, shape (d, d)."""
        return self.belief_.precision

    def _ties(self, n: int) -> Array:
        """Public coins, needed while the belief has not moved and all items look alike."""
        if self._batch == 0:
            return self._coins.random((n, self.n_items))
        return np.zeros((n, self.n_items))

    def _policy(self, visit: Visit) -> Items:
        return optimistic_items(
            visit[0],
            self.belief_,
            max_items=self.max_items,
            exploration=self.exploration if self._batch > 0 else 0.0,
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
        if self._accountant.trust is Trust.JOINT:
            raise ProvenanceError(
                "logged choices depend on offers made outside the billboard: a joint guarantee "
                "does not cover them; use a CentralAccountant"
            )
        values = self._checked_block(features)
        places = places_of(choices, self.n_items, len(values))
        seen = _checked_offers(offered, values.shape[:2])
        values = np.where(seen[..., None], values, 0.0)
        named = ((places[:, None] == np.arange(self.n_items)) & seen).any(axis=1)
        unanswered = ~(named | (self.outside_option & (places == NO_ITEM)))
        ids, nobody = self._who("people", people, given(people), len(values))
        unusable = self._unusable(values, np.ones((len(values), 1)))
        at = self._slots_of_next(slots, len(values))
        if not len(values):
            return self
        self.private_counts_.rows += len(values)
        if at is not None:
            for part in self._parts(len(values), at):
                own = (values[part], places[part], seen[part])
                rows = self._admitted(own, part.stop - part.start, ids and ids[part])
                now = [self.clock_] * (part.stop - part.start)
                self._tell(now, unusable[part], unanswered[part], nobody[part])
                self._take(rows.map_rows(self._logged))
            return self
        rows = self._admitted((values, places, seen), len(values), ids)
        self._tell(rows.users, unusable, unanswered, nobody)
        while self.clock_ < rows.users.stop:
            stop = min(self._batches[self._batch].stop, rows.users.stop)
            some = rows.slice(range(self.clock_, stop))
            self.clock_ = stop
            self._take(some.map_rows(self._logged))
        return self

    def _admitted(self, block: Any, n: int, ids: list[Any] | None) -> Rows[Any]:
        rows = self._sealed_next(block, n)
        if ids is None or self._accountant.people is None:
            return rows
        return self._accountant.people.admit(rows, ids)

    def _absent(self, users: range) -> Rows[Any]:
        if self._accountant.trust is Trust.JOINT:
            return super()._absent(users)
        if self._accountant.people is not None:
            self._accountant.people.skip_to(users.stop)
        # on a timetable the first of them may have its visits already, which this adds none to
        return Rows.null(users)

    def _logged(self, block: tuple[Array, Items, NDArray[np.bool_]]) -> Answer:
        features, choice, seen = block
        shown = np.where(seen, np.arange(self.n_items), NO_ITEM)
        blank = np.zeros(shown.shape)
        own = Arrival(features, blank, blank, blank)
        return self._answered(own, shown, choice)

    def _release(self, rows: Rows[Answer], batch: range) -> None:
        theta, number = self.belief_.mean, self._batch
        gradient, hessian = self._contributions(rows, theta)
        for sums in (self._gradient, self._hessian):
            sums.begin(batch)
        # both in any case: a stream takes every batch
        moved = self._gradient.release(gradient, self._board, number)
        bent = self._hessian.release(hessian, self._board, number)
        if moved is None or bent is None:
            return
        self._released.add(number, len(batch), theta, moved, bent)
        self.belief_ = self._released.belief()

    def _contributions(self, rows: Rows[Answer], theta: Array) -> tuple[Rows[Array], Rows[Array]]:
        outside = self.outside_option
        if self._bound == 1 and not self._pooled:
            return (
                rows.map_rows(lambda a: gradients(a, theta, outside=outside)),
                rows.map_rows(lambda a: hessian_factors(a, theta, outside=outside)),
            )
        own = rows.map_rows(lambda a: contributions(a, theta, outside=outside))
        one = own.pool(pooled(self._bound)) if self._pooled else own.map_rows(scaled(self._bound))
        return one.map_rows(lambda c: c.gradient), one.map_rows(lambda c: c.factors)

    def _learned_state(self) -> dict[str, Any]:
        return {"coins": self._coins.bit_generator.state, "evidence": self._released.to_dict()}


def _checked_offers(offered: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if offered is None:
        return np.ones(shape, dtype=bool)
    if not isinstance(offered, np.ndarray) or offered.dtype != bool or offered.shape != shape:
        told = getattr(offered, "dtype", type(offered).__name__), getattr(offered, "shape", "")
        raise ValueError(f"offered: {told[0]} {told[1]}: must be an array of bool, shape {shape}")
    return offered
