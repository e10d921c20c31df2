"""One-pass Newton for generalized linear bandits: features for each action, a reward comes back.

Users come in public blocks of growing size.  Within a block everybody is served from the same
public belief about θ; at its end the sums of gradients (r − μ(x·θ))·x and of Hessians μ'(x·θ)·xxᵀ
of the block are released together, with correlated noise (`BatchedPrefixSum`), and the belief is
updated (`privlearn.learners.pooled_belief`).  Every user is in one block.

Privacy: per user one gradient and one Hessian of the action that was shown (`GradientHessian`), all
of one token; the guarantee is joint when users are served (`select`/`observe`, `play`) and central
when rewards are logged (`partial_fit`).  With a parameter vector for each action a user enters the
sums of one action (`OneOf`), which costs no more.

Under a rule of participation the noise is for all visits of a person together.  A pooled rule makes
one contribution of a person's visits in a block (`mean_of_lines`); ``Participation(most=1,
pooled=True)``, everybody's first block, is the best that was measured, and several visits a person
cost more than they teach.  After a restart the rest of the blocks has noise of its own if there is
no rule or ``most=1``; under other rules nothing more is learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.batch_sums import CorrelatedSums
from privlearn.learners.batches import BatchLearner
from privlearn.learners.contextual import Arms
from privlearn.learners.inputs import block_of, numbers_from, places_of
from privlearn.learners.links import LINKS, BoundedLink
from privlearn.learners.newton import capped_ends
from privlearn.learners.participation import given, rule_of
from privlearn.learners.pooled_belief import PooledStatistics
from privlearn.learners.served_actions import Outcome, ServedActions
from privlearn.learners.user_coins import UserCoins
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.choice_model import clip_items
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain, GradientHessian, OneOf
from privlearn.values.adjacency import Trust
from privlearn.values.validate import count, finite, not_negative, positive

_CLIP = {"poisson": 0.6}
_POLICIES = ("ucb", "thompson", "greedy")
_PRIOR = {"linear": 16.0}
"""In units of the range: as 1 for the logistic model, whose slope in the middle is ¼ of it."""
_FIRST = 3.0
_USUAL = 0.4
"""Of a Hessian's largest trace, before anything is known."""
_BLOCKS, _BLOCKS_OF_PERSONS = 30, 8
"""A block has at most this part of the users, or is the first; under a rule of participation later
ones hold few persons who are still learned, and a longer one more visits of each."""


@final
@dataclass(eq=False, repr=False)
class OnePassNewtonGLM(BatchLearner, ServedActions):
    """Shows the action whose reward may be best, by its features, and learns from rewards.

    The expected reward of an action with features x is μ(x·θ), with one θ for all actions or, with
    ``per_action``, one for each on the user's context.

    Args:
        n_actions: A, the most actions on offer.
        dim: d, features per action, or of a context.
        link: of x·θ to the expected reward: ``linear`` (the middle of ``reward_range`` plus x·θ),
            ``logistic`` (from its lower to its upper end), ``probit`` (as well), or ``poisson``
            (counts with mean e^(x·θ)).
        per_action: whether every action has a parameter vector of its own.
        policy: ``ucb``: the largest x·θ + w·‖x‖_{P⁻¹}, P the precision, with a width w for each
            user by public coins, |Z|/E|Z| times ``exploration`` for Z ~ N(0, 1), so that users of a
            block with the same slate are not all shown the same (RandUCB: Vaswani et al. 2020);
            ``thompson``: the largest x·θ with θ drawn from the belief by public coins, for each
            user anew; ``greedy``: the largest x·θ.  Where actions earn differently, the largest
            revenue times the expected reward at that index.
        exploration: width of the belief that the policy takes, in standard deviations, >= 0.
        reward_range: public ends of rewards; a reward outside is unusable.  With ``poisson`` to be
            given: 0 and the largest count.
        max_rate: only with ``poisson``: the largest mean of counts, from which the bound on
            Hessians follows; default the upper end of ``reward_range``.
        feature_scale: public constant that features are divided by before each vector is clipped
            into the unit ball.
        first_batch: users of the first block, who are shown actions in turn; default
            ⌈3·d/√ρ⌉, at most a thirtieth of all.
        growth: ratio of consecutive blocks, > 1.
        longest_batch: most users of a block; default a thirtieth of all (under a rule of
            participation an eighth), or the first block.
        gradient_clip: where residuals r − μ are cut, in units of the width of ``reward_range``, or
            of √max_rate for counts; default: nothing is cut, and rows are weighted so that no
            residual exceeds half the range, which keeps estimates unbiased; counts are cut at 0.6.
            Cuts shrink or stretch θ (at 1, of counts at 2, next to nothing is cut) and hardly
            change what is best; means of counts come out a tenth too low or so by default.
            Where rewards are near to what is expected, a small bound cuts few, with less noise.
        hessian_weight: weight of Hessians against gradients in what is released: with less there is
            more noise on Hessians and less on gradients.
        prior_precision: precision of the prior belief about each coordinate of θ, for linear
            rewards in units of the width of their range; default 1, and 16 for linear ones.
        random_state: seed of the public coins: who is first in turn, and what policies draw.

    After `start`, ``theta_`` and ``precision_`` are the public belief and ``clock_`` the next
    arrival index.
    """

    n_actions: int
    dim: int
    _: KW_ONLY
    link: str = "logistic"
    per_action: bool = False
    policy: str = "ucb"
    exploration: float = 1.0
    reward_range: tuple[float, float] = (0.0, 1.0)
    max_rate: float | None = None
    feature_scale: float = 1.0
    first_batch: int | None = None
    growth: float = 1.2
    longest_batch: int | None = None
    gradient_clip: float | None = None
    hessian_weight: float = 0.7
    prior_precision: float | None = None
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_actions()
        if self.per_action and self.n_actions < 2:
            raise ValueError(
                f"n_actions = {self.n_actions}: must be at least 2 with per_action; one action has "
                "one parameter vector in any case"
            )
        _one_of("link", self.link, LINKS)
        _one_of("policy", self.policy, _POLICIES)
        not_negative(exploration=self.exploration)
        if self.first_batch is not None:
            count(first_batch=self.first_batch)
        if finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        if self.longest_batch is not None:
            count(longest_batch=self.longest_batch)
        if self.gradient_clip is not None:
            positive(gradient_clip=self.gradient_clip)
        positive(hessian_weight=self.hessian_weight)
        if self.prior_precision is not None:
            positive(prior_precision=self.prior_precision)
        self._check_rate()
        drawn = self.n_actions if self.per_action else self.dim
        thompson = self.policy == "thompson"
        made = _normal if thompson else _widths
        self._draws = UserCoins((self.random_state, 1), drawn if thompson else 1, made)

    def _check_rate(self) -> None:
        rate = self._high
        if self.max_rate is not None:
            rate = positive(max_rate=self.max_rate)
            if self.link != "poisson":
                raise ValueError(f"max_rate = {rate!r}: only for link = 'poisson'")
            if rate > self._high:
                raise ValueError(
                    f"max_rate = {rate!r}: must be at most {self._high!r}, the largest reward"
                )
        if self.link == "poisson" and not (self._low == 0 and self._high > 1):
            raise ValueError(
                f"reward_range = {self.reward_range!r}: counts are not negative; must be 0 and the "
                "largest count, more than 1, such as (0, 20)"
            )
        self._link = BoundedLink(self.link, self._low, self._high, rate)

    def _plan(self) -> list[Plan]:
        return self._sums.plan()

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        rule = rule_of(accountant)
        self._pooled = rule is not None and rule.pooled
        if self._pooled and self.per_action:
            raise ValueError(
                f"per_action with {rule}: the visits that are pooled may be in the sums of several "
                "actions; use a rule with per_batch = 1"
            )
        self._cut(accountant.users, self._fixed("ends", lambda: self._ends(accountant)))
        stream = self._fixed("sums", lambda: self._calibrated(accountant))
        self._sums = CorrelatedSums("sums", stream, self._batches, accountant)
        self._prepare_serving(accountant)
        clip = self._fixed("clip", lambda: self.gradient_clip or _CLIP.get(self.link, 0.5))
        self._weighted = self._fixed("weighted", lambda: self.gradient_clip is None)
        prior = self._fixed("prior", lambda: self.prior_precision or _PRIOR.get(self.link, 1.0))
        self._usual = self._fixed("usual", lambda: _USUAL)
        self._residual = clip * self._link.residual_unit
        self._curvature = self._link.largest_slope
        parts = self.n_actions if self.per_action else 1
        self._released = [self._statistics(prior) for _ in range(parts)]
        self._believe()

    def _statistics(self, prior: float) -> PooledStatistics:
        def gradient_noise(batches: Sequence[int]) -> Array:
            return self._residual**2 * self._sums.covariance(batches)

        def hessian_noise(batches: Sequence[int]) -> Array:
            scale = self._curvature / self.hessian_weight
            return scale**2 * self._sums.covariance(batches)

        usual = self._usual * self._curvature / (self.n_actions if self.per_action else 1)
        return PooledStatistics(
            self.dim, prior, gradient_noise, hessian_noise, self._link.dispersion, usual
        )

    def _ends(self, accountant: Accountant[Any]) -> list[int]:
        users, rho = len(accountant.users), float(accountant.budget.gaussian_mass() / 2)
        enough = min(math.ceil(_FIRST * self.dim / math.sqrt(rho)), max(users // _BLOCKS, 1))
        first = self.first_batch or enough
        parts = _BLOCKS if rule_of(accountant) is None else _BLOCKS_OF_PERSONS
        longest = self.longest_batch or max(users // parts, first)
        return capped_ends(users, first, self.growth, longest)

    def _calibrated(self, accountant: Accountant[Any]) -> BatchedPrefixSum[Any]:
        one = GradientHessian(self.dim, self.hessian_weight)
        domain: Domain[Any] = OneOf(one, self.n_actions) if self.per_action else one
        rule = rule_of(accountant)
        return BatchedPrefixSum.calibrated(
            domain,
            accountant.budget,
            sizes=[len(batch) for batch in self._batches],
            adjacency=accountant.adjacency,
            participation=None if rule is None or rule.most == 1 else rule,
            objective="mean",
        )

    def _believe(self) -> None:
        beliefs = [released.belief for released in self._released]
        self._theta = np.stack([belief.mean for belief in beliefs])
        self._roots = np.stack([belief.root for belief in beliefs])
        self._root_and_mean = np.column_stack([self._roots[0], self._theta[0]])

    @property
    def theta_(self) -> Array:
        """The public estimate of θ, shape (d,), or (A, d) with ``per_action``.

        It belongs to features in the unit ball, after the division by ``feature_scale``; a linear
        reward is the middle of ``reward_range`` plus x·θ, in its own unit.
        """
        self._check_started()
        return self._by_action(self._unit * self._theta)

    @property
    def precision_(self) -> Array:
        """The public precision of the estimate, shape (d, d), or (A, d, d)."""
        self._check_started()
        return self._by_action(
            np.stack([one.belief.precision for one in self._released]) / self._unit**2
        )

    @property
    def _unit(self) -> float:
        return self._link.unit if self.link == "linear" else 1.0

    def _by_action(self, values: Array) -> Array:
        return values if self.per_action else values[0].copy()

    def predict(self, features: ArrayLike) -> Array:
        """Expected rewards from the public belief, of features that are nobody's contribution.

        Args:
            features: shape (..., d).

        Returns:
            shape (...); with ``per_action``, of every action, (..., A).

        Raises:
            ValueError, TypeError: no numbers, or of another length.
            RuntimeError: not started.
        """
        self._check_started()
        values = numbers_from("features", features)
        if values.ndim < 1 or values.shape[-1] != self.dim:
            raise ValueError(f"features of shape {values.shape}: must be (..., {self.dim})")
        indices = clip_items(values, self.feature_scale) @ self._theta.T
        return self._link.rewards(indices if self.per_action else indices[..., 0])

    def _scores(self, features: Array, turn: Arms) -> Array:
        if self._batch == 0:  # nothing is known, and longer vectors are not better for it
            return np.zeros((len(turn), self.n_actions))
        widths = self._widths(turn)
        if self.per_action:
            return self._scores_by_action(features, widths)
        belief = self._released[0].belief
        if widths is not None and self.policy == "thompson":
            theta = belief.mean + belief.drawn(widths)
            return np.asarray(np.einsum("nad,nd->na", features, theta))
        if widths is None:
            return np.asarray(np.einsum("nad,d->na", features, belief.mean))
        images = np.matmul(features, self._root_and_mean)
        squares = np.einsum("nad,nad->na", images[..., :-1], images[..., :-1])
        return np.asarray(images[..., -1] + widths * np.sqrt(squares))

    def _widths(self, turn: Arms) -> Array | None:
        """From public coins, how many standard deviations are added, (n, 1); or normal numbers."""
        if self.policy == "greedy" or self.exploration == 0:
            return None
        return np.asarray(self.exploration * self._draws.of(turn))

    def _scores_by_action(self, features: Array, widths: Array | None) -> Array:
        """With normal widths (n, A), each score has the law that θ_a gives it."""
        scores: Array = np.einsum("nd,ad->na", features, self._theta)
        if widths is not None:
            projected = np.einsum("nd,ade->nae", features, self._roots)
            scores += widths * np.sqrt(np.einsum("nae,nae->na", projected, projected))
        return scores

    def _worth(self, scores: Array, revenues: Array) -> Array:
        return scores if self._batch == 0 else revenues * self._link.rewards(scores)

    def partial_fit(
        self,
        features: ArrayLike,
        rewards: ArrayLike,
        *,
        actions: ArrayLike | None = None,
        people: Sequence[Any] | None = None,
    ) -> Self:
        """Learns from logged rewards, under a central accountant.

        Args:
            features: of what the next n users were shown, or their contexts, shape (n, d); an
                array, a data frame, or a list of rows.
            rewards: shape (n,).
            actions: with ``per_action``, and only then, which action each was shown, 0..A−1, (n,).
            people: under a rule of participation, and only then, who the users are, n ids; None, an
                empty one and nan: nobody who can be told apart, whose row is null.

        Rows that are no numbers of the right shape, rewards that are none within ``reward_range``
        and numbers of no action count as null, each by itself; only ``private_messages_`` says so.

        Raises:
            ProvenanceError: the accountant is joint; people without a rule, or none with one.
            HorizonError: more users than are left.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: no array or list (of a frame, the rewards can be a column), one of another
                type than numbers, ids of another kind, or actions without ``per_action``, or none
                with it.
        """
        self._check_idle()
        self._check_logged()
        if (actions is None) is self.per_action:
            wanted = "which action each user was shown, with" if self.per_action else "none without"
            raise TypeError(f"actions: must be {wanted} per_action")
        values = self._block_of_next("features", features, (self.dim,))
        n = len(values)
        heard = block_of("rewards", rewards, (), n)
        shown = np.zeros(n, dtype=np.int64)
        if actions is not None:
            shown = places_of(actions, self.n_actions, n, "actions")
        named = (shown >= 0) & (shown < self.n_actions)
        ids, nobody = self._who("people", people, given(people), n)
        clipped, unusable = self._clipped(values, named)
        shown = np.where(named, shown, 0)
        unanswered = ~((heard >= self._low) & (heard <= self._high))
        rows = Outcome(clipped, shown, heard)
        self._take_logged(rows, n, ids, self._logged, (unusable, unanswered, nobody))
        return self

    def _complaint(self, *, data: bool) -> str:
        if not data or self._accountant.trust is Trust.JOINT:
            return super()._complaint(data=data)
        named = f", and the action one of 0 to {self.n_actions - 1}" if self.per_action else ""
        return f"the features must be ({self.dim},) finite numbers{named}"

    def _logged(self, sent: Outcome) -> Outcome:
        return self._learnable(*sent)

    def _release(self, rows: Rows[Outcome], batch: range) -> None:
        theta, number = self._theta, self._batch
        self._sums.begin(batch)
        lines = rows.map_rows(self._contributions)
        if self._pooled:
            lines = lines.pool(mean_of_lines)
        total = self._sums.release(lines, self._board, number)
        if total is None:
            return
        sums = np.reshape(total, (len(theta), self.dim + 1, self.dim))
        for one, at, released in zip(sums, theta, self._released, strict=True):
            gradient, hessian = -self._residual * one[0], self._curvature * one[1:]
            released.add(number, len(batch), at, gradient, hessian)
        self._believe()

    def _contributions(self, shown: Outcome) -> Any:
        """Lines (x, residual, curvature) in their bounds, (n, 1, d + 2), for `GradientHessian`."""
        theta = self._theta[shown.action] if self.per_action else self._theta[0]
        indices = np.einsum(
            "nd,nd->n", shown.features, np.broadcast_to(theta, shown.features.shape)
        )
        means = self._link.mean(indices)
        residual = (shown.reward - self._link.offset) / self._link.unit - means
        slope = self._link.slope(means, indices)
        numbers = np.stack([residual / self._residual, slope / self._curvature])
        if self._weighted:
            numbers *= self._link.weights(means, self._residual)
        lines = np.concatenate([shown.features, numbers.T], axis=1)[:, None]
        return (lines, shown.action) if self.per_action else lines

    def _learned_state(self) -> dict[str, Any]:
        return {"evidence": [released.to_dict() for released in self._released]}


def mean_of_lines(own: Array) -> Array:
    """Makes one record for `GradientHessian` of all lines of one person, shape (m, 1, d + 2).

    Scores and curvatures are scaled by min(1, 1/Σ‖x‖), so that the domain scales nothing: what it
    would scale by depends on rewards, and would bias the step.  Lines that are no numbers are left
    out.
    """
    lines = own[np.isfinite(own).all(axis=(1, 2)), 0]
    x, s, h = lines[:, :-2], lines[:, -2:-1], lines[:, -1:]
    weight = 1 / max(float(np.linalg.norm(x, axis=1).sum()), 1.0)
    return np.hstack([x, weight * np.clip(s, -1, 1), weight * np.clip(h, 0, 1)])


def _one_of(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} = {value!r:.80}: must be one of {', '.join(known)}")


def _normal(coins: Array) -> Array:
    """Standard normal numbers from uniform ones in [0, 1)."""
    return np.asarray(ndtri(np.maximum(coins, 2.0**-54)))


def _widths(coins: Array) -> Array:
    """|Z|/E|Z| of such numbers."""
    return np.abs(_normal(coins)) * math.sqrt(math.pi / 2)
