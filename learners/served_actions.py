"""What learners share that show one of several actions, each with features: one user, or many.

A user comes with a slate: a feature vector for each action on offer, up to A of them; or, where
each action has a parameter vector of its own, with one context.  One action is shown, and a reward
comes back.  Scores that are equal, as all are while nothing is known, are shown in turn: which
action comes first follows from the arrival number and public coins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from privlearn.learners.contextual import Arms, best_in_turn
from privlearn.learners.inputs import (
    block_of,
    checked_offers,
    row_of,
    rows_of,
    table_block_of,
    tables_of,
)
from privlearn.learners.participation import NOT_GIVEN, PersonId, given
from privlearn.learners.phases import two_ends
from privlearn.learners.served import Mask, Served
from privlearn.learners.user_coins import UserCoins
from privlearn.mechanisms.choice_model import clip_items
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.rows.tabular import row_from
from privlearn.values.records import copied
from privlearn.values.validate import check_function, count, positive


class Slate(NamedTuple):
    """A user's own data on arrival; arrays of one user, or of a block with a leading axis."""

    features: Array
    """As sent: of each action, shape (A, d), or the context, shape (d,)."""
    offered: Mask
    """Which actions are on offer, shape (A,); features of others are 0."""
    revenues: Array
    """What a reward of 1 is worth, of each action, shape (A,); all 1 if only rewards count."""
    turn: Arms
    """The public arrival number."""
    private: Array
    """Whatever else is the user's own, shape (m,), such as uniform numbers; only ``respond`` reads
    it."""


class _Arrived(NamedTuple):
    """A slate that was read."""

    features: Array
    """Each feature vector in the unit ball; NaN throughout where a user's data are unusable."""
    worth: Array
    """Revenues of actions on offer, and −∞ for the others, shape (A,)."""
    turn: Arms
    """The public arrival number."""
    slate: Slate | tuple[()]
    """As sent, where ``respond`` will see it."""


class Outcome(NamedTuple):
    """Rows to learn from; arrays of one user, or of a block with a leading axis."""

    features: Array
    """Of what was shown, in the unit ball, shape (d,); NaN for a null record."""
    action: Arms
    """Which one that was, 0..A−1."""
    reward: Array
    """Within the declared range; NaN for a null record."""


RespondToSlates = Callable[[Slate, Arms], ArrayLike]
"""The users' side: block of own data and shown actions (n,) to rewards (n,)."""


class ServedActions(Served[_Arrived, Arms, Outcome]):
    """Shows every user one of the actions on offer."""

    n_actions: int
    dim: int
    per_action: bool
    reward_range: tuple[float, float]
    feature_scale: float
    random_state: int
    _pending_state = "was shown an action"
    _row_kinds = (Outcome,)

    @property
    def data_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one user sends, by the names that `select` has for it.

        Of a slate the first number is the largest; it may have fewer rows, and as many revenues.

        Raises:
            ValueError, TypeError: a size is no count.
        """
        return {"features": self._shape, "revenues": (count(n_actions=self.n_actions),)}

    @property
    def _shape(self) -> tuple[int, ...]:
        actions, dim = count(n_actions=self.n_actions), count(dim=self.dim)
        return (dim,) if self.per_action else (actions, dim)

    @abstractmethod
    def _scores(self, features: Array, turn: Arms) -> Array:
        """Of each action, from public state and public coins, in a new array (n, A); row by row.

        Args:
            features: in the unit ball, (n, A, d) or, of contexts, (n, d); NaN where unusable.
            turn: public arrival numbers, (n,).
        """

    @abstractmethod
    def _worth(self, scores: Array, revenues: Array) -> Array:
        """What scores come to where actions earn differently, (n, A); row by row.

        Args:
            scores: as of `_scores`.
            revenues: (n, A); −∞ of those that are not on offer, whatever comes of it.
        """

    def _check_actions(self) -> None:
        count(n_actions=self.n_actions)
        count(dim=self.dim)
        if not isinstance(self.per_action, bool | np.bool_):
            raise TypeError(f"per_action = {self.per_action!r:.80}: must be True or False")
        self._low, self._high = two_ends(reward_range=self.reward_range)
        positive(feature_scale=self.feature_scale)
        count(random_state=self.random_state, at_least=0)
        self._first_coins = UserCoins((self.random_state, 0), 1)

    def select(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> int:
        """Returns the action to show the next user: its place in what is on offer.

        Unusable data (NaN, wrong length, none at all) make this user's record null: an action is
        shown in turn, the clock goes on, and only ``private_messages_`` says so.

        Args:
            features: of each action on offer, shape (m, d) with 1 <= m <= ``n_actions``; with
                ``per_action`` the user's context, shape (d,).
            revenues: what a reward of 1 is worth, of each action on offer, shape (m,), such as
                its price where the reward is whether it was bought; default: only rewards count.
            person: under a rule of participation, and only then, who it is; None, an empty one or
                nan: nobody who can be told apart, whose visit is served and counts as null.

        Raises:
            HorizonError: all users were served.
            UsersError: the last user's reward is missing.
            ProvenanceError: the accountant is not joint; a person without a rule, or none with one.
            RuntimeError: a release failed before.
            TypeError: nothing that a user can have sent, and no array; an id of another kind.
        """
        return cast(int, self._select((features, revenues), person))

    def observe(self, reward: float | None) -> None:
        """Takes the reward of the user who was shown an action last.

        One that is no number within ``reward_range`` makes the record null, as None does; only
        ``private_messages_`` and ``private_counts_`` tell.

        Raises:
            UsersError: nobody was shown an action.
        """
        self._observe(reward)

    def play(
        self,
        features: ArrayLike,
        respond: RespondToSlates,
        revenues: ArrayLike | None = None,
        *,
        offered: Mask | None = None,
        private: Array | None = None,
        people: Sequence[Any] | None = None,
    ) -> None:
        """Serves many users at once; the same as `select` and `observe` one after the other.

        Args:
            features: of the next n users, an array (n, m, d) with 1 <= m <= A, or a list of slates
                as `select` takes them; with ``per_action`` contexts, (n, d).
            respond: the users' rewards, row by row.
            revenues: shape (n, A); default: only rewards count.
            offered: which actions are on offer, shape (n, A); default all that have features.
                Those of the others are not read.
            private: array of shape (n, m), handed through to ``respond`` and read by nobody else.
            people: under a rule of participation, and only then, n ids, as `select` takes them.

        Rows that are no numbers of the right shape count as null, each by itself, as in `select`.

        Raises:
            HorizonError: more users than are left.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: ``private`` is no plain array, ``offered`` none of bool, ids of another kind,
                or ``features`` or ``revenues`` no table of numbers.
            ProvenanceError: people without a rule, or none with one.
        """
        self._check_serving()
        check_function(respond=respond)
        if self.per_action:
            values = block_of("features", features, self._shape)
            there = np.ones((len(values), self.n_actions), dtype=bool)
        else:
            values, there = table_block_of("features", features, self.n_actions, self.dim)
        self._next_users(len(values))
        seen = there & checked_offers(offered, there.shape)
        if not (self.per_action or seen.all()):
            values = np.where(seen[..., None], values, 0.0)
        earned = np.ones(seen.shape)
        if revenues is not None:
            told = block_of("revenues", revenues, (self.n_actions,), len(values))
            earned = np.where(seen, told, 1.0)
        readable = seen.any(axis=1) & np.isfinite(earned).all(axis=1)
        clipped, unusable = self._clipped(values, np.asarray(readable))
        worth = np.where(seen, earned, -np.inf)
        own = self._private(private, len(values))
        who = self._who("people", people, given(people), len(values))
        first = self.clock_

        def arrive(part: slice) -> _Arrived:
            turns = np.arange(first + part.start, first + part.stop)
            slate = Slate(values[part], seen[part], earned[part], turns, own[part])
            return _Arrived(clipped[part], worth[part], turns, slate)

        # copies, as what is learned from is made after the users have answered
        answer = Calls(lambda own, actions: respond(*copied((own, actions))), (respond,))
        self._play(arrive, unusable, self._hearing(answer), who)

    @np.errstate(all="ignore")  # a warning would tell of sealed data
    def _clipped(self, features: Array, readable: Mask) -> tuple[Array, Mask]:
        """Features in the unit ball, and whose data are unusable, for whom they are NaN.

        Args:
            features: as sent, (n, A, d) or (n, d).
            readable: whose other data can be read, (n,).
        """
        clipped, unusable = features, ~readable
        if self.feature_scale != 1:
            clipped = clipped / self.feature_scale
        squares = np.einsum("...d,...d->...", clipped, clipped)
        if not np.maximum.reduce(squares, axis=None, initial=0.0) <= 1:
            clipped = clip_items(clipped)
            unusable |= np.isnan(clipped[..., 0]).reshape(len(clipped), -1).any(axis=1)
        if np.count_nonzero(unusable):
            clipped = np.where(_beside(unusable, clipped), np.nan, clipped)
        return clipped, unusable

    def _policy(self, visit: tuple[_Arrived, Arms]) -> Arms:
        with np.errstate(all="ignore"):  # as in _clipped; no decorator: it would be others' code
            return self._best(visit[0])

    def _best(self, own: _Arrived) -> Arms:
        features, worth, turn, _ = own
        scores = self._scores(features, turn)
        unlike = worth != 1
        if np.count_nonzero(unlike):
            offered = worth != -np.inf
            differ = (unlike & offered).any(axis=1)[:, None]
            scores = np.where(differ, self._worth(scores, worth), scores)
            scores = np.where(offered, scores, -np.inf)
        if np.isnan(np.add.reduce(scores, axis=None)):
            scores[np.isnan(scores)] = 0.0  # of unusable data
        tied = scores == np.maximum.reduce(scores, axis=1, keepdims=True)
        if np.count_nonzero(tied) == len(tied):
            return np.asarray(tied.argmax(axis=1))
        return best_in_turn(scores, turn + self._first_in_turn(turn))

    def _first_in_turn(self, turn: Arms) -> Arms:
        """By how much turns are shifted: by public coins, anew after each time round."""
        rounds = turn // self.n_actions
        coins = self._first_coins.of(rounds)[:, 0]
        return cast(Arms, (coins * self.n_actions).astype(np.int64))

    def _sent(self, features: Any, revenues: Any = None) -> tuple[Any, Any]:
        sent = row_from("features", features)
        return sent, None if revenues is None else row_from("revenues", revenues)

    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[_Arrived, Mask]:
        n, told = len(sent), [features for features, _ in sent]
        if self.per_action:
            values, offered = rows_of(told, self._shape), np.ones((n, self.n_actions), dtype=bool)
        else:
            values, offered = tables_of(told, self.n_actions, self.dim)
        worth, readable = np.ones(offered.shape), np.ones(n, dtype=bool)
        for i, (_, revenues) in enumerate(sent):
            there = offered[i]
            if revenues is not None:
                worth[i, there] = row_of(revenues, (int(np.count_nonzero(there)),))
                readable[i] = np.isfinite(worth[i]).all()
        if np.count_nonzero(offered) < offered.size:
            readable &= offered.any(axis=1)
            worth = np.where(offered, worth, -np.inf)
        clipped, unusable = self._clipped(values, readable)
        turns = np.arange(self.clock_, self.clock_ + n)
        return _Arrived(clipped, worth, turns, ()), unusable

    def _to_show(self, action: Arms | None, user: int) -> int:
        return user % self.n_actions if action is None else int(action)

    def _heard(self, answer: Any) -> float:
        kind = type(answer)
        if kind is float or kind is bool or (kind is int and -(2**53) < answer < 2**53):
            return float(answer)
        return float(block_of("rewards", [answer], ())[0])

    def _replying(self, heard: Array) -> Callable[[_Arrived, Arms], Outcome]:
        return lambda own, actions: self._outcome(own.features, actions, heard)

    def _hearing(
        self, respond: Callable[[Slate, Arms], Any]
    ) -> Callable[[_Arrived, Arms], Outcome]:
        def hear(own: _Arrived, actions: Arms) -> Outcome:
            slate = cast(Slate, own.slate)
            rewards = block_of("rewards", respond(slate, actions), (), len(actions))
            return self._outcome(own.features, actions, rewards)

        return Calls(hear, (respond,))

    def _outcome(self, features: Array, actions: Arms, rewards: Array) -> Outcome:
        if not self.per_action:
            features = features[np.arange(len(actions)), actions]
        return self._learnable(features, actions, rewards)

    def _learnable(self, features: Array, actions: Arms, rewards: Array) -> Outcome:
        """Rows to learn from; null where data are unusable or a reward is out of its range."""
        good = (rewards >= self._low) & (rewards <= self._high) & ~np.isnan(features[:, 0])
        if np.count_nonzero(good) < len(good):
            features = np.where(good[:, None], features, np.nan)
            rewards = np.where(good, rewards, np.nan)
        return Outcome(features, actions, rewards)

    def _usable_answers(self, answer: Outcome) -> Mask:
        return cast(Mask, np.isfinite(answer.reward))

    def _complaint(self, *, data: bool) -> str:
        if not data:
            return f"the reward must be a number from {self._low!r} to {self._high!r}"
        if self.per_action:
            return f"the context must be ({self.dim},) finite numbers, as must revenues be"
        return (
            f"the features must be (m, {self.dim}) finite numbers, of 1 to {self.n_actions} "
            "actions, and revenues m finite numbers"
        )


def _beside(rows: Mask, block: Array) -> Mask:
    """A mask of rows, to be broadcast along the other axes of a block."""
    return rows.reshape(-1, *[1] * (block.ndim - 1))
