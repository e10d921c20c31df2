"""What all learners share that learn in phases: what a user is shown follows from public numbers.

Which arm the user with arrival number t is shown is a function of releases, of t and of public
coins, so that arms, and how many users each had, are public and exact; only rewards are protected.
Users come in phases.  Where a phase ends follows from releases, and stands in the ledger before its
first user is served; at its end the noisy sums of its rewards are released (`PhaseSum`), each user
is in one of them, and all of them together cost what one costs (docs/proofs.md, "Sums over
phases").

A reward counts as (reward − low)/(high − low) − `missing`, which is 0 for a user who never came or
whose reward is unusable: such a user keeps the place, and counts as a reward of `missing`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import RowLocalityError
from privlearn.learners.inputs import block_of
from privlearn.learners.participation import (
    NOT_GIVEN,
    PersonId,
    given,
    one_row_budget,
)
from privlearn.learners.planned_phases import PlannedPhases
from privlearn.learners.served import Mask, Served
from privlearn.mechanisms import PhaseSum
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box
from privlearn.rows.functions import Calls
from privlearn.values.validate import check_function, count, finite, within

Arms = NDArray[np.int64]
"""Arms of users, or arrival numbers, shape (n,)."""

RespondToArms = Callable[[Arms], ArrayLike]
"""The users' side: what each was shown, shape (n,), to the users' rewards, shape (n,)."""


def two_ends(**named: Any) -> tuple[float, float]:
    """Returns a pair of finite numbers, the lower one first."""
    [(name, ends)] = named.items()
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        raise TypeError(f"{name} = {ends!r:.80}: must be two numbers, low and high")
    low, high = (finite(**{name: end}) for end in ends)
    if not low < high or not np.isfinite(high - low):
        raise ValueError(f"{name} = {ends!r}: must be two numbers, the lower one first")
    return low, high


def asked_once(respond: Callable[[Arms], ArrayLike]) -> Callable[[Arms, Arms], ArrayLike]:
    """The users' side of turns and what they were shown, which asks nobody a second time.

    Users who send nothing are told apart by their turn alone.  A call that fails would be made
    again for each of them, and be answered by those who come next; and if all of them counted as
    null, one user's failure would move the rows of others.  So a call for several users that fails
    is an error of the program.
    """
    last, several = -1, False

    def ask(turn: Arms, shown: Arms) -> ArrayLike:
        nonlocal last, several
        if turn[0] > last:
            last, several = int(turn[-1]), len(turn) > 1
            return respond(shown)
        if several:
            raise RowLocalityError(
                "respond: failed, or did not answer for each, when several users were asked "
                "together; must return one answer for each, NaN for a user who gave none"
            )
        raise ValueError("respond: failed for the one user who was asked")

    return ask


class PhaseLearner(Served[Arms, Arms, Array]):
    """Shows each user one of K arms, and learns from noisy sums of rewards over public phases.

    Attributes:
        n_arms: K.
        reward_range: public ends of the range of rewards.
        missing: what a record without a usable reward counts as, in [0, 1]: 0 and 1 are the ends.
        delay: users at the end of each phase who are shown its arms and not counted, so that
            everybody who is counted has as many further arrivals' time to answer.
    """

    n_arms: int
    reward_range: tuple[float, float]
    missing: float
    delay: int = 0
    _outputs: int = 1
    """Sums of a release."""
    _pending_state = "was shown an arm"
    _public_actions = True
    _serves_ahead = False

    @abstractmethod
    def _arms_of(self, turn: Arms) -> Arms:
        """What users with these arrival numbers are shown, shape (n,), from public state."""

    @abstractmethod
    def _phase_length(self) -> int:
        """How many users the next phase counts, >= 1, from public state; cut at the last user."""

    @abstractmethod
    def _learned(self, users: range, total: Array) -> None:
        """Learns from the noisy sums, shape (outputs,), of the rewards in [0, 1] of a phase.

        ``users`` are those who count, one at least.  A phase whose sums are lost, as what paid for
        them died, is passed over.
        """

    def _signs(self, users: range) -> NDArray[np.int8] | None:
        """How users who count enter the sums, see `PhaseStream.begin`; None: all into one."""
        return None

    def _all_signs(self) -> NDArray[np.int8] | None:
        """The same of all users of the open phase."""
        signs, left = self._signs(self._counted), len(self._phase) - len(self._counted)
        if not left:
            return signs
        if signs is None:
            signs = np.ones((len(self._counted), 1), dtype=np.int8)
        return np.concatenate([signs, np.zeros((left, self._outputs), dtype=np.int8)])

    def _check_params(self) -> None:
        """Raises what is wrong with the parameters."""
        count(n_arms=self.n_arms, at_least=2)
        within("[0, 1]", missing=self.missing)
        count(delay=self.delay, at_least=0)
        self._low, self._high = two_ends(reward_range=self.reward_range)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        users = accountant.users
        domain = Box(-self.missing, 1 - self.missing, 1)
        self._mechanism = mechanism = self._fixed(
            "sum",
            lambda: PhaseSum.calibrated(
                domain,
                one_row_budget(accountant, [users]),
                horizon=len(users),
                outputs=self._outputs,
                adjacency=accountant.adjacency,
            ),
        )
        self._noise_std = mechanism.error_std()
        self._shown = np.zeros(self.n_arms, dtype=np.int64)
        self._phases = PlannedPhases(accountant, "rewards", users, mechanism)
        self._prepare_serving(accountant)

    def _users_for(self, stds: float) -> int:
        """How many users as many standard deviations of the noise are, rounded up, at least 1."""
        # noise on a grid has hardly more than its formula says
        return max(1, math.ceil(round(stds * self._noise_std, 3)))

    def _check_horizon(self, length: int) -> None:
        """Raises ValueError unless every arm can have a phase that counts so many users."""
        length += self.delay
        needed, users = self.n_arms * length, len(self._board.users)
        if needed > users:
            raise ValueError(
                f"n_arms = {self.n_arms}: each is first shown to {length} users, to {needed} "
                f"together, and the accountant has {users}; fewer arms, a larger budget or shorter "
                "phases"
            )

    def _plan(self) -> list[Plan]:
        return [self._phases.plan()]

    @property
    def _rule_batches(self) -> Sequence[int]:
        return [self._board.users.start]

    def _begin(self, accountant: Accountant[Any]) -> None:
        super()._begin(accountant)
        self._begin_phase(accountant.users.start)

    def _sealed_next(self, block: Any, n: int) -> Rows[Any]:
        self._phases.go_on()  # nothing is spent at a restart before somebody comes
        return super()._sealed_next(block, n)

    def _begin_phase(self, first: int) -> None:
        users = self._board.users
        self._phase = self._counted = range(first, first)
        if first < users.stop:
            length = max(self._phase_length(), 1) + self.delay
            self._phase = range(first, min(first + length, users.stop))
            self._counted = range(first, max(self._phase.stop - self.delay, first))
            self._phases.begin(self._phase, self._all_signs())

    def _next_change(self) -> int:
        return self._phase.stop

    def _learn(self, rows: Rows[Array]) -> None:
        users, signs = self._counted, self._signs(self._counted)
        self._shown += self._counts(self._phase)
        released = self._phases.end(rows)
        if released is not None:
            entered = len(users) if signs is None else np.sum(signs, axis=0)
            total = self._board.post("rewards", released) + self.missing * entered
            if users:
                self._learned(users, total)
        self._begin_phase(self._phase.stop)

    def _counts(self, users: range) -> Arms:
        arms = self._arms_of(np.arange(users.start, users.stop))
        return np.bincount(arms, minlength=self.n_arms).astype(np.int64)

    def public_state(self) -> dict[str, Any]:
        return {
            "params": self.get_params(),
            "clock": self.clock_,
            "phase": [self._phase.start, self._phase.stop],
            **self._learned_state(),
        }

    def _learned_state(self) -> dict[str, Any]:
        """What goes on from here, beside parameters and places, as JSON."""
        return {}

    @property
    def shown_(self) -> Arms:
        """How many of the users before ``clock_`` were shown each arm, shape (K,); public."""
        self._check_started()
        return self._shown + self._counts(range(self._phase.start, self.clock_))

    @property
    def coming_(self) -> Arms:
        """What the further users of the open phase will be shown, shape (n,); public."""
        self._check_started()
        return self._arms_of(np.arange(self.clock_, self._phase.stop)).copy()

    # One user, or many ---------------------------------------------------------------------------

    @property
    def data_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one user sends on arrival: nothing."""
        return {}

    def select(self, *, person: PersonId = NOT_GIVEN) -> int:
        """Returns the arm to show the next user, 0..K−1.

        Args:
            person: under a rule of participation, and only then, who it is; None, an empty one or
                nan: nobody who can be told apart, whose visit is served and counts as null.

        Raises:
            HorizonError: all users were served.
            UsersError: the last user's reward is missing.
            ProvenanceError: the accountant is local; a person without a rule, or none with one.
            RuntimeError: a release failed before.
            TypeError: an id of another kind.
        """
        return cast(int, self._select((), person))

    def observe(self, reward: float | None) -> None:
        """Takes the reward of the user who was shown an arm last.

        One that is no number within ``reward_range`` counts as `missing`, as None does; only
        ``private_messages_`` and ``private_counts_`` tell.

        Raises:
            UsersError: nobody was shown an arm.
        """
        self._observe(reward)

    def play(self, n: int, respond: RespondToArms, *, people: Sequence[Any] | None = None) -> None:
        """Serves the next n users at once; the same as `select` and `observe` one after the other.

        Args:
            n: how many users.
            respond: the users' rewards, row by row: arms (m,) of some of the next users, in order
                of arrival, to rewards (m,); NaN for none.  It must not raise.
            people: under a rule of participation, and only then, n ids, as `select` takes them.

        Raises:
            HorizonError: more users than are left.
            ValueError, TypeError: n is no count, not n ids, or ids of another kind.
            ProvenanceError: people without a rule, or none with one.
            RowLocalityError: ``respond`` failed for one of several users; at the end of the phase,
                whose spend ends ``uncovered``.
        """
        self._check_serving()
        check_function(respond=respond)
        self._next_users(count(n=n))
        who = self._who("people", people, given(people), n)
        first = self.clock_

        def arrive(part: slice) -> Arms:
            return np.arange(first + part.start, first + part.stop)

        answer = Calls(asked_once(respond), (respond,))
        self._play(arrive, np.zeros(n, dtype=bool), self._hearing(answer), who)

    def _policy(self, visit: tuple[Arms, Arms]) -> Arms:
        return self._arms_of(visit[0])

    def _sent(self, *data: Any) -> None:
        if any(one is not None for one in data):
            raise TypeError(f"{type(self).__name__}.select: takes no data of the user")

    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[Arms, Mask]:
        n = len(sent)
        return np.arange(self.clock_, self.clock_ + n), np.zeros(n, dtype=bool)

    def _to_show(self, action: Arms | None, user: int) -> int:
        return int(self._arms_of(np.array([user]))[0])

    def _heard(self, answer: Any) -> float:
        kind = type(answer)
        if kind is float or kind is bool or (kind is int and -(2**53) < answer < 2**53):
            return float(answer)
        return float(block_of("rewards", [answer], ())[0])

    def _replying(self, heard: Array) -> Callable[[Arms, Arms], Array]:
        if len(heard) > 1:
            return lambda turn, arms: self._scaled(heard)
        reward = float(heard[0])  # as `_scaled`, which is slow for one
        good = self._low <= reward <= self._high
        scaled = (reward - self._low) / (self._high - self._low) - self.missing
        return lambda turn, arms: np.array([[scaled if good else np.nan]])

    def _hearing(self, respond: Callable[[Arms, Arms], Any]) -> Callable[[Arms, Arms], Array]:
        def hear(turn: Arms, arms: Arms) -> Array:
            return self._scaled(block_of("rewards", respond(turn, arms), (), len(arms)))

        return Calls(hear, (respond,))

    def _scaled(self, rewards: Array) -> Array:
        """What users contribute, shape (n, 1); NaN where a reward is no number in the range."""
        good = (rewards >= self._low) & (rewards <= self._high)
        scaled = (rewards - self._low) / (self._high - self._low) - self.missing
        scaled[~good] = np.nan
        return scaled[:, None]

    def _usable_answers(self, answer: Array) -> Mask:
        return np.isfinite(answer[:, 0])

    def _complaint(self, *, data: bool) -> str:
        return f"the reward must be a number from {self._low!r} to {self._high!r}"
