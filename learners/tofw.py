"""DP-TOFW: private online convex optimisation over ℓp balls, 1 < p <= ∞, and other sets.

The recursive gradient of the paper is a prefix sum of increments, one per user.  Here each
increment is clipped *as a whole* in ℓ2, so one user moves the stream by at most twice the clip
whatever the loss, and the sums come from buffered Toeplitz noise.  Four ways to use them:

``plain``     θ moves after every user: a Frank-Wolfe step towards the vertex of the noisy gradient.
              Increments are made against θ at the start of a public block of at most 1/16 of the
              users so far (64 at most), so that blocks can be computed at once.
``restarts``  epochs of disjoint users, each at the whole budget (parallel composition), and within
              an epoch a few batches; around each restart a smaller reach and a smaller clip.
``buffered``  epochs as well, but the users of an epoch are kept, sealed, and read in many steps at
              its end: the best risk, for memory O(users·d).  θ stands still within an epoch.
``whitened``  kept and read in many steps as well, in coordinates that a private Σxxᵀ makes white:
              for tables whose columns have means of their own, are 0 or 1, or are correlated
              (`privlearn.learners.tofw_whitened`).

All are tempered: the gradient is shrunk by the James-Stein factor of the *public* variance of its
noise.  Steps, clips and epochs follow from public constants alone: d, the number of users, the
budget, the bounds on features and labels.

Increments are clipped in ℓ2 for every p: clipped in ℓq at the same residual they would need more
noise, Gaussian or generalized Gaussian (`PrefixSum.calibrated` with ``exponent=None`` computes it).

Source: the algorithm is that of Han et al. 2022 (Algorithm 1); clipping, noise, restarts and steps
are ours.  Privacy: `PrefixSum`, `BatchedPrefixSum`, `NoisySum`; θ is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn._validate import count, positive
from privlearn.budgets import Currency
from privlearn.domains import Array, Ball
from privlearn.learners.constraint_sets import (
    ConstraintSet,
    LpBall,
    checked_member,
    dual_exponent,
    exponent,
)
from privlearn.learners.streaming import (
    Example,
    StreamLearner,
    Terms,
    checked_choice,
    epoch_count,
    epoch_sizes,
)
from privlearn.learners.tofw_ways import Way, scale_of
from privlearn.learners.tofw_whitened import Whitened
from privlearn.mechanisms import (
    AnytimeBLT,
    ColumnNormalizedBLT,
    NoisySum,
    PrefixSum,
    PrefixSumStream,
)
from privlearn.mechanisms.batched_sums import BatchedPrefixSum, BatchedStream, even_sizes
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.scalar_objectives import ScalarObjective
from privlearn.protocols import Accountant, Plan
from privlearn.rows import Rows

Method = Literal["restarts", "plain", "buffered", "whitened"]
_TINY = 1e-300
_ROUNDING = 1 + 1e-9
_LARGEST_BLOCK = 64

_PLAIN_CLIP = 0.08
_PLAIN_STEP = 1.4
_PLAIN_DELAY = 20

_EPOCHS = 2
_BATCHES = 12
_EPOCH_GROWTH = 3.0
_USERS_PER_NOISE = 4.0
_CLIP_PER_LEVEL = 0.2
_REACH = 1.4
_SHORT_STEP = 2.5
_LONG_STEP, _LONG_DELAY = 0.7, 5.0
_FIRST_LEVEL, _LAST_LEVEL = 0.4, 0.08
_LEAST_SHRINK, _MOST_SHRINK, _SHRINK_PER_NOISE = 0.4, 0.8, 3.0

_BUFFERED_EPOCHS = (0.2, 0.8)
_BUFFERED_STEPS = 64
_BUFFERED_CLIPS = (0.05, 0.03)
_BUFFERED_STEP = 0.5
_BUFFERED_SHRINK = 0.5


class Epoch(NamedTuple):
    """Public numbers of one epoch."""

    users: range
    level: float
    sums: BatchedPrefixSum[Array]


@final
class DPTOFW(StreamLearner):
    """Private Frank-Wolfe for a stream of (x, y), with θ released at every time.

    Args:
        dim: d.
        p: θ lives in an ℓp ball, p in (1, ∞], and features are bounded in the dual norm.
        radius: of that ball.
        loss: ``"squared"``, ``"logistic"``, or a `ScalarObjective`.
        feature_bound: bound on ‖x‖_q; longer features are scaled onto it.
        label_bound: bound on |y| for the squared loss.
        method: ``"restarts"``, ``"plain"``, ``"buffered"`` or ``"whitened"``; see the module.
        theta_set: another set in place of the ball; p then only says how features are bounded.
        initial: θ at the start, a member; default the member nearest to 0.
        clip: the ℓ2 clip of increments, in place of the rule's; in restarts, of the first epoch; in
            white coordinates for ``whitened``.
        anytime: for ``plain``: noise without a horizon.  The accountant may then name more users
            than ever come, at about a fifth more noise.
        usual_norm: public guess of ‖x‖_q of most rows, from which clips and steps are made; default
            ``feature_bound``.  Where the bound is loose, it keeps noise small without shrinking any
            row.
        constant: for ``whitened``: the last feature, if it is the same number for everybody, so
            that its parameter is an intercept.
    """

    def __init__(
        self,
        dim: int,
        *,
        p: float = 2.0,
        radius: float = 2.0,
        loss: str | ScalarObjective = "squared",
        feature_bound: float = 1.0,
        label_bound: float = 1.0,
        method: Method = "restarts",
        theta_set: ConstraintSet | None = None,
        initial: ArrayLike | None = None,
        clip: float | None = None,
        anytime: bool = False,
        usual_norm: float | None = None,
        constant: float | None = None,
    ) -> None:
        self.dim, self.p, self.radius, self.loss = dim, p, radius, loss
        self.feature_bound, self.label_bound, self.method = feature_bound, label_bound, method
        self.theta_set, self.initial, self.clip, self.anytime = theta_set, initial, clip, anytime
        self.usual_norm, self.constant = usual_norm, constant

    @property
    def _dim(self) -> int:
        return self.dim

    @property
    def _feature_norm(self) -> float:
        return dual_exponent(float(self.p))

    def _check_params(self) -> None:
        count(dim=self.dim)
        if exponent(p=self.p) == 1:
            raise ValueError("p = 1: use DPPOFW, whose steps are made for the ℓ1 ball")
        positive(radius=self.radius)
        checked_choice(("restarts", "plain", "buffered", "whitened"), method=self.method)
        if self.clip is not None:
            positive(clip=self.clip)
        if self.usual_norm is not None and not positive(usual_norm=self.usual_norm) <= (
            self.feature_bound * _ROUNDING
        ):
            raise ValueError(
                f"usual_norm = {self.usual_norm!r}: must be at most feature_bound = "
                f"{self.feature_bound!r}"
            )
        if self.constant is not None:
            positive(constant=self.constant)
            if self.method != "whitened":
                raise ValueError("constant: only method = 'whitened' treats an intercept apart")
        if self.anytime and self.method != "plain":
            raise ValueError("anytime = True: only method = 'plain' knows no horizon")
        if self.theta_set is not None and not isinstance(self.theta_set, ConstraintSet):
            raise TypeError(f"theta_set = {self.theta_set!r}: must be a ConstraintSet")
        if self.theta_set is not None and self.theta_set.dim != self.dim:
            raise ValueError(f"theta_set of dimension {self.theta_set.dim}: must be {self.dim}")

    def _prepare(self, accountant: Accountant[Any]) -> list[Plan]:
        self._set: ConstraintSet = (
            LpBall(self.dim, self.p, self.radius) if self.theta_set is None else self.theta_set
        )
        if self.initial is None:
            self._theta = np.asarray(self._set.pull(np.zeros(self.dim)))
        else:
            self._theta = checked_member(self.initial, self._set).copy()
        self._scale = scale_of(
            self._loss,
            dim=self.dim,
            q=self._feature_norm,
            feature_bound=self.usual_norm or self.feature_bound,
            reach=self._set.diameter(exponent(p=self.p)) / 4,
        )
        budget: Currency = accountant.budget
        self._mu = math.sqrt(budget.gaussian_mass())
        ways: dict[Method, Callable[[DPTOFW, Accountant[Any]], Way]] = {
            "plain": _Plain,
            "restarts": _Restarts,
            "buffered": _Buffered,
            "whitened": Whitened,
        }
        self._way = ways[self.method](self, accountant)
        return self._way.plan()

    def _next_change(self) -> int:
        return self._way.next_change()

    def _take(self, rows: Rows[Example]) -> None:
        self._way.take(rows)

    def close(self) -> None:
        """Ends an open stream before its horizon, as released; nothing more can be learned."""
        self._check_running()
        self._way.close()
        self._closed = True


@final
class _Plain(Way):
    def __init__(self, learner: DPTOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        budget, adjacency = accountant.budget, accountant.adjacency
        clip = learner.clip or self._scale.clip(_PLAIN_CLIP)
        factorization: Factorization = (
            AnytimeBLT() if learner.anytime else ColumnNormalizedBLT.fitted(len(self._users))
        )
        self._sums = PrefixSum.calibrated(
            Ball(clip, learner.dim), budget, factorization=factorization, adjacency=adjacency
        )
        self._stream: PrefixSumStream[Array] | None = None
        self._delay = learner.dim / self._mu + _PLAIN_DELAY
        self._before = self._theta = learner._theta
        self._done = 0  # users before the open block
        self._begin_block()

    def plan(self) -> list[Plan]:
        return [Plan("increments", self._sums.loss(), self._users)]

    def _begin_block(self) -> None:
        left = len(self._users) - self._done
        self._size = min(max(self._done // 16, 1), _LARGEST_BLOCK, left)
        ahead = (self._done + self._size) / self._size
        terms: Terms = [(ahead, self._theta)]
        if self._done:
            terms = [*terms, (1 - ahead, self._before)]
        self._before = self._theta
        self._increments = self._learner._increments(terms)
        # The variance at the end of the block stands for all of it.
        std = self._sums.error_std(self._done + self._size)
        self._noise = self._learner.dim * std * std

    def next_change(self) -> int:
        return self._users.start + self._done + self._size

    def take(self, rows: Rows[Example]) -> None:
        if self._stream is None:
            token = self._accountant.issue(self._sums.loss(), users=self._users, label="increments")
            self._stream = self._sums.open(token)
        sums = self._stream.append(rows.map_rows(self._increments)).value
        first = rows.users.start - self._users.start + 1
        energy = (sums * sums).sum(axis=1)
        steps = [
            min(1.0, _PLAIN_STEP / (t + self._delay)) * max(0.0, 1.0 - self._noise / (e + _TINY))
            for t, e in enumerate(energy.tolist(), first)
        ]
        vertices = self._set.minimize(sums)
        theta = self._learner._theta
        for step, vertex in zip(steps, vertices, strict=True):
            theta = (1.0 - step) * theta + step * vertex
        self._learner._theta = self._theta = theta
        if rows.users.stop == self.next_change():
            self._done += self._size
            if self._done == len(self._users):
                self.close()
            else:
                self._begin_block()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


@final
class _Restarts(Way):
    def __init__(self, learner: DPTOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        start = self._users.start
        self._epochs: list[Epoch] = []
        first = None
        for size, level in restart_plan(len(self._users), self._scale.dim, self._mu):
            first = first or level
            clip = self._scale.clip(_CLIP_PER_LEVEL * level)
            if learner.clip is not None:
                clip = learner.clip * level / first
            sums = BatchedPrefixSum.calibrated(
                Ball(clip, learner.dim),
                accountant.budget,
                sizes=even_sizes(size, _BATCHES),
                adjacency=accountant.adjacency,
            )
            self._epochs.append(Epoch(range(start, start + size), level, sums))
            start += size
        self._timid = min(1.0, len(self._users) * self._mu / (5 * learner.dim))
        self._number = -1
        self._begin_epoch()

    def plan(self) -> list[Plan]:
        return [Plan("epoch", epoch.sums.loss(), epoch.users) for epoch in self._epochs]

    def _begin_epoch(self) -> None:
        self._number += 1
        self._stream: BatchedStream[Array] | None = None
        self._before = self._learner._theta
        self._done = self._batch = 0
        self._begin_batch()

    def _begin_batch(self) -> None:
        theta, size = self._learner._theta, self._epochs[self._number].sums.sizes[self._batch]
        ahead = (self._done + size) / size
        terms: Terms = [(ahead, theta)]
        if self._done:
            terms = [*terms, (1 - ahead, self._before)]
        self._before = theta
        self._increments = self._learner._increments(terms)
        self._end = self._epochs[self._number].users.start + self._done + size

    def next_change(self) -> int:
        return self._end

    def take(self, rows: Rows[Example]) -> None:
        epoch = self._epochs[self._number]
        if self._stream is None:
            token = self._accountant.issue(epoch.sums.loss(), users=epoch.users, label="epoch")
            self._stream = epoch.sums.open(token)
        released = self._stream.append(rows.map_rows(self._increments))
        if released is None:
            return
        total = self._learner._board.post(f"sum/{self._number}/{self._batch}", released)
        self._done = rows.users.stop - epoch.users.start
        self._move(epoch, total)
        self._batch += 1
        if self._batch < len(epoch.sums.sizes):
            self._begin_batch()
        elif self._number + 1 < len(self._epochs):
            self._begin_epoch()

    def _move(self, epoch: Epoch, total: Array) -> None:
        scale, dim = self._scale, self._scale.dim
        gradient = total / self._done
        size = math.sqrt(float((gradient * gradient).sum())) + _TINY
        std = epoch.sums.error_std(self._batch + 1) / self._done
        kept = max(0.0, 1.0 - dim * (std / size) ** 2)
        reach = _REACH * epoch.level * scale.unit * math.sqrt(dim) / scale.length * self._timid
        short = _SHORT_STEP * self._timid * scale.newton * size * kept
        far = _LONG_STEP * reach / (self._batch + _LONG_DELAY)
        moved = self._learner._theta - min(short, far) / size * gradient
        self._learner._theta = np.asarray(self._set.pull(moved))


def restart_plan(users: int, dim: int, mu: float) -> list[tuple[int, float]]:
    """Sizes of the epochs and the levels of residuals that they expect, in units of the scores."""
    noise = float((_root(_BATCHES) ** 2).sum())
    least = _USERS_PER_NOISE * dim / mu * math.sqrt(noise)
    epochs = epoch_count(users, least, _EPOCHS)
    growth = _EPOCH_GROWTH
    if epochs > 1 and users / (growth ** np.arange(epochs)).sum() < least:
        low, high = 1.0, growth
        for _ in range(50):
            middle = (low + high) / 2
            if users / (middle ** np.arange(epochs)).sum() > least:
                low = middle
            else:
                high = middle
        growth = low
    sizes = epoch_sizes(users, epochs, growth)
    first = min(_FIRST_LEVEL * math.sqrt(10 / dim), 1.0)
    levels = [first]
    for size in sizes[:-1]:
        predicted = _SHRINK_PER_NOISE * dim / (mu * size) * math.sqrt(noise)
        shrink = min(_MOST_SHRINK, max(_LEAST_SHRINK, predicted))
        levels.append(max(min(_LAST_LEVEL, first), levels[-1] * shrink))
    return list(zip(sizes, levels, strict=True))


def _root(n: int) -> Array:
    """Coefficients of (1 − x)^{−1/2}."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


@final
class _Buffered(Way):
    def __init__(self, learner: DPTOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        total, start = len(self._users), self._users.start
        sizes = [int(total * share) for share in _BUFFERED_EPOCHS]
        sizes[-1] += total - sum(sizes)
        part = accountant.budget.share(Fraction(1, _BUFFERED_STEPS))
        self._epochs: list[tuple[range, NoisySum[Array]]] = []
        for size, level in zip(sizes, _BUFFERED_CLIPS, strict=True):
            clip = learner.clip or self._scale.clip(level)
            sums = NoisySum.calibrated(
                Ball(clip, learner.dim), part, adjacency=accountant.adjacency
            )
            if size:
                self._epochs.append((range(start, start + size), sums))
            start += size
        self._number = 0
        self._pending: list[Rows[Example]] = []

    def plan(self) -> list[Plan]:
        return [Plan("step", sums.loss(), users, _BUFFERED_STEPS) for users, sums in self._epochs]

    def next_change(self) -> int:
        return self._epochs[min(self._number, len(self._epochs) - 1)][0].stop

    def take(self, rows: Rows[Example]) -> None:
        self._pending.append(rows)
        users, sums = self._epochs[self._number]
        if rows.users.stop < users.stop:
            return
        kept, self._pending = Rows.concat(self._pending), []
        theta, learner = self._learner._theta, self._learner
        late = np.zeros(self._scale.dim)
        std = sums.error_std() / len(users)
        for step in range(_BUFFERED_STEPS):
            token = self._accountant.issue(sums.loss(), users=users, label="step")
            total = sums.release(kept.map_rows(learner._increments([(1.0, theta)])), token)
            gradient = learner._board.post(f"gradient/{self._number}/{step}", total) / len(users)
            energy = max(float((gradient * gradient).sum()), _TINY)
            shrunk = max(0.0, 1.0 - _BUFFERED_SHRINK * self._scale.dim * std * std / energy)
            moved = theta - _BUFFERED_STEP * self._scale.newton * shrunk * gradient
            theta = np.asarray(self._set.pull(moved))
            if step >= _BUFFERED_STEPS // 2:
                late = late + theta
        learner._theta = late / (_BUFFERED_STEPS - _BUFFERED_STEPS // 2)
        self._number += 1
