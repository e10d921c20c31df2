"""What all served linear bandits share: a context comes, an arm is pulled, a reward comes back.

The score of arm a is x·θ_a.  Scores that are equal, such as all of them while nothing is known,
are served in turn by the public arrival number.  Contexts are divided by a public bound and
clamped into [−1, 1]^d; rewards are clipped by the loss.  A user whose data or reward are unusable
becomes the null record, nobody else does, and the clock goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.learners.inputs import block_of, rows_of
from privlearn.learners.participation import NOT_GIVEN, PersonId, given
from privlearn.learners.served import Mask, Served
from privlearn.mechanisms.scalar_objectives import ScalarObjective, code_of, named_objective
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.rows.tabular import row_from
from privlearn.values.records import copied
from privlearn.values.validate import check_function, count, positive

Arms = NDArray[np.int64]


class Visitor(NamedTuple):
    """A user's own data on arrival; arrays of one user, or of a block with a leading axis."""

    context: Array
    """As sent, shape (d,)."""
    turn: Arms
    """The public arrival number; ties between arms go by it."""
    private: Array
    """Whatever else is the user's own, shape (m,), such as coefficients or uniform numbers; only
    ``respond`` reads it."""


class Feedback(NamedTuple):
    """Rows to learn from; arrays of one user, or of a block with a leading axis."""

    context: Array
    """In [−1, 1]^d, or NaN for a null record."""
    arm: Arms
    """The arm that was pulled, 0..K−1."""
    reward: Array
    """Within the range of the loss, or NaN for a null record."""


RespondToArms = Callable[[Visitor, Arms], ArrayLike]
"""The users' side: block of own data and pulled arms (n,) to rewards (n,)."""


def scores(contexts: Array, theta: Array) -> Array:
    """x·θ_a for contexts (n, d) and θ (K, d); shape (n, K), each row by itself to the last bit."""
    return np.stack([np.einsum("...d,d->...", contexts, one) for one in theta], axis=1)


def best_in_turn(values: Array, turn: Arms) -> Arms:
    """The arm with the highest value, shape (n, K) to (n,); ties go to the next in turn."""
    n, arms = values.shape
    users = np.arange(n)
    order = (turn[:, None] + np.arange(arms)) % arms
    places = values[users[:, None], order].argmax(axis=1)
    return cast(Arms, order[users, places])


def in_turn(turn: Arms, n_arms: int) -> Arms:
    """Every arm as often as any other."""
    return turn % n_arms


def usable_contexts(contexts: Array) -> Mask:
    """Which rows have only finite numbers, shape (n,)."""
    return np.asarray(np.isfinite(contexts).all(axis=1))


@np.errstate(all="ignore")  # a warning would tell of sealed data
def scaled(contexts: Array, bound: float) -> Array:
    """Contexts (n, d) in [−1, 1]^d; unusable ones become 0."""
    usable = usable_contexts(contexts)
    values = np.where(usable[:, None], contexts, 0.0) / bound
    return np.asarray(np.minimum(np.maximum(values, -1.0), 1.0))


class ServedBandit(Served[Visitor, Arms, Feedback]):
    """Pulls one of K arms for every user."""

    n_arms: int
    dim: int
    loss: str | ScalarObjective = "squared"
    context_bound: float = 1.0
    reward_bound: float = 1.0
    random_state: int = 0
    _pending_state = "had an arm pulled"
    _row_kinds = (Feedback,)

    @property
    def data_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one user sends, by the names that `select` has for it.

        Raises:
            ValueError, TypeError: a size is no count.
        """
        return {"context": (count(dim=self.dim),)}

    @abstractmethod
    def _arms(self, contexts: Array, turn: Arms) -> Arms:
        """Arms for a block of scaled contexts, row by row, from public state."""

    def _check_bandit(self) -> None:
        if count(n_arms=self.n_arms) < 2:
            raise ValueError(f"n_arms = {self.n_arms}: must be an integer >= 2")
        count(dim=self.dim)
        positive(context_bound=self.context_bound)
        positive(reward_bound=self.reward_bound)
        count(random_state=self.random_state, at_least=0)
        self._loss = named_objective(self.loss, self.reward_bound)

    def _policy(self, visit: tuple[Visitor, Arms]) -> Arms:
        own = visit[0]
        return self._arms(scaled(own.context, self.context_bound), own.turn)

    def select(self, context: ArrayLike, *, person: PersonId = NOT_GIVEN) -> int:
        """Returns the arm to pull for the next user.

        An unusable context (NaN, wrong shape) makes this user's record null: an arm is pulled in
        turn, the clock goes on, and only ``private_messages_`` says so.

        Args:
            context: shape (d,), entries within ±``context_bound``; larger ones are clamped.
            person: under a rule of participation, and only then, who it is; None, an empty one or
                nan: nobody who can be told apart, whose visit is served and counts as null.

        Raises:
            HorizonError: all users were served.
            UsersError: the last user's reward is missing.
            ProvenanceError: the accountant is not joint; a person without a rule, or none with one.
            RuntimeError: a release failed before.
            TypeError: nothing that a user can have sent, and no array; an id of another kind.
        """
        return cast(int, self._select((context,), person))

    def observe(self, reward: float | None) -> None:
        """Takes the reward of the arm that was pulled last; one that is no number is null.

        Raises:
            UsersError: no arm was pulled.
        """
        self._observe(reward)

    def _sent(self, context: Any, revenues: Any = None) -> Any:
        if revenues is not None:
            raise TypeError("revenues: a bandit takes none, only a context")
        return row_from("context", context)

    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[Visitor, Mask]:
        n = len(sent)
        values = rows_of(sent, (self.dim,))
        turns = np.arange(self.clock_, self.clock_ + n)
        return Visitor(values, turns, np.zeros((n, 0))), self._unusable(values)

    def _to_show(self, action: Arms | None, user: int) -> int:
        return (user + 1) % self.n_arms if action is None else int(action)

    def _heard(self, answer: Any) -> float:
        return float(block_of("rewards", [answer], ())[0])

    def _replying(self, heard: Array) -> Callable[[Visitor, Arms], Feedback]:
        return self._hearing(lambda own, arms: heard)

    def play(
        self,
        contexts: ArrayLike,
        respond: RespondToArms,
        private: Array | None = None,
        *,
        people: Sequence[Any] | None = None,
    ) -> None:
        """Serves many users at once; the same as `select` and `observe` one after the other.

        Args:
            contexts: shape (n, d), the next n users; an array, a data frame, or a list of rows.
            respond: the users' rewards, row by row.
            private: array of shape (n, m), handed through to ``respond`` and read by nobody else.
            people: under a rule of participation, and only then, n ids, as `select` takes them.

        Rows that are no numbers of the right shape count as null, each by itself, as in `select`.

        Raises:
            HorizonError: more users than are left.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: ``private`` is no plain array, ids of another kind, or ``contexts`` no table
                of numbers.
            ProvenanceError: people without a rule, or none with one.
        """
        self._check_serving()
        check_function(respond=respond)
        values = self._block_of_next("contexts", contexts, (self.dim,))
        own = self._private(private, len(values))
        who = self._who("people", people, given(people), len(values))
        first = self.clock_

        def arrive(part: slice) -> Visitor:
            turns = np.arange(first + part.start, first + part.stop)
            return Visitor(values[part], turns, own[part])

        # copies, as what is learned from is made after the users have answered
        answer = Calls(lambda own, arms: respond(*copied((own, arms))), (respond,))
        self._play(arrive, self._unusable(values), self._hearing(answer), who)

    def _hearing(
        self, respond: Callable[[Visitor, Arms], Any]
    ) -> Callable[[Visitor, Arms], Feedback]:
        def hear(own: Visitor, arms: Arms) -> Feedback:
            return self._feedback(own, arms, respond(own, arms))

        return Calls(hear, (respond, code_of(self._loss)))

    def _unusable(self, contexts: Array) -> Mask:
        return ~usable_contexts(contexts)

    @np.errstate(all="ignore")  # as in scaled
    def _feedback(self, own: Visitor, arms: Arms, rewards: Any) -> Feedback:
        numbers = block_of("rewards", rewards, (), len(arms))
        reward = self._loss.labels(np.where(np.isfinite(numbers), numbers, np.nan))
        good = usable_contexts(own.context) & np.isfinite(reward)
        context = scaled(own.context, self.context_bound)
        return Feedback(
            context=np.where(good[:, None], context, np.nan),
            arm=np.asarray(arms, dtype=np.int64),
            reward=np.where(good, reward, np.nan),
        )

    def _usable_answers(self, answer: Feedback) -> Mask:
        return cast(Mask, np.isfinite(answer.reward))

    def _complaint(self, *, data: bool) -> str:
        if data:
            return f"the context must be ({self.dim},) finite numbers"
        return "the reward must be a finite number in the range of the loss"
