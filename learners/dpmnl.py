"""DPMNL (Cho & Sun, Algorithm 1): private upper confidence bounds for assortments, repaired.

T0 users see random items.  From then on each user is shown the assortment that is best under
optimistic utilities x·θ̂ + c·α_t‖x‖_{V⁻¹}; θ̂ is a private maximum-likelihood fit on all answers so
far (`ObjectivePerturbation`), made at most D_MLE times, and V the private Gram matrix of what was
offered (`PrefixSum`) plus 2λI.

Repairs (``docs/errata/dpmnl.md``): the fit at T0 counts as the first of D_MLE, and each has
an equal share of the budget; det V is compared with its value at the last fit; the Gram sums start
with the first user and no exact V exists; α_t and λ use public constants and the noise really in
use.  V, α_t and θ̂ change only at the ends of public blocks, so that serving users one by one and in
blocks gives the same items.

Privacy: the fits and the Gram sums are the billboard, and what a user is shown is a function of it
and of that user's own row: joint DP (``docs/proofs.md``).  The plan commits every fit that a user
could enter: at public times the users so far; under the determinant trigger, whose times are not
known beforehand, all users for every fit but the first.

Under a rule of participation a person has up to m_e rows in fit e, which is made of all rows so
far: m_e is the rule's number for the users before it, and noise is calibrated to the sum over fits
(`MinimizerLoss.for_visits`).  Rules that count within batches count between fits.  Refused are the
determinant trigger, whose times an adversary chooses, so that every row would be in every fit;
noise as published, which is about single rows; and pooled rules, as a fit takes answers and a sum
of several is none.  The rule to take is ``Participation(most=1)``: what a second visit of everybody
adds is less than the noise that it costs (benchmarks/returning_others.py).

Under a `CentralAccountant` it learns from logged answers (`DPMNL.learn_logged`), which may lie in
several processes: batches end with the public times of fits, the Gram sums are released after them
(`BatchedPrefixSum`, which takes sums that were made apart), and nobody is served.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, final

import numpy as np

from privlearn.contract.protocols import Accountant, Plan
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.errors import ProvenanceError, UsersError
from privlearn.learners import dpmnl_noise
from privlearn.learners.dpmnl_noise import DPMNLNoise, Shape
from privlearn.learners.logged_answers import LoggedAnswers
from privlearn.learners.newton import Belief
from privlearn.learners.participation import rule_of
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.served import ServedMNL, Visit
from privlearn.learners.serving import optimistic_items, random_items
from privlearn.losses import Loss, compose
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.choice_model import Answer, Items
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array
from privlearn.rows.partitions.rows import PartitionedRows
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import exact
from privlearn.values.participation import Participation
from privlearn.values.records import frozen
from privlearn.values.validate import count, not_negative, positive, within


def offered_items(answer: Answer) -> Array:
    """The factors of a user's Gram matrix."""
    return answer.features


BLOCK_GROWTH = 1.05
"""Ratio of the ends of consecutive public blocks: V is at most 5% of the users behind."""


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DPMNL(ServedMNL):
    """Private dynamic assortment selection under the multinomial logit.

    Args:
        n_items: N, items on offer to every user.
        dim: d, features per item.
        max_items: K, the most items that may be shown; 1 <= K <= N.
        outside_option: whether users may choose nothing.
        initial_rounds: T0, users who see random items; default min(100, T/8).
        max_updates: D_MLE, the most private fits.
        trigger: ``"public"``: fits after T0·(T/T0)^{k/D_MLE} users, k = 0, 1, …; ``"determinant"``:
            the first after T0 users, and then when det V has doubled since the last one.
        gram_share: part of the budget for the Gram sums, in (0, 1).
        exploration: c >= 0 in the bonus c·α_t‖x‖_{V⁻¹}.
        kappa: the paper's κ, a public constant > 0; the benchmark's α_t has none.
        theta_norm: public guess of ‖θ‖ that Δ and σ are balanced for.
        feature_scale: public constant that features are divided by before each item is clipped
            into the unit ball.
        calibration: ``"proved"``; ``"published"``: the paper's noise for the budget ``nominal``, of
            Algorithms 2 and 3 for a `ZCDP`, of its benchmark (Algorithms 4 and 5) for an
            `ApproxDP`; ``"corrected"``: that benchmark with repaired constants.  In any case the
            accountant is charged what the noise really costs (`worst_loss`).
        nominal: the paper's budget, for a calibration that is not ``"proved"``.
        random_state: seed of the public coins of the first T0 rounds.

    After `start`, ``theta_`` (d,) and ``gram_`` (d, d) are the public estimate and shifted Gram
    matrix, ``clock_`` the next arrival index and ``updates_`` the number of fits.
    """

    _unbounded = frozenset({"later fit"})

    n_items: int
    dim: int
    max_items: int = 1
    outside_option: bool = True
    initial_rounds: int | None = None
    max_updates: int = 8
    trigger: Literal["public", "determinant"] = "public"
    gram_share: float = 0.1
    exploration: float = 1e-4
    kappa: float = 1.0
    theta_norm: float = 1.0
    feature_scale: float = 1.0
    calibration: Literal["proved", "published", "corrected"] = "proved"
    nominal: ZCDP | ApproxDP | None = None
    random_state: int = 0

    def _check_params(self) -> None:
        self._check_market()
        count(max_updates=self.max_updates)
        if self.trigger not in ("public", "determinant"):
            raise ValueError(f"trigger = {self.trigger!r}: must be 'public' or 'determinant'")
        within("(0, 1)", gram_share=self.gram_share)
        not_negative(exploration=self.exploration)
        positive(kappa=self.kappa)
        positive(theta_norm=self.theta_norm)
        wanted = {"proved": (type(None),), "published": (ZCDP, ApproxDP), "corrected": (ApproxDP,)}
        if self.calibration not in wanted:
            raise ValueError(f"calibration = {self.calibration!r}: must be one of {list(wanted)}")
        if not isinstance(self.nominal, wanted[self.calibration]):
            names = " or ".join(kind.__name__ for kind in wanted[self.calibration])
            raise ValueError(
                f"nominal = {self.nominal!r}: must be {names} for calibration {self.calibration!r}"
            )
        match self.nominal:
            case ZCDP(rho=size) | ApproxDP(epsilon=size) if size == 0:
                raise ValueError(f"nominal = {self.nominal!r}: must be above zero")

    def _prepare(self, accountant: Accountant[Any]) -> None:
        users, rule = accountant.users, rule_of(accountant)
        self._check_params()
        self._logs = accountant.trust is Trust.CENTRAL
        if self._logs:
            self._check_logged(rule)
        self._noise = self._fixed(
            "noise",
            lambda: self._noise_for(
                len(users), accountant.budget, accountant.adjacency, rule, logs=self._logs
            ),
        )
        self._times = self._fixed("fits", lambda: self._fit_times(len(users)))
        ends = self._fixed("blocks", lambda: self._ends_of(len(users), logs=self._logs))
        self._prepare_serving(accountant)
        self._ends = [users.start + end for end in ends]
        self._fits_at = {users.start + time for time in self._times}
        self._block = 0
        self._answers: list[Rows[Answer]] = []
        self._lying: PartitionedRows[Answer] | None = None
        self.theta_: Array = frozen(np.zeros(self.dim))
        self.gram_: Array = frozen(2 * self._noise.shift * np.eye(self.dim))
        self._believed = self.theta_, self.gram_, Belief(self.theta_, self.gram_)
        self.updates_ = 0
        self._volume = -math.inf
        self._sums = PlannedStream(accountant, "gram", users, self._noise.gram)
        self._width = 0.0
        self._earlier: tuple[Array, int] = self.theta_, 0  # of other processes: θ, and of how many
        self._weight = 0  # of how many users θ is
        self._since = users.start

    def _plan(self) -> list[Plan]:
        return self._plan_of(self._board.users, self._noise, self._times)

    @property
    def _rule_batches(self) -> Sequence[int]:
        users = self._board.users
        return [users[at] for at in sorted({0, *self._times} - {len(users)})]

    def worst_loss(
        self,
        horizon: int,
        budget: Currency | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> Loss:
        """What a run over ``horizon`` users costs the most charged one, the first.

        With a published calibration, which takes no ``budget``, this is what the accountant's cap
        must hold: ``JointAccountant(ZCDP(learner.worst_loss(T).zcdp()), …)``.
        """
        noise = self._noise_for(horizon, budget, adjacency)
        plan = self._plan_of(range(horizon), noise, self._fit_times(horizon))
        return compose([(item.loss, item.count) for item in plan])

    def _noise_for(
        self,
        horizon: int,
        budget: Currency | None,
        adjacency: Adjacency,
        rule: Participation | None = None,
        *,
        logs: bool = False,
    ) -> DPMNLNoise:
        self._check_params()
        count(horizon=horizon)
        if rule is not None:
            self._check_rule(rule)
        calls = len(self._fit_times(horizon)) if self.trigger == "public" else self.max_updates
        shape = Shape(horizon, self.dim, self.max_items, calls, self.outside_option)
        share, nominal = exact("gram_share", self.gram_share), self.nominal
        match nominal:
            case ZCDP():
                return dpmnl_noise.published(
                    shape, nominal, gram_share=share, kappa=self.kappa, adjacency=adjacency
                )
            case ApproxDP():
                return dpmnl_noise.benchmark(
                    shape,
                    nominal,
                    gram_share=share,
                    corrected=self.calibration == "corrected",
                    adjacency=adjacency,
                )
        if budget is None:
            raise ValueError("budget = None: a proved calibration is made for a budget")
        if not isinstance(budget, Currency):
            raise TypeError(f"budget = {budget!r}: must be a currency, such as accountant.budget")
        return dpmnl_noise.proved(
            shape,
            budget,
            gram_share=share,
            theta_norm=self.theta_norm,
            kappa=self.kappa,
            adjacency=adjacency,
            rule=rule,
            visits=1 if rule is None else self._visits(rule, horizon),
            sizes=np.diff(self._ends_of(horizon, logs=True), prepend=0).tolist() if logs else (),
        )

    def _check_logged(self, rule: Participation | None) -> None:
        if rule is not None:
            raise ValueError(
                f"{rule}: every fit reads the answers of all users so far again, also after a "
                "restart, when it is not known any more which of them are learned; use a "
                "CentralAccountant without people=, for which every index is a person, or release "
                "rows.admitted(people, ids) by NoisySum and ObjectivePerturbation"
            )
        if self.trigger != "public" or self.calibration != "proved":
            raise ValueError(
                f"trigger = {self.trigger!r}, calibration = {self.calibration!r} with a "
                "CentralAccountant: logged answers are learned at public times, with proved noise"
            )

    def _check_rule(self, rule: Participation) -> None:
        if rule.pooled:
            raise ValueError(
                f"{rule}: a fit takes answers of single visits, and several of a person make none; "
                "use a rule that is not pooled, such as Participation(most=1)"
            )
        if self.trigger == "determinant":
            raise ValueError(
                "trigger = 'determinant' under a rule of participation: the times of the fits are "
                "not public, so that all rows of a person would be paid for in each; use 'public'"
            )
        if self.calibration != "proved":
            raise ValueError(
                f"calibration = {self.calibration!r} under a rule of participation: that noise is "
                "about single rows; use 'proved'"
            )

    def _visits(self, rule: Participation, horizon: int) -> list[int]:
        times = self._fit_times(horizon)
        return [rule.visits(time, batches) for batches, time in enumerate(times, start=1)]

    def _plan_of(self, users: range, noise: DPMNLNoise, times: Sequence[int]) -> list[Plan]:
        fit = noise.fit.loss()
        plan = [Plan("gram", noise.gram.loss(), users)]
        if self.trigger == "public":
            return plan + [Plan("fit", fit, users[:time]) for time in times]
        plan.append(Plan("fit", fit, users[: times[0]]))
        if self.max_updates > 1 and times[0] < len(users):
            plan.append(Plan("later fit", fit, users, self.max_updates - 1))
        return plan

    def _first_rounds(self, horizon: int) -> int:
        if self.initial_rounds is None:
            return min(100, max(horizon // 8, 1))
        if not 1 <= count(initial_rounds=self.initial_rounds) <= horizon:
            raise ValueError(
                f"initial_rounds = {self.initial_rounds}: must lie in 1..{horizon}, the number of "
                "users"
            )
        return self.initial_rounds

    def _fit_times(self, horizon: int) -> list[int]:
        """After how many users θ is fitted: all times, or the first one if det V decides."""
        first = self._first_rounds(horizon)
        if self.trigger == "determinant":
            return [first]
        ratio = (horizon / first) ** (1 / self.max_updates)
        return sorted({round(first * ratio**k) for k in range(self.max_updates)})

    def _ends_of(self, horizon: int, *, logs: bool) -> list[int]:
        """As `_block_ends`; of logged answers, whom nobody is served beside, only fits are ends."""
        return sorted({*self._fit_times(horizon), horizon}) if logs else self._block_ends(horizon)

    def _block_ends(self, horizon: int) -> list[int]:
        times = [*self._fit_times(horizon), horizon]
        ends = [times[0]]
        for time in times[1:]:
            parts = max(math.ceil(math.log(time / ends[-1]) / math.log(BLOCK_GROWTH)), 1)
            start = ends[-1]
            ends += [round(start * (time / start) ** (k / parts)) for k in range(1, parts + 1)]
        return sorted(set(ends))

    def _next_change(self) -> int:
        return self._ends[self._block]

    def _ties(self, n: int) -> Array:
        return self._coins.random((n, self.n_items)) if self._block == 0 else np.zeros((n, 0))

    def _policy(self, visit: Visit) -> Items:
        if self._block == 0:
            return random_items(visit[0].ties, self.max_items)
        return optimistic_items(
            visit[0],
            self._belief(),
            max_items=self.max_items,
            exploration=self.exploration * self._width,
            scale=self.feature_scale,
            centred=False,
        )

    def _belief(self) -> Belief:
        theta, gram, belief = self._believed
        if theta is not self.theta_ or gram is not self.gram_:
            belief = Belief(self.theta_, self.gram_)
            self._believed = self.theta_, self.gram_, belief
        return belief

    def learn_logged(self, rows: PartitionedRows[Answer]) -> Self:
        """Learns from logged answers of all users that are left, under a central accountant.

        A record is what a user was offered, up to K items, and the place that the user chose; one
        that is none counts as null.  Each batch is passed over once for the Gram sums, and all rows
        so far for each fit, as often as `ObjectivePerturbation.release_partitions` does.

        Args:
            rows: of users from ``clock_`` to the last one.  After a restart those before it may be
                among them again: fits are made of all rows that are there.

        Raises:
            ProvenanceError: the accountant is joint.
            TypeError: no `PartitionedRows`.
            UsersError: rows of other users.
            PartitionError: they cannot be read or added up; what was released stays, and
                `resume` of the ledger goes on.
            HorizonError: all users were learned.
            RuntimeError: a release failed before.
        """
        self._check_idle()
        if not self._logs:
            raise ProvenanceError(
                "logged answers depend on offers made outside the billboard: a joint guarantee "
                "does not cover them; use a CentralAccountant"
            )
        if not isinstance(rows, PartitionedRows):
            raise TypeError(f"rows: must be PartitionedRows, not {type(rows).__name__}")
        stop = self._accountant.users.stop
        if (
            len(rows.users) != 1
            or rows.users[0].stop != stop
            or not (self._accountant.users.start <= rows.users[0].start <= self.clock_)
        ):
            raise UsersError(
                f"{rows!r}: must hold the users {self.clock_}..{stop - 1}, without gaps"
            )
        if self._pending:
            raise UsersError(
                f"user {self.clock_} is within a batch, of which others passed by: skip to "
                f"{self._next_change()} first"
            )
        self._failed = True  # until all is learned
        self._lying = rows.map_rows(LoggedAnswers(self.outside_option, self.feature_scale))
        while self.clock_ < stop:
            batch = range(self.clock_, self._next_change())
            self.clock_ = batch.stop
            self._learn_lying(self._lying, batch)
        self._failed = False
        return self

    def _learn_lying(self, lying: PartitionedRows[Answer], batch: range) -> None:
        offered = lying.map_rows(offered_items)

        def summed(users: range) -> PartialSum:
            return offered.slice(users).partial(cast("BatchedPrefixSum[Any]", self._noise.gram))

        self._end_block(self._sums.append_sum(batch, summed))

    def _absent(self, users: range) -> Rows[Any]:
        return Rows.null(users) if self._logs else super()._absent(users)

    def _needed_from(self) -> int:
        """Each fit takes the answers of all users so far."""
        if self.trigger == "public":
            fits_to_come = self.clock_ <= max(self._fits_at)
        else:
            fits_to_come = self.updates_ < self.max_updates
        return self._accountant.users.start if fits_to_come else super()._needed_from()

    def forget(self, person: Any) -> None:
        super().forget(person)
        self._answers = [rows.without_forgotten() for rows in self._answers]

    def _learn(self, rows: Rows[Answer]) -> None:
        """At the end of a public block: updates V and perhaps θ̂."""
        self._answers.append(rows)
        items = rows.map_rows(offered_items)
        self._end_block(self._sums.append(items) if self._logs else self._sums.advance(items))

    def _end_block(self, released: Released[Array] | None) -> None:
        if released is not None:
            noisy = self._sums.whole(self._board.post("gram", released))
            self.gram_ = self._shifted(noisy if self._logs else noisy[-1])
        if self._fit_is_due():
            self._fit()
        self._block += 1
        served = self.clock_ - self._accountant.users.start
        self._width = self._noise.width(served, self._shift)
        if self._block == len(self._ends):
            self._sums.close()

    @property
    def _shift(self) -> float:
        """λ for the noise that is really there, of which there is more after a restart."""
        return self._noise.shift * self._sums.excess()

    def _shifted(self, noisy: Array) -> Array:
        """V = sum + 2λI; eigenvalues below λ, which noise brings about w.p. 1/T², are set to λ."""
        values, vectors = np.linalg.eigh(noisy)
        raised = np.maximum(values + 2 * self._shift, self._shift)
        return frozen((vectors * raised) @ vectors.T)

    def _fit_is_due(self) -> bool:
        if self.trigger == "public" or self.updates_ == 0:
            return self.clock_ in self._fits_at
        volume = float(np.linalg.slogdet(self.gram_).logabsdet)
        last = self.clock_ == self._accountant.users.stop
        spent = self.updates_ == self.max_updates
        return not last and not spent and volume > self._volume + math.log(2)

    def _fit(self) -> None:
        """One of the fits, also if it was lost with a process that died; θ̂ then stays."""
        users = self._accountant.users
        if self.trigger == "public" or self.updates_ == 0:
            label, charged = "fit", range(users.start, self.clock_)
        else:
            label, charged = "later fit", users
        if not self._accountant.lost(label, charged, self.clock_):
            token = self._accountant.issue(self._noise.fit.loss(), users=charged, label=label)
            released = self._fitted(token)
            self._pool(self._board.post(f"theta/{self.updates_}", released))
        self._volume = float(np.linalg.slogdet(self.gram_).logabsdet)
        self.updates_ += 1

    def _fitted(self, token: Token[Any]) -> Released[Array]:
        """A fit on all answers so far, those that are null left out where that is public."""
        if self._lying is not None:
            so_far = range(self._lying.users[0].start, self.clock_)
            return self._noise.fit.release_partitions(self._lying.slice(so_far), token)
        rows = Rows.concat(self._answers)
        released = self._noise.fit.release(rows, token)
        self._answers = [rows]
        return released

    def _pool(self, theta: Array) -> None:
        """θ̂ from a fit; answers of other processes are not in it, but in their last θ̂.

        They are weighed by public numbers of users, as the noise of a fit is by that of its users.
        """
        if self._logs:  # all answers that are there are in each fit
            self.theta_ = theta
            return
        if self._sums.first != self._since:
            self._earlier, self._since = (self.theta_, self._weight), self._sums.first
        before, users = self._earlier
        now = self.clock_ - self._since
        self._weight = users + now
        self.theta_ = frozen((users * before + now * theta) / self._weight) if users else theta

    def public_state(self) -> dict[str, Any]:
        params = self.get_params()
        if self.nominal is not None:
            params["nominal"] = self.nominal.to_dict()
        return {
            "params": params,
            "clock": self.clock_,
            "updates": self.updates_,
            "theta": self.theta_.tolist(),
            "gram": self.gram_.tolist(),
            "shift": self._shift,
            "width": self._width,
        }
