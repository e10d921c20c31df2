"""DP-TOFW: private online convex optimisation over ℓp balls, 1 < p <= ∞, and other sets.

The recursive gradient of the paper is a prefix sum of increments, one per user.  Here each
increment is clipped *as a whole* in ℓ2, so one user moves the stream by at most twice the clip
whatever the loss.  Three strategies:

``whitened``  an epoch's users are kept, sealed, and read in many steps at its end, in coordinates
              that a private Σxxᵀ makes white: for tables, whose columns have means of their own,
              are 0 or 1, or are correlated.  The best there, and the default for p = 2.
``buffered``  the same without Σxxᵀ: the least risk where features are alike in all directions, and
              the default for other p.  θ stands still within an epoch; memory is O(users·d).
``plain``     θ moves after every user: a Frank-Wolfe step towards the vertex of the noisy gradient,
              with the noise of least error.  Increments are made against θ at the start of a public
              block of at most 1/16 of the users so far (64 at most), so that blocks can be computed
              at once.  For whoever needs a model at every time; no rows are kept.

What was measured stands in docs/reference/learners.md.  Each has a module of its own
(`privlearn.learners.tofw_plain`, …), with its constants.

All are tempered: the gradient is shrunk by the James-Stein factor of the *public* variance of its
noise.  Steps, clips and epochs follow from public constants only: d, the number of users, the
budget, the bounds on features and labels.

With a registry of people (``CentralAccountant(..., people=...)``) ``partial_fit(..., people=ids)``
learns at most as often from a person as the rule says, and the cap is that of a person.  ``plain``
takes ``most`` and ``apart``; the others any rule, with their epochs as batches.  These with
``Participation(2, pooled=True)``, a mean of a person's rows in each of their two epochs, are best
where many return: increments of ``plain`` are made for a stream that goes on as it began.

After a restart θ is what it was.  ``plain`` loses the users of one segment of its stream (at most
256 that had come or were next), whose places are passed over; the next stream takes the others, and
the noise of both is in the sums.  With ``most`` above 1 a stream that died has no rest, and θ stays
as it is.  ``buffered`` and ``whitened`` take the rows of an unfinished epoch again; of an epoch
whose steps were cut off the others are made if its rows are there, from a store or with ``again``,
and else those that were made count.

Increments are clipped in ℓ2 for every p: clipped in ℓq at the same residual they would need more
noise, Gaussian or generalized Gaussian (`PrefixSum.calibrated` with ``exponent=None`` computes it).

Source: the algorithm is that of Han et al. 2022 (Algorithm 1); clipping, noise and steps are ours.
Privacy: `PrefixSum`, `BatchedPrefixSum`, `NoisySum`; θ is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, final

from numpy.typing import ArrayLike

from privlearn.contract.protocols import Accountant
from privlearn.learners.convex import LpLearner, Strategy, StrategyLearner, scale_of
from privlearn.learners.streaming import checked_choice
from privlearn.learners.tofw_buffered import Buffered
from privlearn.learners.tofw_plain import Plain
from privlearn.learners.tofw_whitened import Whitened
from privlearn.mechanisms.constraint_sets import ConstraintSet, LpBall, exponent
from privlearn.values.validate import positive

Method = Literal["auto", "whitened", "buffered", "plain"]
_ROUNDING = 1 + 1e-9


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DPTOFW(LpLearner, StrategyLearner):
    """Private Frank-Wolfe for a stream of (x, y), with θ released at every time.

    Args:
        dim: d.
        p: θ lives in an ℓp ball, p in (1, ∞], and features are bounded in the dual norm.
        radius: of that ball.
        loss: ``"squared"``, ``"logistic"``, or a `ScalarObjective`.
        feature_bound: bound on ‖x‖_q; longer features are scaled onto it.
        label_bound: bound on |y| for the squared loss.
        method: ``"whitened"``, ``"buffered"`` or ``"plain"``, see the module; ``"auto"`` is the
            first for p = 2, else the second.
        theta_set: another set in place of the ball; p then only says how features are bounded.
        initial: θ at the start, a member; default the member nearest to 0.
        clip: the ℓ2 clip of increments, in place of the rule's; in white coordinates for
            ``whitened``.
        anytime: for ``plain``: noise without a horizon.  The accountant may then name more users
            than ever come, at about a fifth more noise.
        usual_norm: public guess of ‖x‖_q of most rows, from which clips and steps are made; default
            ``feature_bound``.  Where the bound is loose, it keeps noise small without shrinking any
            row.
        constant: for ``whitened``: the last feature, if it is the same number for everybody, so
            that its parameter is an intercept.
    """

    method: Method = "auto"
    theta_set: ConstraintSet | None = None
    initial: ArrayLike | None = None
    clip: float | None = None
    anytime: bool = False
    usual_norm: float | None = None
    constant: float | None = None

    _removed: ClassVar[Mapping[str, tuple[str, ...]]] = {"method": ("restarts",)}

    @property
    def _way(self) -> str:
        if self.method != "auto":
            return self.method
        return "whitened" if float(self.p) == 2 else "buffered"

    def _check_params(self) -> None:
        super()._check_params()
        if float(self.p) == 1:
            raise ValueError("p = 1: use DPPOFW, whose steps are made for the ℓ1 ball")
        checked_choice(("auto", "whitened", "buffered", "plain"), method=self.method)
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
            if self._way != "whitened":
                raise ValueError("constant: only method = 'whitened' treats an intercept apart")
        if self.anytime and self._way != "plain":
            raise ValueError("anytime = True: only method = 'plain' knows no horizon")
        if self.theta_set is not None and not isinstance(self.theta_set, ConstraintSet):
            raise TypeError(f"theta_set = {self.theta_set!r}: must be a ConstraintSet")
        if self.theta_set is not None and self.theta_set.dim != self.dim:
            raise ValueError(f"theta_set of dimension {self.theta_set.dim}: must be {self.dim}")

    def _calibrate(self, accountant: Accountant[Any]) -> None:
        inside = LpBall(self.dim, self.p, self.radius) if self.theta_set is None else self.theta_set
        self._start_in(inside, self.initial)
        self._scaled(
            lambda: scale_of(
                self._loss,
                dim=self.dim,
                q=self._feature_norm,
                feature_bound=self.usual_norm or self.feature_bound,
                reach=self._set.diameter(exponent(p=self.p)) / 4,
            )
        )
        strategies: dict[str, Callable[[DPTOFW, Accountant[Any], float | None], Strategy]] = {
            "plain": partial(Plain, anytime=self.anytime),
            "buffered": Buffered,
            "whitened": partial(Whitened, constant=self.constant),
        }
        # by name in the ledger, as a later version may choose another one
        way = self._fixed("method", lambda: self._way) if self.method == "auto" else self.method
        self._strategy = strategies[way](self, accountant, self.clip)

    def _replay(self) -> None:
        super()._replay()
        self._closed = self._strategy.was_closed

    def close(self) -> None:
        """Ends an open stream before its horizon, as released; nothing more can be learned.

        A resumed ledger tells so where a stream was open.
        """
        self._check_running()
        self._strategy.close()
        self._closed = True
