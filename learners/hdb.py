r"""DP-HDB: a private high-dimensional contextual bandit, one θ_a per arm (Han et al., Algorithm 3).

Users come in public epochs.  In the first one (the warm-up) arms are pulled in turn; from then on
everybody gets the arm with the highest x·θ_a, after a pre-selection by the warm-up estimates if
wanted.  At the end of an epoch all K arms together make one step: every user has one increment
−φ'(x·θ_a; r)·x, of the arm a that was pulled, and the null increment 0 for all other arms (the
synthetic update of the paper).  What is released is the K sums of increments plus Gaussian noise.
With U_k = θ + (step/n)·sum, the estimates are pooled over epochs with weights 1/variance that are
forgotten geometrically, and soft-thresholded at a multiple of the noise that is left (entries far
above it are kept whole).  A share of every epoch's budget, ``GaussianEpochs(moments=share)``,
releases Σxxᵀ of all its users, and steps are damped along the directions that stand out of it.  The
paper's own mechanism, report-noisy-max, is `privlearn_studies.rivals.noisy_max_epochs`.

Privacy: a user is in one epoch, so every epoch may spend the whole budget (parallel composition
over public batches), and within it in the sums of one arm: `OneOfK` charges the maximum over arms,
not their sum (errata 14).  Σxxᵀ is one more Gaussian sum, of the contexts only.  What a user is
served depends on releases and on that user's own context: joint DP (``docs/proofs.md``).  The
user's own arm is seen by that user and is not protected against that user.

Under a rule of participation an epoch costs a person what all of the person's rows in it do, in
whatever arms; where the rule is pooled, they are one increment, of the arm that the person got most
often (`pooled_parts`).  Lengths and steps stay those of the public numbers of slots.  Everybody's
first epoch, or two, did equally well, and five did worse (benchmarks/returning_others.py).

Repairs of the paper: every arm's clock is the number of users so far, whichever arm they got (null
increments advance it), so weights are public: dividing by true pull counts would leak, and a global
clock after the warm-up would give early users up to K times the weight that was paid for.  The null
increment of the linear and of the logistic model is 0 for every θ, because its context is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.batches import BatchLearner, ranges
from privlearn.learners.contextual import (
    Arms,
    Feedback,
    ServedBandit,
    best_in_turn,
    in_turn,
    scores,
)
from privlearn.learners.hdb_epochs import (
    Epochs,
    EpochSetting,
    Estimate,
    GaussianEpochs,
    Moments,
    epoch_ends,
)
from privlearn.learners.inputs import numbers_from
from privlearn.learners.participation import one_row_budget, rule_of
from privlearn.mechanisms.noisy_sum import NoisySum
from privlearn.mechanisms.one_of_k import OneOfK
from privlearn.mechanisms.scalar_objectives import ScalarObjective, code_of
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.values.validate import count, positive, within

Increments = tuple[Array, Arms]
"""Blocks of increments (n, d), and the arms (n,) they belong to."""


class Parts(NamedTuple):
    """What is released of rows; arrays of one user, or of a block with a leading axis."""

    increment: Array
    """shape (d,)."""
    arm: Arms
    """That it belongs to."""
    context: Array
    """shape (d,)."""


def pooled_parts(own: Parts) -> Parts:
    """One part of all of one person's in an epoch, of the arm that was pulled most often.

    It has the sum of that arm's increments, and the first of its contexts; of arms pulled equally
    often it is the one that came first.  No reward decides which.
    """
    usable = np.isfinite(own.increment).all(axis=1)
    if not usable.any():
        return Parts(own.increment[0], own.arm[0], own.context[0])
    arms = own.arm[usable]
    often = (arms[:, None] == arms).sum(axis=1)
    chosen = usable & (own.arm == arms[often.argmax()])
    total: Array = own.increment[chosen].sum(axis=0)
    return Parts(total, own.arm[chosen][0], own.context[chosen][0])


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
        method: ``"gaussian"``, which is `GaussianEpochs()`, or epochs with constants of their own.
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
            raise TypeError(f"method = {self.method!r}: must be 'gaussian' or GaussianEpochs")
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
        plans = [
            Plan("epoch", step.loss(), epoch)
            for step, epoch in zip(self._steps, self._batches, strict=True)
        ]
        if self._curved is not None:
            plans += [Plan("moments", self._curved.loss(), epoch) for epoch in self._batches]
        return plans

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        self._method = self._fixed("method", self._epochs)
        users, rule = accountant.users, rule_of(accountant)
        self._cut(users, self._fixed("ends", lambda: self._ends(accountant)))
        self._public = self._fixed("setting", lambda: self._setting_of_row(accountant))
        # late epochs have equal ones, each of which is written once
        distinct, which = self._fixed("steps", self._distinct_steps)
        self._steps = [distinct[place] for place in which]
        self._curved = self._fixed("moments", lambda: self._method.second_moments(self._public))
        self._pooled = rule is not None and rule.pooled
        self._moments = Moments(np.zeros((self.dim, self.dim)), 0, 0.0)
        self._damping: Array | None = None
        blank = np.zeros((self.n_arms, self.dim))
        self._estimate = Estimate(blank, blank, 0.0, 0.0)
        self._warm = blank
        self._prepare_serving(accountant)

    def _epochs(self) -> Epochs:
        if not isinstance(self.method, str):
            return self.method
        if self.method != "gaussian":
            raise ValueError(f"method = {self.method!r}: must be 'gaussian' or GaussianEpochs")
        return GaussianEpochs()

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

    def _distinct_steps(self) -> tuple[list[OneOfK[Array]], list[int]]:
        distinct: list[OneOfK[Array]] = []
        which: list[int] = []
        for epoch in range(len(self._batches)):
            step = self._method.mechanism(self._public, epoch)
            if step not in distinct[-1:]:
                distinct.append(step)
            which.append(len(distinct) - 1)
        return distinct, which

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
        step, theta = self._steps[self._batch], self._estimate.theta
        if self._accountant.lost("epoch", epoch):
            return
        token = self._accountant.issue(step.loss(), users=epoch, label="epoch")
        computed, contexts = self._contributions(rows, theta)
        released = self._board.post(f"epoch/{self._batch}", step.release(computed, token))
        old = self._estimate
        # what is left if the process ends before the moments are released
        self._move(old, released, epoch)
        if self._curved is not None and self._release_moments(contexts, epoch, self._curved):
            self._move(old, released, epoch)

    def _move(self, old: Estimate, released: Array, epoch: range) -> None:
        moved = released if self._damping is None else released @ self._damping
        step = self._steps[self._batch]
        self._estimate = self._method.learn(old, moved, self._public, self._batch, len(epoch), step)
        if self._batch == 0:
            self._warm = self._estimate.theta

    def _contributions(
        self, rows: Rows[Feedback], theta: Array
    ) -> tuple[Rows[Increments], Rows[Array]]:
        def increments(feedback: Feedback) -> Increments:
            return self._increments(feedback, theta)

        def parts(feedback: Feedback) -> Parts:
            return Parts(*increments(feedback), feedback.context)

        code = code_of(self._loss), self
        if self._pooled:
            own = rows.map_rows(Calls(parts, code)).pool(pooled_parts)
            return (
                own.map_rows(lambda part: (part.increment, part.arm)),
                own.map_rows(lambda part: part.context[:, None, :]),
            )
        contexts = rows.map_rows(lambda feedback: feedback.context[:, None, :])
        return rows.map_rows(Calls(increments, code)), contexts

    def _release_moments(self, contexts: Rows[Array], epoch: range, sums: NoisySum[Array]) -> bool:
        """Releases Σxxᵀ of the epoch, from which the damping follows; False if it was lost."""
        if self._accountant.lost("moments", epoch):
            return False
        token = self._accountant.issue(sums.loss(), users=epoch, label="moments")
        total = self._board.post(f"moments/{self._batch}", sums.release(contexts, token))
        old, noise = self._moments, sums.error_std() ** 2
        self._moments = Moments(old.total + total, old.users + len(epoch), old.variance + noise)
        self._damping = self._moments.damping(self._public.curvature)
        return True

    def _increments(self, feedback: Feedback, theta: Array) -> Increments:
        """−φ'(x·θ_a; r)·x of each user's own arm, at the epoch's public θ."""
        score = np.einsum("nd,nd->n", feedback.context, theta[feedback.arm])
        return -self._loss.derivative(score, feedback.reward)[
            :, None
        ] * feedback.context, feedback.arm

    # Public state --------------------------------------------------------------------------------

    def _learned_state(self) -> dict[str, Any]:
        return {
            "epochs": [[epoch.start, epoch.stop] for epoch in self._batches],
            "warm": self._warm.tolist(),
            "theta": self._estimate.theta.tolist(),
            "pooled": self._estimate.pooled.tolist(),
            "variance": self._estimate.variance,
            "weight": self._estimate.weight,
            "moments": {**self._moments._asdict(), "total": self._moments.total.tolist()},
        }
