"""DP-POFW: private online convex optimisation over the ℓ1 ball and other polytopes.

Users come in epochs of public sizes; each user is in one epoch, which may therefore spend the whole
budget (parallel composition), and θ is released at every time, changing at the ends of epochs.

``thresholds``  (ℓ1 ball) a noisy gradient sum per epoch, its coordinates pooled over the epochs and
                thresholded at public multiples of their noise: iterated soft thresholding.
``choices``     (ℓ1 ball) an epoch's few largest coordinates by report-noisy-max, whose noise grows
                with log d only, then a noisy sum over those coordinates.  Where the budget
                admits no Gaussian noise, such as `PureDP`, a step along the chosen vertices.
``projections`` (any polytope) the same pooled sums, projected onto the set in place of thresholds.
``vertices``    (any polytope) a Frank-Wolfe step towards the mean of the vertices that
                report-noisy-max has chosen.

``published``   (any polytope) the paper's: a pick after every user, over all users so far, a step
                1/t towards it, increments clipped at the published bound βD + L.  At its proved
                price it learns only from very many users.

``auto`` decides between sums and choices by computed noise: a Gaussian sum has noise
∝ √(d/(2 ln d)) per coordinate when gradients of typical length are not clipped, report-noisy-max
log V for V vertices (2d for the ball).  `PureDP` has no price for Gaussian sums.

Under a rule of participation the batches are the epochs; with ``pooled`` a person's gradients of an
epoch become their mean.  ``published`` is refused: every pick reads all users so far, and with them
all visits of a person, so that nothing is known below the price of a group.

After a restart θ is what it was.  Sums and ``published`` lose the users of one segment of their
stream, and go on with another one, ``published`` with picks that add up from there on; choices take
the rows of an unfinished epoch again.  An epoch whose choice or values were lost moves nothing.

Source: Han et al. 2022, Algorithm 2, choose one vertex per user and pay for √T of them; epochs,
clipping of residuals and Gumbel noise are ours.  Privacy: `BatchedPrefixSum`, `ReportNoisyMax`,
`NoisyMaxStream`, `NoisySum`; θ is post-processing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import CurrencyError
from privlearn.learners.convex import SealedEpochs, Strategy, StrategyLearner, scale_of
from privlearn.learners.learned_rows import LearnedRows, learned_rows
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.streaming import Example, Terms, checked_choice, epoch_count, epoch_sizes
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.losses.budgets import Currency
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.constraint_sets import CornerSet, LpBall, Polytope, Simplex
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.noisy_max_stream import NoisyMaxPicks, NoisyMaxStream
from privlearn.mechanisms.scalar_objectives import ScalarObjective
from privlearn.mechanisms.vertices import CrossPolytope, Vertices
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.values.validate import positive

Method = Literal["auto", "thresholds", "projections", "choices", "vertices", "published"]


class _Rule(NamedTuple):
    epochs: int  # The most epochs
    users_per_noise: float
    """Least users of an epoch, in units of the number at which noise is as large as the mean."""
    growth: float  # Ratio of the sizes of consecutive epochs
    first_level: float  # Level of residuals in the first epoch, as a part of the unit
    level_ratio: float  # From epoch to epoch
    least_level: float
    first_step: float  # Of the first epoch
    step: float  # Of the second epoch
    picks: int = 1  # Vertices that are chosen in an epoch
    decay: float = 1.0  # Ratio of the steps from the second epoch on

    def level(self, epoch: int) -> float:
        """Residuals are clipped at so much of the unit."""
        return max(self.first_level * self.level_ratio**epoch, self.least_level)

    def move(self, epoch: int) -> float:
        if epoch == 0:
            return self.first_step
        return self.step * self.decay ** (epoch - 1)


_THRESHOLDS = _Rule(
    epochs=4,
    users_per_noise=30.0,
    growth=1.3,
    first_level=0.3,
    level_ratio=0.85,
    least_level=0.1,
    first_step=0.8,
    step=0.7,
)
_CHOICES = _Rule(
    epochs=3,
    users_per_noise=8.0,
    growth=1.2,
    first_level=0.2,
    level_ratio=0.5,
    least_level=0.04,
    first_step=1.0,
    step=1.0,
    picks=5,
)
_SIGNS = _Rule(
    epochs=5,
    users_per_noise=4.0,
    growth=1.0,
    first_level=0.15,
    level_ratio=0.7,
    least_level=0.04,
    first_step=0.3,
    step=0.5,
    picks=2,
    decay=0.6,
)
_VERTICES = _Rule(
    epochs=3,
    users_per_noise=8.0,
    growth=1.0,
    first_level=0.1,
    level_ratio=0.85,
    least_level=0.06,
    first_step=0.7,
    step=0.2,
    picks=4,
    decay=0.6,
)
_SOFT_THRESHOLD, _HARD_THRESHOLD = 1.4, 4.0
"""In standard deviations of the noise; entries beyond the second are kept whole."""
_MEMORY = 0.4  # What an epoch leaves of the weights of those before it
_CHOICE_SHARE = Fraction(1, 2)
"""Part of the budget that pays for the choice; the rest pays for the values."""


@final
@dataclass(eq=False, repr=False)
class DPPOFW(StrategyLearner):
    """Private Frank-Wolfe over a polytope for a stream of (x, y), θ released at every time.

    Args:
        constraint_set: ``LpBall(dim, 1, radius)``, a `Simplex` or a `Polytope`.
        loss: ``"squared"``, ``"logistic"``, or a `ScalarObjective`.
        feature_bound: bound on ‖x‖_∞; longer features are scaled onto it.
        label_bound: bound on |y| for the squared loss.
        method: see the module; only the ℓ1 ball has ``"thresholds"`` and ``"choices"``.
        initial: θ at the start, a member; default the member nearest to 0.

    After `start`, ``method_`` is the method that was taken.  Memory: O(d) with sums; with choices
    an epoch's users are kept, sealed, until its end.
    """

    constraint_set: CornerSet
    _: KW_ONLY
    loss: str | ScalarObjective = "squared"
    feature_bound: float = 1.0
    label_bound: float = 1.0
    method: Method = "auto"
    initial: ArrayLike | None = None

    @property
    def _dim(self) -> int:
        return self.constraint_set.dim

    @property
    def _feature_norm(self) -> float:
        return math.inf

    @property
    def _is_ball(self) -> bool:
        return isinstance(self.constraint_set, LpBall)

    def _check_params(self) -> None:
        inside = self.constraint_set
        if not isinstance(inside, LpBall | Simplex | Polytope):
            raise TypeError(f"constraint_set = {inside!r}: must be an LpBall, Simplex or Polytope")
        if isinstance(inside, LpBall) and inside.p != 1:
            raise ValueError(f"p = {inside.p!r}: only the ℓ1 ball has few vertices; use DPTOFW")
        known = ("auto", "thresholds", "projections", "choices", "vertices", "published")
        checked_choice(known, method=self.method)
        if not self._is_ball and self.method in ("thresholds", "choices"):
            raise ValueError(f"method = {self.method!r}: for the ℓ1 ball only")

    def _calibrate(self, accountant: Accountant[Any]) -> None:
        inside = self.constraint_set
        self._start_in(inside, self.initial)
        self._scaled(
            lambda: scale_of(
                self._loss,
                dim=self._dim,
                q=math.inf,
                feature_bound=positive(feature_bound=self.feature_bound),
                reach=inside.diameter(1) / 4,
            )
        )
        self.method_: str = self.method
        if self.method == "auto":
            self.method_ = self._fixed("method", lambda: self._chosen(accountant.budget))
        self._strategy = _STRATEGIES[self.method_](self, accountant)

    def _chosen(self, budget: Currency) -> str:
        inside, dim = self.constraint_set, self._dim
        sums = "thresholds" if self._is_ball else "projections"
        choices = "choices" if self._is_ball else "vertices"
        if not _priced(budget.gaussian_mass):
            return choices
        probe = CrossPolytope(1)
        if not _priced(lambda: ReportNoisyMax.calibrated(probe, 1.0, budget)):
            return sums
        corners = len(inside.corners) if isinstance(inside, Polytope) else dim
        corners *= 2 if self._is_ball else 1
        gaussian = math.sqrt(dim / (2 * math.log(max(dim, 3))))
        return sums if gaussian <= math.log(max(corners, 3)) else choices


def _priced(price: Any) -> bool:
    try:
        price()
    except CurrencyError:
        return False
    return True


class _ByEpochs(Strategy):
    rule: _Rule
    _learner: DPPOFW

    def _cut(self, smallest: Callable[[], float]) -> None:
        """Makes the epochs, which have at least ``smallest()`` noise units of users."""

        def sizes() -> list[int]:
            users, rule = len(self._users), self.rule
            number = epoch_count(users, rule.users_per_noise * smallest(), rule.epochs)
            return epoch_sizes(users, number, rule.growth)

        self._epochs: SealedEpochs[Any] = SealedEpochs(self._users, self._fixed("epochs", sizes))
        self._budgets = PersonBudgets(self._accountant, self._epochs.all)
        self._learned: list[LearnedRows] = []

    def _count(self, sizes: Sequence[Sequence[int]] = ()) -> Fraction:
        self._learned = learned_rows(
            self._learner, self._accountant, self._budgets, self._epochs.all, sizes
        )
        return LearnedRows.rest(self._budgets)

    def _counts(self) -> list[Plan]:
        return [plan for learned in self._learned for plan in learned.plan()]

    def batches(self) -> Sequence[int]:
        return [users.start for users in self._epochs.all]

    @property
    def _clips(self) -> list[float]:
        bound = float(self._learner.feature_bound)
        unit = self._scale.unit * self._scale.curvature
        return [
            bound * max(self.rule.level(k) * unit, self._scale.floor)
            for k in range(len(self._epochs.all))
        ]

    def next_change(self) -> int:
        return self._epochs.stop

    def let_go(self) -> None:
        self._epochs.let_go()


@final
class _Sums(_ByEpochs):
    rule = _THRESHOLDS

    def __init__(self, learner: DPPOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        self._cut(self._noise_units)
        sizes = [(len(users),) for users in self._epochs.all]
        rest = self._count(sizes)

        def calibrated() -> list[BatchedPrefixSum[Array]]:
            levels = [self._scale.clip(self.rule.level(k)) for k in range(len(sizes))]
            domains = [Ball(clip, self._scale.dim) for clip in levels]
            return self._budgets.sums(domains, sizes, rest)

        sums = self._fixed("gradients", calibrated)
        self._sums = [
            PlannedStream(accountant, "epoch", users, each)
            for users, each in zip(self._epochs.all, sums, strict=True)
        ]
        self._pooled: Array = np.zeros(self._scale.dim)
        self._variance = self._weight = 0.0
        self._is_pooled = self._rule is not None and self._rule.pooled
        self._pending: list[Rows[Example]] = []

    def _noise_units(self) -> float:
        mass = float(self._accountant.budget.gaussian_mass())
        return math.sqrt(self._scale.dim / mass) * self._together

    def let_go(self) -> None:
        self._pending = [rows.without_forgotten() for rows in self._pending]

    def plan(self) -> list[Plan]:
        return [*(sums.plan() for sums in self._sums), *self._counts()]

    def streams(self) -> list[PlannedStream[Array]]:
        number = min(self._epochs.number, len(self._sums) - 1)
        return [self._sums[number], *self._learned[number].streams()]

    def take(self, rows: Rows[Example]) -> None:
        learner, number = self._learner, self._epochs.number
        users, sums = self._epochs.all[number], self._sums[number]
        if self._is_pooled:  # a person's rows in an epoch become one at its end
            self._pending.append(rows)
            if rows.users.stop < users.stop:
                return
            rows, self._pending = Rows.concat(self._pending), []
        taken = sums.takes(rows.users)
        if taken:
            mine = rows if taken == rows.users else rows.slice(taken)
            increments = learner._increments([(-1.0, learner._theta)])
            self._learn(number, self._of_persons(mine.map_rows(increments)))
        if rows.users.stop == users.stop:
            self._epochs.number = number + 1

    def _learn(self, number: int, rows: Rows[Array]) -> None:
        learner, sums = self._learner, self._sums[number]
        released = sums.append(rows)
        learned = self._learned[number].after(rows, sums.learned)
        if released is None:
            return
        total = sums.whole(learner._board.post(f"sum/{number}", released))
        step = self.rule.move(number) * self._scale.newton / learned
        variance = (step * sums.error_std(rows.users.stop)) ** 2
        self._weight = _MEMORY * self._weight + 1 / variance
        new = 1 / (variance * self._weight)
        self._pooled = (1 - new) * self._pooled + new * (learner._theta + step * total)
        self._variance = (1 - new) ** 2 * self._variance + new**2 * variance
        learner._theta = self._shrunk()

    def _shrunk(self) -> Array:
        if self._learner.method_ == "projections":
            return self._set.project(self._pooled)
        std, sizes = math.sqrt(self._variance), np.abs(self._pooled)
        soft = np.copysign(np.maximum(sizes - _SOFT_THRESHOLD * std, 0.0), self._pooled)
        kept = np.where(sizes > _HARD_THRESHOLD * std, self._pooled, soft)
        return np.asarray(self._set.pull(kept))


class _Picking(_ByEpochs):
    """What the strategies with report-noisy-max share: epochs are kept, sealed, to their end."""

    vertices: Vertices

    def _begin(self, share: Fraction) -> None:
        adjacency = self._accountant.adjacency
        self._picks = self._fixed("picks", lambda: min(self.rule.picks, self.vertices.count - 1))

        def choice(clip: float, budget: Currency) -> ReportNoisyMax:
            return ReportNoisyMax.calibrated(
                self.vertices, clip, budget, top=self._picks, adjacency=adjacency
            )

        def noise_units() -> float:
            scale = choice(1.0, self._accountant.budget.share(share)).scale
            spread = 2 * self.vertices.diameter("l1")
            return math.log(self.vertices.count) * scale / spread * self._together

        def numbers() -> list[tuple[float, float]]:
            budget = self._budgets.of_row(share)
            return [(clip, choice(clip, budget).scale) for clip in self._clips]

        self._cut(noise_units)
        # The vertices are the set's, which is a parameter: they may be many.
        self._choices = [
            ReportNoisyMax(self.vertices, clip, scale, self._picks, "gumbel", adjacency=adjacency)
            for clip, scale in self._fixed("choices", numbers)
        ]

    def plan(self) -> list[Plan]:
        pairs = zip(self._choices, self._epochs.all, strict=True)
        return [Plan("choice", choice.loss(), users) for choice, users in pairs]

    def take(self, rows: Rows[Example]) -> None:
        learner, number = self._learner, self._epochs.number
        kept = self._epochs.add(rows.map_rows(learner._increments([(-1.0, learner._theta)])))
        if kept is None:
            return
        if not self._accountant.left("choice", kept.users):  # lost with its process
            return
        kept = self._of_persons(kept)
        picked = learner._posted(self._choices[number], kept, "choice", f"choice/{number}")
        learner._theta = np.asarray(self._set.pull(self._moved(number, kept, np.asarray(picked))))

    @abstractmethod
    def _moved(self, number: int, rows: Rows[Array], picked: NDArray[np.int64]) -> Array:
        """θ after the choice of an epoch."""


@final
class _Choices(_Picking):
    rule = _CHOICES

    def __init__(self, learner: DPPOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        self.vertices = CrossPolytope(self._scale.dim)
        budget: Currency = accountant.budget
        self._measured: list[NoisySum[Array]] = []
        if not _priced(budget.gaussian_mass):
            self.rule = _SIGNS
            self._begin(Fraction(1))
            return
        self._begin(_CHOICE_SHARE)
        rest = self._count() - _CHOICE_SHARE

        def calibrated() -> list[NoisySum[Array]]:
            row, adjacency = self._budgets.of_row(rest), accountant.adjacency
            domains = [Ball(clip, self._picks, "linf") for clip in self._clips]
            return [NoisySum.calibrated(ball, row, adjacency=adjacency) for ball in domains]

        self._measured = self._fixed("values", calibrated)

    def plan(self) -> list[Plan]:
        pairs = zip(self._measured, self._epochs.all, strict=False)
        values = [Plan("values", sums.loss(), users) for sums, users in pairs]
        return [*super().plan(), *values, *self._counts()]

    def _moved(self, number: int, rows: Rows[Array], picked: NDArray[np.int64]) -> Array:
        learner, dim = self._learner, self._scale.dim
        moved = learner._theta.copy()
        if not self._measured:
            reach = self._scale.unit / float(learner.feature_bound)
            toward = self.vertices.points(picked).mean(axis=0)
            return np.asarray(moved + self.rule.move(number) * reach * toward)
        if not self._accountant.left("values", rows.users):
            return moved  # lost with its process: the choice says where, and not how far
        places, sums = picked % dim, self._measured[number]
        # +e_j and −e_j may both be chosen; the second place is then measured as 0.
        first = np.zeros(len(places))
        first[np.unique(places, return_index=True)[1]] = 1.0
        values = rows.map_rows(lambda g: g[:, places] * first)
        total = learner._posted(sums, values, "values", f"values/{number}") * first
        learned = self._learned[number].after(rows, len(rows.users))
        step = self.rule.move(number) * self._scale.newton / learned
        np.add.at(moved, places, step * total)
        return moved


@final
class _Corners(_Picking):
    rule = _VERTICES

    def __init__(self, learner: DPPOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        self.vertices = learner.constraint_set.choices
        self._begin(Fraction(1))

    def _moved(self, number: int, rows: Rows[Array], picked: NDArray[np.int64]) -> Array:
        theta = self._learner._theta
        toward = self.vertices.points(picked).mean(axis=0)
        return np.asarray(theta + self.rule.move(number) * (toward - theta))


@final
class _Published(Strategy):
    """Algorithm 2 of the paper, step by step; errata 13 says which of its prices hold."""

    _learner: DPPOFW

    def __init__(self, learner: DPPOFW, accountant: Accountant[Any]) -> None:
        super().__init__(learner, accountant)
        if self._rule is not None:
            raise ValueError(
                f"{self._rule}: method = 'published' has no price for a person below that of a "
                "group, as each pick reads all rows so far; use another method, or an accountant "
                "without people="
            )
        bound, loss = float(learner.feature_bound), learner._loss
        diameter = self._set.diameter(1)
        largest = max(float(np.abs(self._set.minimize(np.ones(learner._dim))).sum()), diameter)
        slope = min(loss.slope, loss.curvature * (largest * bound + self._scale.unit))
        vertices, horizon = learner.constraint_set.choices, len(accountant.users)

        def numbers() -> tuple[float, float]:
            clip = loss.curvature * bound**2 * diameter + slope * bound
            picks = NoisyMaxStream.calibrated(
                vertices, clip, accountant.budget, horizon=horizon, adjacency=accountant.adjacency
            )
            return clip, picks.scale

        clip, scale = self._fixed("picks", numbers)
        self._picks = NoisyMaxStream(vertices, clip, scale, horizon, accountant.adjacency)
        self._stream = SuccessiveStreams(accountant, "picks", self._users, self._picks)
        self._before, self._done = learner._theta, 0

    def batches(self) -> Sequence[int]:
        return (self._users.start,)

    def let_go(self) -> None:
        """No rows are kept."""

    def plan(self) -> list[Plan]:
        return [self._stream.plan()]

    def streams(self) -> list[SuccessiveStreams[NoisyMaxPicks]]:
        return [self._stream]

    def next_change(self) -> int:
        return self._users.start + self._done + 1

    def take(self, rows: Rows[Example]) -> None:
        if self._stream.takes(rows.users):
            self._step(rows)
        self._done += 1
        if rows.users.stop == self._users.stop:
            self._stream.close()

    def _step(self, rows: Rows[Example]) -> None:
        """Takes one user's row.

        A stream that follows one that died begins to add up anew, at the θ that was reached.
        """
        learner, t = self._learner, rows.users.start - self._stream.first
        terms: Terms = [(-(t + 1.0), learner._theta)]
        if t:
            terms = [*terms, (float(t), self._before)]
        picked = self._stream.open.append(rows.map_rows(learner._increments(terms))).value
        self._before = learner._theta
        toward = self._picks.vertices.points(picked)[0]
        moved = learner._theta + (toward - learner._theta) / (self._done + 2)
        learner._theta = np.asarray(self._set.pull(moved) if learner._is_ball else moved)


_STRATEGIES: dict[str, type[_Sums] | type[_Choices] | type[_Corners] | type[_Published]] = {
    "published": _Published,
    "thresholds": _Sums,
    "projections": _Sums,
    "choices": _Choices,
    "vertices": _Corners,
}
