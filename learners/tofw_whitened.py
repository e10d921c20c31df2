r"""The whitened strategy of DP-TOFW: steps in coordinates that private second moments make white.

A step that knows one number about all directions, such as 1/curvature of features without a
preferred direction, diverges along the mean of columns that are 0 or 1, and is slow along the
others.  Here an epoch of users, kept sealed until its public end, is read several times:

1. Σxxᵀ is released, with ‖x‖² clipped (`PSDTrace`), at a quarter of the budget.  Its eigenvalues
   are raised to the usual largest eigenvalue of its noise, which is public, and at least to a
   public constant; W = V·Λ^{−1/2} then makes u = xW about white.  Where noise hides a direction,
   its entries of u are small, so that little is learned of it: that is the regularisation.
2. If the last feature is a constant, the mean residual is released, and the intercept moves by it.
3. In 16 steps the gradients φ'·u are released, clipped as a whole, and θ moves by a Newton step of
   the white model, tempered by the James-Stein factor of the public noise.  The later half of θ is
   averaged, and the path there is shrunk by that factor once more.  Clips are larger where noise is
   small.
4. The mean residual once more, since a clipped gradient finds the median of what is left rather
   than its mean.

There are two epochs, a fifth of the users and the rest, if that fifth is enough for its noise, else
one; the second starts where the first one ended and adds to its Σxxᵀ.  The constants were chosen on
simulated tables (``benchmarks/tables.py``).

Under a rule of participation the batches are the epochs, every release of an epoch reads the same
visits of a person, and their prices add up.  With ``pooled`` gradients and residuals are means over
a person's visits, and Σxxᵀ has the x of the first one.

Privacy: a user is in one epoch, which spends the whole budget in Gaussian sums of clipped functions
of one row and of what was released before (adaptive composition); W, θ and all steps are
post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, Self, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.convex import TINY, LpLearner, SealedEpochs, Strategy
from privlearn.learners.learned_rows import LearnedRows, learned_rows
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.streaming import Example
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, PSDTrace

_FIRST_EPOCH = 0.2
_NOISE_OF_FIRST_EPOCH = 0.05  # d/(users·μ) of the first of two epochs is at most this

_MOMENTS, _MEAN = Fraction(1, 4), Fraction(1, 10)
"""Shares of the budget: of Σxxᵀ, and of each mean residual; the steps have what is left."""
_STEPS = 16

_TRACE = 2.4  # Clip of ‖x‖², in units of its usual size
_LEAST_CURVATURE = 0.3  # Of a direction, in units of that of features without a preferred one

_CLIP_PER_NOISE = 0.005
_LEAST_CLIP, _LARGEST_CLIP = 0.02, 0.1
_BOUNDED_SLOPE = 4.0
"""Residuals of losses with a bounded slope do not get small: factor of the clip."""
_FIRST_MEAN, _LAST_MEAN = 1.0, 0.4
"""Clips of residuals, in units of the largest likely one."""
_SHRINK = 0.5  # Part of the James-Stein factor that is applied to gradients
_NUMBERS_AT_ONCE = 2**23  # Entries of xxᵀ in memory at once


class Whitening(NamedTuple):
    """A public change of coordinates, u = xW, in which second moments are about the identity."""

    forward: Array
    """W, shape (d, d)."""
    back: Array
    """W⁻¹."""

    @classmethod
    def of(cls, moments: Array, noise: float, least: float) -> Self:
        """From the noisy mean of xxᵀ, symmetric (d, d).

        Args:
            moments: its eigenvalues below ``noise`` or ``least`` are raised to them.
            noise: usual largest eigenvalue of the noise on it.
            least: the smallest second moment that a direction is thought to have.
        """
        values, vectors = np.linalg.eigh(moments)
        roots = np.sqrt(np.maximum(values, max(noise, least)))
        return cls(vectors / roots, roots[:, None] * vectors.T)


class _Epoch(NamedTuple):
    users: range
    moments: PlannedStream[Array]  # One batch, handed over in parts, so that no d² per row is kept
    steps: NoisySum[Array]
    number: int  # Of steps
    means: tuple[NoisySum[Array] | None, NoisySum[Array] | None]

    def plan(self) -> list[Plan]:
        plans = [self.moments.plan(), Plan("step", self.steps.loss(), self.users, self.number)]
        return plans + [Plan("mean", m.loss(), self.users) for m in self.means if m is not None]


@final
class Whitened(Strategy):
    """See the module."""

    def __init__(
        self,
        learner: LpLearner,
        accountant: Accountant[Any],
        clip: float | None,
        *,
        constant: float | None,
    ) -> None:
        super().__init__(learner, accountant)
        self._clip, self._constant = clip, constant
        sizes = self._fixed("epochs", lambda: _sizes(len(self._users), learner.dim / self._mu))
        steps = self._fixed("steps", lambda: _STEPS)
        self._epochs: SealedEpochs[Example] = SealedEpochs(self._users, sizes)
        self._budgets = PersonBudgets(accountant, self._epochs.all)
        self._learned = learned_rows(learner, accountant, self._budgets, self._epochs.all)
        self._sums: list[_Epoch] = []
        for number, users in enumerate(self._epochs.all):
            moments, gradients, *means = self._fixed(
                f"epoch/{number}", partial(self._calibrated, users, first=not number, steps=steps)
            )
            stream = PlannedStream(accountant, "moments", users, moments)
            self._sums.append(_Epoch(users, stream, gradients, steps, (means[0], means[1])))
        self._moments = np.zeros((learner.dim, learner.dim))
        self._variance = self._users_so_far = self._users_now = 0.0

    def _calibrated(self, users: range, *, first: bool, steps: int) -> list[Any]:
        scale, budgets = self._scale, self._budgets
        rest = LearnedRows.rest(budgets)
        adjacency, constant = self._accountant.adjacency, self._constant
        noise = scale.dim / (len(users) * self._mu)
        level = min(max(_CLIP_PER_NOISE / noise, _LEAST_CLIP), _LARGEST_CLIP)
        bounded = scale.floor > 0
        residual = scale.floor if bounded else scale.unit * scale.curvature
        usual = level * residual * (_BOUNDED_SLOPE if bounded else 1.0) * math.sqrt(scale.dim)
        clip = self._clip or usual

        def mean(part: float) -> NoisySum[Array]:
            ball = Ball(residual if bounded else part * residual, 1)
            budget = budgets.of_row(_MEAN * rest)
            return NoisySum.calibrated(ball, budget, adjacency=adjacency)

        means: tuple[NoisySum[Array] | None, NoisySum[Array] | None] = (None, None)
        if constant is not None:
            means = (mean(_FIRST_MEAN) if first else None, mean(_LAST_MEAN))
        left = 1 - _MOMENTS - _MEAN * sum(m is not None for m in means)
        return [
            BatchedPrefixSum.calibrated(
                PSDTrace(_TRACE * scale.length**2, scale.dim),
                budgets.of_row(_MOMENTS * rest),
                sizes=(len(users),),
                adjacency=adjacency,
            ),
            NoisySum.calibrated(
                Ball(clip, scale.dim), budgets.of_row(left * rest / steps), adjacency=adjacency
            ),
            *means,
        ]

    def plan(self) -> list[Plan]:
        plans = [plan for epoch in self._sums for plan in epoch.plan()]
        return plans + [plan for learned in self._learned for plan in learned.plan()]

    def batches(self) -> Sequence[int]:
        return [users.start for users in self._epochs.all]

    def next_change(self) -> int:
        return self._epochs.stop

    def let_go(self) -> None:
        self._epochs.let_go()

    def take(self, rows: Rows[Example]) -> None:
        own = rows.map_rows(self._learner._calling(self._learner._examples))
        self._number = self._epochs.number
        epoch = self._sums[self._number]
        kept = self._epochs.add(own)
        if kept is None:
            return
        features = kept.map_rows(_features)
        if self._rule is not None and self._rule.pooled:
            features = features.pool(_first)
        self._add(epoch, features)
        slots = epoch.moments.learned
        self._users_now = self._learned[self._number].after(features, slots)
        if not slots:  # they ended with their process, and their rows with them
            return
        self._users_so_far += self._users_now
        white = self._whitening(epoch)
        changed = kept.map_rows(lambda block: (_product(block[0], white.forward), block[1]))
        # θ is public after each release: what a death in the next one leaves was there before it.
        self._centre(epoch.means[0], changed, white, "first")
        self._step(epoch, changed, white)
        self._centre(epoch.means[1], changed, white, "last")

    def _add(self, epoch: _Epoch, rows: Rows[Array]) -> None:
        """Adds rows to Σxxᵀ, in parts that bound memory; at the epoch's end it is released."""
        size = max(_NUMBERS_AT_ONCE // self._scale.dim**2, 1)
        for start in range(rows.users.start, rows.users.stop, size):
            part = rows.slice(range(start, min(start + size, rows.users.stop)))
            released = epoch.moments.append(part.map_rows(lambda block: block[:, None, :]))
            if released is not None:
                self._learner._board.post(f"moments/{self._number}", released)
                self._moments = self._moments + epoch.moments.whole(released.value)
                self._variance += epoch.moments.error_std(part.users.stop) ** 2

    def _release(self, sums: NoisySum[Array], rows: Rows[Array], label: str, name: str) -> Array:
        return self._learner._posted(sums, rows, label, f"{label}/{self._number}/{name}")

    def _whitening(self, epoch: _Epoch) -> Whitening:
        users, scale = self._users_so_far, self._scale
        return Whitening.of(
            self._moments / users,
            math.sqrt(2 * scale.dim * self._variance) / users,
            _LEAST_CURVATURE * scale.length**2 / scale.dim,
        )

    def _residuals(self, block: Example, white: Array) -> Array:
        """φ' of the white coordinates' scores, shape (n,); row by row."""
        return self._learner._loss.derivative((block[0] * white).sum(axis=1), block[1])

    def _gradients(self, white: Array, block: Example) -> Array:
        """φ'·u, shape (n, d)."""
        return self._residuals(block, white)[:, None] * block[0]

    def _centre(
        self, sums: NoisySum[Array] | None, rows: Rows[Example], white: Whitening, name: str
    ) -> None:
        """Moves the intercept of θ by the mean residual, if that is not lost."""
        constant = self._constant
        if sums is None or constant is None or not self._accountant.left("mean", rows.users):
            return
        at = white.back @ self._learner._theta
        residuals = self._of_persons(
            rows.map_rows(self._learner._calling(lambda block: self._residuals(block, at)[:, None]))
        )
        users = self._users_now
        mean = float(self._release(sums, residuals, "mean", name)[0]) / users
        kept = max(0.0, 1.0 - (sums.error_std() / users) ** 2 / (mean * mean + TINY))
        moved = self._learner._theta.copy()
        moved[-1] -= kept * mean / (self._scale.curvature * constant)
        self._learner._theta = np.asarray(self._set.pull(moved))

    def _step(self, epoch: _Epoch, rows: Rows[Example], white: Whitening) -> None:
        sums, users, dim = epoch.steps, self._users_now, self._scale.dim
        variance = (sums.error_std() / users) ** 2
        start = theta = self._learner._theta
        path: list[Array] = []
        for step in range(epoch.number):
            # A process that died in the middle has lost the rows of the steps that were left.
            if not self._accountant.left("step", rows.users):
                break
            gradients = self._of_persons(
                rows.map_rows(self._learner._calling(partial(self._gradients, white.back @ theta)))
            )
            gradient = self._release(sums, gradients, "step", str(step)) / users
            energy = float((gradient * gradient).sum()) + TINY
            kept = max(0.0, 1.0 - _SHRINK * dim * variance / energy)
            moved = theta - kept / self._scale.curvature * (white.forward @ gradient)
            theta = np.asarray(self._set.pull(moved))
            path.append(theta)
            made = path[len(path) // 2 :]
            late = np.asarray(sum(at / len(made) for at in made))
            went = white.back @ (late - start)
            noise = dim * variance / self._scale.curvature**2 / len(made)
            shrunk = max(0.0, 1.0 - noise / (float((went * went).sum()) + TINY))
            self._learner._theta = np.asarray(start + shrunk * (late - start))


def _sizes(users: int, noise: float) -> list[int]:
    """Users of the epochs; ``noise`` is d/μ."""
    first = int(_FIRST_EPOCH * users)
    if first * _NOISE_OF_FIRST_EPOCH < noise:
        return [users]
    return [first, users - first]


def _features(block: Example) -> Array:
    return block[0]


def _first(block: Array) -> Array:
    return np.asarray(block[0])


def _product(rows: Array, matrix: Array) -> Array:
    """Rows times a matrix, each row by itself to the last bit."""
    return np.asarray(np.einsum("nd,de->ne", rows, matrix))
