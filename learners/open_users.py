"""Users who were served and may still answer, in any order, up to the public end of their batch.

A user's index is fixed when the user is served.  What is learned at the end of a batch is its rows
in the order of their indices, with null records for whoever has not answered by then; when it ends
follows from how many users were served, or from the operator's clock.  So nothing that others get
depends on the order of answers, or on who never answered (docs/how-to/serve-many-users.md).

One thread at a time: `privlearn.learners.offers` sees to that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from privlearn.contract.billboard import Shown
from privlearn.errors import ProvenanceError
from privlearn.learners.served import Mask, Served
from privlearn.mechanisms.choice_model import Items
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.values.user_code import from_outside

Own = TypeVar("Own")
Act = TypeVar("Act")
Heard = TypeVar("Heard")

_TOGETHER = 64
"""Calls whose users are kept in arrays of their own, at most: small ones take more than data."""
_UNTOLD = "what this user is to be shown cannot be told: the learner's _to_show failed"
_NO_ANSWER = "no answer came before the batch was closed"


class OpenUsers(Generic[Own, Act, Heard]):
    """The open users of one learner, which it serves in no other way from then on.

    Args:
        learner: started, and with nobody waiting.
        wait: how many users of the next batches are served from the public state of before, while
            a batch that is full waits for late answers.

    Raises:
        RuntimeError: the learner was not started, or has open users already.
        UsersError: the last user has not answered.
        ProvenanceError: the accountant is not joint, or has a timetable.
        ValueError: ``wait``, where the learner serves nobody ahead.
    """

    def __init__(self, learner: Served[Own, Act, Heard], wait: int) -> None:
        learner._check_started()
        learner._check_not_failed()
        learner._check_nobody_waits()
        learner._check_joint()
        if wait and not learner._serves_ahead:
            raise ValueError(
                f"wait = {wait}: a {type(learner).__name__} shows something else from the end of "
                f"each phase on, and learns what that is worth; make it with delay={wait}, whose "
                "last users of each phase are not counted, while those before them answer"
            )
        if learner._timed:
            raise ProvenanceError(
                "clock = 'timetable': a slot may hold any number of visits, and offers are closed "
                "by how many there were; use clock = 'arrivals', or the learner's own select and "
                "observe"
            )
        self._learner, self._wait = learner, wait
        self.first = learner.clock_  # of those that are open
        self.forgetting = False
        self._shown: list[Shown[tuple[Own, Items], Act]] = []
        self._loose = 0  # how many of the last ones stand by themselves
        self._heard: dict[int, float | Array] = {}
        self._null_answers: set[int] = set()  # whose rows are null whatever they answer
        learner._open_users = self

    def close_what_is_due(self) -> None:
        """Closes the batches that end before a further user is served.

        Raises:
            HorizonError: all users were served.
            RuntimeError: a release failed before.
        """
        learner = self._learner
        learner._check_not_failed()
        while self.first < learner._accountant.users.stop and self._is_due():
            self.close(learner._next_change())
        learner._check_running()
        learner._check_joint()

    def _is_due(self) -> bool:
        clock, end = self._learner.clock_, self._learner._next_change()
        everybody = clock == self._learner._accountant.users.stop
        return clock >= end + self._wait or (clock >= end and everybody)

    @property
    def room(self) -> int:
        """How many users can be served before a batch is due."""
        learner = self._learner
        stop = min(learner._next_change() + self._wait, learner._accountant.users.stop)
        return stop - learner.clock_

    def serve(self, sent: Sequence[Any], ids: list[Any] | None, nobody: Mask) -> list[Any]:
        """Serves the next users, no more than there is `room` for: what each is to be told.

        In place of what cannot be told the error stands, for that user alone.  That they were
        served is then on disk, if the learner has a store for rows.
        """
        learner, n = self._learner, len(sent)
        users = range(learner.clock_, learner.clock_ + n)
        numbers = np.arange(users.start, users.stop)
        shown, void = learner._served(sent, ids, nobody, numbers)
        self._keep(shown)
        if np.count_nonzero(void):
            self._null_answers.update(numbers[void].tolist())
        learner._failed = True  # until it is on disk
        learner._kept.served(users.stop)
        learner._failed = False
        actions = learner._revealed(shown)
        return [self._told(action, user) for user, action in zip(users, actions, strict=True)]

    def _told(self, action: Any, user: int) -> Any:
        try:
            return self._learner._to_show(action, user)
        except BaseException as error:  # of a learner of somebody's own
            if from_outside(error):
                raise
            return error if isinstance(error, Exception) else RuntimeError(_UNTOLD)

    def _keep(self, shown: Shown[tuple[Own, Items], Act]) -> None:
        self._shown.append(shown)
        self._loose += 1
        if self._loose == _TOGETHER:
            self._shown[-_TOGETHER:] = [Shown.together(self._shown[-_TOGETHER:])]
            self._loose = 0

    def has_answered(self, user: int) -> bool:
        """Whether an open user has."""
        return user in self._heard

    def answer(self, heard: Mapping[int, float | Array]) -> None:
        """Takes first answers of open users, by index; returns when on disk, with a store."""
        learner = self._learner
        self._heard.update(heard)
        if learner._kept.stores:
            learner._failed = True  # until they are on disk
            rows = [self._delivered(range(user, user + 1))[0] for user in heard]
            learner._kept.answered(rows, learner._needed_from)
            learner._failed = False

    def forget(self, person: Any) -> None:
        """As the learner's `forget`; lets go of the data of open users, too."""
        self.forgetting = True
        try:
            self._learner.forget(person)
        finally:
            self.forgetting = False
            self._shown = [shown.without_forgotten() for shown in self._shown]

    @property
    def batch(self) -> range:
        """The first batch that is open, with those of it that came before a restart."""
        learner = self._learner
        if self.first == learner._accountant.users.stop:
            return range(self.first, self.first)
        begin = learner._pending[0].users.start if learner._pending else self.first
        return range(begin, learner._next_change())

    def close(self, stop: int) -> None:
        """Learns from all rows up to the end of the first batch that is open.

        Users who were not served by then count as absent.
        """
        learner = self._learner
        served = range(self.first, min(stop, learner.clock_))
        parts, missing = [*learner._pending], range(learner.clock_, stop)
        learner._failed = True  # until the release is whole
        # the registry first: one that is behind the store is taken for an older copy
        never = [learner._absent(missing)] if missing else []
        learner._kept.closing(stop)
        if len(served):
            rows, usable = self._delivered(served)
            parts.append(rows)
            self._tell(served, usable)
        if missing:
            learner._tell_absent(missing)
            learner._pass(len(missing))
        parts += never
        self._let_go(served)
        self.first, clock = stop, max(stop, learner.clock_)
        learner._pending, learner.clock_ = [], stop  # as when nobody of the next batch has come
        try:
            learner._learn(Rows.concat(parts))
        finally:
            learner.clock_ = clock  # whatever ended it: no index is given out twice
        learner._kept.over(stop)
        learner._failed = False

    def close_batch(self) -> None:
        """Closes the first batch that is open; users of it who have not come yet are absent.

        Raises:
            HorizonError: all batches are closed.
            RuntimeError: a release failed before.
        """
        learner = self._learner
        if self.first == learner._accountant.users.stop or learner._failed:
            learner._check_running()
        self.close(learner._next_change())

    def _delivered(self, users: range) -> tuple[Rows[Heard], Mask]:
        learner, first = self._learner, users.start
        never = np.full(learner.answer_shape, np.nan)
        heard = np.array([self._heard.get(user, never) for user in users], dtype=np.float64)
        came = np.array([user in self._heard for user in users], dtype=np.bool_)
        usable = np.zeros(len(users), dtype=np.bool_)

        def environment(visit: tuple[Own, Items], action: Act) -> Heard:
            own, numbers = visit
            places = numbers - first
            reply = learner._replying(heard[places])(own, action)
            usable[places[learner._usable_answers(reply)]] = True
            return reply

        shown = Shown.together(self._of(users))
        if not came.all():
            shown = shown.only(came)
        return shown.deliver(Calls(environment, (learner,))), usable

    def _of(self, users: range) -> list[Shown[tuple[Own, Items], Act]]:
        found = []
        begin = bisect_right(self._shown, users.start, key=lambda shown: shown.users.start) - 1
        for shown in islice(self._shown, max(begin, 0), None):
            if shown.users.start >= users.stop:
                break
            low = max(shown.users.start, users.start)
            high = min(shown.users.stop, users.stop)
            if low < high:
                whole = high - low == len(shown.users)
                found.append(shown if whole else shown.part(range(low, high)))
        return found

    def _let_go(self, users: range) -> None:
        self._shown = self._of(range(users.stop, self._learner.clock_))
        self._loose = min(self._loose, len(self._shown))
        for user in users:
            self._heard.pop(user, None)
        self._null_answers.difference_update(users)

    def _tell(self, users: range, usable: Mask) -> None:
        for user in np.flatnonzero(~usable):
            index = users[int(user)]
            if index not in self._heard:
                self._learner._notify(index, _NO_ANSWER)
            elif index not in self._null_answers:
                self._learner._notify(index, self._learner._complaint(data=False))
