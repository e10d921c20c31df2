r"""Linear, logistic and softmax models of a table, offline: whitened, clipped, averaged descent.

1. Σzzᵀ of z = (x, g), shortened to a public length, is released (`PSDTrace`), at a share q.
2. What it says gives coordinates u in which rows are about white (`white_coordinates`).
3. In T steps the gradients u·rᵀ, with r the residuals, are released, clipped as a whole to C, at
   equal shares of the rest, and θ goes on by a step; the later half of its path is averaged.

q, T, the clip and the steps are public, by n, d, μ and the loss (`descent_rules`).

Privacy: all steps read all rows, and the shares of the budget add up to the cap: (Σzzᵀ and T sums,
Gaussian, adaptive composition; Dong, Roth & Su 2022).  Coordinates, C, θ and the answer are
post-processing.  A null record adds zero to each sum.  With equal Gaussian masses the total is the
cap itself, so the exact Gaussian curve holds.  Proof: docs/proofs.md, "Whitened descent".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.contract.protocols import Accountant, Plan
from privlearn.learners.clip_follower import (
    EXTRA,
    RADIUS,
    ClipFollower,
    clipped_with_extra,
    with_extra,
)
from privlearn.learners.convex import SealedEpochs
from privlearn.learners.descent_noise import Step, curvature_of_scores, shrunk_answer
from privlearn.learners.descent_rules import LOSSES, DescentRule, rule_for, usual_sum
from privlearn.learners.inputs import numbers_from
from privlearn.learners.person_budgets import PersonBudgets
from privlearn.learners.streaming import Example, StreamLearner, checked_choice
from privlearn.learners.white_coordinates import WhiteCoordinates, white_coordinates
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.scalar_objectives import LogisticObjective, SquaredObjective
from privlearn.rows import Rows, merge
from privlearn.rows.domains import Array, Ball, PSDTrace
from privlearn.rows.pooling import sum_of_visits
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.validate import count, positive

_LONGEST: Final = 1.25
"""Clip of ‖z‖², in units of row_norm²: with g = row_norm/2 no row within the norm is shortened."""
_ROWS_AT_ONCE: Final = 2**14
_LEFT_OUT, _LEFT_OUT_SQUARED = 0.5, 0.4  # The part of a path that is not in its mean
_USUALLY_INSIDE: Final = 0.5  # The part of gradients that a clip that does not follow leaves
_USUAL_COEF, _USUAL_COEF_OF_SCORES = 0.25, 1.0  # Of columns in [−1, 1]
_USUAL_MEAN: Final = 0.1  # The usual square of the mean of labels in [−1, 1]


class SoftmaxObjective(NamedTuple):
    """log Σₖ exp(uₖ) − u_y for classes y = 0, …, K − 1."""

    classes: int
    curvature: float = 0.5
    slope: float = math.sqrt(2)
    unit: float | None = None

    def derivative(self, score: Array, label: Array) -> Array:
        """Class probabilities minus the indicator of the label, shape (n, K)."""
        odds = np.exp(score - score.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        return np.asarray(odds - (label[:, None] == np.arange(self.classes)))

    def labels(self, values: Array) -> Array:
        """Class numbers; NaN for anything else."""
        known = (values >= 0) & (values < self.classes) & (values == np.floor(values))
        return np.where(known, values, np.nan)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "softmax", "classes": self.classes}


_Redrawn = Callable[[Any], WhiteCoordinates]


class _Mechanisms(NamedTuple):
    moments: NoisySum[Array]
    mean: NoisySum[Array] | None
    steps: NoisySum[Array]
    rule: DescentRule


@final
@dataclass(eq=False, repr=False)
class WhitenedDescent(StreamLearner):
    """Whitened, clipped, averaged descent over a whole table; see the module.

    **Not a streaming method**: it holds every record until the horizon, and answers 0 until then.

    Rows come without a constant, with columns in [−1, 1], as `privlearn.tables.Encoding` makes
    them; constants of the method presume ‖x‖² about d/4.  Rows that only have a bound B of their
    norm are to be scaled by √d/(2B).  A row is null if a number of it is not finite, or the label
    is none; labels of the squared loss are clipped into [−1, 1].

    Args:
        dim: d, without the constant.
        loss: ``"squared"``, ``"logistic"`` (labels 0 and 1) or ``"softmax"`` (0, …, K − 1).
        row_norm: b, the public bound that ‖x‖₂ is clipped to where second moments are made.
        classes: K of the softmax loss.
        rows_per_person: how many rows a person usually has; of use under a rule of participation,
            where the rows of a person are added up and clipped together.
    """

    dim: int
    loss: str = "squared"
    _: KW_ONLY
    row_norm: float
    classes: int = 2
    rows_per_person: float = 1.0

    @property
    def _dim(self) -> int:
        return self.dim

    @property
    def _feature_norm(self) -> float:
        return 2.0

    @property
    def _outputs(self) -> int:
        return self.classes if self.loss == "softmax" else 1

    def _check_params(self) -> None:
        count(dim=self.dim)
        count(classes=self.classes, at_least=2)
        if positive(rows_per_person=self.rows_per_person) < 1:
            raise ValueError(f"rows_per_person = {self.rows_per_person!r}: must be at least 1")

    def _read_loss(self) -> None:
        self._bound = positive(row_norm=self.row_norm)
        checked_choice(LOSSES, loss=self.loss)
        if self.loss == "softmax":
            self._loss = SoftmaxObjective(count(classes=self.classes, at_least=2))
        else:
            self._loss = SquaredObjective() if self.loss == "squared" else LogisticObjective()

    def _check_rule(self, rule: Participation) -> None:
        if not rule.pooled:
            raise ValueError(
                f"WhitenedDescent: no price for a person who comes back ({rule}); use "
                "Participation(most=1, pooled=True), under which all rows of a person are one"
            )

    @property
    def _rule_batches(self) -> Sequence[int]:
        return [self._everybody.all[0].start]

    def _calibrate(self, accountant: Accountant[Any]) -> None:
        users = accountant.users
        self._everybody: SealedEpochs[Example] = SealedEpochs(users, [len(users)])
        self._budgets = PersonBudgets(accountant, self._everybody.all)
        self._pooled = self._budgets.rule is not None
        made = self._fixed("mechanisms", lambda: self._mechanisms(accountant))
        self._made_of = _Mechanisms(*made)
        self._theta = np.zeros((self._outputs, self.dim))
        self._intercepts = np.zeros(self._outputs)
        self._noise: Array | None = None

    def _mechanisms(self, accountant: Accountant[Any]) -> tuple[Any, ...]:
        part = self._budgets.of_row
        users, dim, adjacency = len(accountant.users), self.dim + 1, accountant.adjacency
        mass = part().gaussian_mass()
        mu = math.sqrt(mass) * (1 if adjacency is Adjacency.REPLACE_ONE else 2)
        alike = users / usual_sum(self._together)
        rule = rule_for(self.loss, alike, dim, mu, self._loss.curvature)

        def noisy(domain: Any, share: Fraction) -> NoisySum[Array]:
            return NoisySum[Array].calibrated(domain, part(share), adjacency=adjacency)

        ball = Ball(RADIUS, dim + EXTRA) if rule.follows else Ball(1.0, self._outputs * dim)
        return (
            noisy(PSDTrace(_LONGEST * self._bound**2 * self._together, dim), rule.moments),
            noisy(Ball(self._together, 1), rule.mean) if rule.mean else None,
            noisy(ball, (1 - rule.moments - rule.mean) / rule.steps),
            rule,
        )

    @property
    def _together(self) -> float:
        """Rows that are usually clipped as one record."""
        return self.rows_per_person if self._pooled else 1.0

    def _summed(
        self,
        sums: NoisySum[Array],
        rows: Rows[Example],
        function: Callable[[Example], Array],
        label: str,
        name: str,
        *,
        pooled: Callable[[Array], Array] = sum_of_visits,
        last: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Posts the noisy sum of a function of rows, in parts that stay in the cache.

        Under a rule ``pooled`` makes one record of a person's; ``last`` is a function of what is
        then summed.
        """

        def made(part: Rows[Example]) -> Rows[Array]:
            found = part.map_rows(function)
            found = found.pool(pooled) if self._pooled else found
            return found if last is None else found.map_rows(last)

        users = rows.users
        if self._pooled or len(users) <= _ROWS_AT_ONCE:
            return self._posted(sums, made(rows), label, name)
        starts = range(users.start, users.stop, _ROWS_AT_ONCE)
        parts = (range(start, min(start + _ROWS_AT_ONCE, users.stop)) for start in starts)
        total = reduce(merge, (sums.partial(made(rows.slice(part))) for part in parts))
        token = self._accountant.issue(sums.loss(), users=users, label=label)
        return self._board.post(name, sums.release_partial(total, token))

    def _plan(self) -> list[Plan]:
        made, users = self._made_of, self._everybody.all[0]
        plans = [Plan("moments", made.moments.loss(), users)]
        if made.mean is not None:
            plans.append(Plan("mean", made.mean.loss(), users))
        return [*plans, Plan("step", made.steps.loss(), users, made.rule.steps)]

    def _next_change(self) -> int:
        return self._everybody.stop

    def forget(self, person: Any) -> None:
        super().forget(person)
        self._everybody.let_go()

    def _take(self, rows: Rows[Example]) -> None:
        kept = self._everybody.add(rows.map_rows(self._examples))
        # A process that died before has lost the rows of what was not released yet.
        if kept is None or not self._accountant.left("moments", kept.users):
            return
        made = self._white(kept)
        space = made(0.0)
        self._descend(kept.map_rows(_in(space)), space, made)

    def _examples(self, block: Example) -> Example:
        """Rows; one without a label has no number, so that it adds nothing to any sum."""
        values, labels = block[0], self._loss.labels(block[1])
        unknown = np.isnan(labels)
        if unknown.any():
            values = np.where(unknown[:, None], np.nan, values)
        return values, labels

    def _white(self, rows: Rows[Example]) -> _Redrawn:
        """The coordinates, as a function of what is added to the noise of Σzzᵀ, in its units."""
        sums, rule = self._made_of.moments, self._made_of.rule
        added = self._bound / 2

        def extended(block: Example) -> Array:
            values = block[0]
            return np.hstack([values, np.full((len(values), 1), added)])[:, None, :]

        gram = self._summed(sums, rows, extended, "moments", "moments", pooled=_stacked)
        noise, users = sums.error_std(), len(rows)

        def made(draw: Array | float) -> WhiteCoordinates:
            return white_coordinates(
                gram + noise * draw, users, added, noise, lifted=rule.lifted, floor=rule.floor
            )

        return made

    def _start(self, rows: Rows[Example], space: WhiteCoordinates) -> Array:
        """θ₀: the shrunk noisy mean of labels where there is one, else 0; shape (K, d + 1)."""
        theta = np.zeros((self._outputs, self.dim + 1))
        sums, records = self._made_of.mean, space.weight * len(rows)
        if sums is not None and self._accountant.left("mean", rows.users):
            mean = float(self._summed(sums, rows, _labels, "mean", "mean")[0]) / records
            noise = sums.error_std() / records
            theta[0, -1] = min(max(mean * _USUAL_MEAN / (_USUAL_MEAN + noise**2), -1.0), 1.0)
        return theta / space.constant

    def _descend(self, rows: Rows[Example], space: WhiteCoordinates, made: _Redrawn) -> None:
        """T noisy steps, of which the later part is averaged; the answer is public after each."""
        sums, rule = self._made_of.steps, self._made_of.rule
        users, length = len(rows), math.sqrt(space.energy)
        theta = self._start(rows, space)
        self._answer(space, [theta])
        follower = self._follower(rows, space)
        path: list[Array] = []
        steps: list[Step] = []
        for step in range(rule.steps):
            if not self._accountant.left("step", rows.users):
                break
            clip = length * usual_sum(self._together)
            clip *= rule.clip if follower is None else follower.clip
            eta = self._step_size(clip, length)
            gradients = self._gradients(theta, clip)
            last = with_extra if rule.follows and self._pooled else None
            released = self._summed(sums, rows, gradients, "step", f"step/{step}", last=last)
            if follower is not None:
                follower.see(released)
            moved = released[: theta.size].reshape(theta.shape)
            theta = theta - eta * clip / users * moved
            path.append(theta)
            self._answer(space, path[self._first_averaged(len(path)) :])
            steps.append(Step(eta, eta * clip / users * sums.error_std()))
        if steps:
            curvatures = space.weight * self._curvatures(space, follower)
            first, usual = self._first_averaged(len(steps)), self._usual_coef
            before = self._theta
            self._theta, self._noise = shrunk_answer(
                before, steps, first, space, made, curvatures, usual
            )
            self._intercepts = self._intercepts + (before - self._theta) @ space.mean

    def _curvatures(self, space: WhiteCoordinates, follower: ClipFollower | None) -> Array:
        """Of the loss at the answer, where gradients are not clipped, (K, 2)."""
        if self.loss == "squared":
            inside = _USUALLY_INSIDE if follower is None else follower.inside
            return np.array([[inside, inside]])
        center = self._intercepts + self._theta @ space.mean
        spread = self._theta @ space.least_moments @ self._theta.T
        return curvature_of_scores(center, spread, self._made_of.rule.clip, self.dim)

    @property
    def _usual_coef(self) -> float:
        return _USUAL_COEF if self.loss == "squared" else _USUAL_COEF_OF_SCORES

    def _follower(self, rows: Rows[Example], space: WhiteCoordinates) -> ClipFollower | None:
        sums, rule = self._made_of.steps, self._made_of.rule
        if not rule.follows:
            return None
        records = space.weight * len(rows) / self._together
        least = math.sqrt(8 * (self.dim + 1)) / (self._strength * records)
        return ClipFollower(
            rule.clip,
            steps=rule.steps,
            records=records,
            noise=sums.error_std(),
            least=least,
        )

    @property
    def _strength(self) -> float:
        """μ of all steps together, of replacing one gradient of length 1."""
        made = self._made_of
        radius = RADIUS if made.rule.follows else 1.0
        return 2 * radius * math.sqrt(made.rule.steps) / made.steps.error_std()

    def _step_size(self, clip: float, length: float) -> float:
        rule, curved = self._made_of.rule, self._loss.curvature
        users = len(self._everybody.all[0])
        horizon = min(rule.per_noise * self._strength * users / (clip * length), rule.longest)
        safe = 0.0 if self.loss == "squared" else 2 / length**2
        return min(horizon / rule.steps, max(safe, rule.largest) / curved)

    def _first_averaged(self, steps: int) -> int:
        """Of a path of so many steps, the first θ that the mean is of."""
        return int((_LEFT_OUT_SQUARED if self.loss == "squared" else _LEFT_OUT) * steps)

    def _answer(self, space: WhiteCoordinates, late: Sequence[Array]) -> None:
        theta = np.mean(late, axis=0)
        if len(theta) > 1:  # What all classes have in common is noise: residuals add up to 0.
            theta = theta - theta.mean(axis=0)
        self._theta, self._intercepts = space.answer(theta)

    def _gradients(self, theta: Array, clip: float) -> Callable[[Example], Array]:
        """What is summed in a step at a public θ, shape (n, …), row by row.

        It is u·rᵀ/C, where the clip follows with the two numbers of `ClipFollower`; under a rule,
        where these are a person's, with r.
        """
        follows, pooled, objective = self._made_of.rule.follows, self._pooled, self._loss

        def of_classes(block: Example) -> Array:
            values, labels = block
            residuals = objective.derivative(np.einsum("nd,kd->nk", values, theta), labels)
            return ((residuals / clip)[:, :, None] * values[:, None, :]).reshape(len(values), -1)

        def gradients(block: Example) -> Array:
            values, labels = block
            residuals = objective.derivative(np.einsum("nd,d->n", values, theta[0]), labels)
            factors = residuals / clip
            if follows and not pooled:
                sizes = np.sqrt(np.einsum("nd,nd->n", values, values)) * np.abs(factors)
                return clipped_with_extra(values, factors, sizes, residuals)
            found = values * factors[:, None]
            return np.column_stack([found, residuals]) if follows else found

        return gradients if len(theta) == 1 else of_classes

    @property
    def coef_(self) -> Array:
        """Coefficients of the columns, shape (d,), or (K, d) for the softmax loss; a copy.

        Raises:
            RuntimeError: not started.
        """
        self._check_started()
        return self._shaped(self._theta)

    @property
    def intercept_(self) -> float | Array:
        """The intercept, a float, or shape (K,) for the softmax loss.

        Raises:
            RuntimeError: not started.
        """
        self._check_started()
        found = self._shaped(self._intercepts)
        return found if found.ndim else float(found)

    def _shaped(self, values: Array) -> Array:
        return values.copy() if self.loss == "softmax" else np.array(values[0])

    @property
    def noise_std_(self) -> Array | None:
        """The standard deviation of the noise of each coefficient, shaped as ``coef_``.

        It is of coefficients around what the same steps would come to on average over the noise,
        with the noise of the coordinates, and rather too large than too small; it knows nothing of
        the sampling of rows, nor of how far clipping and a finite number of steps lead away.  From
        released numbers (`descent_noise`).  None before there is an answer.
        """
        self._check_started()
        return None if self._noise is None else self._shaped(self._noise)

    def decision_function(self, x: ArrayLike) -> Array:
        """Scores x·coef + intercept, shape (n,), or (n, K) for the softmax loss; x is (n, d).

        Raises:
            ValueError: x has another width.
            RuntimeError: not started.
        """
        values = numbers_from("x", x)
        if values.shape[-1:] != (self.dim,):
            raise ValueError(f"x of shape {values.shape}: the last length must be {self.dim}")
        return np.asarray(values @ self.coef_.T + self.intercept_)

    def predict(self, x: ArrayLike) -> Array:
        """As `decision_function`."""
        return self.decision_function(x)

    def public_state(self) -> dict[str, Any]:
        made = self._made_of
        return super().public_state() | {
            "coef": self.coef_.tolist(),
            "intercept": np.asarray(self.intercept_).tolist(),
            "rule": {
                name: str(value) if isinstance(value, Fraction) else value
                for name, value in made.rule._asdict().items()
            },
        }


def _stacked(block: Array) -> Array:
    """The factors of one person, shape (m, d + 1), of blocks of shape (m, 1, d + 1)."""
    kept = block[np.isfinite(block).all(axis=(1, 2)), 0]
    if not len(kept):
        raise ValueError("no row is finite")
    return kept


def _labels(block: Example) -> Array:
    return np.where(np.isnan(block[0]).any(axis=1), np.nan, block[1])[:, None]


def _in(space: WhiteCoordinates) -> Any:
    """Rows in white coordinates; row by row."""

    def mapped(block: Example) -> Example:
        values, labels = block
        white = np.empty((len(values), values.shape[1] + 1))
        np.einsum("nd,de->ne", values - space.mean, space.forward, out=white[:, :-1])
        white[:, -1] = space.constant
        return white, labels

    return mapped
