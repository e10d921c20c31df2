"""One-pass Newton for the multinomial logit: every user in exactly one public batch.

Users come in public batches of growing size.  Within a batch everybody is served from the same
public belief about θ; at its end the gradient sum and the Hessian sum over that batch are
released, and the belief is updated (`privlearn.learners.newton`).  As every user is in one batch,
each batch may spend the whole budget: parallel composition over public batches.  Plain Gaussian
sums, no exact minimiser, no order condition (compare objective perturbation).

Privacy: per user one gradient (ℓ2 ball of radius ``gradient_clip``) and one Hessian (PSD, trace
at most 1), replace-one; the guarantee is joint when users are served (`select`/`observe`, `play`)
and central when choices are logged (`partial_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn._validate import count, finite, not_negative, positive, within
from privlearn.adjacency import Trust
from privlearn.budgets import Currency
from privlearn.domains import Array, Ball, PSDTrace
from privlearn.errors import ProvenanceError
from privlearn.exact import exact
from privlearn.learners.checkpoint import BatchLearner
from privlearn.learners.inputs import places_of
from privlearn.learners.newton import BatchStatistics, batch_ends, default_first_batch
from privlearn.learners.served import ServedMNL, Visit
from privlearn.learners.serving import (
    Arrival,
    optimistic_items,
)
from privlearn.mechanisms import NoisySum
from privlearn.mnl import NO_ITEM, Answer, Items, gradients, hessian_factors
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows


@final
@dataclass(eq=False, repr=False, kw_only=True)
class OnePassNewtonMNL(BatchLearner, ServedMNL):
    """Private MNL assortment learner (and MNL estimator for logged choices).

    Args:
        n_items: N, items on offer to every user.
        dim: d, features per item.
        max_items: K, the most items that may be shown; 1 <= K <= N.
        outside_option: whether users may choose nothing.
        first_batch: users in the first batch; default `default_first_batch`.
        growth: ratio of consecutive batch sizes, > 1.
        gradient_clip: ℓ2 bound C on one user's gradient.
        hessian_share: part of the budget that pays for the Hessian sums, in (0, 1).
        prior_precision: precision of the prior belief about each coordinate of θ.
        exploration: α of the bonus α·‖x‖_{P⁻¹}, centred over the user's items; 0 is greedy.
        feature_scale: public constant that features are divided by before each item is clipped
            into the unit ball.
        random_state: seed of the public coins that break ties.

    After `start`, ``theta_`` (d,) and ``precision_`` (d, d) are the public belief and ``clock_``
    the next arrival index.
    """

    _format = ("privlearn_learner", 1)
    _batch_field = "batch"
    _labels = ("gradient", "hessian")

    n_items: int
    dim: int
    max_items: int = 1
    outside_option: bool = True
    first_batch: int | None = None
    growth: float = 1.5
    gradient_clip: float = 1.0
    hessian_share: float = 0.3
    prior_precision: float = 3.0
    exploration: float = 2.0
    feature_scale: float = 1.0
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_market()
        if self.first_batch is not None:
            count(first_batch=self.first_batch)
        if finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        positive(gradient_clip=self.gradient_clip)
        within("(0, 1)", hessian_share=self.hessian_share)
        positive(prior_precision=self.prior_precision)
        not_negative(exploration=self.exploration)

    # Life ----------------------------------------------------------------------------------------

    def _plan(self) -> list[Plan]:
        return [
            Plan(label, mechanism.loss(), users)
            for users in self._batches
            for label, mechanism in (("gradient", self._gradient), ("hessian", self._hessian))
        ]

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        budget: Currency = accountant.budget
        adjacency = accountant.adjacency
        share = exact("hessian_share", self.hessian_share)
        self._gradient = NoisySum.calibrated(
            Ball(self.gradient_clip, self.dim),
            budget.share(1 - share),
            adjacency=adjacency,
        )
        self._hessian = NoisySum.calibrated(
            PSDTrace(1.0, self.dim), budget.share(share), adjacency=adjacency
        )
        users = accountant.users
        rho = float(budget.gaussian_mass() / 2)
        first = self.first_batch or default_first_batch(len(users), self.dim, rho)
        self._cut(users, batch_ends(len(users), first, self.growth))
        self._prepare_serving(accountant)
        self._released = BatchStatistics(
            self.dim,
            self.prior_precision,
            gradient_std=self._gradient.error_std(),
            hessian_std=self._hessian.error_std(),
        )
        self.belief_ = self._released.belief()

    @property
    def theta_(self) -> Array:
        """The public estimate of θ, shape (d,)."""
        return self.belief_.mean

    @property
    def precision_(self) -> Array:
        """The public precision of the estimate, shape (d, d)."""
        return self.belief_.precision

    # Serving -------------------------------------------------------------------------------------

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

    # Learning ------------------------------------------------------------------------------------

    def partial_fit(self, features: ArrayLike, choices: ArrayLike) -> Self:
        """Learns from logged choices, under a central accountant.

        Each logged user saw all N items (``max_items`` is not used).

        Args:
            features: shape (n, N, d), the next n users; an array, or a list of rows.
            choices: chosen item per user, shape (n,); `NO_ITEM` for no purchase.

        Rows that are no numbers of the right shape, and choices that name no item, count as null,
        each by itself; only ``private_messages_`` says so.

        Raises:
            ProvenanceError: the accountant is joint.  HorizonError: more users than are left.
            ValueError: an array of numbers of the wrong shape, blocks of different lengths.
            TypeError: no array or list (of a frame, the choices can be a column).
        """
        self._check_idle()
        if self._accountant.trust is Trust.JOINT:
            raise ProvenanceError(
                "logged choices depend on offers made outside the billboard: a joint guarantee "
                "does not cover them; use a CentralAccountant"
            )
        values = self._checked_block(features)
        places = places_of(choices, self.n_items, len(values))
        users = range(self.clock_, self.clock_ + len(values))
        named = (places >= 0) & (places < self.n_items)
        unanswered = ~(named | (self.outside_option & (places == NO_ITEM)))
        self._tell(users, self._unusable(values, np.ones((len(values), 1))), unanswered)
        rows = Rows._of_own((values, places), users)
        while self.clock_ < rows.users.stop:
            stop = min(self._batches[self._batch].stop, rows.users.stop)
            part = rows.slice(range(self.clock_, stop))
            self.clock_ = stop
            self._take(part.map_rows(self._logged))
        return self

    def _absent(self, users: range) -> Rows[Any]:
        if self._accountant.trust is Trust.JOINT:
            return super()._absent(users)
        return Rows.null(users)

    def _logged(self, block: tuple[Array, Items]) -> Answer:
        features, choice = block
        shown = np.broadcast_to(np.arange(self.n_items), features.shape[:2])
        blank = np.zeros(shown.shape)
        own = Arrival(features, blank, blank, blank)
        return self._answered(own, shown, lambda own, shown: choice)

    def _release(self, rows: Rows[Answer], batch: range) -> None:
        theta, outside = self.belief_.mean, self.outside_option
        gradient = self._gradient.release(
            rows.map_rows(lambda a: gradients(a, theta, outside=outside)),
            self._accountant.issue(self._gradient.loss(), users=batch, label="gradient"),
        )
        hessian = self._hessian.release(
            rows.map_rows(lambda a: hessian_factors(a, theta, outside=outside)),
            self._accountant.issue(self._hessian.loss(), users=batch, label="hessian"),
        )
        self._released.add(
            len(batch),
            theta,
            self._board.post(f"gradient/{self._batch}", gradient),
            self._board.post(f"hessian/{self._batch}", hessian),
        )
        self.belief_ = self._released.belief()

    # Public state --------------------------------------------------------------------------------

    def _saved_state(self) -> dict[str, Any]:
        return {"coins": self._coins.bit_generator.state, "evidence": self._released.to_dict()}

    def _restore(self, state: dict[str, Any]) -> None:
        self.belief_ = self._released.restored(state["evidence"]).belief()
        self._coins.bit_generator.state = state["coins"]
