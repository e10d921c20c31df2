r"""DP-HDB: a private high-dimensional contextual bandit, one θ_a per arm (Han et al., Algorithm 3).

Users come in public epochs.  In the first one (the warm-up) arms are pulled in turn; from then on
everybody gets the arm with the highest x·θ_a, after a pre-selection by the warm-up estimates if
wanted.  At the end of an epoch all K arms together make one step: every user has one increment
−φ'(x·θ_a; r)·x, of the arm a that was pulled, and the null increment 0 for all other arms (the
synthetic update of the paper).  What is released is the K sums of increments plus Gaussian noise,
and what follows from it stands in `hdb_epochs`.  The paper's own mechanism, report-noisy-max, is
`privlearn_studies.rivals.noisy_max_epochs`.

Privacy: the sums of all epochs are one stream (`BatchedPrefixSum`), in which a user is in one row,
and within it in the sums of one arm: `OneOf` charges the maximum over arms, not their sum
(errata 14).  What a user is served depends on releases and on that user's own context: joint DP
(``docs/proofs.md``).  The user's own arm is seen by that user and is not protected against that
user.

Under a rule of participation the stream is priced for all rows of a person, in whatever arms; where
the rule is pooled, those of one epoch are one increment, of the arm that the person got most often
(`pooled_increments`).  Lengths and steps stay those of the public numbers of slots.

Repairs of the paper: every arm's clock is the number of users so far, whichever arm they got (null
increments advance it), so weights are public: dividing by true pull counts would leak, and a global
clock after the warm-up would give early users up to K times the weight that was paid for.  The null
increment of the linear and of the logistic model is 0 for every θ, because its context is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.batch_sums import BatchSums
from privlearn.learners.batches import BatchLearner, ranges
from privlearn.learners.contextual import (
    Arms,
    Feedback,
    ServedBandit,
    best_in_turn,
    in_turn,
    scores,
)
from privlearn.learners.hdb_epochs import CorrelatedEpochs, Epochs, EpochSetting, epoch_ends
from privlearn.learners.inputs import numbers_from
from privlearn.learners.participation import one_row_budget, rule_of
from privlearn.mechanisms.scalar_objectives import ScalarObjective, code_of
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.values.validate import count, positive, within

Increments = tuple[Array, Arms]
"""Blocks of increments (n, d), and the arms (n,) they belong to."""


def pooled_increments(own: Increments) -> Increments:
    """One increment of all of one person's in an epoch: their sum, of the arm with the most.

    Of arms pulled equally often it is the one that came first.  No reward decides which.
    """
    values, arms = own
    usable = np.isfinite(values).all(axis=1)
    if not usable.any():
        return values[0], arms[0]
    often = (arms[usable, None] == arms[usable]).sum(axis=1)
    chosen = usable & (arms == arms[usable][often.argmax()])
    total: Array = values[chosen].sum(axis=0)
    return total, arms[chosen][0]


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DPHDB(BatchLearner, ServedBandit):
    """Private high-dimensional contextual bandit with K arms.

    Args:
        n_arms: K >= 2.
        dim: d.
        loss: ``"squared"`` (linear rewards, clipped to ±``reward_bound``), ``"logistic"`` (rewards
            0 and 1), or a `ScalarObjective` whose derivative in the score is φ'.
        context_bound: public bound on context entries, which are clamped to it.
        reward_bound: public bound on rewards, for squared loss.
        method: ``"gaussian"``, which is `CorrelatedEpochs()`, or epochs with other constants.
        first_epoch: users of the warm-up, whose arms are pulled in turn; default: what the noise
            requires, at most an eighth of the horizon.
        preselection: h: after the warm-up, only arms within h/2 of the best by the warm-up
            estimates are pulled; default: all arms.
        radius: of the ℓ1 ball that θ_a is kept in, in units of the usual score (the reward bound).
        curvature: public guess of the mean square of a context entry over ``context_bound``²;
            default 1/(2·ln d), that of Gaussian contexts scaled by their largest entry.
        random_state: taken for the sake of a common interface; there are no coins.

    After `start`, ``coef_`` (K, d) are the public estimates for contexts as sent, and ``clock_`` is
    the next arrival index.
    """

    n_arms: int
    dim: int
    loss: Literal["squared", "logistic"] | ScalarObjective = "squared"
    context_bound: float = 1.0
    reward_bound: float = 1.0
    method: Literal["gaussian"] | Epochs = "gaussian"
    first_epoch: int | None = None
    preselection: float | None = None
    radius: float = 2.0
    curvature: float | None = None
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_bandit()
        if not isinstance(self.method, str | Epochs):
            raise TypeError(f"method = {self.method!r}: must be 'gaussian' or CorrelatedEpochs")
        if self.first_epoch is not None:
            count(first_epoch=self.first_epoch)
        if self.preselection is not None:
            positive(preselection=self.preselection)
        positive(radius=self.radius)
        if self.curvature is not None:
            within("(0, 1]", curvature=self.curvature)

    def _setting(self, accountant: Accountant[Any]) -> EpochSetting:
        loss = self._loss
        slope = loss.slope / 2 if math.isfinite(loss.slope) else loss.unit or 1.0
        curvature = self.curvature or 1 / max(2 * math.log(self.dim), 1.0)
        return EpochSetting(
            self.n_arms,
            self.dim,
            len(accountant.users),
            slope=slope,
            kept=math.isfinite(loss.slope),
            bend=loss.curvature,
            curvature=curvature,
            radius=self.radius * slope / loss.curvature,
            budget=accountant.budget,
            adjacency=accountant.adjacency,
        )

    # Life ----------------------------------------------------------------------------------------

    def _plan(self) -> list[Plan]:
        return self._sums.plan()

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        self._method = self._fixed("method", self._epochs)
        users, rule = accountant.users, rule_of(accountant)
        self._cut(users, self._fixed("ends", lambda: self._ends(accountant)))
        sizes = [len(batch) for batch in self._batches]
        setting = self._fixed("setting", lambda: self._setting_of_row(accountant))
        method = self._method
        steps = self._fixed("steps", lambda: method.steps(setting, sizes, accountant))
        self._pooled = rule is not None and rule.pooled
        self._sums: BatchSums[Increments] = method.sums(steps, self._batches, accountant)
        self._estimate = method.estimate(setting, self._sums)
        self._warm = self._estimate.theta
        self._prepare_serving(accountant)

    def _epochs(self) -> Epochs:
        if not isinstance(self.method, str):
            return self.method
        if self.method != "gaussian":
            raise ValueError(f"method = {self.method!r}: must be 'gaussian' or CorrelatedEpochs")
        return CorrelatedEpochs()

    def _ends(self, accountant: Accountant[Any]) -> list[int]:
        setting = self._setting(accountant)
        ends = self._ends_for(setting)
        if rule_of(accountant) is None:
            return ends
        # the noise depends on the number of epochs, and the warm-up on it
        row = one_row_budget(accountant, ranges(accountant.users, ends))
        return self._ends_for(setting._replace(budget=row))

    def _ends_for(self, setting: EpochSetting) -> list[int]:
        first = self.first_epoch or self._method.first_length(setting)
        if first > setting.horizon:
            raise ValueError(f"first_epoch = {first}: must be at most {setting.horizon}, all users")
        return epoch_ends(setting.horizon, first, self._method.growth)

    def _setting_of_row(self, accountant: Accountant[Any]) -> EpochSetting:
        return self._setting(accountant)._replace(budget=one_row_budget(accountant, self._batches))

    @property
    def coef_(self) -> Array:
        """The public estimates θ_a for contexts as sent, shape (K, d)."""
        return self._estimate.theta / self.context_bound

    def decision_function(self, contexts: Array) -> Array:
        """Scores x·θ_a of the public estimates, shape (n, K)."""
        return scores(numbers_from("contexts", contexts), self.coef_)

    # Serving -------------------------------------------------------------------------------------

    def _arms(self, contexts: Array, turn: Arms) -> Arms:
        if self._batch == 0:
            return in_turn(turn, self.n_arms)
        values = scores(contexts, self._estimate.theta)
        if self.preselection is not None:
            early = scores(contexts, self._warm)
            out = early < early.max(axis=1, keepdims=True) - self.preselection / 2
            values = np.where(out, -np.inf, values)
        return best_in_turn(values, turn)

    # Learning ------------------------------------------------------------------------------------

    def _release(self, rows: Rows[Feedback], epoch: range) -> None:
        self._sums.begin(epoch)
        released = self._sums.release(self._contributions(rows), self._board, self._batch)
        if released is not None:
            self._estimate.learn(self._batch, released)
        if self._batch == 0:
            self._warm = self._estimate.theta

    def _contributions(self, rows: Rows[Feedback]) -> Rows[Increments]:
        theta, scale = self._estimate.theta, self._estimate.scale

        def increments(feedback: Feedback) -> Increments:
            return self._increments(feedback, theta, scale)

        made = rows.map_rows(Calls(increments, (code_of(self._loss), self)))
        return made.pool(pooled_increments) if self._pooled else made

    def _increments(self, feedback: Feedback, theta: Array, scale: Array) -> Increments:
        """−φ'(x·θ_a; r)·x of each user's own arm, times the scale of its coordinates."""
        score = np.einsum("nd,nd->n", feedback.context, theta[feedback.arm])
        slopes = -self._loss.derivative(score, feedback.reward)
        return slopes[:, None] * feedback.context * scale[feedback.arm], feedback.arm

    # Public state --------------------------------------------------------------------------------

    def _learned_state(self) -> dict[str, Any]:
        return {
            "epochs": [[epoch.start, epoch.stop] for epoch in self._batches],
            "warm": self._warm.tolist(),
            **self._estimate.state(),
        }
